/*
 * Who asks what in `bench throughput`: as many users as wanted, made of the conversations in the data.
 *
 * User i has facts of conversation i mod n: a window of them that begins at another place for each user.  So no two
 * users have the same memory, and questions that a user has not asked before find no prompt in any cache, as with users
 * who are really different.
 */
#ifndef IS_CLI_BENCH_CROWD_H
#define IS_CLI_BENCH_CROWD_H

#include "bench.h"

typedef struct is_conversation_data {
    char *user; /* as the data calls it */
    is_fact *facts;
    size_t n_facts;
    const char **questions; /* the bench's */
    size_t n_questions;
} is_conversation_data;

typedef struct is_crowd {
    is_conversation_data *conversations; /* with facts and with questions, [n] */
    size_t n;
    uint32_t facts; /* of each user, or all that the conversation has */
} is_crowd;

typedef struct is_crowd_name {
    char s[32];
} is_crowd_name;

/* Reads the data.  bench->questions must be there and stay.  crowd->facts is the caller's to set. */
is_status is_crowd_read(const is_bench *bench, is_crowd *crowd, is_error *err);
void is_crowd_free(is_crowd *crowd);

is_crowd_name is_crowd_user(size_t user);
/* The nth question of a user; from the conversation's last one it goes on with the first. */
const char *is_crowd_question(const is_crowd *crowd, size_t user, size_t nth);
/* Gives the first n_users their facts; those who have just these already are left alone. */
is_status is_crowd_store(const is_crowd *crowd, const is_cli *cli, is_memory *memory, size_t n_users, is_error *err);
/* The tokens of the prompt that the server would make for this question.  *tokens: free(). */
is_status is_crowd_prompt(is_memory *memory, size_t user, const char *question, uint32_t k, uint32_t reserve,
                          int32_t **tokens, size_t *n, is_error *err);

#endif
