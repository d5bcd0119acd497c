/* The allocator of the device tier: its books are right after every step, and it takes the hole that fits best. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cuda/arena.h"

#define K      1024
#define RANGES 64

static void ranges_never_overlap(void **state)
{
    (void)state;
    is_arena *arena = is_arena_new(256 * K);
    is_range *ranges[RANGES] = {NULL};
    uint32_t random = 7;
    for (int i = 0; i < 20000; i++) {
        random = random * 1664525 + 1013904223;
        is_range **at = &ranges[random >> 8 & (RANGES - 1)];
        if (*at != NULL) {
            is_arena_give(arena, *at);
            *at = NULL;
        } else {
            size_t size = (random >> 14) % 20000 + 1;
            assert_true(is_arena_ready(arena));
            *at = is_arena_take(arena, size, at);
            if (*at != NULL) assert_true((*at)->size >= size && (*at)->size < size + IS_ARENA_ALIGN);
        }
        size_t end_of_last = 0;
        size_t used = 0;
        bool free_before = false;
        for (const is_range *r = is_arena_first(arena); r != NULL; r = r->behind) {
            assert_int_equal(r->offset, end_of_last);
            assert_false(free_before && r->owner == NULL); /* free neighbours are one */
            if (r->owner != NULL) assert_ptr_equal(*(is_range **)r->owner, r);
            free_before = r->owner == NULL;
            used += free_before ? 0 : r->size;
            end_of_last += r->size;
        }
        assert_int_equal(end_of_last, 256 * K);
        assert_int_equal(is_arena_used(arena), used);
    }
    is_arena_free(arena);
}

/* Among holes of many sizes, the one that fits best. */
static void the_best_hole_is_taken(void **state)
{
    (void)state;
    is_arena *arena = is_arena_new(4096 * K);
    is_range *holes[40];
    for (size_t i = 0; i < 40; i++) {
        assert_true(is_arena_ready(arena));
        holes[i] = is_arena_take(arena, (i * 7 % 40 + 1) * 256 + 20 * K, holes);
        assert_true(is_arena_ready(arena));
        assert_non_null(is_arena_take(arena, 1, holes)); /* keeps them apart */
    }
    size_t offsets[41];
    for (size_t i = 0; i < 40; i++) offsets[i * 7 % 40 + 1] = holes[i]->offset;
    for (size_t i = 0; i < 40; i++) is_arena_give(arena, holes[i]);
    for (size_t n = 1; n <= 40; n++) {
        assert_true(is_arena_ready(arena));
        const is_range *range = is_arena_take(arena, n * 256 + 20 * K, holes);
        assert_non_null(range);
        assert_int_equal(range->offset, offsets[n]);
    }
    is_arena_free(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_never_overlap),
        cmocka_unit_test(the_best_hole_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
