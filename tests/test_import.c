/* The reader of import files: what it passes on, what it passes over and why, and LoCoMo's own file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/import.h"

/* Everything that the reader says, one line for each call, in its order. */
typedef struct log {
    char *text;
    size_t size;
    FILE *out;
    uint64_t calls;
    uint64_t stop_at; /* the call that answers false; 0: none */
} log;

static void log_scope_and_time(log *l, const is_scope *scope, int64_t time)
{
    fprintf(l->out, " [%s/%s/%s/%s] ", scope->tenant ? scope->tenant : "", scope->user ? scope->user : "",
            scope->agent ? scope->agent : "", scope->run ? scope->run : "");
    if (time == IS_TIME_NONE)
        fprintf(l->out, "-\n");
    else
        fprintf(l->out, "%lld\n", (long long)time);
}

static bool on_turn(void *user, const is_scope *scope, const is_turn *turn)
{
    log *l = user;
    fprintf(l->out, "turn %s|%s|%s|%s", turn->id, turn->session, turn->speaker, turn->text);
    log_scope_and_time(l, scope, turn->time);
    return ++l->calls != l->stop_at;
}

static bool on_fact(void *user, const is_scope *scope, const is_fact *fact)
{
    log *l = user;
    fprintf(l->out, "fact %s|%s|%s", fact->text, fact->source ? fact->source : "-",
            fact->metadata ? fact->metadata : "-");
    log_scope_and_time(l, scope, fact->time);
    return ++l->calls != l->stop_at;
}

static void on_skipped(void *user, const char *where, const char *why)
{
    log *l = user;
    fprintf(l->out, "skip %s: %s\n", where, why);
}

typedef struct result {
    is_status status;
    is_error err;
    is_import_counts counts;
    log log;
} result;

static void result_free(result *r)
{
    free(r->log.text);
}

static result read_bytes(const char *bytes, size_t n, const is_import_options *options, uint64_t stop_at)
{
    static const is_import_options for_ann = {.scope = {.user = "ann"}};
    result r = {.log = {.stop_at = stop_at}};
    r.log.out = open_memstream(&r.log.text, &r.log.size);
    is_import_callbacks callbacks = {.turn = on_turn, .fact = on_fact, .skipped = on_skipped, .user = &r.log};
    FILE *in = n ? fmemopen((void *)(uintptr_t)bytes, n, "r") : fopen("/dev/null", "r");
    assert_non_null(in);
    r.status = is_import_read(in, options ? options : &for_ann, &callbacks, &r.counts, &r.err);
    fclose(in);
    fclose(r.log.out);
    return r;
}

static void expect(const char *text, const is_import_options *options, const char *log_text)
{
    result r = read_bytes(text, strlen(text), options, 0);
    if (r.status != IS_OK) fail_msg("%s", r.err.text);
    assert_string_equal(r.log.text, log_text);
    result_free(&r);
}

static void expect_failure(const char *text, const is_import_options *options, is_status status, const char *part)
{
    result r = read_bytes(text, strlen(text), options, 0);
    assert_int_equal(r.status, status);
    assert_int_equal(r.err.status, status);
    if (strstr(r.err.text, part) == NULL) fail_msg("\"%s\" does not say \"%s\"", r.err.text, part);
    result_free(&r);
}

/* ------------------------------------------------------------ JSON Lines */

static void test_lines(void **state)
{
    (void)state;
    expect("{\"type\":\"turn\",\"id\":\"D1:1\",\"session\":\"1\",\"speaker\":\"Ann\",\"text\":\"Hello\","
           "\"time\":\"2023-05-08T13:56:00Z\"}\n"
           "{\"type\":\"fact\",\"text\":\"Ann sails.\",\"source\":\"D1:1\",\"time\":\"2023-05-08\","
           "\"metadata\":{\"topic\":\"sport\", \"n\":[1,2]}}\n"
           "\n  \t\r\n"
           "{\"id\":\"D1:2\",\"speaker\":\"Bob\",\"text\":\"Hi\"}\r\n"
           "{\"text\":\"Bob waits. \\u00e4\",\"time\":1683554160,\"other\":{}}\n"
           "{\"text\":\"Half a second before 1970\",\"time\":-0.5}\n"
           "{\"text\":\"null is absent\",\"time\":null,\"source\":null,\"metadata\":null,\"type\":null}",
           NULL,
           "turn D1:1|1|Ann|Hello [/ann//] 1683554160\n"
           "fact Ann sails.|D1:1|{\"topic\":\"sport\",\"n\":[1,2]} [/ann//] 1683504000\n"
           "turn D1:2||Bob|Hi [/ann//] -\n"
           "fact Bob waits. \xC3\xA4|-|- [/ann//] 1683554160\n"
           "fact Half a second before 1970|-|- [/ann//] -1\n"
           "fact null is absent|-|- [/ann//] -\n");
}

static void test_scope_of_a_record(void **state)
{
    (void)state;
    is_import_options options = {.scope = {.tenant = "acme", .user = "ann"}};
    expect("{\"text\":\"a\"}\n"
           "{\"text\":\"b\",\"user\":\"bob\",\"run\":\"r\"}\n"
           "{\"text\":\"c\",\"tenant\":\"\",\"agent\":\"g\"}\n"
           "{\"text\":\"d\",\"user\":7}\n",
           &options,
           "fact a|-|- [acme/ann//] -\n"
           "fact b|-|- [acme/bob//r] -\n"
           "fact c|-|- [/ann/g/] -\n"
           "skip line 4: user must be a string\n");
    is_import_options nobody = {.sample = NULL};
    expect("{\"text\":\"a\"}\n{\"text\":\"b\",\"agent\":\"g\"}\n", &nobody,
           "skip line 1: it belongs to nobody: name a user, in the record or for the whole import\n"
           "fact b|-|- [//g/] -\n");
}

/* Each of these is passed over for the reason given, and the line behind it is read. */
static void test_skipped_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line, *why;
    } bad[] = {
        {"{\"text\":\"a\"", "bad JSON at byte 11: '}' expected near end of file"},
        {"{\"text\":\"a\"} {}", "bad JSON at byte 14: end of file expected near '{'"},
        {"[1]", "a record must be an object"},
        {"plain", "bad JSON at byte 5: '[' or '{' expected near 'plain'"},
        {"{\"text\":\"a\",\"text\":\"b\"}", "bad JSON at byte 18: duplicate object key near '\"text\"'"},
        {"{\"text\":\"\xFF\"}", "bad JSON at byte 9: unable to decode byte 0xff near '\"'"},
        {"{\"text\":\"\\ud800\"}", "bad JSON at byte 16: invalid Unicode"},
        {"{\"text\":\"a\\u0000b\"}", "bad JSON"},
        {"{\"source\":\"D1\"}", "text is missing"},
        {"{\"text\":\"\"}", "text is empty"},
        {"{\"text\":\" \\n\\t \"}", "text is empty"},
        {"{\"text\":1}", "text must be a string"},
        {"{\"text\":\"a\",\"time\":\"soon\"}", "time is not understood"},
        {"{\"text\":\"a\",\"time\":true}", "time is not understood"},
        {"{\"text\":\"a\",\"time\":1683554160000}", "time is outside the years 1 to 9999"},
        {"{\"text\":\"a\",\"time\":1e300}", "time is outside the years 1 to 9999"},
        {"{\"text\":\"a\",\"metadata\":[]}", "metadata must be an object"},
        {"{\"text\":\"a\",\"type\":\"note\"}", "type must be \"turn\" or \"fact\""},
        {"{\"text\":\"a\",\"type\":\"turn\",\"id\":\"1\"}", "speaker is missing"},
        {"{\"text\":\"a\",\"speaker\":\"Ann\"}", "id is missing"},
        {"{\"text\":\"a\",\"speaker\":\"Ann\",\"id\":1}", "id must be a string"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[512];
        snprintf(text, sizeof text, "{\"text\":\"first\"}\n%s\n{\"text\":\"last\"}\n", bad[i].line);
        result r = read_bytes(text, strlen(text), NULL, 0);
        assert_int_equal(r.status, IS_OK);
        assert_int_equal(r.counts.facts, 2);
        assert_int_equal(r.counts.skipped, 1);
        char expected[512];
        snprintf(expected, sizeof expected, "fact first|-|- [/ann//] -\nskip line 2: %s", bad[i].why);
        if (strncmp(r.log.text, expected, strlen(expected)) != 0)
            fail_msg("%s gives\n%swhere this was expected:\n%s", bad[i].line, r.log.text, expected);
        assert_non_null(strstr(r.log.text, "\nfact last|"));
        result_free(&r);
    }
}

static void test_lengths(void **state)
{
    (void)state;
    size_t size = 3 * IS_IMPORT_MAX_LINE;
    char *text = malloc(size);
    assert_non_null(text);
    char *p = text;
    /* texts of 4,096 and 4,097 bytes */
    for (int n = IS_IMPORT_MAX_TEXT; n <= IS_IMPORT_MAX_TEXT + 1; n++) p += sprintf(p, "{\"text\":\"%0*d\"}\n", n, 0);
    /* sources of 256 and 257 */
    for (int n = IS_IMPORT_MAX_NAME; n <= IS_IMPORT_MAX_NAME + 1; n++)
        p += sprintf(p, "{\"text\":\"s\",\"source\":\"%0*d\"}\n", n, 0);
    /* lines of 1 MiB and one byte more */
    for (size_t n = IS_IMPORT_MAX_LINE; n <= IS_IMPORT_MAX_LINE + 1; n++) {
        size_t head = (size_t)sprintf(p, "{\"text\":\"long line\"");
        memset(p + head, ' ', n - head - 1);
        p += n;
        p[-1] = '}';
        *p++ = '\n';
    }
    p += sprintf(p, "{\"text\":\"end\"}");
    assert_true((size_t)(p - text) < size);

    result r = read_bytes(text, (size_t)(p - text), NULL, 0);
    assert_int_equal(r.status, IS_OK);
    assert_int_equal(r.counts.facts, 4);
    assert_int_equal(r.counts.skipped, 3);
    assert_non_null(strstr(r.log.text, "skip line 2: text is too long: 4097 bytes, 4096 are possible\n"));
    assert_non_null(strstr(r.log.text, "skip line 4: source is too long: 257 bytes, 256 are possible\n"));
    assert_non_null(strstr(r.log.text, "fact long line|-|- [/ann//] -\n"
                                       "skip line 6: the line is too long: over 1048576 bytes\n"
                                       "fact end|-|- [/ann//] -\n"));
    result_free(&r);
    free(text);
}

static void test_nesting(void **state)
{
    (void)state;
    char text[8192];
    char *p = text + sprintf(text, "{\"text\":\"a\",\"metadata\":{\"m\":");
    memset(p, '[', 3000);
    p += 3000;
    memset(p, ']', 3000);
    p += 3000;
    p += sprintf(p, "}}\n{\"text\":\"b\"}\n");
    result r = read_bytes(text, (size_t)(p - text), NULL, 0);
    assert_int_equal(r.status, IS_OK);
    assert_int_equal(r.counts.skipped, 1);
    assert_non_null(strstr(r.log.text, "maximum parsing depth reached"));
    assert_non_null(strstr(r.log.text, "fact b|"));
    result_free(&r);
}

static void test_other_files(void **state)
{
    (void)state;
    is_import_options sample = {.scope = {.user = "ann"}, .sample = "conv-1"};
    expect_failure("", NULL, IS_EINVAL, "empty");
    expect_failure(" \n\n", NULL, IS_EINVAL, "empty");
    expect_failure("\n\nname,text\n", NULL, IS_EINVAL, "line 3");
    expect_failure("{\"text\":\"a\"}", &sample, IS_EINVAL, "no samples");
    expect("\xEF\xBB\xBF\n {\"text\":\"a\"}\n{\"text\":\"\"}", NULL,
           "fact a|-|- [/ann//] -\nskip line 3: text is empty\n");
}

static void test_cancel(void **state)
{
    (void)state;
    static const char lines[] = "{\"text\":\"a\"}\n{\"text\":\"b\"}\n{\"text\":\"c\"}\n";
    result r = read_bytes(lines, sizeof lines - 1, NULL, 2);
    assert_int_equal(r.status, IS_ECANCELED);
    assert_int_equal(r.counts.facts, 2);
    assert_string_equal(r.log.text, "fact a|-|- [/ann//] -\nfact b|-|- [/ann//] -\n");
    result_free(&r);
}

/* ------------------------------------------------------------ LoCoMo's own file */

static const char two_samples[] =
    "[\n{\"sample_id\":\"c1\",\"qa\":[],\"conversation\":{\"speaker_a\":\"Ann\","
    "\"session_10_date_time\":\"12:05 am on 1 January, 1970\","
    "\"session_10\":[{\"speaker\":\"Ann\",\"dia_id\":\"D10:1\",\"text\":\"Ten\"}],"
    "\"session_2_date_time\":\"1:56 pm on 8 May, 2023\","
    "\"session_2\":[{\"speaker\":\"Ann\",\"dia_id\":\"D2:1\",\"text\":\"Look\",\"blip_caption\":\"a dog\"},"
    "{\"speaker\":\"Bob\",\"dia_id\":\"D2:2\",\"text\":\"\",\"blip_caption\":\"a cat\"},"
    "{\"speaker\":\"Bob\",\"text\":\"no id\"},"
    "{\"speaker\":\"Bob\",\"dia_id\":\"D2:4\",\"text\":\"Nice\"}],"
    "\"session_11_date_time\":\"8:00 am on 9 May, 2023\"},"
    "\"observation\":{\"session_2_observation\":{\"Bob\":[[\"Bob likes "
    "it.\",[\"D2:1\",\"D2:4\"]],[\"x\"],[7,\"D2:4\"]],"
    "\"Ann\":[[\"Ann has a dog.\",\"D2:1\"],[\"Both.\",\"D2:1, D2:2\"],[\"Odd.\",{}]]},"
    "\"session_10_observation\":{\"Ann\":[[\"Ann counts.\",\"D10:1\"]]}}},\n"
    "{\"sample_id\":\"c2\",\"conversation\":{\"session_1\":[{\"speaker\":\"Eve\",\"dia_id\":\"D1:1\",\"text\":\"Hm\"}],"
    "\"session_2_date_time\":\"noon\",\"session_2\":[{\"speaker\":\"Eve\",\"dia_id\":\"D2:1\",\"text\":\"No\"}],"
    "\"session_3\":\"gone\"}},\n"
    "{\"sample_id\":\"\",\"conversation\":{}}, [], {\"conversation\":{}},{\"sample_id\":\"c3\"}]\n";

static const char log_c1[] = "turn D2:1|session_2|Ann|Look [image: a dog] [acme/c1//] 1683554160\n"
                             "turn D2:2|session_2|Bob|[image: a cat] [acme/c1//] 1683554160\n"
                             "skip sample c1, session_2, turn 3: id is missing\n"
                             "turn D2:4|session_2|Bob|Nice [acme/c1//] 1683554160\n"
                             "fact Bob likes it.|D2:4|- [acme/c1//] 1683554160\n"
                             "fact x|-|- [acme/c1//] 1683554160\n"
                             "skip sample c1, session_2, observation 3: an observation must be [text, the id of a turn "
                             "or a list of them]\n"
                             "fact Ann has a dog.|D2:1|- [acme/c1//] 1683554160\n"
                             "fact Both.|D2:2|- [acme/c1//] 1683554160\n"
                             "skip sample c1, session_2, observation 6: an observation must be [text, the id of a turn "
                             "or a list of them]\n"
                             "turn D10:1|session_10|Ann|Ten [acme/c1//] 300\n"
                             "fact Ann counts.|D10:1|- [acme/c1//] 300\n";
static const char log_c2[] = "turn D1:1|session_1|Eve|Hm [acme/c2//] -\n"
                             "skip sample c2, session_2: the whole session: its time is not understood; write it as "
                             "1:56 pm on 8 May, 2023\n"
                             "skip sample c2, session_3: a session must be an array of turns\n";

static void test_locomo(void **state)
{
    (void)state;
    is_import_options options = {.scope = {.tenant = "acme", .user = "ann"}};
    char expected[4096];
    snprintf(expected, sizeof expected,
             "%s%sskip sample 3: a sample needs a sample_id of 1 to 256 bytes and a conversation\n"
             "skip sample 4: a sample must be an object\n"
             "skip sample 5: a sample needs a sample_id of 1 to 256 bytes and a conversation\n"
             "skip sample 6: a sample needs a sample_id of 1 to 256 bytes and a conversation\n",
             log_c1, log_c2);
    expect(two_samples, &options, expected);
    expect("[]", NULL, "");
    expect(" [ ] ", NULL, "");
}

static void test_locomo_one_sample(void **state)
{
    (void)state;
    is_import_options options = {.scope = {.tenant = "acme"}, .sample = "c2"};
    char expected[4096];
    snprintf(expected, sizeof expected, "%sskip sample 4: a sample must be an object\n", log_c2);
    expect(two_samples, &options, expected);
    options.sample = "c9";
    expect_failure(two_samples, &options, IS_ENOTFOUND, "no sample c9");
}

static void test_locomo_broken(void **state)
{
    (void)state;
    expect_failure("[", NULL, IS_EINVAL, "sample 1 of the LoCoMo file, line 1: '[' or '{' expected near end of file");
    expect_failure("[{}", NULL, IS_EINVAL, "sample 1 of the LoCoMo file, line 1: a comma");
    expect_failure("[\n{},\n\n{\"a\":\n}]", NULL, IS_EINVAL, "sample 2 of the LoCoMo file, line 5: unexpected token");
    expect_failure("[{},]", NULL, IS_EINVAL, "sample 2");
    expect_failure("[{\"a\":1,\"a\":2}]", NULL, IS_EINVAL, "duplicate object key");
    /* What stands before the break was passed on. */
    static const char cut[] =
        "[{\"sample_id\":\"c\",\"conversation\":{\"session_1\":[{\"dia_id\":\"1\",\"speaker\":\"A\","
        "\"text\":\"kept\"}]}},{\"sample_id\"";
    result r = read_bytes(cut, sizeof cut - 1, NULL, 0);
    assert_int_equal(r.status, IS_EINVAL);
    assert_int_equal(r.counts.turns, 1);
    assert_string_equal(r.log.text, "turn 1|session_1|A|kept [/c//] -\n");
    result_free(&r);
    r = read_bytes(two_samples, sizeof two_samples - 1, NULL, 4); /* in the middle of the observations */
    assert_int_equal(r.status, IS_ECANCELED);
    assert_int_equal(r.counts.turns, 3);
    assert_int_equal(r.counts.facts, 1);
    result_free(&r);
}

/* A file of endless blanks: the limit is found without a file of that size. */
static ssize_t read_blanks(void *cookie, char *buf, size_t n)
{
    size_t *given = cookie;
    memset(buf, *given ? ' ' : '[', n);
    *given += n;
    return (ssize_t)n;
}

static ssize_t read_fails(void *cookie, char *buf, size_t n)
{
    size_t *given = cookie;
    if (*given > 0) return -1;
    memset(buf, ' ', n);
    buf[0] = *(char *)(given + 1);
    *given = n;
    return (ssize_t)n;
}

static bool never_turn(void *user, const is_scope *scope, const is_turn *turn)
{
    (void)user, (void)scope, (void)turn;
    fail_msg("there is no turn in it");
    return false;
}

static bool never_fact(void *user, const is_scope *scope, const is_fact *fact)
{
    (void)user, (void)scope, (void)fact;
    fail_msg("there is no fact in it");
    return false;
}

static void test_file_limit_and_errors(void **state)
{
    (void)state;
    is_import_options options = {.scope = {.user = "ann"}};
    is_import_callbacks callbacks = {.turn = never_turn, .fact = never_fact};
    is_import_counts counts;
    is_error err;
    size_t given = 0;
    FILE *in = fopencookie(&given, "r", (cookie_io_functions_t){.read = read_blanks});
    assert_int_equal(is_import_read(in, &options, &callbacks, &counts, &err), IS_ELIMIT);
    assert_true(given <= IS_IMPORT_MAX_FILE + ((size_t)1 << 20)); /* stdio reads ahead a little */
    fclose(in);
    for (int form = 0; form < 2; form++) {
        struct {
            size_t given;
            char first;
        } cookie = {0, form ? '[' : '{'};
        in = fopencookie(&cookie, "r", (cookie_io_functions_t){.read = read_fails});
        assert_int_equal(is_import_read(in, &options, &callbacks, &counts, &err), IS_EIO);
        fclose(in);
    }
}

/* ------------------------------------------------------------ the real file, where it is */

typedef struct tally {
    uint64_t turns, facts, skipped, images, undated, without_source;
    char last_user[64];
    uint64_t users;
} tally;

static void tally_user(tally *t, const is_scope *scope)
{
    if (strcmp(t->last_user, scope->user) == 0) return;
    snprintf(t->last_user, sizeof t->last_user, "%s", scope->user);
    t->users++;
}

static bool tally_turn(void *user, const is_scope *scope, const is_turn *turn)
{
    tally *t = user;
    tally_user(t, scope);
    t->turns++;
    t->images += strstr(turn->text, "[image: ") != NULL;
    t->undated += turn->time == IS_TIME_NONE;
    return true;
}

static bool tally_fact(void *user, const is_scope *scope, const is_fact *fact)
{
    tally *t = user;
    tally_user(t, scope);
    t->facts++;
    t->undated += fact->time == IS_TIME_NONE;
    t->without_source += fact->source == NULL || strpbrk(fact->source, ", ") != NULL;
    return true;
}

static void tally_skipped(void *user, const char *where, const char *why)
{
    tally *t = user;
    t->skipped++;
    print_message("%s: %s\n", where, why);
}

static void test_real_locomo(void **state)
{
    (void)state;
    const char *path = getenv("INFERSCALE_LOCOMO");
    if (path == NULL) skip();
    static const struct {
        const char *sample;
        uint64_t turns, facts, images, users;
    } expected[] = {{NULL, 5882, 2541, 1226, 10}, {"conv-30", 369, 169, 0, 1}};
    for (size_t i = 0; i < 2; i++) {
        tally t = {0};
        is_import_options options = {.sample = expected[i].sample};
        is_import_callbacks callbacks = {.turn = tally_turn, .fact = tally_fact, .skipped = tally_skipped, .user = &t};
        is_import_counts counts;
        is_error err;
        FILE *in = fopen(path, "r");
        assert_non_null(in);
        if (is_import_read(in, &options, &callbacks, &counts, &err) != IS_OK) fail_msg("%s", err.text);
        fclose(in);
        assert_int_equal(t.turns, expected[i].turns);
        assert_int_equal(t.facts, expected[i].facts);
        assert_int_equal(counts.turns, t.turns);
        assert_int_equal(counts.facts, t.facts);
        assert_int_equal(t.users, expected[i].users);
        if (expected[i].images) assert_int_equal(t.images, expected[i].images);
        assert_int_equal(t.skipped, 0);
        assert_int_equal(t.undated, 0);
        assert_int_equal(t.without_source, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_scope_of_a_record),
        cmocka_unit_test(test_skipped_lines),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_locomo),
        cmocka_unit_test(test_locomo_one_sample),
        cmocka_unit_test(test_locomo_broken),
        cmocka_unit_test(test_file_limit_and_errors),
        cmocka_unit_test(test_real_locomo),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
