/*
 * The library in one small program: a store is opened, facts are added and encoded, a question is answered while its
 * text streams, a fact is forgotten, and the question is asked again.
 *
 *   remember STORE CHAT.gguf [EMBEDDING.gguf]
 */
#include <inferscale.h>

#include <inttypes.h>
#include <stdio.h>

static const is_scope ADA = {.user = "ada"};

/* Runs on the engine's thread, while is_ask waits.  The pieces are whole characters. */
static bool on_token(void *user, const char *piece, size_t n)
{
    FILE *out = user;
    (void)fwrite(piece, 1, n, out);
    (void)fflush(out);
    return !ferror(out); /* false would end the answer, with finish "canceled" */
}

static bool on_progress(void *user, uint64_t done, uint64_t total)
{
    (void)user;
    fprintf(stderr, "encoded %" PRIu64 " of %" PRIu64 "\n", done, total);
    return true; /* false would stop, and leave the rest pending */
}

static void on_log(void *user, int level, const char *line)
{
    (void)user;
    fprintf(stderr, "%s: %s\n", level == 0 ? "error" : level == 1 ? "warning" : "note", line);
}

static is_status ask(is_memory *memory, const char *question, is_error *err)
{
    is_ask_options options = is_ask_options_default();
    options.k = 10;
    options.max_tokens = 48;
    options.on_token = on_token;
    options.user = stdout;
    is_answer *answer = NULL;
    is_status status = is_ask(memory, &ADA, question, &options, &answer, err);
    if (status != IS_OK) return status;
    printf("\n  [%s; %zu facts, %u of them injected; first token after %.1f ms]\n", answer->finish, answer->facts->n,
           answer->facts_injected, answer->timing.ttft_ms);
    is_answer_free(answer);
    return IS_OK;
}

static is_status remember(is_memory *memory, is_error *err)
{
    const is_fact facts[] = {
        {.text = "Ada keeps her telescope in the attic.", .time = IS_TIME_NONE},
        {.text = "Ada's sister is called Ines.", .time = 1714521600, .metadata = "{\"topic\": \"family\"}"},
        {.text = "Ada is allergic to walnuts.", .time = IS_TIME_NONE, .metadata = "{\"topic\": \"food\"}"},
    };
    const size_t n = sizeof facts / sizeof facts[0];
    int64_t ids[sizeof facts / sizeof facts[0]];
    const char *question = "Where does Ada keep her telescope?";
    size_t forgotten = 0;

    is_status status = is_add_facts(memory, &ADA, facts, n, ids, err); /* on disk when it returns */
    if (status == IS_OK) status = is_encode_pending(memory, &ADA, on_progress, NULL, err);
    if (status == IS_OK) status = ask(memory, question, err);
    if (status == IS_OK) status = is_forget(memory, &ADA, &ids[0], 1, &forgotten, err);
    if (status == IS_OK) printf("forgot %zu fact\n", forgotten);
    if (status == IS_OK) status = ask(memory, question, err); /* what was encoded behind it is prefilled now */
    if (status == IS_OK) status = is_forget(memory, &ADA, NULL, 0, &forgotten, err); /* all that Ada has */
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: remember STORE CHAT.gguf [EMBEDDING.gguf]\n");
        return 2;
    }
    is_error err = {0};
    is_memory *memory = NULL;
    is_options options = is_options_default();
    options.store = argv[1];
    options.model = argv[2];
    options.embedding_model = argc == 4 ? argv[3] : NULL; /* NULL: facts are found by words alone */
    options.background = false;                           /* is_encode_pending is called instead */
    options.log = on_log;
    is_status status = is_open(&options, &memory, &err);
    if (status == IS_OK) status = remember(memory, &err);
    is_close(memory); /* NULL is fine */
    if (status == IS_OK) return 0;
    fprintf(stderr, "remember: %s: %s\n", is_status_name(status), err.text);
    return 1;
}
