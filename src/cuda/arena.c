/*
 * The allocator: ranges in a list by address, and the free ones in lists by class of size, 32 classes a doubling, so
 * that the best fit is found among few.
 */
#include "arena.h"

#include "../common/common.h"

#include <stdlib.h>

#define SUB_BITS 5
#define N_SUB    (1u << SUB_BITS)
#define CLASSES  ((64 - SUB_BITS) * N_SUB)

struct is_arena {
    is_range *first;
    is_range *spare; /* for the rest of a range that is cut */
    size_t used;
    uint32_t top; /* class of the whole */
    is_range *free[CLASSES];
};

/* Of a number of bytes above 0; larger sizes have no lower class. */
static uint32_t class_of(size_t size)
{
    uint64_t units = size / IS_ARENA_ALIGN;
    if (units < N_SUB) return (uint32_t)units;
    uint32_t log = 63 - (uint32_t)__builtin_clzll(units);
    return ((log - SUB_BITS + 1) << SUB_BITS) + ((uint32_t)(units >> (log - SUB_BITS)) & (N_SUB - 1));
}

static void list_in(is_arena *arena, is_range *range)
{
    is_range **head = &arena->free[class_of(range->size)];
    range->owner = NULL;
    range->previous = NULL;
    range->next = *head;
    if (*head != NULL) (*head)->previous = range;
    *head = range;
}

static void list_out(is_arena *arena, is_range *range)
{
    if (range->next != NULL) range->next->previous = range->previous;
    if (range->previous != NULL)
        range->previous->next = range->next;
    else
        arena->free[class_of(range->size)] = range->next;
    range->next = NULL;
    range->previous = NULL;
}

is_arena *is_arena_new(size_t size)
{
    is_arena *arena = calloc(1, sizeof *arena);
    is_range *whole = calloc(1, sizeof *whole);
    if (arena == NULL || whole == NULL) {
        free(arena);
        free(whole);
        return NULL;
    }
    whole->size = size;
    arena->first = whole;
    arena->top = class_of(size);
    list_in(arena, whole);
    return arena;
}

void is_arena_free(is_arena *arena)
{
    if (arena == NULL) return;
    is_range *range = arena->first;
    while (range != NULL) {
        is_range *behind = range->behind;
        free(range);
        range = behind;
    }
    free(arena->spare);
    free(arena);
}

bool is_arena_ready(is_arena *arena)
{
    if (arena->spare == NULL) arena->spare = calloc(1, sizeof *arena->spare);
    return arena->spare != NULL;
}

/* The shortest free range of at least this size. */
static is_range *best_fit(const is_arena *arena, size_t size)
{
    is_range *best = NULL;
    for (uint32_t c = class_of(size); c <= arena->top && best == NULL; c++)
        for (is_range *range = arena->free[c]; range != NULL; range = range->next)
            if (range->size >= size && (best == NULL || range->size < best->size)) best = range;
    return best;
}

is_range *is_arena_take(is_arena *arena, size_t size, void *owner)
{
    size = is_align_up(size, IS_ARENA_ALIGN);
    is_range *range = best_fit(arena, size);
    if (range == NULL) return NULL;
    list_out(arena, range);
    if (range->size > size) {
        is_range *rest = arena->spare;
        arena->spare = NULL;
        *rest = (is_range){
            .offset = range->offset + size, .size = range->size - size, .before = range, .behind = range->behind};
        if (rest->behind != NULL) rest->behind->before = rest;
        range->behind = rest;
        range->size = size;
        list_in(arena, rest);
    }
    range->owner = owner;
    arena->used += size;
    return range;
}

/* Makes one range of two neighbours that are in no list. */
static is_range *join(is_range *low, is_range *high)
{
    low->size += high->size;
    low->behind = high->behind;
    if (low->behind != NULL) low->behind->before = low;
    free(high);
    return low;
}

void is_arena_give(is_arena *arena, is_range *range)
{
    arena->used -= range->size;
    is_range *before = range->before;
    is_range *behind = range->behind;
    if (behind != NULL && behind->owner == NULL) {
        list_out(arena, behind);
        range = join(range, behind);
    }
    if (before != NULL && before->owner == NULL) {
        list_out(arena, before);
        range = join(before, range);
    }
    list_in(arena, range);
}

is_range *is_arena_first(is_arena *arena)
{
    return arena->first;
}

size_t is_arena_used(const is_arena *arena)
{
    return arena->used;
}
