/*
 * What a launch needs is put together in pinned memory and copied in one piece: the pieces, the angles of each chunk
 * and the blocks of each prompt.  There are SLOTS such arguments, so that the host can be some launches ahead.
 */
#include "cache.h"

#include <stdlib.h>
#include <string.h>

#include "../kv/chunk_format.h"

#define SLOTS 4
#define ALIGN 256 /* of what is put together, so that every part of it is */

_Static_assert(sizeof(is_move_record) == sizeof(chunk_record) &&
                   offsetof(is_move_record, k_offset) == offsetof(chunk_record, k_offset) &&
                   offsetof(is_move_record, v_offset) == offsetof(chunk_record, v_offset),
               "the kernels read the records of chunks");
_Static_assert(IS_CELL_F16 == (int)IS_F16 && IS_CELL_BF16 == (int)IS_BF16, "a chunk's type is a cell's");

/* Arguments of one launch, here and on the device. */
typedef struct slot {
    uint8_t *host, *device;
    size_t size;
    is_cuda_event *used; /* when the device is done with them */
} slot;

struct is_device_cache {
    is_layout layout;
    is_move_layer layers[IS_MAX_LAYERS]; /* as they are on the device */
    is_move_layer *on_device;
    uint32_t *orders; /* on the device: all `at` */
    void *uploaded;   /* what they are copied from, until they are there */
    uint32_t block_tokens, n_blocks;
    is_cell cell;
    uint32_t angles; /* floats of one chunk's */
    slot slots[SLOTS];
    uint32_t next;
    is_move move; /* of the batch that was begun */
    slot *current;
};

is_device_layer is_device_layer_of(const is_paged_order *order, void *base, uint64_t block_stride)
{
    is_device_layer layer = {{0}, {0}};
    const is_paged_part *parts[] = {&order->k, &order->v};
    is_move_part *out[] = {&layer.k, &layer.v};
    for (int i = 0; i < 2; i++) {
        if (parts[i]->at == NULL) continue; /* no V */
        bool rows = parts[i]->row_stride != 0;
        *out[i] = (is_move_part){.base = base,
                                 .block_stride = block_stride,
                                 .at = rows ? NULL : parts[i]->at,
                                 .first = parts[i]->at[0],
                                 .row_stride = parts[i]->row_stride,
                                 .head_stride = parts[i]->head_stride,
                                 .scale = 1};
    }
    return layer;
}

/* ------------------------------------------------------------ opening */

static uint32_t cell_bytes(is_cell cell)
{
    return cell == IS_CELL_E4M3 ? 1 : 2;
}

static is_status check_layer(const is_layout *layout, uint32_t l, const is_device_layer *given, is_cell cell,
                             is_error *err)
{
    const is_layer *o = &layout->layers[l];
    if (o->window != 0 || layout->v_transposed || is_dtype_size(layout->dtype) != 2)
        return is_fail(err, IS_EINVAL, "device cache: layer %u has a window, or elements that are not 16 bits in rows",
                       l);
    if (cell != IS_CELL_E4M3 && (uint32_t)cell != (uint32_t)layout->dtype)
        return is_fail(err, IS_EINVAL, "device cache: chunks are %s and the cache keeps another 16-bit type",
                       is_dtype_name(layout->dtype));
    if (given->k.base == NULL || (o->v_dim != 0 && given->v.base == NULL))
        return is_fail(err, IS_EINVAL, "device cache: layer %u has no memory", l);
    if (cell == IS_CELL_E4M3 && (!(given->k.scale > 0) || (o->v_dim != 0 && !(given->v.scale > 0))))
        return is_fail(err, IS_EINVAL, "device cache: the scales of layer %u must be above 0", l);
    return IS_OK;
}

/* Whether runs of 8 elements are whole and aligned everywhere in this part. */
static bool has_vectors(const is_move_part *part, uint32_t dim, is_cell cell)
{
    size_t run = 8 * (size_t)cell_bytes(cell);
    return part->at == NULL && dim % 8 == 0 && (uintptr_t)part->base % run == 0 && part->block_stride % run == 0 &&
           part->first % 8 == 0 && part->row_stride % 8 == 0 && part->head_stride % 8 == 0;
}

static void describe_layer(is_device_cache *c, uint32_t l, const is_device_layer *given)
{
    const is_layer *o = &c->layout.layers[l];
    is_move_layer *layer = &c->layers[l];
    *layer = (is_move_layer){.k = given->k, .v = given->v, .heads = o->heads, .k_dim = o->k_dim, .v_dim = o->v_dim};
    bool vectors = has_vectors(&given->k, o->k_dim, c->cell) && has_vectors(&given->v, o->v_dim, c->cell);
    if (o->rope != IS_LAYER_NO_ROPE) {
        const is_rope *rope = &c->layout.ropes[o->rope];
        layer->style = rope->style;
        layer->offset = rope->offset;
        layer->width = rope->width;
        for (uint32_t r = 0; r < o->rope; r++) layer->angles += c->layout.ropes[r].width;
        vectors = vectors && rope->offset % 8 == 0 && rope->width % (rope->style == IS_ROPE_HALF ? 16 : 8) == 0;
    }
    layer->vectors = vectors;
}

/* Bytes of all orders that are not rows, and their place in one piece of memory. */
static size_t place_orders(is_device_cache *c, uint8_t *host)
{
    size_t at = 0;
    for (uint32_t l = 0; l < c->layout.n_layers; l++) {
        const is_layer *o = &c->layout.layers[l];
        is_move_part *parts[] = {&c->layers[l].k, &c->layers[l].v};
        for (int i = 0; i < 2; i++) {
            if (parts[i]->at == NULL) continue;
            size_t size = (size_t)c->block_tokens * (i == 0 ? o->k_dim : o->v_dim) * sizeof *parts[i]->at;
            if (host != NULL) {
                memcpy(host + at, parts[i]->at, size);
                parts[i]->at = c->orders + at / sizeof *c->orders;
            }
            at += is_align_up(size, ALIGN);
        }
    }
    return at;
}

static void free_uploaded(is_device_cache *c)
{
    is_cuda_host_free(c->uploaded);
    c->uploaded = NULL;
}

/* Orders and layers onto the device, through one piece of pinned memory. */
static is_status upload(is_device_cache *c, is_error *err)
{
    size_t orders = place_orders(c, NULL), layers = c->layout.n_layers * sizeof *c->layers;
    void *device = NULL;
    is_status status = is_cuda_host_malloc(orders + layers, &c->uploaded, err);
    if (status == IS_OK) status = is_cuda_malloc(layers, &device, err);
    c->on_device = device;
    if (status == IS_OK && orders > 0) {
        status = is_cuda_malloc(orders, &device, err);
        c->orders = status == IS_OK ? device : NULL;
    }
    if (status != IS_OK) return status;
    uint8_t *host = c->uploaded;
    (void)place_orders(c, host);
    memcpy(host + orders, c->layers, layers);
    if (orders > 0) status = is_cuda_to_device(c->orders, host, orders, NULL, err);
    if (status == IS_OK) status = is_cuda_to_device(c->on_device, host + orders, layers, NULL, err);
    if (status == IS_OK) status = is_cuda_stream_wait(NULL, err);
    if (status == IS_OK) free_uploaded(c);
    return status;
}

is_status is_device_cache_new(const is_layout *layout, const is_device_layer *layers, is_cell cell,
                              uint32_t block_tokens, uint32_t n_blocks, is_device_cache **out, is_error *err)
{
    is_status status = is_layout_check(layout, err);
    *out = NULL;
    if (status == IS_OK && (block_tokens == 0 || n_blocks == 0))
        status = is_fail(err, IS_EINVAL, "device cache: %u blocks of %u tokens", n_blocks, block_tokens);
    for (uint32_t l = 0; status == IS_OK && l < layout->n_layers; l++)
        status = check_layer(layout, l, &layers[l], cell, err);
    if (status != IS_OK) return status;
    is_device_cache *c = calloc(1, sizeof *c);
    if (c == NULL) return is_fail(err, IS_ENOMEM, "no memory for the device cache's description");
    c->layout = *layout;
    c->cell = cell;
    c->block_tokens = block_tokens;
    c->n_blocks = n_blocks;
    for (uint32_t r = 0; r < layout->n_ropes; r++) c->angles += layout->ropes[r].width;
    for (uint32_t l = 0; l < layout->n_layers; l++) describe_layer(c, l, &layers[l]);
    status = upload(c, err);
    for (int i = 0; i < SLOTS && status == IS_OK; i++) status = is_cuda_event_new(&c->slots[i].used, err);
    if (status != IS_OK)
        is_device_cache_free(c);
    else
        *out = c;
    return status;
}

void is_device_cache_free(is_device_cache *c)
{
    if (c == NULL) return;
    for (int i = 0; i < SLOTS; i++) {
        if (c->slots[i].used != NULL) {
            (void)is_cuda_event_wait(c->slots[i].used, NULL);
            is_cuda_event_free(c->slots[i].used);
        }
        is_cuda_host_free(c->slots[i].host);
        is_cuda_free(c->slots[i].device);
    }
    if (c->uploaded != NULL) (void)is_cuda_stream_wait(NULL, NULL);
    free_uploaded(c);
    is_cuda_free(c->on_device);
    is_cuda_free(c->orders);
    free(c);
}

/* ------------------------------------------------------------ arguments */

/* The next slot, free of earlier use and with room for so much. */
static is_status take_slot(is_device_cache *c, size_t size, slot **out, is_error *err)
{
    slot *s = &c->slots[c->next];
    void *host, *device;
    is_status status = is_cuda_event_wait(s->used, err);
    if (status != IS_OK) return status;
    if (s->size < size) {
        size_t room = is_align_up(size + size / 2, ALIGN);
        is_cuda_host_free(s->host);
        is_cuda_free(s->device);
        *s = (slot){.used = s->used};
        status = is_cuda_host_malloc(room, &host, err);
        if (status != IS_OK) return status;
        s->host = host;
        status = is_cuda_malloc(room, &device, err);
        if (status != IS_OK) return status;
        s->device = device;
        s->size = room;
    }
    c->next = (c->next + 1) % SLOTS;
    *out = s;
    return IS_OK;
}

/* What a batch takes. */
typedef struct measure {
    size_t pieces, chunks, blocks;
} measure;

static size_t angles_at(const measure *m)
{
    return is_align_up(m->pieces * sizeof(is_move_piece), ALIGN);
}

static size_t blocks_at(const is_device_cache *c, const measure *m)
{
    return is_align_up(angles_at(m) + m->chunks * c->angles * sizeof(float), ALIGN);
}

static size_t measure_bytes(const is_device_cache *c, const measure *m)
{
    return blocks_at(c, m) + m->blocks * sizeof(uint32_t);
}

static is_status check_blocks(const is_device_cache *c, const uint32_t *blocks, size_t n_blocks, uint32_t begin,
                              uint32_t end, is_error *err)
{
    if (end > (uint64_t)n_blocks * c->block_tokens)
        return is_fail(err, IS_EINVAL, "device cache: %u tokens do not fit into %zu blocks of %u", end, n_blocks,
                       c->block_tokens);
    for (uint32_t b = begin / c->block_tokens; (uint64_t)b * c->block_tokens < end; b++)
        if (blocks[b] >= c->n_blocks)
            return is_fail(err, IS_EINVAL, "device cache: block %u of a cache of %u", blocks[b], c->n_blocks);
    return IS_OK;
}

/* The part of a chunk that is wanted, counted from its first token. */
static void wanted(const is_device_prompt *p, const is_device_placed *placed, uint32_t *first, uint32_t *last)
{
    uint64_t at = (uint64_t)placed->position, end = at + placed->chunk->info.n_tokens;
    uint64_t from = at > p->begin ? at : p->begin, to = end < p->end ? end : p->end;
    *first = from < to ? (uint32_t)(from - at) : 0;
    *last = from < to ? (uint32_t)(to - at) : 0;
}

static is_status measure_prompt(const is_device_cache *c, const is_device_prompt *p, measure *m, is_error *err)
{
    uint64_t at = 0;
    is_status status = p->begin <= p->end ? check_blocks(c, p->blocks, p->n_blocks, p->begin, p->end, err)
                                          : is_fail(err, IS_EINVAL, "device cache: tokens %u to %u", p->begin, p->end);
    for (size_t i = 0; i < p->n && status == IS_OK; i++) {
        uint32_t first, last;
        const is_device_placed *placed = &p->chunks[i];
        if (placed->position < 0 || (uint64_t)placed->position != at)
            return is_fail(err, IS_EINVAL, "device cache: chunk %zu stands at %d, the one before it ends at %llu", i,
                           placed->position, (unsigned long long)at);
        status = is_chunk_fits(placed->chunk, &c->layout, err);
        at += placed->chunk->info.n_tokens;
        wanted(p, placed, &first, &last);
        m->pieces += (last - first + IS_MOVE_TOKENS - 1) / IS_MOVE_TOKENS;
        m->chunks += first < last;
    }
    if (status == IS_OK && p->end > at)
        status = is_fail(err, IS_EINVAL, "device cache: %u tokens are wanted and the chunks have %llu", p->end,
                         (unsigned long long)at);
    m->blocks += (p->end + c->block_tokens - 1) / c->block_tokens;
    return status;
}

/* ------------------------------------------------------------ composing */

/* Where in a slot the next of each is written. */
typedef struct writer {
    const is_device_cache *c;
    slot *to;
    is_move_piece *piece;
    float *angles;
    uint32_t *blocks;
} writer;

static const void *on_device(const writer *w, const void *host)
{
    return w->to->device + ((const uint8_t *)host - w->to->host);
}

static const float *write_angles(writer *w, int64_t shift)
{
    if (shift == 0) return NULL;
    const float *begin = on_device(w, w->angles);
    for (uint32_t r = 0; r < w->c->layout.n_ropes; r++) {
        is_rotation rotation;
        uint32_t pairs = w->c->layout.ropes[r].width / 2;
        is_rotation_init(&rotation, &w->c->layout.ropes[r], shift);
        memcpy(w->angles, rotation.cos, pairs * sizeof(float));
        memcpy(w->angles + pairs, rotation.sin, pairs * sizeof(float));
        w->angles += 2 * (size_t)pairs;
    }
    return begin;
}

/* of: what all pieces of the chunk have alike; tokens [first, last) of it. */
static void write_pieces(writer *w, const void *chunk, uint8_t *bytes, is_move_piece of, uint32_t first, uint32_t last)
{
    chunk_header header;
    memcpy(&header, chunk, sizeof header);
    of.payload = bytes + header.payload_offset;
    of.records = (const is_move_record *)(void *)(bytes + sizeof header);
    uint32_t position = of.position;
    for (uint32_t t = first; t < last; t += IS_MOVE_TOKENS) {
        of.first = t;
        of.n = last - t < IS_MOVE_TOKENS ? last - t : IS_MOVE_TOKENS;
        of.position = position + t;
        *w->piece++ = of;
    }
}

static void write_prompt(writer *w, const is_device_prompt *p)
{
    size_t n = (p->end + w->c->block_tokens - 1) / w->c->block_tokens;
    const uint32_t *blocks = on_device(w, w->blocks);
    memcpy(w->blocks, p->blocks, n * sizeof *p->blocks);
    w->blocks += n;
    for (size_t i = 0; i < p->n; i++) {
        const is_device_placed *placed = &p->chunks[i];
        uint32_t first, last;
        wanted(p, placed, &first, &last);
        if (first == last) continue;
        is_move_piece of = {.blocks = blocks, .position = (uint32_t)placed->position};
        of.angles = write_angles(w, (int64_t)placed->position - placed->chunk->info.p_ref);
        write_pieces(w, placed->chunk->bytes, placed->bytes, of, first, last);
    }
}

static writer begin_writing(is_device_cache *c, slot *to, const measure *m)
{
    return (writer){.c = c,
                    .to = to,
                    .piece = (is_move_piece *)(void *)to->host,
                    .angles = (float *)(void *)(to->host + angles_at(m)),
                    .blocks = (uint32_t *)(void *)(to->host + blocks_at(c, m))};
}

static is_status send(is_device_cache *c, slot *to, const measure *m, is_cuda_stream *stream, is_error *err)
{
    c->move = (is_move){.layers = c->on_device,
                        .pieces = (const is_move_piece *)(void *)to->device,
                        .n_pieces = (uint32_t)m->pieces,
                        .block_tokens = c->block_tokens,
                        .chunk_cell = (uint32_t)c->layout.dtype,
                        .cache_cell = c->cell};
    c->current = to;
    if (m->pieces == 0) return IS_OK;
    is_status status = is_cuda_to_device(to->device, to->host, measure_bytes(c, m), stream, err);
    return status == IS_OK ? is_cuda_event_record(to->used, stream, err) : status;
}

is_status is_device_begin(is_device_cache *c, const is_device_prompt *prompts, size_t n, is_cuda_stream *stream,
                          is_error *err)
{
    measure m = {0};
    is_status status = IS_OK;
    slot *to;
    c->current = NULL;
    for (size_t i = 0; i < n && status == IS_OK; i++) status = measure_prompt(c, &prompts[i], &m, err);
    if (status == IS_OK && m.pieces > UINT32_MAX / 2)
        status = is_fail(err, IS_EINVAL, "device cache: too many tokens at once");
    if (status == IS_OK) status = take_slot(c, measure_bytes(c, &m), &to, err);
    if (status != IS_OK) return status;
    writer w = begin_writing(c, to, &m);
    for (size_t i = 0; i < n; i++) write_prompt(&w, &prompts[i]);
    return send(c, to, &m, stream, err);
}

is_status is_device_compose(is_device_cache *c, uint32_t layer_begin, uint32_t layer_end, is_cuda_stream *stream,
                            is_error *err)
{
    if (c->current == NULL || layer_begin > layer_end || layer_end > c->layout.n_layers)
        return is_fail(err, IS_EINVAL, "device cache: layers %u to %u of %u, %s", layer_begin, layer_end,
                       c->layout.n_layers, c->current == NULL ? "and no batch was begun" : "which are not there");
    c->move.layer_begin = layer_begin;
    c->move.layer_end = layer_end;
    is_status status = IS_OK;
    if (c->move.n_pieces > 0 && layer_begin < layer_end) status = is_cuda_compose(&c->move, stream, err);
    if (status == IS_OK) status = is_cuda_event_record(c->current->used, stream, err);
    return status;
}

/* ------------------------------------------------------------ gathering */

/* Whether the begun chunk is of this layout, which is all that a gather must know of it. */
static is_status check_begun(const is_device_cache *c, const chunk_header *header, uint32_t begin, is_error *err)
{
    size_t size = is_chunk_bytes(&c->layout, header->n_tokens);
    if (size == 0 || header->size != size || header->n_layers != c->layout.n_layers)
        return is_fail(err, IS_EINVAL, "device cache: a chunk of another layout");
    if (begin > UINT32_MAX - header->n_tokens)
        return is_fail(err, IS_EINVAL, "device cache: %u tokens from %u on", header->n_tokens, begin);
    return IS_OK;
}

is_status is_device_gather(is_device_cache *c, const void *begun, void *bytes, const uint32_t *blocks, size_t n_blocks,
                           uint32_t begin, is_cuda_stream *stream, is_error *err)
{
    chunk_header header;
    memcpy(&header, begun, sizeof header);
    uint32_t n = header.n_tokens;
    slot *to;
    is_status status = check_begun(c, &header, begin, err);
    if (status == IS_OK) status = check_blocks(c, blocks, n_blocks, begin, begin + n, err);
    if (status != IS_OK) return status;
    measure m = {.pieces = (n + IS_MOVE_TOKENS - 1) / IS_MOVE_TOKENS,
                 .blocks = (begin + n + c->block_tokens - 1) / c->block_tokens};
    status = take_slot(c, measure_bytes(c, &m), &to, err);
    if (status != IS_OK) return status;
    writer w = begin_writing(c, to, &m);
    memcpy(w.blocks, blocks, m.blocks * sizeof *blocks);
    is_move_piece of = {.blocks = on_device(&w, w.blocks), .position = begin};
    write_pieces(&w, begun, bytes, of, 0, n);
    status = send(c, to, &m, stream, err);
    c->current = NULL;
    c->move.layer_begin = 0;
    c->move.layer_end = c->layout.n_layers;
    if (status == IS_OK) status = is_cuda_gather(&c->move, stream, err);
    if (status == IS_OK) status = is_cuda_event_record(to->used, stream, err);
    return status;
}
