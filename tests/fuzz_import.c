/* Arbitrary bytes as an import file: the reader must not fall over, and what it passes on must keep its promises. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/time.h"
#include "memory/import.h"

static void require(bool condition)
{
    if (!condition) abort();
}

static void check_string(const char *text, size_t min, size_t max)
{
    if (text == NULL) {
        require(min == 0);
        return;
    }
    size_t n = strlen(text);
    require(n >= min && n <= max && is_utf8_valid(text, n));
}

static void check_record(const is_scope *scope, const char *text, int64_t time)
{
    const char *const part[4] = {scope->tenant, scope->user, scope->agent, scope->run};
    bool named = false;
    for (int i = 0; i < 4; i++) {
        check_string(part[i], 0, IS_IMPORT_MAX_NAME);
        named = named || (part[i] && *part[i]);
    }
    require(named);
    check_string(text, 1, IS_IMPORT_MAX_TEXT);
    require(time == IS_TIME_NONE || (time >= IS_TIME_MIN && time <= IS_TIME_MAX));
}

static bool on_turn(void *user, const is_scope *scope, const is_turn *turn)
{
    (void)user;
    check_record(scope, turn->text, turn->time);
    check_string(turn->id, 1, IS_IMPORT_MAX_NAME);
    check_string(turn->speaker, 1, IS_IMPORT_MAX_NAME);
    require(turn->session != NULL);
    check_string(turn->session, 0, IS_IMPORT_MAX_NAME);
    return true;
}

static bool on_fact(void *user, const is_scope *scope, const is_fact *fact)
{
    (void)user;
    check_record(scope, fact->text, fact->time);
    check_string(fact->source, 0, IS_IMPORT_MAX_NAME);
    check_string(fact->metadata, 0, 2 * IS_IMPORT_MAX_LINE);
    return true;
}

static void on_skipped(void *user, const char *where, const char *why)
{
    uint64_t *reports = user;
    (*reports)++;
    require(*where && *why);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    uint64_t reports = 0;
    is_import_options options = {.scope = {.user = "fuzz"}};
    is_import_callbacks callbacks = {.turn = on_turn, .fact = on_fact, .skipped = on_skipped, .user = &reports};
    is_import_counts counts;
    is_error err;
    FILE *in = fmemopen((void *)(uintptr_t)data, size, "r");
    require(in != NULL);
    is_status status = is_import_read(in, &options, &callbacks, &counts, &err);
    require(status == IS_OK || status == IS_EINVAL);
    require(counts.skipped == reports);
    fclose(in);
    return 0;
}
