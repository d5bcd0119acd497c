/*
 * inferscale: the program.  The table of commands, and what must hold before any of them runs.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cli.h"

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} command;

static const command COMMANDS[] = {
    {"demo", is_cmd_demo, "the sample conversation, asked with injected and with prefilled memory"},
    {"add", is_cmd_add, "add facts about a user"},
    {"import", is_cmd_import, "add turns and facts from a file"},
    {"search", is_cmd_search, "find the facts that fit a query"},
    {"ask", is_cmd_ask, "answer a question with a user's facts"},
    {"list", is_cmd_list, "list a user's facts"},
    {"forget", is_cmd_forget, "forget facts, for good"},
    {"stats", is_cmd_stats, "what the store holds"},
    {"verify", is_cmd_verify, "check every stored byte, and repair"},
    {"doctor", is_cmd_doctor, "whether everything here works, and what to do if not"},
    {"serve", is_cmd_serve, "serve OpenAI's interface with memory, and a dashboard"},
    {"key", is_cmd_key, "make an API key for the server"},
    {"bench", is_cmd_bench, "measure this system on this machine"},
};
#define N_COMMANDS (sizeof COMMANDS / sizeof COMMANDS[0])

/* A store's file must never get the number of a standard stream, or what is printed would land in it.  A stream that
 * is closed is replaced by one that fails as a closed one does. */
static void hold_standard_streams(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) continue;
        if (open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) _exit(IS_EXIT_FAILED);
    }
}

static void print_help(void)
{
    printf("Usage: inferscale COMMAND [options] [arguments]\n"
           "\n"
           "Memory for language models, kept as KV state: facts about a user are encoded once and\n"
           "injected into the model's cache when a question needs them.\n"
           "\n"
           "Commands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++) printf("  %-8s  %s\n", COMMANDS[i].name, COMMANDS[i].summary);
    printf("\n"
           "`inferscale COMMAND --help` shows a command's options and examples.\n"
           "`inferscale --version` prints the version.\n"
           "\n" IS_CLI_EXIT_CODES);
}

/* How many letters must be added, dropped or changed to turn a into b (Levenshtein's distance). */
static size_t distance(const char *a, const char *b)
{
    size_t row[32];
    size_t n = strlen(b);
    if (n >= sizeof row / sizeof row[0]) return SIZE_MAX;
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t corner = row[0]++;
        for (size_t j = 1; j <= n; j++) {
            size_t best = corner + (a[i] != b[j - 1]);
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            if (row[j] + 1 < best) best = row[j] + 1;
            corner = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

static const char *nearest_command(const char *name)
{
    size_t nearest = 0;
    for (size_t i = 1; i < N_COMMANDS; i++)
        if (distance(name, COMMANDS[i].name) < distance(name, COMMANDS[nearest].name)) nearest = i;
    return COMMANDS[nearest].name;
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "inferscale: a command is missing; `inferscale --help` lists them\n");
        return IS_EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help();
        return IS_EXIT_OK;
    }
    if (strcmp(name, "--version") == 0) {
        printf("inferscale %s\n", IS_VERSION);
        return IS_EXIT_OK;
    }
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, COMMANDS[i].name) == 0) return COMMANDS[i].run(argc - 1, argv + 1);
    if (name[0] == '-')
        fprintf(stderr, "inferscale: options stand behind the command; `inferscale --help` says more\n");
    else
        fprintf(stderr, "inferscale: no command \"%s\"; did you mean `inferscale %s`?\n", name, nearest_command(name));
    return IS_EXIT_USAGE;
}

/*
 * The engine's threads wait for one another some hundred times a token.  OpenMP's runtime lets them spin for a
 * millisecond each time, which on a machine that others use too makes a prefill take ten times as long: whoever is
 * waited for has no core.  A short spin costs next to nothing on an idle machine.  The runtime reads this when it is
 * loaded, so the program begins anew with it.
 */
#define SPINS "2000"

static void spin_less(char **argv)
{
    if (getenv("GOMP_SPINCOUNT") != NULL || getenv("OMP_WAIT_POLICY") != NULL) return;
    if (setenv("GOMP_SPINCOUNT", SPINS, 1) == 0) (void)execv("/proc/self/exe", argv); /* else as it is */
}

int main(int argc, char **argv)
{
    spin_less(argv);
    (void)prctl(PR_SET_NAME, "inferscale"); /* began anew it would be called "exe" */
    hold_standard_streams();
    (void)signal(SIGPIPE, SIG_IGN); /* a reader that goes away is an error like any other */
    return is_cli_end_output(run(argc, argv));
}
