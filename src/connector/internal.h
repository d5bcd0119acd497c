/*
 * What the connector's files share.
 */
#ifndef IS_CONNECTOR_INTERNAL_H
#define IS_CONNECTOR_INTERNAL_H

#include <pthread.h>

#include "../cuda/dev.h"
#include "../kv/paged.h"
#include "../store/store_internal.h" /* the host tier */
#include "connector.h"

#define IS_PART_NAME 64

struct is_connector {
    char *folder;
    int folder_fd;
    uint32_t rank, world, threads;
    uint8_t fingerprint[16];
    is_layout layout;
    is_paged_cache caches[IS_MAX_LAYERS];
    is_paged_order orders[IS_MAX_LAYERS];
    is_tier *tier;
    is_dev *_Atomic dev; /* NULL: the caches are in host memory */
    bool dev_is_told;    /* of the caches as they are */
    bool eight_bits;     /* the caches' elements are E4M3 codes over these scales of K and V */
    float scales[IS_MAX_LAYERS][2];
    void *stream; /* the engine's */
    pthread_t looker;
    pthread_mutex_t mutex; /* of ends */
    pthread_cond_t ending;
    bool looks, ends;
};

/* What an interface function returns: the status, and its text in `text` [IS_CONNECTOR_TEXT], which may be NULL. */
int is_connector_done(is_status status, const is_error *err, char *text);

#define IS_CONNECTOR_CHUNKS 4096 /* of a prompt, at most */

/* What is held while a prompt's chunks are written. */
typedef struct is_held {
    is_pin *pins[IS_CONNECTOR_CHUNKS];
    int64_t numbers[IS_CONNECTOR_CHUNKS];
    uint8_t keys[IS_CONNECTOR_CHUNKS][IS_KEY_BYTES];
    uint32_t n_pins;
    is_placed placed[IS_CONNECTOR_CHUNKS];
    uint32_t n; /* chunks that are right */
} is_held;

/* ------------------------------------------------------------ a cache on a device */

/* Adds tokens [begin, end) of the prompt to what is started next; *reach: what there is room for.  The pins that are
 * right go over to the device's side, also when this fails. */
is_status is_load_on_device(is_connector *c, is_held *h, const uint32_t *blocks, uint32_t n_blocks, uint32_t begin,
                            uint32_t end, uint32_t *reach, is_error *err);
is_status is_read_from_device(is_connector *c, const uint32_t *blocks, uint32_t n_blocks, uint32_t begin, void *chunk,
                              size_t size, is_error *err);

/* Held while chunks are looked up and loaded, so that what is dropped meanwhile does not come back to the device. */
is_dev *is_part_lock(const is_connector *c); /* what is_part_unlock takes: a device may come in between */
void is_part_unlock(is_dev *locked);
/* Under the lock: the part is out of use, in host memory and on the device. */
void is_part_drop(const is_connector *c, int64_t number);

/* ------------------------------------------------------------ names */

/* Whether the text begins with n lower-case hexadecimal digits. */
bool is_hex(const char *text, size_t n);
void is_hex_bytes(const char *digits, uint8_t *out, size_t n);
bool is_part_key(const char *key);
/* Where a part lies in the folder. */
void is_part_name(const char *key, uint32_t rank, uint32_t world, char out[IS_PART_NAME]);
/* The tier finds chunks by number, the low 63 bits of the key; the whole key is compared there too. */
int64_t is_part_number(const char *key, uint8_t bytes[IS_KEY_BYTES]);
void is_part_key_of(const uint8_t bytes[IS_KEY_BYTES], char out[IS_CONNECTOR_KEY + 1]);

/* ------------------------------------------------------------ files */

/* A chunk of this model out of its file: *bytes, free().  IS_ENOTFOUND: there is none; IS_EIO; IS_ECORRUPT: it is
 * broken; IS_EINVAL: it is another model's. */
is_status is_part_read(const is_connector *c, const char *name, void **bytes, is_chunk *chunk, is_error *err);
/* Whole, by rename.  IS_ENOTFOUND: the chunk's folder is not there. */
is_status is_part_write(const is_connector *c, const char *name, const void *bytes, size_t size, is_error *err);

#endif
