/*
 * Reading import files: turns and facts, one after the other, through callbacks.
 *
 * Two forms are known, and told apart by the file's first byte that is no blank:
 *
 * `{`: JSON Lines, one object a line.  Members that are not named here are passed over; null is as good as absent.
 *   {"type": "turn", "id": "D1:3", "session": "1", "speaker": "Ann", "text": "...", "time": "2023-05-08T13:56:00Z"}
 *   {"type": "fact", "text": "...", "source": "D1:3", "time": 1683554160, "metadata": {"topic": "work"}}
 *   - type may be left out: what has a speaker is a turn, anything else a fact.
 *   - id, speaker and text of a turn and the text of a fact are needed; session is "" when it is left out.
 *   - time is a text as in common/time.h, or a number of Unix seconds.
 *   - tenant, user, agent and run, in a record of either type, go before the scope that the caller gave.
 *   A line is read, passed on and let go before the next one, so that a file may be of any length.
 *
 * `[`: LoCoMo's own file (Maharana et al., ACL 2024), an array of samples.  Of each sample the sessions are read in
 *   the order of their numbers, first the turns and then the observations, as facts, of each.  The scope's user is the
 *   sample_id, the rest of it is the caller's.  The time is the session's.  What an image shows (blip_caption) is put
 *   behind the text as " [image: ...]".  An observation that names several turns has the last of them as its source,
 *   so that a window which ends there reaches the others.
 *   The file is held in memory, one sample at a time is parsed.
 *
 * What cannot be used is reported and passed over, and reading goes on.
 */
#ifndef IS_MEMORY_IMPORT_H
#define IS_MEMORY_IMPORT_H

#include <stdio.h>

#include "../common/common.h"

#define IS_IMPORT_MAX_TEXT 4096                /* bytes of a turn's or fact's text */
#define IS_IMPORT_MAX_NAME 256                 /* bytes of an id, a session, a speaker, a source, a part of the scope */
#define IS_IMPORT_MAX_LINE ((size_t)1 << 20)   /* bytes of a line of JSON Lines */
#define IS_IMPORT_MAX_FILE ((size_t)256 << 20) /* bytes of a LoCoMo file */

typedef struct is_import_options {
    is_scope scope;     /* of records that name none */
    const char *sample; /* LoCoMo: only the sample with this sample_id; NULL: all */
} is_import_options;

/* The structs and their strings are the reader's, and valid until the callback returns.  false ends the reading. */
typedef struct is_import_callbacks {
    bool (*turn)(void *user, const is_scope *scope, const is_turn *turn);
    bool (*fact)(void *user, const is_scope *scope, const is_fact *fact);
    /* What was passed over, such as ("line 7", "text is empty"); may be NULL. */
    void (*skipped)(void *user, const char *where, const char *why);
    void *user;
} is_import_callbacks;

typedef struct is_import_counts {
    uint64_t turns, facts; /* passed to the callbacks */
    uint64_t skipped;      /* reports of something passed over; a whole session or sample is one */
} is_import_counts;

/*
 * Reads `in` to its end; it need not be seekable.  counts is right also when it fails.
 * IS_EINVAL: neither form, an array whose JSON is broken (what stood before the break was passed on), or a sample
 * asked of JSON Lines.  IS_ENOTFOUND: no such sample.  IS_ELIMIT: a LoCoMo file over IS_IMPORT_MAX_FILE.
 * IS_ECANCELED: a callback returned false.  IS_EIO: the file could not be read.
 */
is_status is_import_read(FILE *in, const is_import_options *options, const is_import_callbacks *callbacks,
                         is_import_counts *counts, is_error *err);

#endif
