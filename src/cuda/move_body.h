/*
 * The bodies of compose and gather, see move.h.
 *
 * A block has one piece and one layer.  Its threads are spread over the columns of a row, and where a row has fewer
 * columns than the block has threads, over tokens too; a thread then goes down the piece's tokens in its column.  So it
 * needs one set of angles, which stays in registers, and neighbours touch neighbouring memory.
 *
 * A column is a run of WIDE elements, 16 bytes in a chunk, where everything is aligned to that; else it is one element.
 * In K's rotary slice it is two such runs: what is rotated with one another.  (In adjacent pairs one run of WIDE is
 * four whole pairs, but one element needs its neighbour, so there a column is two elements.)
 */
#ifndef IS_CUDA_MOVE_BODY_H
#define IS_CUDA_MOVE_BODY_H

#include "numbers.h"

#define IS_WIDE       8
#define IS_STYLE_PAIR 1 /* is_rope_style */
#define IS_STYLE_HALF 2

/* 16 and 8 bytes that are moved at once. */
typedef struct is_quad {
    uint32_t words[4];
} __attribute__((aligned(16))) is_quad;

typedef struct is_duo {
    uint32_t words[2];
} __attribute__((aligned(8))) is_duo;

/* ------------------------------------------------------------ elements */

/* Bits of a run in a chunk, elements of 16 bits; wide: IS_WIDE of them, aligned, else one. */
IS_DEVICE void is_run_read16(const uint8_t *from, int wide, uint16_t out[IS_WIDE])
{
    if (!wide) {
        out[0] = *(const uint16_t *)(const void *)from;
        return;
    }
    is_quad quad = *(const is_quad *)(const void *)from;
    IS_UNROLL
    for (int i = 0; i < 4; i++) {
        out[2 * i] = (uint16_t)quad.words[i];
        out[2 * i + 1] = (uint16_t)(quad.words[i] >> 16);
    }
}

IS_DEVICE void is_run_write16(uint8_t *to, int wide, const uint16_t bits[IS_WIDE])
{
    if (!wide) {
        *(uint16_t *)(void *)to = bits[0];
        return;
    }
    is_quad quad;
    IS_UNROLL
    for (int i = 0; i < 4; i++) quad.words[i] = bits[2 * i] | (uint32_t)bits[2 * i + 1] << 16;
    *(is_quad *)(void *)to = quad;
}

IS_DEVICE void is_run_read8(const uint8_t *from, int wide, uint8_t out[IS_WIDE])
{
    if (!wide) {
        out[0] = *from;
        return;
    }
    is_duo duo = *(const is_duo *)(const void *)from;
    IS_UNROLL
    for (int i = 0; i < IS_WIDE; i++) out[i] = (uint8_t)(duo.words[i / 4] >> i % 4 * 8);
}

IS_DEVICE void is_run_write8(uint8_t *to, int wide, const uint8_t bits[IS_WIDE])
{
    if (!wide) {
        *to = bits[0];
        return;
    }
    is_duo duo = {{0, 0}};
    IS_UNROLL
    for (int i = 0; i < IS_WIDE; i++) duo.words[i / 4] |= (uint32_t)bits[i] << i % 4 * 8;
    *(is_duo *)(void *)to = duo;
}

IS_DEVICE void is_run_values(uint32_t cell, int wide, const uint16_t bits[IS_WIDE], float out[IS_WIDE])
{
    IS_UNROLL
    for (int i = 0; i < IS_WIDE; i++)
        if (i == 0 || wide) out[i] = is_cell_load16(cell, bits[i]);
}

/* Values into the cache. */
IS_DEVICE void is_run_put(const is_move *m, const is_move_part *part, uint8_t *to, int wide,
                          const float values[IS_WIDE])
{
    uint16_t bits[IS_WIDE] = {0};
    uint8_t small[IS_WIDE] = {0};
    if (m->cache_cell != IS_CELL_E4M3) {
        IS_UNROLL
        for (int i = 0; i < IS_WIDE; i++)
            if (i == 0 || wide) bits[i] = is_cell_store16(m->cache_cell, values[i]);
        is_run_write16(to, wide, bits);
        return;
    }
    IS_UNROLL
    for (int i = 0; i < IS_WIDE; i++)
        if (i == 0 || wide) small[i] = is_e4m3_store(IS_DIV(values[i], part->scale));
    is_run_write8(to, wide, small);
}

/* A run of the chunk into the cache as it is: bit for bit where both keep elements alike. */
IS_DEVICE void is_run_copy_in(const is_move *m, const is_move_part *part, const uint8_t *from, uint8_t *to, int wide)
{
    uint16_t bits[IS_WIDE] = {0};
    float values[IS_WIDE] = {0};
    is_run_read16(from, wide, bits);
    if (m->cache_cell == m->chunk_cell) {
        is_run_write16(to, wide, bits);
        return;
    }
    is_run_values(m->chunk_cell, wide, bits, values);
    is_run_put(m, part, to, wide, values);
}

/* The other way. */
IS_DEVICE void is_run_copy_out(const is_move *m, const is_move_part *part, const uint8_t *from, uint8_t *to, int wide)
{
    uint16_t bits[IS_WIDE] = {0};
    uint8_t small[IS_WIDE] = {0};
    if (m->cache_cell != IS_CELL_E4M3) {
        is_run_read16(from, wide, bits);
        if (m->cache_cell != m->chunk_cell) {
            IS_UNROLL
            for (int i = 0; i < IS_WIDE; i++)
                if (i == 0 || wide) bits[i] = is_cell_store16(m->chunk_cell, is_cell_load16(m->cache_cell, bits[i]));
        }
    } else {
        is_run_read8(from, wide, small);
        IS_UNROLL
        for (int i = 0; i < IS_WIDE; i++)
            if (i == 0 || wide) bits[i] = is_cell_store16(m->chunk_cell, IS_MUL(is_e4m3_load(small[i]), part->scale));
    }
    is_run_write16(to, wide, bits);
}

/* ------------------------------------------------------------ places */

/* Where a row's tokens are, in the chunk and in the cache. */
typedef struct is_move_rows {
    const is_move *move;
    const is_move_part *part;
    const is_move_piece *piece;
    uint8_t *chunk;     /* the piece's first row */
    uint32_t dim;       /* elements of a head */
    uint32_t row_bytes; /* of the chunk */
    uint32_t cell_bytes;
} is_move_rows;

IS_DEVICE is_move_rows is_rows_of(const is_move *m, const is_move_piece *piece, const is_move_layer *layer,
                                  uint32_t number, int v)
{
    const is_move_record *record = &piece->records[number];
    is_move_rows rows;
    rows.move = m;
    rows.part = v ? &layer->v : &layer->k;
    rows.piece = piece;
    rows.dim = v ? layer->v_dim : layer->k_dim;
    rows.row_bytes = layer->heads * rows.dim * 2;
    rows.chunk = piece->payload + (v ? record->v_offset : record->k_offset) + (uint64_t)piece->first * rows.row_bytes;
    rows.cell_bytes = m->cache_cell == IS_CELL_E4M3 ? 1 : 2;
    return rows;
}

IS_DEVICE uint8_t *is_rows_chunk(const is_move_rows *rows, uint32_t token, uint32_t head, uint32_t d)
{
    return rows->chunk + (uint64_t)token * rows->row_bytes + (head * rows->dim + d) * 2;
}

IS_DEVICE uint8_t *is_rows_cache(const is_move_rows *rows, uint32_t token, uint32_t head, uint32_t d)
{
    const is_move_part *part = rows->part;
    uint32_t position = rows->piece->position + token;
    uint32_t slot = position % rows->move->block_tokens;
    uint64_t block = rows->piece->blocks[position / rows->move->block_tokens];
    uint64_t element = head * part->head_stride;
    if (part->at != NULL)
        element += part->at[slot * rows->dim + d];
    else
        element += part->first + slot * part->row_stride + d;
    return part->base + block * part->block_stride + element * rows->cell_bytes;
}

/* ------------------------------------------------------------ columns */

/*
 * How many threads share a column: each has every so-manieth token.  Threads are counted column first, so that
 * neighbours are in one row.
 */
IS_DEVICE uint32_t is_share_stride(uint32_t columns, uint32_t tokens)
{
    uint32_t stride = IS_THREADS / columns;
    if (stride > tokens) stride = tokens;
    return stride == 0 ? 1 : stride;
}

/* ------------------------------------------------------------ copies */

IS_DEVICE void is_copy_columns(const is_move_rows *rows, uint32_t heads, int wide, int out, uint32_t thread)
{
    uint32_t run = wide ? IS_WIDE : 1;
    uint32_t a_head = rows->dim / run, columns = heads * a_head;
    uint32_t stride = is_share_stride(columns, rows->piece->n);
    for (uint32_t place = thread; place < columns * stride; place += IS_THREADS) {
        uint32_t column = place % columns, head = column / a_head, d = column % a_head * run;
        for (uint32_t token = place / columns; token < rows->piece->n; token += stride) {
            uint8_t *chunk = is_rows_chunk(rows, token, head, d), *cache = is_rows_cache(rows, token, head, d);
            if (out)
                is_run_copy_out(rows->move, rows->part, cache, chunk, wide);
            else
                is_run_copy_in(rows->move, rows->part, chunk, cache, wide);
        }
    }
}

/* ------------------------------------------------------------ rotation */

/* Elements i of two runs, rotated with one another: x0' = x0 cos - x1 sin, x1' = x0 sin + x1 cos. */
IS_DEVICE void is_turn_pair(float *x0, float *x1, float c, float s)
{
    float a = *x0, b = *x1;
    *x0 = IS_SUM(IS_MUL(a, c), -IS_MUL(b, s));
    *x1 = IS_SUM(IS_MUL(a, s), IS_MUL(b, c));
}

/* One column of K: elements d0 and d1 of a head and, where wide, the seven behind each; angles from `pair` on. */
typedef struct is_turned {
    uint32_t head, d0, d1, pair;
} is_turned;

/* Half-split: the two runs are half of the slice apart. */
IS_DEVICE void is_turn_half(const is_move_rows *rows, const is_turned *at, const float *cos_, const float *sin_,
                            int wide, uint32_t first, uint32_t stride)
{
    float c[IS_WIDE], s[IS_WIDE];
    IS_UNROLL
    for (int i = 0; i < IS_WIDE; i++)
        if (i == 0 || wide) {
            c[i] = cos_[at->pair + (uint32_t)i];
            s[i] = sin_[at->pair + (uint32_t)i];
        }
    for (uint32_t token = first; token < rows->piece->n; token += stride) {
        uint16_t bits0[IS_WIDE] = {0}, bits1[IS_WIDE] = {0};
        float x0[IS_WIDE] = {0}, x1[IS_WIDE] = {0};
        is_run_read16(is_rows_chunk(rows, token, at->head, at->d0), wide, bits0);
        is_run_read16(is_rows_chunk(rows, token, at->head, at->d1), wide, bits1);
        is_run_values(rows->move->chunk_cell, wide, bits0, x0);
        is_run_values(rows->move->chunk_cell, wide, bits1, x1);
        IS_UNROLL
        for (int i = 0; i < IS_WIDE; i++)
            if (i == 0 || wide) is_turn_pair(&x0[i], &x1[i], c[i], s[i]);
        is_run_put(rows->move, rows->part, is_rows_cache(rows, token, at->head, at->d0), wide, x0);
        is_run_put(rows->move, rows->part, is_rows_cache(rows, token, at->head, at->d1), wide, x1);
    }
}

/* Adjacent pairs, all in one run. */
IS_DEVICE void is_turn_pairs(const is_move_rows *rows, const is_turned *at, const float *cos_, const float *sin_,
                             uint32_t first, uint32_t stride)
{
    float c[IS_WIDE / 2], s[IS_WIDE / 2];
    IS_UNROLL
    for (int i = 0; i < IS_WIDE / 2; i++) {
        c[i] = cos_[at->pair + (uint32_t)i];
        s[i] = sin_[at->pair + (uint32_t)i];
    }
    for (uint32_t token = first; token < rows->piece->n; token += stride) {
        uint16_t bits[IS_WIDE] = {0};
        float x[IS_WIDE] = {0};
        is_run_read16(is_rows_chunk(rows, token, at->head, at->d0), 1, bits);
        is_run_values(rows->move->chunk_cell, 1, bits, x);
        IS_UNROLL
        for (int i = 0; i < IS_WIDE / 2; i++) is_turn_pair(&x[2 * i], &x[2 * i + 1], c[i], s[i]);
        is_run_put(rows->move, rows->part, is_rows_cache(rows, token, at->head, at->d0), 1, x);
    }
}

/* The columns of a head's rotary slice, and behind them those outside of it, which are copied. */
IS_DEVICE void is_turn_columns(const is_move_rows *rows, const is_move_layer *layer, int wide, uint32_t thread)
{
    const float *cos_ = rows->piece->angles + layer->angles, *sin_ = cos_ + layer->width / 2;
    uint32_t run = wide ? IS_WIDE : 1, pairs = layer->width / 2;
    int in_run = wide && layer->style == IS_STYLE_PAIR;
    uint32_t turned = in_run ? layer->width / IS_WIDE : pairs / run;
    uint32_t a_head = turned + (layer->k_dim - layer->width) / run, columns = layer->heads * a_head;
    uint32_t stride = is_share_stride(columns, rows->piece->n);
    for (uint32_t place = thread; place < columns * stride; place += IS_THREADS) {
        uint32_t column = place % columns, number = column % a_head, first = place / columns;
        is_turned at = {column / a_head, 0, 0, 0};
        if (number >= turned) {
            uint32_t d = (number - turned) * run;
            if (d >= layer->offset) d += layer->width;
            for (uint32_t token = first; token < rows->piece->n; token += stride)
                is_run_copy_in(rows->move, rows->part, is_rows_chunk(rows, token, at.head, d),
                               is_rows_cache(rows, token, at.head, d), wide);
        } else if (in_run) {
            at.d0 = layer->offset + number * IS_WIDE;
            at.pair = number * (IS_WIDE / 2);
            is_turn_pairs(rows, &at, cos_, sin_, first, stride);
        } else {
            at.pair = number * run;
            at.d0 = layer->offset + (layer->style == IS_STYLE_PAIR ? 2 * number : at.pair);
            at.d1 = layer->style == IS_STYLE_PAIR ? at.d0 + 1 : at.d0 + pairs;
            is_turn_half(rows, &at, cos_, sin_, wide, first, stride);
        }
    }
}

/* ------------------------------------------------------------ the kernels */

/* out: gather, from the cache into the chunk, as it is; else compose. */
IS_DEVICE void is_move_thread(const is_move *m, uint32_t piece, uint32_t number, int wide, int out, uint32_t thread)
{
    const is_move_layer *layer = &m->layers[number];
    is_move_rows k = is_rows_of(m, &m->pieces[piece], layer, number, 0);
    if (out || layer->width == 0 || m->pieces[piece].angles == NULL)
        is_copy_columns(&k, layer->heads, wide, out, thread);
    else
        is_turn_columns(&k, layer, wide, thread);
    if (layer->v_dim == 0) return;
    is_move_rows v = is_rows_of(m, &m->pieces[piece], layer, number, 1);
    is_copy_columns(&v, layer->heads, wide, out, thread);
}

/*
 * One block.  The types of chunk and cache and the way are constants where this is compiled for the device, so that
 * each has a kernel of its own; wide is looked at once, so that each has its own code.
 */
IS_DEVICE void is_move_block(const is_move *given, uint32_t chunk_cell, uint32_t cache_cell, int out, uint32_t piece,
                             uint32_t number)
{
    is_move m = *given;
    m.chunk_cell = chunk_cell;
    m.cache_cell = cache_cell;
    int wide = m.layers[number].vectors != 0;
    IS_STAGE (t) {
        if (wide)
            is_move_thread(&m, piece, number, 1, out, t);
        else
            is_move_thread(&m, piece, number, 0, out, t);
    }
    IS_STAGE_END
}

#endif
