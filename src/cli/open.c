/*
 * Opening: where the store and the models lie when the options do not say, and errors that name the remedy.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "common/common.h"

#define CHAT_MODEL      "SmolLM2-135M-Instruct-Q4_0.gguf" /* as scripts/setup.sh names them */
#define EMBEDDING_MODEL "all-MiniLM-L6-v2-F16.gguf"

/* ------------------------------------------------------------ paths */

/* NULL when it is not set, or empty, which is as good. */
static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static const char *home(void)
{
    const char *folder = environment("HOME");
    return folder != NULL ? folder : ".";
}

char *is_cli_store_path(const is_cli *cli)
{
    const char *store = cli->store != NULL ? cli->store : environment("INFERSCALE_STORE");
    if (store != NULL) return is_cli_format("%s", store);
    const char *data = environment("XDG_DATA_HOME");
    return data != NULL ? is_cli_format("%s/inferscale", data) : is_cli_format("%s/.local/share/inferscale", home());
}

/* The model that scripts/setup.sh left. */
static char *setup_model(const char *file)
{
    const char *cache = environment("INFERSCALE_CACHE");
    if (cache != NULL) return is_cli_format("%s/models/%s", cache, file);
    cache = environment("XDG_CACHE_HOME");
    return cache != NULL ? is_cli_format("%s/inferscale/models/%s", cache, file)
                         : is_cli_format("%s/.cache/inferscale/models/%s", home(), file);
}

const char *is_cli_given(const char *option, const char *variable)
{
    return option != NULL ? option : environment(variable);
}

char *is_cli_model_path(const is_cli *cli)
{
    const char *named = is_cli_given(cli->model, "INFERSCALE_MODEL");
    return named != NULL ? is_cli_format("%s", named) : setup_model(CHAT_MODEL);
}

char *is_cli_embedding_path(const is_cli *cli)
{
    const char *named = is_cli_given(cli->embedding_model, "INFERSCALE_EMBEDDING_MODEL");
    return named != NULL ? is_cli_format("%s", named) : setup_model(EMBEDDING_MODEL);
}

/* ------------------------------------------------------------ what must be there */

static is_status check_file(const char *what, const char *path, const char *option, is_error *err)
{
    if (access(path, R_OK) == 0) return IS_OK;
    return is_fail(err, errno == ENOENT ? IS_ENOTFOUND : IS_EIO,
                   "cannot read the %s %s: %s; run `make setup`, or name a GGUF file with --%s", what, path,
                   strerror(errno), option);
}

static is_status check_store(const char *path, is_error *err)
{
    struct stat info;
    if (stat(path, &info) == 0) return IS_OK; /* what is wrong with it, if anything, is_open says */
    return is_fail(err, errno == ENOENT ? IS_ENOTFOUND : IS_EIO,
                   "no store at %s: %s; `inferscale add` or `inferscale import` makes one, --store names another", path,
                   strerror(errno));
}

static void on_log(void *user, int level, const char *line)
{
    const is_cli *cli = user;
    if (level > 1 || cli->quiet) return;
    fprintf(stderr, "inferscale: %s%s\n", level == 1 ? "warning: " : "", line);
}

is_status is_cli_choose_embedding(const is_cli *cli, const char *path, const char **out, is_error *err)
{
    *out = path;
    if (is_cli_given(cli->embedding_model, "INFERSCALE_EMBEDDING_MODEL") != NULL || access(path, R_OK) == 0)
        return check_file("embedding model", path, "embedding-model", err);
    *out = NULL;
    is_cli_note(cli, "inferscale: no embedding model at %s: searching by words alone; `make setup` makes it", path);
    return IS_OK;
}

is_status is_cli_open(const is_cli *cli, unsigned needs, is_memory **out, is_error *err)
{
    char *store = is_cli_store_path(cli);
    char *model = is_cli_model_path(cli);
    char *embedding = is_cli_embedding_path(cli);
    is_options options = is_options_default();
    is_status status = needs & IS_CLI_CREATE ? IS_OK : check_store(store, err);
    *out = NULL;
    if (needs & IS_CLI_CHAT && cli->upstreams != NULL) {
        options.upstreams = cli->upstreams;
        options.upstream_model = cli->upstream_model;
        options.upstream_key = is_cli_given(cli->upstream_key, IS_CLI_UPSTREAM_KEY);
    } else if (status == IS_OK && needs & IS_CLI_CHAT) {
        options.model = model;
        status = check_file("chat model", model, "model", err);
    }
    if (status == IS_OK && needs & IS_CLI_EMBED)
        status = is_cli_choose_embedding(cli, embedding, &options.embedding_model, err);
    options.store = store;
    options.recipe = cli->recipe;
    if (cli->host_budget > 0) options.host_budget = cli->host_budget;
    options.device_vectors = cli->device_vectors;
    options.device_chunks = cli->device_chunks;
    if (cli->context > 0) options.context = cli->context;
    options.slots = cli->slots > 0 ? cli->slots : 1; /* a command asks one question at a time */
    options.threads = cli->threads;
    /* Commands that encode wait for it, and show it. */
    options.background = (needs & IS_CLI_BACKGROUND) != 0;
    if (!options.background) options.conversation_budget = 0; /* one question, one answer */
    options.log = on_log;
    options.log_user = (void *)cli;
    if (status == IS_OK) status = is_open(&options, out, err);
    free(store);
    free(model);
    free(embedding);
    return status;
}
