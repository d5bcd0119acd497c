/*
 * Loading a GGUF and asking it things.
 *
 * llama.cpp logs to stderr in masses.  Its log is caught here; the first and the last error line are kept a thread,
 * since they are the only place where llama.cpp says why a file or a grammar was refused.
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static _Thread_local char first_error[256], last_error[256];

static void on_log(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level != GGML_LOG_LEVEL_ERROR) return;
    size_t n = strcspn(text, "\n");
    if (n == 0) return;
    if (n >= sizeof last_error) n = sizeof last_error - 1;
    memcpy(last_error, text, n);
    last_error[n] = '\0';
    if (first_error[0] == '\0') memcpy(first_error, last_error, sizeof first_error);
}

static void start_backend(void)
{
    llama_log_set(on_log, NULL);
    llama_backend_init();
}

void is_llama_quiet(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, start_backend);
    first_error[0] = last_error[0] = '\0';
}

const char *is_llama_first_error(void)
{
    return first_error[0] != '\0' ? first_error : "no reason given";
}

const char *is_llama_last_error(void)
{
    return last_error[0] != '\0' ? last_error : "no reason given";
}

#define HASH_HEAD  ((size_t)16 << 20)
#define HASH_STEP  ((size_t)4 << 20)
#define HASH_PIECE ((size_t)64 << 10)

static is_status hash_range(int fd, XXH3_state_t *state, uint8_t *buffer, uint64_t from, uint64_t to, const char *path,
                            is_error *err)
{
    while (from < to) {
        size_t want = to - from < HASH_PIECE ? (size_t)(to - from) : HASH_PIECE;
        ssize_t got = pread(fd, buffer, want, (off_t)from);
        if (got <= 0)
            return is_fail(err, IS_EIO, "cannot read %s: %s", path, got == 0 ? "it is cut short" : strerror(errno));
        XXH3_128bits_update(state, buffer, (size_t)got);
        from += (uint64_t)got;
    }
    return IS_OK;
}

is_status is_file_hash(const char *path, uint8_t out[16], is_error *err)
{
    is_status status = IS_OK;
    XXH3_state_t *state = NULL;
    uint8_t *buffer = NULL;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return is_fail(err, IS_ENOTFOUND, "cannot open %s: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        status = is_fail(err, IS_EINVAL, "%s is not a file", path);
        goto end;
    }
    state = XXH3_createState();
    buffer = malloc(HASH_PIECE);
    if (state == NULL || buffer == NULL) {
        status = is_fail(err, IS_ENOMEM, "no memory to hash %s", path);
        goto end;
    }
    uint64_t size = (uint64_t)st.st_size;
    XXH3_128bits_reset(state);
    XXH3_128bits_update(state, &size, sizeof size);
    status = hash_range(fd, state, buffer, 0, size < HASH_HEAD ? size : HASH_HEAD, path, err);
    for (uint64_t at = HASH_HEAD; status == IS_OK && at < size; at += HASH_STEP)
        status = hash_range(fd, state, buffer, at, at + HASH_PIECE < size ? at + HASH_PIECE : size, path, err);
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    memcpy(out, canonical.digest, 16);
end:
    free(buffer);
    XXH3_freeState(state);
    close(fd);
    return status;
}

bool is_model_text(const is_model *model, const char *key, char *out, size_t size)
{
    char full[192];
    (void)snprintf(full, sizeof full, "%s.%s", model->arch, key);
    return llama_model_meta_val_str(model->llama, full, out, size) >= 0;
}

double is_model_number(const is_model *model, const char *key, double fallback)
{
    char text[64];
    if (!is_model_text(model, key, text, sizeof text)) return fallback;
    char *end;
    double v = strtod(text, &end);
    return end == text ? fallback : v;
}

is_status is_model_open(const char *path, uint32_t threads, is_model *out, is_error *err)
{
    memset(out, 0, sizeof *out);
    is_llama_quiet();
    is_status status = is_file_hash(path, out->file_hash, err);
    if (status != IS_OK) return status;
    out->threads = threads != 0 ? threads : is_usable_cores();
    if (out->threads > GGML_MAX_N_THREADS) out->threads = GGML_MAX_N_THREADS;
    out->llama = llama_model_load_from_file(path, llama_model_default_params());
    if (out->llama == NULL)
        return is_fail(err, IS_EINVAL, "llama.cpp cannot load %s: %s; give a GGUF model file", path,
                       is_llama_last_error());
    out->vocab = llama_model_get_vocab(out->llama);
    if (llama_model_meta_val_str(out->llama, "general.architecture", out->arch, sizeof out->arch) < 0)
        out->arch[0] = '\0';
    struct ggml_threadpool_params pool = ggml_threadpool_params_default((int)out->threads);
    out->pool = ggml_threadpool_new(&pool);
    if (out->pool == NULL) {
        is_model_close(out);
        return is_fail(err, IS_ENOMEM, "no thread pool of %u threads for %s", out->threads, path);
    }
    return IS_OK;
}

void is_model_close(is_model *model)
{
    is_chat_close(model->chat);
    if (model->llama != NULL) llama_model_free(model->llama);
    if (model->pool != NULL) ggml_threadpool_free(model->pool);
    model->chat = NULL;
    model->llama = NULL;
    model->pool = NULL;
}

struct llama_context *is_context_open(const is_model *model, uint32_t context, uint32_t sequences, bool unified,
                                      uint32_t batch, is_direct *watch, is_error *err)
{
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = unified ? context : context * sequences;
    p.n_seq_max = sequences;
    p.kv_unified = unified;
    p.n_batch = batch;
    p.n_ubatch = batch < IS_LLAMA_PIECE ? batch : IS_LLAMA_PIECE;
    p.n_threads = (int32_t)model->threads;
    p.n_threads_batch = (int32_t)model->threads;
    /* On a GPU it is faster, and V is in rows then, which the device's side needs. */
    p.flash_attn_type = model->on_device ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p.no_perf = true;
    p.cb_eval = watch != NULL ? is_direct_watch : NULL;
    p.cb_eval_user_data = watch;
    is_llama_quiet();
    struct llama_context *ctx = llama_init_from_model(model->llama, p);
    if (ctx == NULL) {
        (void)is_fail(err, IS_EENGINE, "llama.cpp cannot open a context of %u tokens for %u sequences: %s", context,
                      sequences, is_llama_last_error());
        return NULL;
    }
    llama_attach_threadpool(ctx, model->pool, NULL);
    return ctx;
}
