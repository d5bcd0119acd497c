/* The copy stream and its ring of pinned buffers. */
#include "upload.h"

#include <stdlib.h>
#include <string.h>

typedef struct slot {
    uint8_t *host;
    is_cuda_event *sent; /* its last copy has been read */
} slot;

struct is_upload {
    is_cuda_stream *stream;
    is_cuda_event *event;     /* of the newest mark */
    uint64_t marked, settled; /* newest mark; newest that is known to have happened */
    size_t slot_bytes;
    uint32_t n_slots, next;
    bool holds; /* a slot may have somebody's bytes */
    slot slots[];
};

is_status is_upload_open(size_t slot_bytes, uint32_t n_slots, is_upload **out, is_error *err)
{
    *out = NULL;
    is_upload *upload = calloc(1, sizeof *upload + n_slots * sizeof(slot));
    if (upload == NULL) return is_fail(err, IS_ENOMEM, "out of memory for the ring of staging buffers");
    upload->slot_bytes = slot_bytes;
    upload->n_slots = n_slots;
    is_status status = is_cuda_stream_new(&upload->stream, err);
    if (status == IS_OK) status = is_cuda_event_new(&upload->event, err);
    for (uint32_t i = 0; i < n_slots && status == IS_OK; i++) {
        void *host = NULL;
        status = is_cuda_host_malloc(slot_bytes, &host, err);
        upload->slots[i].host = host;
        if (status == IS_OK) status = is_cuda_event_new(&upload->slots[i].sent, err);
    }
    if (status != IS_OK) {
        is_upload_close(upload);
        return status;
    }
    *out = upload;
    return IS_OK;
}

void is_upload_close(is_upload *upload)
{
    if (upload == NULL) return;
    for (uint32_t i = 0; i < upload->n_slots; i++) {
        is_cuda_host_free(upload->slots[i].host);
        is_cuda_event_free(upload->slots[i].sent);
    }
    is_cuda_event_free(upload->event);
    is_cuda_stream_free(upload->stream);
    free(upload);
}

/* Where a copy's event cannot be recorded the copy has failed, and it does not matter what it still reads. */
is_status is_upload_copy(is_upload *upload, uint8_t *device, const void *bytes, size_t size, is_error *err)
{
    const uint8_t *from = bytes;
    while (size > 0) {
        slot *s = &upload->slots[upload->next];
        size_t part = size < upload->slot_bytes ? size : upload->slot_bytes;
        is_status status = is_cuda_event_wait(s->sent, err);
        if (status != IS_OK) return status;
        memcpy(s->host, from, part);
        upload->holds = true;
        status = is_cuda_to_device(device, s->host, part, upload->stream, err);
        if (status == IS_OK) status = is_cuda_event_record(s->sent, upload->stream, err);
        if (status != IS_OK) return status;
        upload->next = (upload->next + 1) % upload->n_slots;
        device += part;
        from += part;
        size -= part;
    }
    return IS_OK;
}

is_status is_upload_wipe(is_upload *upload, is_error *err)
{
    is_status status = IS_OK;
    for (uint32_t i = 0; upload->holds && i < upload->n_slots && status == IS_OK; i++) {
        status = is_cuda_event_wait(upload->slots[i].sent, err);
        if (status == IS_OK) explicit_bzero(upload->slots[i].host, upload->slot_bytes);
    }
    if (status == IS_OK) upload->holds = false;
    return status;
}

is_status is_upload_zero(is_upload *upload, uint8_t *device, size_t size, is_error *err)
{
    return is_cuda_zero(device, size, upload->stream, err);
}

is_status is_upload_after(is_upload *upload, is_cuda_event *event, is_error *err)
{
    return is_cuda_stream_after(upload->stream, event, err);
}

uint64_t is_upload_next(const is_upload *upload)
{
    return upload->marked + 1;
}

is_status is_upload_mark(is_upload *upload, is_error *err)
{
    is_status status = is_cuda_event_record(upload->event, upload->stream, err);
    if (status == IS_OK) upload->marked++;
    return status;
}

/*
 * There is one event, so a stream waits for the newest mark, which may be later than the one that it needs: less than
 * an event for every mark costs.  What is known to have happened is not waited for.
 */
is_status is_upload_follow(is_upload *upload, uint64_t mark, is_cuda_stream *stream, is_error *err)
{
    if (mark <= upload->settled) return IS_OK;
    bool done = false;
    is_status status = is_cuda_event_done(upload->event, &done, err);
    if (status != IS_OK) return status;
    if (!done) return is_cuda_stream_after(stream, upload->event, err);
    upload->settled = upload->marked;
    return IS_OK;
}
