/*
 * Chunks between a shared folder and another engine's paged cache.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../kv/hash.h"
#include "internal.h"

#define MAX_THREADS  16
#define LOOK_SECONDS 2 /* between looks for forgotten chunks */

int is_connector_done(is_status status, const is_error *err, char *text)
{
    if (text != NULL) (void)snprintf(text, IS_CONNECTOR_TEXT, "%s", status == IS_OK ? "" : err->text);
    return (int)status;
}

/* ------------------------------------------------------------ forgotten chunks */

/* Asked again under the lock: a chunk that was forgotten may have been made anew since it was listed. */
static void drop_if_forgotten(const is_connector *c, int64_t number, const uint8_t bytes_of_key[IS_KEY_BYTES])
{
    char key[IS_CONNECTOR_KEY + 1], name[IS_PART_NAME];
    is_part_key_of(bytes_of_key, key);
    is_part_name(key, c->rank, c->world, name);
    if (faccessat(c->folder_fd, name, R_OK, 0) == 0) return;
    is_dev *locked = is_part_lock(c);
    if (faccessat(c->folder_fd, name, R_OK, 0) != 0) is_part_drop(c, number);
    is_part_unlock(locked);
}

/* Where a list cannot be had, the next look is soon. */
static void drop_forgotten(const is_connector *c)
{
    is_listed *held;
    is_device_pool_listed *on_device;
    size_t n;
    if (is_tier_list(c->tier, &held, &n, NULL) == IS_OK) {
        for (size_t i = 0; i < n; i++) drop_if_forgotten(c, held[i].fact, held[i].key);
        free(held);
    }
    if (c->dev != NULL && is_dev_list(c->dev, &on_device, &n, NULL) == IS_OK) {
        for (size_t i = 0; i < n; i++) drop_if_forgotten(c, on_device[i].number, on_device[i].key);
        free(on_device);
    }
}

/* False: the connector is being closed. */
static bool wait_to_look(is_connector *c)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += LOOK_SECONDS;
    int error = 0;
    (void)pthread_mutex_lock(&c->mutex);
    while (!c->ends && error == 0) error = pthread_cond_timedwait(&c->ending, &c->mutex, &until);
    bool ends = c->ends;
    (void)pthread_mutex_unlock(&c->mutex);
    return !ends;
}

static void *look(void *arg)
{
    is_connector *c = arg;
    while (wait_to_look(c)) drop_forgotten(c);
    return NULL;
}

/* The thread takes no signals, which are the engine's. */
static is_status start_looking(is_connector *c, is_error *err)
{
    pthread_condattr_t clock;
    sigset_t all, before;
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&c->mutex, NULL);
    (void)pthread_cond_init(&c->ending, &clock);
    (void)pthread_condattr_destroy(&clock);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&c->looker, NULL, look, c);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    c->looks = error == 0;
    return c->looks ? IS_OK : is_fail(err, IS_ENOMEM, "cannot start the connector's thread: %s", strerror(error));
}

static void stop_looking(is_connector *c)
{
    if (!c->looks) return;
    (void)pthread_mutex_lock(&c->mutex);
    c->ends = true;
    (void)pthread_cond_signal(&c->ending);
    (void)pthread_mutex_unlock(&c->mutex);
    (void)pthread_join(c->looker, NULL);
    (void)pthread_cond_destroy(&c->ending);
    (void)pthread_mutex_destroy(&c->mutex);
}

/* ------------------------------------------------------------ opening */

static is_status read_scaling(const char *name, is_rope_scaling *out, is_error *err)
{
    static const struct {
        const char *name;
        is_rope_scaling scaling;
    } all[] = {{"none", IS_SCALING_NONE},
               {"linear", IS_SCALING_LINEAR},
               {"yarn", IS_SCALING_YARN},
               {"llama3", IS_SCALING_LLAMA3}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(name, all[i].name) == 0) {
            *out = all[i].scaling;
            return IS_OK;
        }
    return is_fail(err, IS_EUNSUPPORTED, "rotary scaling \"%s\" is not one that chunks can be moved with", name);
}

static is_status read_rope(json_t *rope, is_layout *layout, is_error *err)
{
    is_rope_params p = {
        .factor = 1, .beta_fast = 32, .beta_slow = 1, .extrapolation = 1, .low_freq_factor = 1, .high_freq_factor = 4};
    const char *style = "half", *scaling = "none";
    int width = 0, offset = 0, original = 0;
    json_error_t why;
    if (json_is_null(rope)) return IS_OK;
    if (json_unpack_ex(rope, &why, 0, "{s:s, s?i, s:i, s:F, s?s, s?F, s?i, s?F, s?F, s?F, s?F, s?F}", "style", &style,
                       "offset", &offset, "width", &width, "base", &p.base, "scaling", &scaling, "factor", &p.factor,
                       "original_context", &original, "beta_fast", &p.beta_fast, "beta_slow", &p.beta_slow,
                       "attention_factor", &p.attention_factor, "low_freq_factor", &p.low_freq_factor,
                       "high_freq_factor", &p.high_freq_factor) != 0 ||
        width <= 0 || offset < 0 || original < 0)
        return is_fail(err, IS_EINVAL, "the connector's rope is not what it must be: %s", why.text);
    p.style = strcmp(style, "pair") == 0 ? IS_ROPE_PAIR : IS_ROPE_HALF;
    p.width = (uint32_t)width;
    p.offset = (uint32_t)offset;
    p.original_context = (uint32_t)original;
    is_status status = read_scaling(scaling, &p.scaling, err);
    layout->n_ropes = 1;
    return status == IS_OK ? is_rope_init(&layout->ropes[0], &p, err) : status;
}

static is_status read_config(is_connector *c, json_t *config, uint64_t *budget, is_error *err)
{
    const char *folder, *fingerprint, *dtype;
    int rank, world, threads, layers, heads, k_dim, v_dim;
    json_int_t bytes;
    json_t *rope;
    json_error_t why;
    if (json_unpack_ex(config, &why, JSON_STRICT, "{s:s, s:i, s:i, s:I, s:i, s:s, s:s, s:i, s:i, s:i, s:i, s:o}",
                       "folder", &folder, "rank", &rank, "world", &world, "budget", &bytes, "threads", &threads,
                       "fingerprint", &fingerprint, "dtype", &dtype, "layers", &layers, "heads", &heads, "k_dim",
                       &k_dim, "v_dim", &v_dim, "rope", &rope) != 0)
        return is_fail(err, IS_EINVAL, "the connector's settings are not what they must be: %s", why.text);
    if (rank < 0 || rank >= world || bytes < 0 || layers < 1 || layers > IS_MAX_LAYERS || heads < 1 || k_dim < 1 ||
        v_dim < 0 || !is_hex(fingerprint, 2 * sizeof c->fingerprint))
        return is_fail(err, IS_EINVAL, "the connector's settings have a number or a fingerprint out of range");
    c->folder = strdup(folder);
    if (c->folder == NULL) return is_fail(err, IS_ENOMEM, "no memory for the connector");
    c->rank = (uint32_t)rank;
    c->world = (uint32_t)world;
    c->threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : (uint32_t)threads;
    *budget = (uint64_t)bytes;
    is_hex_bytes(fingerprint, c->fingerprint, sizeof c->fingerprint);
    c->layout.dtype = strcmp(dtype, "bf16") == 0 ? IS_BF16 : IS_F16;
    if (strcmp(dtype, "bf16") != 0 && strcmp(dtype, "f16") != 0)
        return is_fail(err, IS_EUNSUPPORTED, "a cache of %s is not supported yet; use bfloat16 or float16", dtype);
    c->layout.n_layers = (uint32_t)layers;
    for (int l = 0; l < layers; l++)
        c->layout.layers[l] = (is_layer){.heads = (uint32_t)heads,
                                         .k_dim = (uint32_t)k_dim,
                                         .v_dim = (uint32_t)v_dim,
                                         .rope = json_is_null(rope) ? IS_LAYER_NO_ROPE : 0};
    is_status status = read_rope(rope, &c->layout, err);
    return status == IS_OK ? is_layout_check(&c->layout, err) : status;
}

static is_status open_folder(is_connector *c, is_error *err)
{
    if (mkdir(c->folder, 0700) == 0 || errno == EEXIST)
        c->folder_fd = open(c->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->folder_fd >= 0) return IS_OK;
    return is_fail(err, IS_EIO, "cannot open the folder of chunks %s: %s; check the path and its permissions",
                   c->folder, strerror(errno));
}

/* Chunks of another layout are another model's. */
static void mix_layout(is_connector *c)
{
    uint8_t layout[16];
    is_layout_hash(&c->layout, layout);
    is_hash128((is_span[]){{c->fingerprint, 16}, {layout, 16}}, 2, c->fingerprint);
}

int is_connector_open(const char *config, is_connector **out, char *text)
{
    is_error err = {0};
    json_error_t why;
    uint64_t budget = 0;
    is_status status = IS_OK;
    *out = NULL;
    is_connector *c = calloc(1, sizeof *c);
    if (c == NULL) return is_connector_done(is_fail(&err, IS_ENOMEM, "no memory for the connector"), &err, text);
    c->folder_fd = -1;
    json_t *settings = json_loads(config, 0, &why);
    if (settings == NULL)
        status = is_fail(&err, IS_EINVAL, "the connector's settings are no JSON: %s", why.text);
    else
        status = read_config(c, settings, &budget, &err);
    json_decref(settings);
    if (status == IS_OK) mix_layout(c);
    if (status == IS_OK) status = open_folder(c, &err);
    if (status == IS_OK) status = is_tier_open(budget, &c->tier, &err);
    if (status == IS_OK) status = start_looking(c, &err);
    if (status != IS_OK)
        is_connector_close(c);
    else
        *out = c;
    return is_connector_done(status, &err, text);
}

void is_connector_close(is_connector *connector)
{
    if (connector == NULL) return;
    stop_looking(connector);
    if (connector->dev != NULL) is_dev_close(connector->dev);
    is_tier_close(connector->tier);
    for (uint32_t l = 0; l < IS_MAX_LAYERS; l++) is_paged_order_free(&connector->orders[l]);
    if (connector->folder_fd >= 0) (void)close(connector->folder_fd);
    free(connector->folder);
    free(connector);
}

static is_status check_layer(const is_connector *c, uint32_t layer, is_error *err)
{
    if (layer < c->layout.n_layers) return IS_OK;
    return is_fail(err, IS_EINVAL, "layer %u of a model with %u", layer, c->layout.n_layers);
}

int is_connector_eight_bits(is_connector *c, uint32_t layer, float k_scale, float v_scale, char *text)
{
    is_error err = {0};
    is_status status = check_layer(c, layer, &err);
    if (status == IS_OK && c->dev == NULL)
        status = is_fail(&err, IS_EUNSUPPORTED, "a cache of 8 bits can be written on a device only");
    if (status == IS_OK) {
        c->eight_bits = true;
        c->dev_is_told = false;
        c->scales[layer][0] = k_scale;
        c->scales[layer][1] = v_scale;
    }
    return is_connector_done(status, &err, text);
}

int is_connector_cache(is_connector *c, uint32_t layer, void *base, uint64_t block_stride, uint32_t n_blocks,
                       uint32_t block_tokens, const uint16_t *low, const uint16_t *high, uint64_t block_elements,
                       char *text)
{
    is_error err = {0};
    is_status status = check_layer(c, layer, &err);
    if (status != IS_OK) return is_connector_done(status, &err, text);
    const is_layer *o = &c->layout.layers[layer];
    c->dev_is_told = false;
    is_paged_order_free(&c->orders[layer]);
    status =
        is_paged_learn(low, high, block_elements, block_tokens, o->heads, o->k_dim, o->v_dim, &c->orders[layer], &err);
    if (status == IS_OK)
        c->caches[layer] = (is_paged_cache){
            .base = base, .block_stride = block_stride, .n_blocks = n_blocks, .order = &c->orders[layer]};
    return is_connector_done(status, &err, text);
}

/* ------------------------------------------------------------ loading */

/* A chunk's pin, from memory or from its file.  A chunk whose file is gone was forgotten, and goes from memory too. */
static is_status pin(const is_connector *c, const char *key, is_held *h, is_error *err)
{
    char name[IS_PART_NAME];
    uint8_t *bytes_of_key = h->keys[h->n_pins];
    if (!is_part_key(key))
        return is_fail(err, IS_EINVAL, "a key has characters that are no lower-case hexadecimal digits");
    is_part_name(key, c->rank, c->world, name);
    is_want want = {.fact = h->numbers[h->n_pins] = is_part_number(key, bytes_of_key)};
    if (faccessat(c->folder_fd, name, R_OK, 0) != 0) {
        int why = errno;
        is_part_drop(c, want.fact);
        return is_fail(err, IS_ENOTFOUND, "chunk %s is not there: %s", name, strerror(why));
    }
    is_status status = is_tier_claim(c->tier, bytes_of_key, &want, 1, true, err);
    if (status != IS_OK) return status;
    if (want.pin == NULL) { /* another key with the same number */
        is_tier_drop(c->tier, want.fact);
        return is_fail(err, IS_ENOTFOUND, "chunk %s gave way to another", name);
    }
    if (want.mine) {
        void *bytes;
        is_chunk chunk;
        status = is_part_read(c, name, &bytes, &chunk, err);
        if (status == IS_OK) is_tier_reserve(c->tier, want.pin, chunk.size);
        /* So that whoever plans sees that it is to be made anew. */
        if (status == IS_ECORRUPT) (void)unlinkat(c->folder_fd, name, 0);
        if (!is_tier_finish(c->tier, want.pin, bytes, &chunk))
            return status != IS_OK ? status : is_fail(err, IS_ENOTFOUND, "chunk %s was dropped", name);
    }
    h->pins[h->n_pins++] = want.pin;
    return IS_OK;
}

/* Pins the chunks up to `end`, or to the first that cannot be used: *reach is where the tokens end that are right. */
static is_status pin_all(const is_connector *c, const char *keys, const uint32_t *lengths, uint32_t n,
                         const int32_t *tokens, uint32_t n_tokens, uint32_t end, is_held *h, uint32_t *reach,
                         is_error *err)
{
    *reach = 0;
    for (uint32_t i = 0; i < n && *reach < end; i++) {
        is_status status = pin(c, keys + (size_t)i * IS_CONNECTOR_KEY, h, err);
        if (status != IS_OK) return status;
        const is_chunk *chunk = is_pin_chunk(h->pins[i]);
        if (chunk->info.n_tokens != lengths[i] || lengths[i] > n_tokens - *reach ||
            memcmp(chunk->tokens, tokens + *reach, lengths[i] * sizeof *tokens) != 0)
            return is_fail(err, IS_EINVAL, "chunk %.*s is of other tokens than the prompt has there", IS_CONNECTOR_KEY,
                           keys + (size_t)i * IS_CONNECTOR_KEY);
        h->placed[h->n++] = (is_placed){chunk, (int32_t)*reach};
        *reach += lengths[i];
    }
    return IS_OK;
}

/* A thread's share of the layers. */
typedef struct share {
    const is_connector *c;
    const is_placed *placed;
    uint32_t n;
    const uint32_t *blocks;
    uint32_t n_blocks, begin, end, layer_begin, layer_end;
    is_status status;
    is_error err;
} share;

static void *write_share(void *arg)
{
    share *s = arg;
    s->status = is_paged_write(&s->c->layout, s->c->caches, s->placed, s->n, s->blocks, s->n_blocks, s->begin, s->end,
                               s->layer_begin, s->layer_end, &s->err);
    return NULL;
}

static is_status write_all(const is_connector *c, const is_held *h, const uint32_t *blocks, uint32_t n_blocks,
                           uint32_t begin, uint32_t end, is_error *err)
{
    share shares[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    bool started[MAX_THREADS] = {false};
    uint32_t n = c->threads < c->layout.n_layers ? c->threads : c->layout.n_layers;
    for (uint32_t i = 0; i < n; i++) {
        shares[i] = (share){.c = c,
                            .placed = h->placed,
                            .n = h->n,
                            .blocks = blocks,
                            .n_blocks = n_blocks,
                            .begin = begin,
                            .end = end,
                            .layer_begin = c->layout.n_layers * i / n,
                            .layer_end = c->layout.n_layers * (i + 1) / n};
        started[i] = i > 0 && pthread_create(&threads[i], NULL, write_share, &shares[i]) == 0;
    }
    for (uint32_t i = 0; i < n; i++)
        if (!started[i]) (void)write_share(&shares[i]);
    is_status status = IS_OK;
    for (uint32_t i = 0; i < n; i++) {
        if (started[i]) (void)pthread_join(threads[i], NULL);
        if (shares[i].status == IS_OK) continue;
        status = shares[i].status;
        *err = shares[i].err;
    }
    return status;
}

/* *reach: where the tokens end that are right, and that there is room for. */
static is_status load_held(is_connector *c, is_held *h, const uint32_t *blocks, uint32_t n_blocks, uint32_t begin,
                           uint32_t end, uint32_t *reach, is_error *err)
{
    if (*reach > end) *reach = end;
    if (*reach <= begin) return IS_OK;
    return c->dev != NULL ? is_load_on_device(c, h, blocks, n_blocks, begin, *reach, reach, err)
                          : write_all(c, h, blocks, n_blocks, begin, *reach, err);
}

int is_connector_load(is_connector *c, const char *keys, const uint32_t *lengths, uint32_t n, const int32_t *tokens,
                      uint32_t n_tokens, const uint32_t *blocks, uint32_t n_blocks, uint32_t begin, uint32_t end,
                      uint32_t *loaded, char *text)
{
    is_error err = {0}, why = {0};
    *loaded = begin;
    if (begin > end || end > n_tokens || n > IS_CONNECTOR_CHUNKS)
        return is_connector_done(
            is_fail(&err, IS_EINVAL, "tokens %u to %u of a prompt of %u with %u chunks", begin, end, n_tokens, n), &err,
            text);
    is_held *h = calloc(1, sizeof *h);
    if (h == NULL) return is_connector_done(is_fail(&err, IS_ENOMEM, "no memory for %u chunks", n), &err, text);
    uint32_t right, reach;
    is_dev *locked = is_part_lock(c);
    is_status found = pin_all(c, keys, lengths, n, tokens, n_tokens, end, h, &right, &why);
    reach = right;
    is_status status = load_held(c, h, blocks, n_blocks, begin, end, &reach, &err);
    is_part_unlock(locked);
    if (status == IS_OK) *loaded = reach > begin ? reach : begin;
    for (uint32_t i = 0; i < h->n_pins; i++)
        if (h->pins[i] != NULL) is_tier_unpin(c->tier, h->pins[i], false);
    free(h);
    if (status == IS_OK && *loaded < end) {
        const char *short_of =
            right > reach ? "the device has no room for more chunks at once" : "the chunks end before that";
        (void)snprintf(text, IS_CONNECTOR_TEXT, "%s", found != IS_OK && right <= reach ? why.text : short_of);
        return (int)IS_OK;
    }
    return is_connector_done(status, &err, text);
}

int is_connector_rotate(const is_connector *c, float *rows, uint32_t n, int64_t shift, char *text)
{
    is_error err = {0};
    if (c->layout.n_ropes == 0)
        return is_connector_done(is_fail(&err, IS_EUNSUPPORTED, "the model has no rotation"), &err, text);
    is_rotation rotation;
    is_rope rope = c->layout.ropes[0];
    rope.offset = 0; /* the rows are the rotated slice alone */
    is_rotation_init(&rotation, &rope, shift);
    size_t row = rope.width * sizeof *rows;
    is_rotate_rows(is_isa_best(), IS_F32, &rope, &rotation, 1, rope.width, (uint8_t *)rows, row, (uint8_t *)rows, row,
                   n);
    return is_connector_done(IS_OK, &err, text);
}
