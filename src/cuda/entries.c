/* The table of the device's chunks, with chains in its buckets, and the list by last use. */
#include "entries.h"

#include <stdlib.h>

#define BUCKETS 64

void is_list_in(is_entry_list *list, is_entry *e)
{
    e->newer = NULL;
    e->older = list->newest;
    if (e->older != NULL) e->older->newer = e;
    list->newest = e;
    if (list->oldest == NULL) list->oldest = e;
    list->n++;
    list->bytes += e->range->size;
}

void is_list_out(is_entry_list *list, is_entry *e)
{
    if (e->newer != NULL) e->newer->older = e->older;
    if (e->older != NULL) e->older->newer = e->newer;
    if (list->newest == e) list->newest = e->older;
    if (list->oldest == e) list->oldest = e->newer;
    e->newer = NULL;
    e->older = NULL;
    list->n--;
    list->bytes -= e->range->size;
}

static size_t bucket_of(const is_entry_table *table, int64_t number)
{
    return (size_t)((uint64_t)number * 0x9E3779B97F4A7C15u >> 32) & (table->n_buckets - 1);
}

bool is_table_new(is_entry_table *table)
{
    *table = (is_entry_table){.buckets = calloc(BUCKETS, sizeof(is_entry *)), .n_buckets = BUCKETS};
    return table->buckets != NULL;
}

void is_table_free(is_entry_table *table)
{
    free(table->buckets);
    table->buckets = NULL;
}

is_entry *is_table_find(const is_entry_table *table, int64_t number)
{
    is_entry *e = table->buckets[bucket_of(table, number)];
    while (e != NULL && e->number != number) e = e->chain;
    return e;
}

static void put(is_entry_table *table, is_entry *e)
{
    is_entry **bucket = &table->buckets[bucket_of(table, e->number)];
    e->chain = *bucket;
    *bucket = e;
}

/* Chains get longer where there is no memory for more buckets. */
static void grow(is_entry_table *table)
{
    is_entry_table old = *table;
    is_entry **buckets = calloc(old.n_buckets * 2, sizeof(is_entry *));
    if (buckets == NULL) return;
    table->buckets = buckets;
    table->n_buckets = old.n_buckets * 2;
    for (size_t i = 0; i < old.n_buckets; i++) {
        is_entry *e = old.buckets[i];
        while (e != NULL) {
            is_entry *next = e->chain;
            put(table, e);
            e = next;
        }
    }
    free(old.buckets);
}

void is_table_add(is_entry_table *table, is_entry *e)
{
    if (table->n >= table->n_buckets) grow(table);
    put(table, e);
    table->n++;
}

void is_table_remove(is_entry_table *table, is_entry *e)
{
    is_entry **at = &table->buckets[bucket_of(table, e->number)];
    while (*at != e) at = &(*at)->chain;
    *at = e->chain;
    table->n--;
}
