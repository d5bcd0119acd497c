/*
 * What a connector inside another engine calls: chunks from a shared folder into that engine's paged cache, and out of
 * it.  This is the whole interface of libinferscale-connector.so; python/inferscale_vllm calls it through ctypes.
 *
 * A chunk is known by a key of 16 hexadecimal digits, which whoever plans the prompts chooses.  Its files are
 * FOLDER/23/KEY.parts/RofW: what rank R of W tensor-parallel ranks keeps of it, its own heads; 23 are the key's digits
 * 2 and 3, counted from 0.  A chunk is ready when all W files are there.  Files appear under their names whole, by
 * rename, and never change.  Whoever plans makes the folder KEY.parts before asking for the chunk, and removes it to
 * forget the chunk: a part is written only into a folder that is there, so one that comes late is not kept, and what is
 * in memory of a chunk whose part is gone is wiped within some seconds.
 *
 * Functions return is_status as an int, IS_OK is 0; `text` [IS_CONNECTOR_TEXT] then says what is wrong and how to mend
 * it.  A connector is used by one thread at a time, beside its own.
 */
#ifndef IS_CONNECTOR_H
#define IS_CONNECTOR_H

#include <stdint.h>

#define IS_CONNECTOR_KEY  16 /* digits of a key; keys in a row follow one another without anything between */
#define IS_CONNECTOR_TEXT 1024

/* Nothing else is exported. */
#pragma GCC visibility push(default)

typedef struct is_connector is_connector;

/*
 * config, a JSON object:
 *   folder, rank, world          where the chunks are, and whose part of them this is
 *   budget                       bytes of chunks in host memory
 *   threads                      that write into the cache
 *   fingerprint                  32 digits: of the weights, tokenizer and settings that make KV what it is
 *   dtype                        "f16" or "bf16"
 *   layers, heads, k_dim, v_dim  of this rank
 *   rope                         {"style": "half"|"pair", "offset" (0), "width", "base",
 *                                "scaling": "none"|"linear"|"yarn"|"llama3",
 *                                and what is_rope_params has for that scaling}, or null
 */
int is_connector_open(const char *config, is_connector **out, char *text);
void is_connector_close(is_connector *connector);

/*
 * The caches are in the memory of this CUDA device, and chunks are kept there too, in `budget` bytes of it.  Called
 * once, before is_connector_cache; budget must leave what the engine itself needs.  IS_EUNSUPPORTED: the library was
 * built without CUDA, or there is no such device.
 *
 * Then is_connector_load only prepares: its tokens are written, with those of other prompts, by is_connector_start, on
 * a stream of the connector's own.  Nothing waits on the host but is_connector_store.
 */
int is_connector_device(is_connector *connector, uint32_t device, uint64_t budget, char *text);

/* The engine's CUDA stream (cudaStream_t) that the calls from now on are about. */
void is_connector_stream(is_connector *connector, void *stream);

/*
 * One layer's cache: base of block 0, bytes from block to block, and what a block of it holds after the numbers of its
 * elements were written, see is_paged_learn.  low, high: [block_elements].
 */
int is_connector_cache(is_connector *connector, uint32_t layer, void *base, uint64_t block_stride, uint32_t n_blocks,
                       uint32_t block_tokens, const uint16_t *low, const uint16_t *high, uint64_t block_elements,
                       char *text);

/*
 * The cache of this layer is of 8 bits, E4M3 codes that mean a value over these scales; chunks stay as they are.  On a
 * device, for all layers or for none, before is_connector_cache.  IS_EUNSUPPORTED: the cache is in host memory.
 */
int is_connector_eight_bits(is_connector *connector, uint32_t layer, float k_scale, float v_scale, char *text);

/*
 * Writes tokens [begin, end) of a prompt into its blocks.
 *   keys, lengths  [n] the chunks, the prompt's first one first, and their tokens
 *   tokens         [n_tokens] the prompt's
 *   blocks         [n_blocks] the prompt's
 * *loaded: tokens are right up to here, at least begin and at most end.  When that is not end, text says what is wrong
 * with the chunk that stands there: it is missing, broken (its part is removed then), of other tokens or of another
 * model.
 */
int is_connector_load(is_connector *connector, const char *keys, const uint32_t *lengths, uint32_t n,
                      const int32_t *tokens, uint32_t n_tokens, const uint32_t *blocks, uint32_t n_blocks,
                      uint32_t begin, uint32_t end, uint32_t *loaded, char *text);

/*
 * On a device: writes what was loaded since the last start, layer by layer, behind all that is in the engine's stream.
 * When it fails, none of it is right.  In host memory there is nothing to do.
 */
int is_connector_start(is_connector *connector, char *text);

/* On a device: what is put into the engine's stream from now on waits until this layer, and those below, are written.
 */
int is_connector_wait(is_connector *connector, uint32_t layer, char *text);

/* Keeps tokens [begin, begin + n) of a sequence as the chunk `key`, into the folder that was made for it; recipe is
 * written into the chunk. */
int is_connector_store(is_connector *connector, const char *key, const char *recipe, const int32_t *tokens,
                       uint32_t begin, uint32_t n, const uint32_t *blocks, uint32_t n_blocks, char *text);

/* How many of the chunks, from the first on, are ready in the folder.  For the scheduler, which has no cache. */
uint32_t is_connector_ready(const char *folder, uint32_t world, const char *keys, uint32_t n);

/* Rotates [n][width] f32 rows by `shift` as a load would, in place: to be compared with the engine's own rotation. */
int is_connector_rotate(const is_connector *connector, float *rows, uint32_t n, int64_t shift, char *text);

#pragma GCC visibility pop

#endif
