/* What the connector does where the engine's cache is on a GPU, by cuda/dev.h. */
#include <stdlib.h>

#include "internal.h"

static void unpin(void *user, void *pin)
{
    is_tier_unpin(user, pin, false);
}

/* Without a device there is nothing that could come back. */
is_dev *is_part_lock(const is_connector *c)
{
    is_dev *dev = c->dev;
    if (dev != NULL) is_dev_lock(dev);
    return dev;
}

void is_part_unlock(is_dev *locked)
{
    if (locked != NULL) is_dev_unlock(locked);
}

void is_part_drop(const is_connector *c, int64_t number)
{
    is_tier_drop(c->tier, number);
    if (c->dev != NULL) is_dev_drop(c->dev, number);
}

int is_connector_device(is_connector *c, uint32_t device, uint64_t budget, char *text)
{
    is_error err = {0};
    is_dev *dev = NULL;
    is_status status;
    if (is_dev_open == NULL)
        status = is_fail(&err, IS_EUNSUPPORTED, "this library was built without CUDA; `make cuda` builds one with it");
    else if (c->dev != NULL)
        status = is_fail(&err, IS_EINVAL, "the connector has a device already");
    else
        status = is_dev_open(device, budget, unpin, c->tier, &dev, &err);
    if (dev != NULL) c->dev = dev;
    return is_connector_done(status, &err, text);
}

void is_connector_stream(is_connector *c, void *stream)
{
    c->stream = stream;
}

/* Tells the device's side of the caches, once all of them are known. */
static is_status tell(is_connector *c, is_error *err)
{
    if (c->dev_is_told) return IS_OK;
    uint32_t n_layers = c->layout.n_layers, block_tokens = 0, n_blocks = UINT32_MAX;
    is_device_layer *layers = malloc(n_layers * sizeof *layers);
    if (layers == NULL) return is_fail(err, IS_ENOMEM, "no memory for the description of the cache");
    is_status status = IS_OK;
    for (uint32_t l = 0; l < n_layers && status == IS_OK; l++) {
        const is_paged_cache *cache = &c->caches[l];
        if (cache->base == NULL || (l > 0 && cache->order->block_tokens != block_tokens)) {
            status =
                is_fail(err, IS_EINVAL, "the cache of layer %u is not known yet, or has blocks of its own size", l);
            continue;
        }
        block_tokens = cache->order->block_tokens;
        if (cache->n_blocks < n_blocks) n_blocks = cache->n_blocks;
        layers[l] = is_device_layer_of(cache->order, cache->base, cache->block_stride);
        if (!c->eight_bits) continue;
        layers[l].k.scale = c->scales[l][0];
        layers[l].v.scale = c->scales[l][1];
    }
    if (status == IS_OK)
        status = is_dev_cache(c->dev, &c->layout, layers, c->eight_bits ? IS_CELL_E4M3 : (is_cell)c->layout.dtype,
                              block_tokens, n_blocks, err);
    free(layers);
    c->dev_is_told = status == IS_OK;
    return status;
}

is_status is_load_on_device(is_connector *c, is_held *h, const uint32_t *blocks, uint32_t n_blocks, uint32_t begin,
                            uint32_t end, uint32_t *reach, is_error *err)
{
    is_status status = tell(c, err);
    if (status != IS_OK) return status;
    is_dev_prompt prompt = {h->placed,  (void *const *)h->pins,
                            h->numbers, (const uint8_t(*)[IS_KEY_BYTES])h->keys,
                            h->n,       blocks,
                            n_blocks,   begin,
                            end};
    status = is_dev_add(c->dev, &prompt, reach, c->stream, err);
    for (uint32_t i = 0; i < h->n; i++) h->pins[i] = NULL; /* the other side's now */
    return status;
}

is_status is_read_from_device(is_connector *c, const uint32_t *blocks, uint32_t n_blocks, uint32_t begin, void *chunk,
                              size_t size, is_error *err)
{
    is_status status = tell(c, err);
    return status == IS_OK ? is_dev_read(c->dev, blocks, n_blocks, begin, chunk, size, c->stream, err) : status;
}

int is_connector_start(is_connector *c, char *text)
{
    is_error err = {0};
    return is_connector_done(c->dev != NULL ? is_dev_start(c->dev, c->stream, &err) : IS_OK, &err, text);
}

int is_connector_wait(is_connector *c, uint32_t layer, char *text)
{
    is_error err = {0};
    return is_connector_done(c->dev != NULL ? is_dev_wait(c->dev, layer, c->stream, &err) : IS_OK, &err, text);
}
