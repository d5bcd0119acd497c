/*
 * The mean of chunks of the same tokens, each made behind another prefix.
 *
 * K and V of a fact's tokens are functions of what stood before them.  What will stand before them in a prompt is not
 * known when they are made; the rows with the least expected squared error over such prompts are the mean over them,
 * which a few samples come near to.  K is moved to the first chunk's reference position before it is added, since
 * rotations by different angles have no mean.
 */
#ifndef IS_KV_MEAN_H
#define IS_KV_MEAN_H

#include "chunk.h"

/* Sums in f32: twice the bytes of an f16 chunk.  One thread at a time. */
typedef struct is_mean is_mean;

/*
 * Adds a chunk of this layout; *mean NULL: it is the first, and *mean is made.  IS_EINVAL: it is of other tokens than
 * the first or does not fit the layout; IS_ENOMEM.  The layout must stay until the end.
 */
is_status is_mean_add(is_mean **mean, const is_layout *layout, const is_chunk *chunk, is_error *err);
/*
 * The mean as a sealed chunk with the first one's info, in aligned memory: *bytes, free().  IS_ENOMEM.  Frees the mean
 * in any case.
 */
is_status is_mean_end(is_mean *mean, void **bytes, size_t *size, is_error *err);
void is_mean_free(is_mean *mean);

#endif
