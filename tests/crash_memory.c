/*
 * Kills a process with its engine in the middle of its work, again and again, and looks at what is left.
 *
 * Each round a child opens the whole memory on real models, with its worker encoding in the background, and adds,
 * forgets and waits for chunks at random.  It announces every call over a pipe and reports it when it has returned.
 * The parent kills it (SIGKILL) at a random moment, while it loads, encodes or commits, and compares: every
 * acknowledged fact is there, every forgotten one is gone, the call that was cut short has happened whole or not at
 * all, and verify is clean.  At the end all facts are encoded and one is asked for.
 *
 * crash_memory [seed]: prints the seed; ends with "50 passed, 0 failed", and with 1 when any failed.
 */
#include <inferscale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS   50
#define BATCH    3
#define MAX_FACT 4096

typedef enum kind { READY = 1, ADD, FORGET, ENCODE } kind;

typedef struct call {
    kind kind;
    bool reported;
    uint32_t n;
    uint32_t number; /* ADD: of the first fact's text */
    int64_t ids[BATCH];
} call;

typedef struct known {
    int64_t id;
    uint32_t number;
} known;

typedef struct model {
    char folder[64];
    known facts[MAX_FACT];
    size_t n;
    uint32_t next_number;
    uint32_t seed;
    uint32_t failures;
    uint32_t in_calls; /* rounds that ended with a call cut short */
} model;

static const is_scope scope = {.user = "ann"};

#define EXPECT(CONDITION)                                                                                              \
    do {                                                                                                               \
        if (!(CONDITION)) {                                                                                            \
            (void)printf("  line %d: not so: %s\n", __LINE__, #CONDITION);                                             \
            m->failures++;                                                                                             \
        }                                                                                                              \
    } while (0)

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void text_of(uint32_t number, char out[64])
{
    (void)snprintf(out, 64, "Ann keeps key number %u in drawer %u.", number, number % 7);
}

static is_options options(const model *m, bool engine)
{
    is_options o = is_options_default();
    o.store = m->folder;
    o.model = engine ? getenv("INFERSCALE_CHAT_MODEL") : NULL;
    o.embedding_model = engine ? getenv("INFERSCALE_EMBEDDING_MODEL") : NULL;
    o.recipe = "primed:4";
    o.context = 1024;
    o.threads = 1;
    o.background = engine;
    return o;
}

/* ------------------------------------------------------------ the child */

static void tell(int fd, const call *c)
{
    if (write(fd, c, sizeof *c) != (ssize_t)sizeof *c) _exit(2);
}

static void must(is_status status, const is_error *err)
{
    if (status == IS_OK) return;
    (void)fprintf(stderr, "child: %s\n", err->text);
    _exit(3);
}

static call choose(model *m)
{
    call c = {.kind = ADD, .n = 1 + next_random(&m->seed) % BATCH, .number = m->next_number};
    uint32_t dice = next_random(&m->seed) % 100;
    if (m->n < 10 || dice < 50) return c;
    c.kind = dice < 75 ? FORGET : ENCODE;
    size_t first = next_random(&m->seed) % (m->n - BATCH);
    for (uint32_t i = 0; i < c.n; i++) c.ids[i] = m->facts[first + i].id;
    return c;
}

static void do_call(is_memory *memory, call *c)
{
    char texts[BATCH][64];
    is_fact facts[BATCH];
    is_error err = {0};
    size_t forgotten = 0;
    if (c->kind == ENCODE) must(is_encode_pending(memory, &scope, NULL, NULL, &err), &err);
    if (c->kind == FORGET) must(is_forget(memory, &scope, c->ids, c->n, &forgotten, &err), &err);
    if (c->kind != ADD) return;
    for (uint32_t i = 0; i < c->n; i++) {
        text_of(c->number + i, texts[i]);
        facts[i] = (is_fact){.text = texts[i], .time = 1700000000 + (int64_t)c->number};
    }
    must(is_add_facts(memory, &scope, facts, c->n, c->ids, &err), &err);
}

static void apply(model *m, const call *c);

static _Noreturn void child(model *m, int fd)
{
    is_memory *memory = NULL;
    is_error err = {0};
    const is_options o = options(m, true);
    must(is_open(&o, &memory, &err), &err);
    tell(fd, &(call){.kind = READY, .reported = true});
    for (;;) {
        call c = choose(m);
        tell(fd, &c);
        do_call(memory, &c);
        c.reported = true;
        tell(fd, &c);
        apply(m, &c);
    }
}

/* ------------------------------------------------------------ the picture */

static bool names(const call *c, int64_t id)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->ids[i] == id) return true;
    return false;
}

static void apply(model *m, const call *c)
{
    size_t kept = 0;
    if (c->kind == FORGET) {
        for (size_t i = 0; i < m->n; i++)
            if (!names(c, m->facts[i].id)) m->facts[kept++] = m->facts[i];
        m->n = kept;
    }
    if (c->kind != ADD) return;
    if (m->n + c->n > MAX_FACT) abort();
    for (uint32_t i = 0; i < c->n; i++) m->facts[m->n++] = (known){c->ids[i], c->number + i};
    m->next_number = c->number + c->n;
}

static const is_fact *listed(const is_fact_list *list, int64_t id)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->facts[i].id == id) return &list->facts[i];
    return NULL;
}

/* Whether the call that was cut short has happened; an add learns its ids from what is listed beyond the picture. */
static bool happened(model *m, const is_fact_list *list, call *c)
{
    if (c->kind == FORGET) return listed(list, c->ids[0]) == NULL;
    if (c->kind != ADD) return false;
    int64_t newest = m->n > 0 ? m->facts[m->n - 1].id : 0;
    uint32_t found = 0;
    for (size_t i = 0; i < list->n; i++) {
        if (list->facts[i].id <= newest) continue;
        if (found < c->n) c->ids[found] = list->facts[i].id;
        found++;
    }
    EXPECT(found == 0 || found == c->n);
    return found == c->n;
}

static void print_line(void *user, const char *line)
{
    (void)user;
    (void)printf("  %s\n", line);
}

static void compare(model *m, is_memory *memory, call *unsure)
{
    is_error err = {0};
    is_fact_list *list = NULL;
    char text[64];
    is_status status = is_list(memory, &scope, 0, MAX_FACT, &list, &err);
    EXPECT(status == IS_OK || (status == IS_ENOTFOUND && m->n == 0));
    if (list != NULL) {
        if (unsure->kind != 0 && happened(m, list, unsure)) apply(m, unsure);
        EXPECT(list->n == m->n);
        for (size_t i = 0; i < m->n; i++) {
            const is_fact *fact = listed(list, m->facts[i].id);
            text_of(m->facts[i].number, text);
            EXPECT(fact != NULL && strcmp(fact->text, text) == 0);
        }
    }
    is_fact_list_free(list);
    is_verify_report report = {0};
    EXPECT(is_verify(memory, false, print_line, NULL, &report, &err) == IS_OK);
    EXPECT(report.chunks_bad + report.files_missing + report.files_orphaned + report.database_bad == 0);
}

static is_memory *open_or_fail(model *m, bool engine)
{
    is_memory *memory = NULL;
    is_error err = {0};
    const is_options o = options(m, engine);
    if (is_open(&o, &memory, &err) == IS_OK) return memory;
    (void)printf("  %s\n", err.text);
    m->failures++;
    return NULL;
}

static void check(model *m, call *unsure)
{
    is_memory *memory = open_or_fail(m, false);
    if (memory == NULL) return;
    compare(m, memory, unsure);
    is_close(memory);
}

/* ------------------------------------------------------------ rounds */

/* Reads one message; the last announced call stays in `unsure` until it is reported. */
static bool receive(model *m, int fd, call *unsure)
{
    call c;
    if (read(fd, &c, sizeof c) != (ssize_t)sizeof c) return false;
    if (c.reported) {
        apply(m, &c);
        unsure->kind = 0;
    } else {
        *unsure = c;
    }
    return true;
}

static bool run_round(model *m, int round)
{
    int fds[2];
    call unsure = {.kind = 0};
    if (pipe(fds) != 0) abort();
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) {
        (void)close(fds[0]);
        child(m, fds[1]);
    }
    (void)close(fds[1]);
    /* Every tenth while it opens; else behind some calls and a moment more. */
    uint32_t messages = round % 10 == 9 ? 0 : 1 + next_random(&m->seed) % 24;
    uint32_t wait_us = next_random(&m->seed) % (messages == 0 ? 400000 : 30000);
    bool alive = true;
    for (uint32_t i = 0; i < messages && alive; i++) alive = receive(m, fds[0], &unsure);
    (void)usleep(wait_us);
    (void)kill(pid, SIGKILL);
    while (receive(m, fds[0], &unsure)) {
    }
    (void)close(fds[0]);
    int status = 0;
    (void)waitpid(pid, &status, 0);
    uint32_t before = m->failures;
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    m->in_calls += unsure.kind != 0;
    check(m, &unsure);
    return alive && m->failures == before;
}

/* What is left can be encoded whole and asked for. */
static void finish(model *m)
{
    call none = {.kind = 0};
    is_error err = {0};
    is_stats stats = {0};
    is_answer *answer = NULL;
    is_memory *memory = open_or_fail(m, true);
    if (memory == NULL) return;
    EXPECT(is_encode_pending(memory, NULL, NULL, NULL, &err) == IS_OK);
    EXPECT(is_get_stats(memory, &stats, &err) == IS_OK && stats.facts == m->n && stats.facts_ready == m->n);
    compare(m, memory, &none);
    is_ask_options ask = is_ask_options_default();
    ask.k = 8;
    ask.max_tokens = 4;
    EXPECT(is_ask(memory, &scope, "Where is the key?", &ask, &answer, &err) == IS_OK && answer->facts_injected == 8);
    is_answer_free(answer);
    is_close(memory);
}

int main(int argc, char **argv)
{
    model *m = calloc(1, sizeof *m);
    if (m == NULL) abort();
    m->seed = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 20240607;
    (void)snprintf(m->folder, sizeof m->folder, "/tmp/inferscale-crash-XXXXXX");
    if (mkdtemp(m->folder) == NULL) abort();
    (void)printf("seed %u\n", m->seed);
    int failed = 0;
    for (int round = 0; round < ROUNDS; round++) {
        if (run_round(m, round)) continue;
        failed++;
        (void)printf("round %d failed\n", round);
    }
    uint32_t before = m->failures;
    finish(m);
    failed += m->failures != before;
    (void)printf("%zu facts there, %u rounds ended inside a call\n", m->n, m->in_calls);
    (void)printf("%d passed, %d failed\n", ROUNDS - failed, failed);
    char command[96];
    (void)snprintf(command, sizeof command, "rm -rf %s", m->folder);
    int rc = system(command);
    free(m);
    return failed == 0 && rc == 0 ? 0 : 1;
}
