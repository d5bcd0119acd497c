/*
 * The way into device memory: one stream of its own, and a ring of pinned buffers through which ordinary host memory
 * goes into it.
 *
 * What is put into the stream is done in that order, so memory that was zeroed can be given away at once: whatever is
 * copied into it comes behind.  Streams of others are made to wait by mark and follow.
 *
 * One thread at a time.
 */
#ifndef IS_CUDA_UPLOAD_H
#define IS_CUDA_UPLOAD_H

#include "runtime.h"

typedef struct is_upload is_upload;

is_status is_upload_open(size_t slot_bytes, uint32_t n_slots, is_upload **out, is_error *err);
/* Nothing of the stream is running any more. */
void is_upload_close(is_upload *upload);

/* The host bytes have been read when this returns; it waits while all buffers are on their way.  What a failure leaves
 * of the copy is not to be read. */
is_status is_upload_copy(is_upload *upload, uint8_t *device, const void *bytes, size_t size, is_error *err);
is_status is_upload_zero(is_upload *upload, uint8_t *device, size_t size, is_error *err);
/* Zeroes the staging buffers, if any was used since; waits for the copies out of them, which are short. */
is_status is_upload_wipe(is_upload *upload, is_error *err);
/* What is put in from now on waits for the event. */
is_status is_upload_after(is_upload *upload, is_cuda_event *event, is_error *err);

/* The number that the next mark has: of what is put in until then. */
uint64_t is_upload_next(const is_upload *upload);
is_status is_upload_mark(is_upload *upload, is_error *err);
/* The stream waits for what this mark, or an earlier one, stands behind; a number that was never marked is an error of
 * the caller. */
is_status is_upload_follow(is_upload *upload, uint64_t mark, is_cuda_stream *stream, is_error *err);

#endif
