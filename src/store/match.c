/*
 * BM25 over a scope's facts.
 *
 * Score of a fact = sum over the query's words of
 *     idf * n * (k1 + 1) / (n + k1 * (1 - b + b * n_text / mean n_text)),   idf = ln(1 + (N - df + 0.5) / (df + 0.5))
 * (Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009; the 1 + inside the
 * logarithm keeps common words from counting against a fact).  N, df and the mean are the scope's own.
 *
 * Words are taken from the rarest on, until the next one would bring the postings over the caller's bound.  When
 * already the rarest has more than that, its newest facts up to the bound are scored.
 */
#include "store_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BM25_K1 1.2
#define BM25_B  0.75

typedef struct query_word {
    int64_t hash;
    int64_t df;
} query_word;

/* Scores by fact: a hash table with open addressing, never more than half full.  Fact ids are never 0. */
typedef struct scores {
    is_hit *slots;
    size_t mask;
    size_t n;
} scores;

static int by_df(const void *a, const void *b)
{
    const query_word *x = a;
    const query_word *y = b;
    if (x->df != y->df) return (x->df > y->df) - (x->df < y->df);
    return (x->hash > y->hash) - (x->hash < y->hash);
}

static int by_score(const void *a, const void *b)
{
    const is_hit *x = a;
    const is_hit *y = b;
    if (x->score > y->score || x->score < y->score) return x->score > y->score ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The query's words that the scope has, rarest first. */
static is_status known_words(is_store *store, int64_t scope, const char *query, query_word out[IS_WORDS_MAX], size_t *n,
                             is_error *err)
{
    is_word words[IS_WORDS_MAX];
    size_t n_words = 0;
    *n = 0;
    is_status status = is_words_split(store, query, true, words, &n_words, err);
    for (size_t i = 0; i < n_words && status == IS_OK; i++) {
        int64_t df = 0;
        status = is_db_int(store, &df, NULL, err, "SELECT facts FROM word WHERE scope = ? AND hash = ?", "ii", scope,
                           words[i].hash);
        if (df > 0) out[(*n)++] = (query_word){words[i].hash, df};
    }
    if (*n > 1) qsort(out, *n, sizeof *out, by_df);
    return status;
}

/* How many of the words are taken, and the most postings that they have. */
static size_t affordable(const query_word *words, size_t n, size_t max_postings, size_t *postings)
{
    size_t taken = 0;
    *postings = 0;
    while (taken < n && (size_t)words[taken].df <= max_postings - *postings) *postings += (size_t)words[taken++].df;
    if (taken > 0 || n == 0) return taken;
    *postings = max_postings;
    return 1;
}

static is_status scores_new(scores *out, size_t most, is_error *err)
{
    size_t n_slots = 16;
    while (n_slots < most * 2) n_slots *= 2;
    *out = (scores){calloc(n_slots, sizeof *out->slots), n_slots - 1, 0};
    return out->slots != NULL ? IS_OK : is_fail(err, IS_ENOMEM, "out of memory for a search");
}

static void scores_add(scores *s, int64_t fact, double score)
{
    size_t at = (size_t)((uint64_t)fact * 0x9E3779B97F4A7C15u >> 20) & s->mask;
    while (s->slots[at].id != 0 && s->slots[at].id != fact) at = (at + 1) & s->mask;
    if (s->slots[at].id == 0) s->n++;
    s->slots[at].id = fact;
    s->slots[at].score += score;
}

static is_status score_word(is_store *store, int64_t scope, const query_word *word, size_t limit, double n_facts,
                            double mean, scores *s, is_error *err)
{
    double df = (double)word->df;
    double idf = log(1.0 + (n_facts - df + 0.5) / (df + 0.5));
    sqlite3_stmt *stmt = NULL;
    bool row = true;
    is_status status = is_db_query(store, &stmt, err,
                                   "SELECT fact, n, n_text FROM posting WHERE scope = ? AND hash = ?"
                                   " ORDER BY fact DESC LIMIT ?",
                                   "iii", scope, word->hash, (int64_t)limit);
    if (status != IS_OK) return status;
    for (;;) {
        status = is_db_step(store, stmt, &row, err);
        if (status != IS_OK || !row) break;
        double n = (double)sqlite3_column_int64(stmt, 1);
        double length = (double)sqlite3_column_int64(stmt, 2) / mean;
        double score = idf * n * (BM25_K1 + 1.0) / (n + BM25_K1 * (1.0 - BM25_B + BM25_B * length));
        scores_add(s, sqlite3_column_int64(stmt, 0), score);
    }
    is_db_end(stmt);
    return status;
}

static is_status score_all(is_store *store, int64_t scope, const query_word *words, size_t n, size_t postings,
                           scores *s, is_error *err)
{
    int64_t n_facts = 0;
    int64_t n_words = 0;
    is_status status = is_db_int(store, &n_facts, NULL, err, "SELECT facts FROM scope WHERE id = ?", "i", scope);
    if (status == IS_OK)
        status = is_db_int(store, &n_words, NULL, err, "SELECT words FROM scope WHERE id = ?", "i", scope);
    double mean = n_facts > 0 && n_words > 0 ? (double)n_words / (double)n_facts : 1.0;
    for (size_t i = 0; i < n && status == IS_OK; i++)
        status = score_word(store, scope, &words[i], postings, (double)n_facts, mean, s, err);
    return status;
}

/* Moves the table's entries to its front, best first. */
static void rank(scores *s)
{
    size_t kept = 0;
    for (size_t i = 0; i <= s->mask; i++)
        if (s->slots[i].id != 0) s->slots[kept++] = s->slots[i];
    if (kept > 1) qsort(s->slots, kept, sizeof *s->slots, by_score);
}

is_status is_store_match(is_store *store, int64_t scope, const char *query, size_t limit, size_t max_postings,
                         is_hit *hits, size_t *n, is_error *err)
{
    query_word words[IS_WORDS_MAX];
    size_t n_words = 0;
    size_t postings = 0;
    scores s = {NULL, 0, 0};
    *n = 0;
    if (max_postings > UINT32_MAX) max_postings = UINT32_MAX;
    is_db_lock(store);
    is_status status = known_words(store, scope, query, words, &n_words, err);
    size_t taken = affordable(words, n_words, max_postings, &postings);
    if (status == IS_OK && taken > 0) status = scores_new(&s, postings, err);
    if (status == IS_OK && taken > 0) status = score_all(store, scope, words, taken, postings, &s, err);
    is_db_unlock(store);
    if (status == IS_OK && taken > 0) {
        rank(&s);
        *n = s.n < limit ? s.n : limit;
        if (*n > 0) memcpy(hits, s.slots, *n * sizeof *hits);
    }
    free(s.slots);
    return status;
}
