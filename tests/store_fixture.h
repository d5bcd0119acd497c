/*
 * What the store's tests share: a folder that goes away, and small chunks whose rows tell which fact they are of.
 */
#ifndef STORE_FIXTURE_H
#define STORE_FIXTURE_H

#include "store/store.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIXTURE_PATH 256

static inline void fixture_folder(char out[FIXTURE_PATH])
{
    const char *base = getenv("TMPDIR");
    /* these tests sync all the time: memory is kinder to the disk and shows the same */
    if (base == NULL) base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : P_tmpdir;
    (void)snprintf(out, FIXTURE_PATH, "%s/is-store-XXXXXX", base);
    if (mkdtemp(out) == NULL) abort();
}

static inline int fixture_unlink(const char *path, const struct stat *about, int kind, struct FTW *walk)
{
    (void)about;
    (void)kind;
    (void)walk;
    return remove(path);
}

static inline void fixture_remove(const char *folder)
{
    (void)nftw(folder, fixture_unlink, 16, FTW_DEPTH | FTW_PHYS);
}

static inline is_store *fixture_open(const char *folder, uint64_t budget)
{
    is_store *store = NULL;
    is_error err = {0};
    if (is_store_open(&(is_store_options){folder, budget}, &store, &err) != IS_OK) {
        (void)fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return store;
}

/* Two layers of one head of 4 + 4 elements, f16. */
static inline void fixture_layout(is_layout *layout)
{
    memset(layout, 0, sizeof *layout);
    layout->dtype = IS_F16;
    layout->n_layers = 2;
    for (int i = 0; i < 2; i++)
        layout->layers[i] = (is_layer){.heads = 1, .k_dim = 4, .v_dim = 4, .rope = IS_LAYER_NO_ROPE};
}

/* A sealed chunk of n tokens for a fact: its first token is the fact's number, its rows are made from `salt`. */
static inline void *fixture_chunk(int64_t fact, uint32_t n_tokens, uint8_t salt, const is_chunk_key *key, size_t *size)
{
    is_layout layout;
    fixture_layout(&layout);
    is_chunk_info info = {.p_ref = 7, .n_tokens = n_tokens};
    memcpy(info.fingerprint, key->fingerprint, sizeof info.fingerprint);
    (void)snprintf(info.recipe, sizeof info.recipe, "%s", key->recipe);
    int32_t *tokens = calloc(n_tokens, sizeof *tokens);
    *size = is_chunk_bytes(&layout, n_tokens);
    void *bytes = is_chunk_memory(*size);
    if (tokens == NULL || bytes == NULL) abort();
    tokens[0] = (int32_t)fact;
    if (is_chunk_begin(bytes, *size, &layout, &info, tokens, NULL) != IS_OK) abort();
    for (uint32_t layer = 0; layer < 2; layer++) {
        uint8_t *k = NULL;
        uint8_t *v = NULL;
        uint32_t first = 0;
        uint32_t n = 0;
        is_chunk_rows_mut(bytes, layer, &k, &v, &first, &n);
        /* 0x3Cxx is an f16 a little above 1 */
        for (uint32_t i = 0; i < n * 4; i++) {
            ((uint16_t *)(void *)k)[i] = (uint16_t)(0x3C00 + salt);
            ((uint16_t *)(void *)v)[i] = (uint16_t)(0x3C00 + i % 256);
        }
    }
    is_chunk_seal(bytes);
    free(tokens);
    return bytes;
}

static inline is_chunk_key fixture_key(uint8_t n)
{
    is_chunk_key key = {.recipe = "primed:8"};
    memset(key.fingerprint, n, sizeof key.fingerprint);
    memset(key.header, 0x55, sizeof key.header);
    return key;
}

#endif
