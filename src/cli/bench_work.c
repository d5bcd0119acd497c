/* A benchmark's folder: its stores, what it has measured already, and what it need not compute twice. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "bench.h"
#include "memory/import.h"

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static void remove_folder(const char *path)
{
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static const char *data_path(const is_bench *b)
{
    return b->data != NULL ? b->data : IS_BENCH_SAMPLE;
}

/* ------------------------------------------------------------ the folder */

static is_status hash_file(const char *path, uint64_t *out, is_error *err)
{
    char bytes[1 << 14];
    XXH3_state_t *state = XXH3_createState();
    FILE *in = fopen(path, "re");
    if (in == NULL || state == NULL) {
        XXH3_freeState(state);
        if (in != NULL) (void)fclose(in);
        return is_fail(err, IS_ENOTFOUND, "cannot open %s: %s; give --data FILE", path, strerror(errno));
    }
    (void)XXH3_64bits_reset(state);
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, in)) > 0;) (void)XXH3_64bits_update(state, bytes, n);
    *out = XXH3_64bits_digest(state);
    bool whole = ferror(in) == 0;
    XXH3_freeState(state);
    (void)fclose(in);
    return whole ? IS_OK : is_fail(err, IS_EIO, "cannot read %s", path);
}

/* Takes up what earlier runs noted; a last line that was cut short is left out, and written over. */
static is_status read_notes(is_bench *b, is_error *err)
{
    char *line = NULL;
    size_t room = 0;
    long good = 0;
    for (ssize_t n; (n = getline(&line, &room, b->journal_file)) > 0 && line[n - 1] == '\n'; good += n) {
        json_t *note = json_loads(line, 0, NULL);
        const char *key = json_string_value(json_object_get(note, "key"));
        if (key != NULL) is_cli_set(b->journal, key, json_incref(json_object_get(note, "value")));
        json_decref(note);
    }
    free(line);
    if (ftruncate(fileno(b->journal_file), good) != 0 || fseek(b->journal_file, good, SEEK_SET) != 0)
        return is_fail(err, IS_EIO, "cannot go on with %s/journal.jsonl: %s", b->work, strerror(errno));
    return IS_OK;
}

static is_status open_journal(is_bench *b, is_error *err)
{
    char *path = is_cli_format("%s/journal.jsonl", b->work);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    is_status status = IS_OK;
    if (fd < 0 || (b->journal_file = fdopen(fd, "r+")) == NULL)
        status = is_fail(err, IS_EIO, "cannot open %s: %s", path, strerror(errno));
    else if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        status = is_fail(err, IS_EIO, "%s is in use by another run; give each its own --work", b->work);
    if (fd >= 0 && b->journal_file == NULL) (void)close(fd);
    free(path);
    return status == IS_OK ? read_notes(b, err) : status;
}

/* A folder goes on with what it was begun with.  *other: that, where this is something else; else NULL. */
static is_status check_begun(is_bench *b, const char *name, const char *now, const char **other, is_error *err)
{
    const char *begun = json_string_value(json_object_get(b->journal, name));
    *other = begun != NULL && strcmp(begun, now) != 0 ? begun : NULL;
    return begun == NULL ? is_bench_note(b, name, json_string(now), err) : IS_OK;
}

static is_status check_data(is_bench *b, is_error *err)
{
    uint64_t hash;
    char text[20];
    const char *other;
    is_status status = hash_file(data_path(b), &hash, err);
    if (status != IS_OK) return status;
    (void)snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    status = check_begun(b, "data", text, &other, err);
    if (other != NULL)
        return is_fail(err, IS_EINVAL, "%s was begun with other data than %s; give another --work", b->work,
                       data_path(b));
    return status;
}

is_status is_bench_begin(is_bench *b, is_error *err)
{
    b->journal = json_object();
    if (b->journal == NULL) is_cli_no_memory();
    if (b->work == NULL) {
        const char *tmp = getenv("TMPDIR");
        b->folder = is_cli_format("%s/inferscale-bench-XXXXXX", tmp != NULL && tmp[0] != '\0' ? tmp : "/tmp");
        return mkdtemp(b->folder) != NULL ? IS_OK
                                          : is_fail(err, IS_EIO, "cannot make %s: %s", b->folder, strerror(errno));
    }
    b->folder = is_cli_format("%s", b->work);
    if (mkdir(b->work, 0777) != 0 && errno != EEXIST)
        return is_fail(err, IS_EIO, "cannot make %s: %s", b->work, strerror(errno));
    is_status status = open_journal(b, err);
    return status == IS_OK ? check_data(b, err) : status;
}

char *is_bench_key(const is_bench *b, const char *what, const char *way, const char *format_of_rest, ...)
{
    const is_memory *m = b->memory;
    char *rest = NULL, *key;
    uint8_t fingerprint[16];
    uint64_t engine, header;
    va_list args;
    va_start(args, format_of_rest);
    if (vasprintf(&rest, format_of_rest, args) < 0) is_cli_no_memory();
    va_end(args);
    m->engine->ops->fingerprint(m->engine, fingerprint);
    memcpy(&engine, fingerprint, sizeof engine);
    memcpy(&header, m->key.header, sizeof header);
    key = is_cli_format("%s %016llx %016llx %s%s %s", what, (unsigned long long)engine, (unsigned long long)header, way,
                        b->undated ? " undated" : "", rest);
    free(rest);
    return key;
}

const json_t *is_bench_noted(const is_bench *b, const char *key)
{
    return json_object_get(b->journal, key);
}

is_status is_bench_note(is_bench *b, const char *key, json_t *value, is_error *err)
{
    is_cli_set(b->journal, key, value);
    if (b->journal_file == NULL) return IS_OK;
    json_t *note = json_pack("{s:s, s:O}", "key", key, "value", value);
    char *line = note != NULL ? json_dumps(note, JSON_COMPACT) : NULL;
    if (line == NULL) is_cli_no_memory();
    bool written = fprintf(b->journal_file, "%s\n", line) > 0 && fflush(b->journal_file) == 0;
    free(line);
    json_decref(note);
    return written ? IS_OK : is_fail(err, IS_EIO, "cannot write %s/journal.jsonl: %s", b->work, strerror(errno));
}

/* ------------------------------------------------------------ the store */

static is_status open_store(is_bench *b, bool background, is_error *err)
{
    char *model = is_cli_model_path(&b->cli);
    char *embedding = is_cli_embedding_path(&b->cli);
    is_options o = is_options_default();
    o.store = b->store;
    o.model = model;
    o.recipe = b->recipe;
    o.context = b->cli.context;
    o.threads = b->cli.threads;
    o.background = background;
    if (b->cli.slots != 0) o.slots = b->cli.slots;
    if (b->cli.host_budget != 0) o.host_budget = b->cli.host_budget;
    o.device_chunks = b->cli.device_chunks;
    o.device_vectors = b->cli.device_vectors;
    is_status status = is_cli_choose_embedding(&b->cli, embedding, &o.embedding_model, err);
    if (status == IS_OK) status = is_open(&o, &b->memory, err);
    free(model);
    free(embedding);
    return status;
}

static bool is_imported(const is_bench *b)
{
    char *mark = is_cli_format("%s/imported", b->store);
    bool is = access(mark, F_OK) == 0;
    free(mark);
    return is;
}

static void close_store(is_bench *b)
{
    is_close(b->memory);
    b->memory = NULL;
    if (b->store != NULL && b->work == NULL) remove_folder(b->store);
    free(b->store);
    b->store = NULL;
}

static is_status check_search(is_bench *b, is_error *err)
{
    const is_embedder *embedder = b->memory->embedder;
    const char *name = embedder != NULL ? is_embedder_name(embedder) : "words";
    const char *other;
    is_status status = check_begun(b, "search", name, &other, err);
    if (other == NULL) return status;
    return is_fail(err, IS_EINVAL, "%s was begun with %s for searching, and now it is %s; give another --work", b->work,
                   other, name);
}

is_status is_bench_open(is_bench *b, const char *recipe, bool background, is_error *err)
{
    close_store(b);
    b->recipe = recipe != NULL ? recipe : b->cli.recipe;
    char *model = is_cli_model_path(&b->cli);
    const char *slash = strrchr(model, '/');
    b->store = is_cli_format("%s/store %s %s%s", b->folder, slash != NULL ? slash + 1 : model,
                             b->recipe != NULL ? b->recipe : IS_RECIPE_DEFAULT, b->undated ? " undated" : "");
    free(model);
    if (!is_imported(b)) remove_folder(b->store); /* what an import that was cut short left */
    is_status status = open_store(b, background, err);
    return status == IS_OK ? check_search(b, err) : status;
}

is_status is_bench_reopen(is_bench *b, bool background, is_error *err)
{
    is_close(b->memory);
    b->memory = NULL;
    return open_store(b, background, err);
}

typedef struct importer {
    const is_bench *bench;
    is_cli_batch *batch;
} importer;

/* A folder that stays serves questions of later runs too. */
static bool wanted(const is_bench *b, const is_scope *scope)
{
    if (b->work != NULL) return true;
    for (size_t i = 0; i < b->n; i++)
        if (scope->user != NULL && strcmp(b->questions[i].user, scope->user) == 0) return true;
    return false;
}

static bool on_turn(void *user, const is_scope *scope, const is_turn *turn)
{
    importer *i = user;
    return !wanted(i->bench, scope) || is_cli_batch_turn(i->batch, scope, turn);
}

static bool on_fact(void *user, const is_scope *scope, const is_fact *fact)
{
    importer *i = user;
    is_fact copy = *fact;
    if (i->bench->undated) copy.time = IS_TIME_NONE;
    return !wanted(i->bench, scope) || is_cli_batch_fact(i->batch, scope, &copy);
}

static is_status mark_imported(const is_bench *b, is_error *err)
{
    char *mark = is_cli_format("%s/imported", b->store);
    int fd = open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    is_status status = fd >= 0 ? IS_OK : is_fail(err, IS_EIO, "cannot make %s: %s", mark, strerror(errno));
    if (fd >= 0) (void)close(fd);
    free(mark);
    return status;
}

is_status is_bench_import(is_bench *b, is_error *err)
{
    if (is_imported(b)) return IS_OK;
    FILE *in = fopen(data_path(b), "re");
    if (in == NULL)
        return is_fail(err, IS_ENOTFOUND, "cannot open %s: %s; give --data FILE", data_path(b), strerror(errno));
    importer i = {b, is_cli_batch_new(&b->cli, b->memory, NULL)};
    is_import_options options = {.scope = b->cli.scope};
    is_import_callbacks callbacks = {on_turn, on_fact, NULL, &i};
    is_import_counts counts;
    is_status status = is_import_read(in, &options, &callbacks, &counts, err);
    is_error why = {0};
    is_status ended = is_cli_batch_end(i.batch, &why); /* says why a callback ended the reading */
    if (ended != IS_OK) {
        status = ended;
        if (err != NULL) *err = why;
    }
    is_cli_batch_free(i.batch);
    (void)fclose(in);
    return status == IS_OK ? mark_imported(b, err) : status;
}

/* ------------------------------------------------------------ logits of full prefills */

static uint64_t hash_plan(const is_plan *plan, const uint8_t fingerprint[16])
{
    uint64_t hash = XXH3_64bits(fingerprint, 16);
    for (size_t i = 0; i < plan->n_segments; i++)
        hash = XXH3_64bits_withSeed(plan->segments[i].tokens, plan->segments[i].n_tokens * sizeof(int32_t), hash);
    return hash;
}

is_status is_bench_reference(is_bench *b, const is_plan *plan, uint32_t n_last, float *logits, is_error *err)
{
    is_engine *engine = b->memory->engine;
    uint8_t fingerprint[16];
    size_t size = (size_t)n_last * engine->ops->vocab(engine) * sizeof *logits;
    engine->ops->fingerprint(engine, fingerprint);
    char *path = is_cli_format("%s/reference/%016llx", b->folder, (unsigned long long)hash_plan(plan, fingerprint));
    FILE *file = fopen(path, "re");
    is_status status = IS_OK;
    bool known = file != NULL && fread(logits, 1, size, file) == size;
    if (file != NULL) (void)fclose(file);
    if (!known) {
        is_score job = {.plan = *plan, .n_last = n_last, .logits = logits};
        is_run_stats stats;
        job.plan.inject = false;
        status = engine->ops->score(engine, &job, &stats, err);
        char *folder = is_cli_format("%s/reference", b->folder);
        (void)mkdir(folder, 0777);
        free(folder);
        file = status == IS_OK ? fopen(path, "we") : NULL; /* one that cannot be kept is computed again */
        if (file != NULL) {
            bool whole = fwrite(logits, 1, size, file) == size;
            if (fclose(file) != 0 || !whole) (void)remove(path);
        }
    }
    free(path);
    return status;
}

/* ------------------------------------------------------------ the end */

void is_bench_close(is_bench *b)
{
    close_store(b);
    if (b->work == NULL && b->folder != NULL) remove_folder(b->folder);
    free(b->folder);
    b->folder = NULL;
    if (b->journal_file != NULL) (void)fclose(b->journal_file);
    json_decref(b->journal);
}
