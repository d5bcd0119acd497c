/*
 * What the pool knows of its chunks: the entries, a table of those that can be found, by number, and a list by last use
 * of those that can go.
 */
#ifndef IS_CUDA_ENTRIES_H
#define IS_CUDA_ENTRIES_H

#include "../common/common.h"
#include "arena.h"

typedef struct is_entry is_entry;
struct is_entry {
    int64_t number;
    uint8_t key[16];
    is_range *range;
    uint8_t *memory;
    size_t size;
    uint64_t mark;    /* of the upload: what is in it is there behind this mark */
    uint32_t held;    /* pins that have not been released */
    uint32_t reading; /* pins that have, by streams that may not be done yet */
    bool gone;        /* not in the table, not found any more */
    bool wiped;       /* zeroed, as soon as its readers are done */
    bool lost;        /* it cannot be known when a reader is done */
    is_entry *chain;
    is_entry *newer, *older; /* in the table and idle: by last use; gone and idle: older only */
};

/* Nobody reads it, nobody may. */
static inline bool is_entry_idle(const is_entry *e)
{
    return e->held == 0 && e->reading == 0;
}

/* By last use; all zero is empty. */
typedef struct is_entry_list {
    is_entry *newest, *oldest;
    size_t n, bytes; /* bytes of the ranges */
} is_entry_list;

void is_list_in(is_entry_list *list, is_entry *e);
void is_list_out(is_entry_list *list, is_entry *e);

typedef struct is_entry_table {
    is_entry **buckets;
    size_t n_buckets; /* a power of two */
    size_t n;
} is_entry_table;

bool is_table_new(is_entry_table *table); /* false without memory */
void is_table_free(is_entry_table *table);
is_entry *is_table_find(const is_entry_table *table, int64_t number);
void is_table_add(is_entry_table *table, is_entry *e);
void is_table_remove(is_entry_table *table, is_entry *e);

#endif
