/*
 * API keys.  Only their SHA-256 is kept; a key is 256 random bits, so a plain hash cannot be searched back.
 */
#include "internal.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    char tenant[IS_MAX_NAME];
    char hash[65];
} entry;

struct is_keys {
    entry *entries;
    size_t n;
};

void is_server_key_hash(const char *key, char out[65])
{
    uint8_t digest[32] = {0};
    (void)gnutls_hash_fast(GNUTLS_DIG_SHA256, key, strlen(key), digest);
    for (int i = 0; i < 32; i++) (void)snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

static bool is_hash(const char *text, size_t n)
{
    return n == 64 && strspn(text, "0123456789abcdef") >= 64;
}

static is_status read_line(is_keys *keys, const char *line, size_t n, int number, is_error *err)
{
    const char *end = line + n;
    while (line < end && (*line == ' ' || *line == '\t')) line++;
    while (end > line && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r')) end--;
    if (line == end || *line == '#') return IS_OK;
    size_t name = 0;
    while (line + name < end && line[name] != ' ' && line[name] != '\t') name++;
    const char *hash = line + name;
    while (hash < end && (*hash == ' ' || *hash == '\t')) hash++;
    if (name >= IS_MAX_NAME || !is_utf8_valid(line, name) || !is_hash(hash, (size_t)(end - hash)))
        return is_fail(err, IS_EINVAL,
                       "line %d of the keys is not \"TENANT SHA256\"; `inferscale key TENANT` makes a key and its line",
                       number);
    entry *grown = realloc(keys->entries, (keys->n + 1) * sizeof *grown);
    if (grown == NULL) return is_fail(err, IS_ENOMEM, "no memory for the keys");
    keys->entries = grown;
    entry *e = &grown[keys->n++];
    memcpy(e->tenant, line, name);
    e->tenant[name] = '\0';
    memcpy(e->hash, hash, 64);
    e->hash[64] = '\0';
    return IS_OK;
}

is_status is_keys_open(const char *text, is_keys **out, is_error *err)
{
    is_keys *keys = *out = calloc(1, sizeof *keys);
    if (keys == NULL) return is_fail(err, IS_ENOMEM, "no memory for the keys");
    is_status status = IS_OK;
    for (int number = 1; status == IS_OK && *text != '\0'; number++) {
        size_t n = strcspn(text, "\n;"); /* ; since an environment variable has no lines */
        status = read_line(keys, text, n, number, err);
        text += n + (text[n] != '\0');
    }
    if (status == IS_OK && keys->n == 0)
        status = is_fail(err, IS_EINVAL, "the keys have no entry; `inferscale key TENANT` makes one");
    if (status == IS_OK) return IS_OK;
    is_keys_close(keys);
    *out = NULL;
    return status;
}

/* All entries are looked at, each as a whole, so that the time says nothing about how near a guess was. */
const char *is_keys_tenant(const is_keys *keys, const char *key)
{
    char hash[65];
    const char *found = NULL;
    is_server_key_hash(key, hash);
    for (size_t i = 0; i < keys->n; i++)
        if (gnutls_memcmp(hash, keys->entries[i].hash, 64) == 0) found = keys->entries[i].tenant;
    return found;
}

void is_keys_close(is_keys *keys)
{
    if (keys == NULL) return;
    free(keys->entries);
    free(keys);
}
