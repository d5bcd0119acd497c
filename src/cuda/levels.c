/* Long lists of scores, cut into pieces level by level. */
#include "levels.h"

static uint32_t pieces_of(uint32_t n)
{
    return n == 0 ? 1 : (n - 1) / IS_SELECT_SEGMENT + 1;
}

static uint32_t size_of(uint32_t n, uint32_t piece)
{
    uint32_t rest = n - piece * IS_SELECT_SEGMENT;
    return rest < IS_SELECT_SEGMENT ? rest : IS_SELECT_SEGMENT;
}

/* Of all pieces; the last one may have fewer scores than k. */
static uint32_t winners_of(uint32_t n, uint32_t k)
{
    uint32_t last = pieces_of(n) - 1;
    uint32_t rest = size_of(n, last);
    return last * k + (rest < k ? rest : k);
}

void is_select_measure(uint32_t n, uint32_t k, size_t *n_pieces, size_t *n_slots)
{
    while (pieces_of(n) > 1) {
        *n_pieces += pieces_of(n);
        *n_slots += (size_t)pieces_of(n) * k;
        n = winners_of(n, k);
    }
    *n_pieces += 1;
}

static size_t cut(is_select_list *list, is_select_slots *slots, is_select_piece *pieces)
{
    uint32_t n_pieces = pieces_of(list->n);
    list->done = n_pieces == 1;
    is_select_slots out = list->done ? (is_select_slots){list->out_scores, list->out_ids} : *slots;
    for (uint32_t i = 0; i < n_pieces; i++) {
        size_t at = (size_t)i * IS_SELECT_SEGMENT;
        size_t to = (size_t)i * list->k;
        pieces[i] = (is_select_piece){.scores = list->scores + at,
                                      .ids = list->ids ? list->ids + at : NULL,
                                      .out_scores = out.scores + to,
                                      .out_ids = out.ids + to,
                                      .first = (uint32_t)at,
                                      .n = size_of(list->n, i),
                                      .k = list->k};
    }
    if (list->done) return n_pieces;
    list->scores = slots->scores;
    list->ids = slots->ids;
    list->n = winners_of(list->n, list->k);
    slots->scores += (size_t)n_pieces * list->k;
    slots->ids += (size_t)n_pieces * list->k;
    return n_pieces;
}

size_t is_select_level(is_select_list *lists, size_t n_lists, is_select_slots *slots, is_select_piece *pieces)
{
    size_t n = 0;
    for (size_t i = 0; i < n_lists; i++)
        if (!lists[i].done) n += cut(&lists[i], slots, pieces + n);
    return n;
}
