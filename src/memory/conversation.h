/* The turns of conversations that go on, as chunks in memory (conversation.c says how). */
#ifndef IS_MEMORY_CONVERSATION_H
#define IS_MEMORY_CONVERSATION_H

#include <pthread.h>

#include "../engine/engine.h"
#include "../store/store.h"

typedef struct is_conversations is_conversations;

/* The hash of a tail of which nothing is matched yet. */
#define IS_CONVERSATION_START 0x49536873u

/* budget: bytes.  Any thread may call any of these. */
is_status is_conversations_open(uint64_t budget, is_conversations **out, is_error *err);
void is_conversations_close(is_conversations *conversations);
uint64_t is_conversations_bytes(is_conversations *conversations);

/* The beginning of a tail that is there as chunks; is_conversation_release. */
typedef struct is_conversation {
    is_segment *segments; /* [n] */
    void **pins;          /* [n] */
    size_t n;
    uint32_t n_tokens; /* of all segments */
    uint64_t hash;     /* of these tokens */
} is_conversation;

/* What scopes are told apart by here: a scope may be asked before the store has it. */
uint64_t is_scope_key(const is_scope *scope);

/* At least one token of the tail is left over.  n: the tail's tokens. */
is_status is_conversation_find(is_conversations *conversations, uint64_t scope, const int32_t *tokens, size_t n,
                               is_conversation *out, is_error *err);
void is_conversation_release(is_conversations *conversations, is_conversation *conversation);

/* When a chunk was made: not to be kept when its scope has forgotten something since. */
typedef struct is_made {
    is_store *store;
    int64_t number;   /* the scope's; 0: the store does not have it */
    uint64_t removed; /* is_store_generation's, when the prompt was laid */
} is_made;

/* Keeps a sealed chunk that stands behind the tokens of *hash, and takes it over; *hash becomes that of the tokens
 * behind it.  bytes may be NULL. */
void is_conversation_keep(is_conversations *conversations, uint64_t scope, const is_made *made, uint64_t *hash,
                          void *bytes, size_t size);

/* Everything of a scope; what is in use goes when it is released.  conversations may be NULL. */
void is_conversation_forget(is_conversations *conversations, uint64_t scope);

#endif
