/*
 * Kills a process in the middle of its work on a store, again and again, and looks at what is left.
 *
 * Each round a child opens the store and adds, changes, stores chunks and forgets at random.  It announces every
 * operation over a pipe before it begins and reports it when the call has returned.  The parent kills it (SIGKILL) at a
 * random moment, applies what was reported to its own picture of the store, and compares: what was reported is there,
 * or gone from every byte, and the one operation that was announced and not reported has happened whole or not at all.
 *
 * crash_store [seed]: prints the seed; ends with "50 passed, 0 failed", and with 1 when any failed.
 */
#include "store_fixture.h"

#include <signal.h>
#include <sys/wait.h>

#define ROUNDS   50
#define MAX_OPS  30 /* reported operations before the kill, at most */
#define BATCH    3
#define MAX_FACT 8192
#define TOKENS   60

#define MAX_EDITIONS 8

typedef enum kind { ADD = 1, CHANGE, PUT, FORGET } kind;

typedef struct operation {
    kind kind;
    bool reported;
    uint32_t n;         /* facts added or forgotten */
    uint32_t number;    /* ADD: number of the first fact's text; CHANGE: of the new text */
    int64_t ids[BATCH]; /* ADD: what they got; FORGET, CHANGE: which; PUT: the fact and the one in front of it, or 0 */
    uint32_t salt;      /* PUT */
} operation;

typedef struct fact_model {
    int64_t id; /* 0: not there */
    uint32_t number;
    uint32_t before[MAX_EDITIONS]; /* numbers of the texts that it had before [n_before] */
    uint32_t n_before;
    bool has_chunk;
    uint32_t salt;
    int64_t dep;
} fact_model;

typedef struct model {
    char folder[FIXTURE_PATH];
    is_chunk_key key;
    fact_model facts[MAX_FACT];
    size_t n;
    uint32_t gone[MAX_FACT * 2]; /* numbers of forgotten texts */
    size_t n_gone;
    uint32_t next_number;
    uint32_t seed;
    uint32_t failures;
} model;

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

/* A word that no other text has, and as much more as the number says. */
static void word_of(uint32_t number, char out[16])
{
    (void)snprintf(out, 16, "Wq%08xqw", number);
}

static void text_of(uint32_t number, char out[600])
{
    char word[16];
    word_of(number, word);
    int at = snprintf(out, 600, "note %s says", word);
    size_t more = number * 2654435761u % 500;
    memset(out + at, 'y', more);
    out[(size_t)at + more] = '\0';
}

/* ------------------------------------------------------------ the child */

static void send_operation(int fd, const operation *op)
{
    if (write(fd, op, sizeof *op) != (ssize_t)sizeof *op) _exit(2);
}

static void must(is_status status, const is_error *err)
{
    if (status == IS_OK) return;
    (void)fprintf(stderr, "child: %s\n", err->text);
    _exit(3);
}

static void do_add(is_store *store, int64_t scope, operation *op)
{
    char texts[BATCH][600];
    is_fact facts[BATCH];
    is_error err = {0};
    for (uint32_t i = 0; i < op->n; i++) {
        text_of(op->number + i, texts[i]);
        facts[i] = (is_fact){.text = texts[i], .time = IS_TIME_NONE};
    }
    must(is_store_add_facts(store, scope, facts, op->n, NULL, 0, NULL, op->ids, &err), &err);
}

static void do_change(is_store *store, int64_t scope, const operation *op)
{
    char text[600];
    is_error err = {0};
    text_of(op->number, text);
    const is_fact to = {.text = text, .time = IS_TIME_NONE};
    must(is_store_change_fact(store, scope, op->ids[0], &to, NULL, 0, NULL, &err), &err);
}

static void do_put(const model *m, is_store *store, int64_t scope, const operation *op)
{
    size_t size = 0;
    is_error err = {0};
    is_fact_list *list = NULL;
    int64_t *scopes = NULL;
    must(is_store_pending(store, scope, &m->key, 0, 1, &list, &scopes, &err), &err); /* the texts are read behind it */
    is_fact_list_free(list);
    free(scopes);
    void *bytes = fixture_chunk(op->ids[0], TOKENS, (uint8_t)op->salt, &m->key, &size);
    must(is_store_put_chunk(store, scope, op->ids[0], &m->key, bytes, size, op->ids + 1, op->ids[1] != 0, &err), &err);
    free(bytes);
}

static void do_forget(is_store *store, int64_t scope, const operation *op)
{
    size_t forgotten = 0;
    is_error err = {0};
    must(is_store_forget(store, scope, op->ids, op->n, &forgotten, &err), &err);
    if (forgotten != op->n) _exit(4);
}

static int64_t any_fact(model *m)
{
    return m->n > 0 ? m->facts[next_random(&m->seed) % m->n].id : 0;
}

static fact_model *find(model *m, int64_t id);

static operation choose(model *m)
{
    operation op = {.kind = ADD, .n = 1 + next_random(&m->seed) % BATCH, .number = m->next_number};
    uint32_t dice = next_random(&m->seed) % 100;
    if (m->n < 10 || dice < 30) return op;
    if (dice < 45) {
        fact_model *f = &m->facts[next_random(&m->seed) % m->n];
        if (f->n_before == MAX_EDITIONS) return op;
        op.kind = CHANGE;
        op.n = 1;
        op.ids[0] = f->id;
        return op;
    }
    if (dice < 72) {
        op.kind = PUT;
        op.ids[0] = any_fact(m);
        op.ids[1] = next_random(&m->seed) % 2 == 0 ? any_fact(m) : 0;
        /* never the salt that it has, so that it can be seen whether this one came through */
        op.salt = (find(m, op.ids[0])->salt + 1 + next_random(&m->seed) % 255) % 256;
        return op;
    }
    op.kind = FORGET;
    op.n = 1 + next_random(&m->seed) % BATCH;
    size_t first = next_random(&m->seed) % (m->n - BATCH);
    for (uint32_t i = 0; i < op.n; i++) op.ids[i] = m->facts[first + i].id;
    return op;
}

static void apply(model *m, const operation *op);

static _Noreturn void child(model *m, int fd)
{
    is_store *store = NULL;
    is_error err = {0};
    int64_t scope = 0;
    must(is_store_open(&(is_store_options){m->folder, 100000}, &store, &err), &err);
    must(is_store_scope(store, &(is_scope){.user = "ann"}, true, &scope, &err), &err);
    for (;;) {
        operation op = choose(m);
        send_operation(fd, &op);
        if (op.kind == ADD) do_add(store, scope, &op);
        if (op.kind == CHANGE) do_change(store, scope, &op);
        if (op.kind == PUT) do_put(m, store, scope, &op);
        if (op.kind == FORGET) do_forget(store, scope, &op);
        op.reported = true;
        send_operation(fd, &op);
        apply(m, &op);
    }
}

/* ------------------------------------------------------------ the picture */

static fact_model *find(model *m, int64_t id)
{
    for (size_t i = 0; i < m->n; i++)
        if (m->facts[i].id == id) return &m->facts[i];
    return NULL;
}

static bool names(const operation *op, int64_t id)
{
    for (uint32_t i = 0; i < op->n; i++)
        if (op->ids[i] == id) return true;
    return false;
}

static void apply_forget(model *m, const operation *op)
{
    size_t kept = 0;
    for (size_t i = 0; i < m->n; i++) {
        fact_model *f = &m->facts[i];
        if (f->has_chunk && f->dep != 0 && names(op, f->dep)) f->has_chunk = false;
        if (names(op, f->id)) {
            if (m->n_gone + f->n_before >= sizeof m->gone / sizeof *m->gone) abort();
            for (uint32_t b = 0; b < f->n_before; b++) m->gone[m->n_gone++] = f->before[b];
            m->gone[m->n_gone++] = f->number;
        } else {
            m->facts[kept++] = *f;
        }
    }
    m->n = kept;
}

static void apply_change(model *m, const operation *op)
{
    fact_model *changed = find(m, op->ids[0]);
    for (size_t i = 0; i < m->n; i++)
        if (m->facts[i].has_chunk && m->facts[i].dep == changed->id) m->facts[i].has_chunk = false;
    changed->has_chunk = false;
    changed->before[changed->n_before++] = changed->number;
    changed->number = op->number;
    m->next_number = op->number + 1;
}

static void apply(model *m, const operation *op)
{
    if (op->kind == FORGET) apply_forget(m, op);
    if (op->kind == CHANGE) apply_change(m, op);
    if (op->kind == PUT) {
        fact_model *f = find(m, op->ids[0]);
        f->has_chunk = true;
        f->salt = op->salt;
        f->dep = op->ids[1];
    }
    if (op->kind != ADD) return;
    if (m->n + op->n > MAX_FACT) abort();
    for (uint32_t i = 0; i < op->n; i++) m->facts[m->n++] = (fact_model){.id = op->ids[i], .number = op->number + i};
    m->next_number = op->number + op->n;
}

/* ------------------------------------------------------------ looking */

typedef struct look {
    is_store *store;
    int64_t scope;
    is_fact_list *list;
} look;

static const is_fact *listed(const look *l, int64_t id)
{
    for (size_t i = 0; i < l->list->n; i++)
        if (l->list->facts[i].id == id) return &l->list->facts[i];
    return NULL;
}

/* -1 without a chunk, else its salt. */
static int chunk_of(model *m, const look *l, int64_t id)
{
    is_pin *pin = NULL;
    size_t refused = 0;
    EXPECT(is_store_pin(l->store, l->scope, &id, 1, &m->key, &pin, &refused, NULL) == IS_OK);
    EXPECT(refused == 0);
    if (pin == NULL) return -1;
    const is_chunk *chunk = is_pin_chunk(pin);
    is_chunk_rows rows = is_chunk_layer(chunk, 1);
    int salt = ((const uint16_t *)(const void *)rows.k)[3] - 0x3C00;
    EXPECT(chunk->tokens[0] == (int32_t)id);
    is_store_unpin(l->store, &pin, 1);
    return salt;
}

/*
 * Whether the operation that was cut short has happened.  An add gets its ids from what is listed beyond the
 * picture.
 */
static bool happened(model *m, const look *l, operation *op)
{
    if (op->kind == FORGET) return listed(l, op->ids[0]) == NULL;
    if (op->kind == CHANGE) {
        char text[600];
        text_of(op->number, text);
        const is_fact *fact = listed(l, op->ids[0]);
        return fact != NULL && strcmp(fact->text, text) == 0;
    }
    if (op->kind == PUT) return chunk_of(m, l, op->ids[0]) == (int)op->salt;
    uint32_t found = 0;
    for (size_t i = 0; i < l->list->n; i++) {
        if (find(m, l->list->facts[i].id) != NULL) continue;
        if (found < op->n) op->ids[found] = l->list->facts[i].id;
        found++;
    }
    EXPECT(found == 0 || found == op->n);
    return found == op->n;
}

static void compare_history(model *m, const look *l, const fact_model *f)
{
    char text[600];
    is_edition_list *list = NULL;
    EXPECT(is_store_history(l->store, l->scope, f->id, &list, NULL) == IS_OK);
    EXPECT(list != NULL && list->n == f->n_before + 1);
    for (uint32_t i = 0; list != NULL && i < f->n_before && i < list->n; i++) {
        text_of(f->before[i], text);
        EXPECT(strcmp(list->editions[i].text, text) == 0);
    }
    is_edition_list_free(list);
}

static void compare_facts(model *m, const look *l)
{
    char text[600];
    EXPECT(l->list->n == m->n);
    for (size_t i = 0; i < m->n; i++) {
        const is_fact *fact = listed(l, m->facts[i].id);
        text_of(m->facts[i].number, text);
        EXPECT(fact != NULL && strcmp(fact->text, text) == 0);
        compare_history(m, l, &m->facts[i]);
        int salt = chunk_of(m, l, m->facts[i].id);
        EXPECT(salt == (m->facts[i].has_chunk ? (int)m->facts[i].salt : -1));
    }
}

static void compare_words(model *m, const look *l)
{
    is_hit hit;
    size_t n = 0;
    char word[16];
    for (size_t i = 0; i < m->n; i++) {
        word_of(m->facts[i].number, word);
        EXPECT(is_store_match(l->store, l->scope, word, 1, 100, &hit, &n, NULL) == IS_OK);
        EXPECT(n == 1 && hit.id == m->facts[i].id);
        for (uint32_t b = 0; b < m->facts[i].n_before; b++) {
            word_of(m->facts[i].before[b], word);
            EXPECT(is_store_match(l->store, l->scope, word, 1, 100, &hit, &n, NULL) == IS_OK && n == 0);
        }
    }
    for (size_t i = 0; i < m->n_gone; i++) {
        word_of(m->gone[i], word);
        EXPECT(is_store_match(l->store, l->scope, word, 1, 100, &hit, &n, NULL) == IS_OK && n == 0);
    }
}

static void compare_bytes(model *m, const char *name)
{
    char path[FIXTURE_PATH + 32];
    (void)snprintf(path, sizeof path, "%s/%s", m->folder, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) return;
    (void)fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    rewind(file);
    char *all = malloc(size + 1);
    if (all == NULL || fread(all, 1, size, file) != size) abort();
    (void)fclose(file);
    for (size_t i = 0; i < m->n_gone; i++) {
        char word[16];
        word_of(m->gone[i], word);
        EXPECT(memmem(all, size, word, strlen(word)) == NULL);
    }
    free(all);
}

static void print_line(void *user, const char *line)
{
    (void)user;
    (void)printf("  %s\n", line);
}

/* unsure: the operation that was announced and not reported, kind 0 for none. */
static void check(model *m, operation *unsure)
{
    look l = {NULL, 0, NULL};
    is_error err = {0};
    is_verify_report report;
    if (is_store_open(&(is_store_options){m->folder, 1 << 20}, &l.store, &err) != IS_OK) {
        (void)printf("  %s\n", err.text);
        m->failures++;
        return;
    }
    EXPECT(is_store_scope(l.store, &(is_scope){.user = "ann"}, true, &l.scope, &err) == IS_OK);
    EXPECT(is_store_verify(l.store, false, print_line, NULL, &report, &err) == IS_OK);
    EXPECT(report.chunks_bad + report.files_missing + report.files_orphaned + report.database_bad == 0);
    if (is_store_list(l.store, l.scope, 0, MAX_FACT, &l.list, &err) == IS_OK) {
        if (unsure->kind != 0 && happened(m, &l, unsure)) apply(m, unsure);
        compare_facts(m, &l);
        compare_words(m, &l);
    } else {
        EXPECT(l.list != NULL);
    }
    compare_bytes(m, "inferscale.db");
    compare_bytes(m, "inferscale.db-wal");
    is_fact_list_free(l.list);
    is_store_close(l.store);
}

/* ------------------------------------------------------------ rounds */

/* Reads what there is; the last announced operation stays in `unsure` until it is reported. */
static bool receive(model *m, int fd, operation *unsure)
{
    operation op;
    if (read(fd, &op, sizeof op) != (ssize_t)sizeof op) return false;
    if (op.reported) {
        apply(m, &op);
        unsure->kind = 0;
    } else {
        *unsure = op;
    }
    return true;
}

static bool run_round(model *m)
{
    int fds[2];
    operation unsure = {.kind = 0};
    if (pipe(fds) != 0) abort();
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) {
        (void)close(fds[0]);
        child(m, fds[1]);
    }
    (void)close(fds[1]);
    uint32_t messages = next_random(&m->seed) % (2 * MAX_OPS);
    uint32_t wait_us = next_random(&m->seed) % 3000;
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
    check(m, &unsure);
    return alive && m->failures == before;
}

int main(int argc, char **argv)
{
    model *m = calloc(1, sizeof *m);
    if (m == NULL) abort();
    m->seed = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 20240607;
    m->key = fixture_key(1);
    fixture_folder(m->folder);
    (void)printf("seed %u\n", m->seed);
    int failed = 0;
    for (int round = 0; round < ROUNDS; round++) {
        if (run_round(m)) continue;
        failed++;
        (void)printf("round %d failed\n", round);
    }
    (void)printf("%zu facts there, %zu texts forgotten\n", m->n, m->n_gone);
    (void)printf("%d passed, %d failed\n", ROUNDS - failed, failed);
    fixture_remove(m->folder);
    free(m);
    return failed == 0 ? 0 : 1;
}
