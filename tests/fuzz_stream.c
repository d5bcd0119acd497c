/*
 * Fuzzes the reader of vLLM's streams: any bytes, cut anywhere.  Whatever is handed on is UTF-8 and lies in memory, and
 * how the bytes are cut changes nothing.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/vllm/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct sum {
    size_t n;
    uint32_t value;
} sum;

static void add(sum *s, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) s->value = s->value * 31 + (unsigned char)bytes[i];
    s->n += n;
}

static bool on_piece(void *user, const char *piece, size_t n)
{
    if (!is_utf8_valid(piece, n)) abort();
    add(user, piece, n);
    return ((sum *)user)->n < 4000;
}

static void on_logprob(void *user, const is_token_logprob *tokens, size_t n)
{
    if (n == 0 || n > 3) abort();
    for (size_t i = 0; i < n; i++) add(user, tokens[i].piece, tokens[i].n_piece);
}

static sum read_in(const uint8_t *data, size_t size, size_t step)
{
    sum total = {0, 0};
    const is_run run = {.max_tokens = 1,
                        .n_logprobs = 2,
                        .on_logprob = on_logprob,
                        .on_token = on_piece,
                        .on_reasoning = on_piece,
                        .user = &total};
    is_vllm_stream stream;
    is_vllm_stream_open(&stream, &run);
    for (size_t at = 0; at < size; at += step) {
        size_t n = size - at < step ? size - at : step;
        char *part = malloc(n); /* of its own, so that the sanitizer sees a step beyond it */
        memcpy(part, data + at, n);
        bool goes_on = is_vllm_stream_take(&stream, part, n);
        free(part);
        if (!goes_on) break;
    }
    if (stream.text != NULL && strlen(stream.text) > stream.n_text) abort();
    total.value += (uint32_t)stream.done + 2 * (uint32_t)stream.failed + 4 * (uint32_t)stream.canceled;
    is_vllm_stream_close(&stream);
    return total;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sum whole = read_in(data, size, size > 0 ? size : 1), cut = read_in(data, size, 7);
    if (whole.n != cut.n || whole.value != cut.value) abort();
    return 0;
}
