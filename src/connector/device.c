/* What the connector does where the engine's cache is on a GPU: device.h from the interface's side. */
#include "device.h"

#include "internal.h"

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
        status = is_dev_open(device, budget, c->tier, &dev, &err);
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
    for (uint32_t l = 0; l < c->layout.n_layers; l++)
        if (c->caches[l].base == NULL) return is_fail(err, IS_EINVAL, "the cache of layer %u is not known yet", l);
    is_status status = is_dev_cache(c->dev, &c->layout, c->caches, err);
    c->dev_is_told = status == IS_OK;
    return status;
}

is_status is_load_on_device(is_connector *c, is_held *h, const uint32_t *blocks, uint32_t n_blocks, uint32_t begin,
                            uint32_t end, uint32_t *reach, is_error *err)
{
    is_status status = tell(c, err);
    if (status != IS_OK) return status;
    is_dev_prompt prompt = {h->placed, h->pins, h->numbers, (const uint8_t(*)[IS_KEY_BYTES])h->keys, h->n, blocks,
                            n_blocks,  begin,   end};
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
