#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "http_load.h"

#define READY_MS 600000.0 /* a large model from a slow disk */
#define STOP_MS  10000.0
#define STEP_MS  20

static void pause_ms(long ms)
{
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    (void)nanosleep(&t, NULL);
}

/* A port that was free a moment ago. */
static uint16_t free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0 &&
              getsockname(fd, (struct sockaddr *)&address, &size) == 0;
    if (fd >= 0) (void)close(fd);
    return ok ? ntohs(address.sin_port) : 0;
}

/* The environment without settings of either server, but for a key, which does not belong on a line; free(). */
static char **plain_environment(void)
{
    size_t n = 0, kept = 0;
    while (environ[n] != NULL) n++;
    char **out = calloc(n + 1, sizeof *out);
    for (size_t i = 0; out != NULL && i < n; i++)
        if (strncmp(environ[i], IS_CLI_UPSTREAM_KEY "=", sizeof IS_CLI_UPSTREAM_KEY) == 0 ||
            (strncmp(environ[i], "INFERSCALE_", 11) != 0 && strncmp(environ[i], "LLAMA_", 6) != 0))
            out[kept++] = environ[i];
    return out;
}

static _Noreturn void become(const char *const *argv, char **environment, int log)
{
    /* Out of the terminal's group, so that Ctrl-C is this program's; and with it when it dies. */
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (dup2(log, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0)
        (void)execve(argv[0], (char *const *)(uintptr_t)argv, environment);
    _exit(127);
}

is_status is_child_start(const char *const *argv, is_child *out, is_error *err)
{
    size_t n = 0;
    char port[8];
    *out = (is_child){0};
    uint16_t number = free_port();
    if (number == 0) return is_fail(err, IS_EIO, "no free port on 127.0.0.1: %s", strerror(errno));
    if (access(argv[0], X_OK) != 0) return is_fail(err, IS_ENOTFOUND, "cannot run %s: %s", argv[0], strerror(errno));
    (void)snprintf(port, sizeof port, "%u", number);
    (void)snprintf(out->url, sizeof out->url, "http://127.0.0.1:%u", number);
    while (argv[n] != NULL) n++;
    const char **words = calloc(n + 3, sizeof *words);
    char **environment = plain_environment();
    out->log = tmpfile();
    bool ready =
        words != NULL && environment != NULL && out->log != NULL && fcntl(fileno(out->log), F_SETFD, FD_CLOEXEC) == 0;
    if (ready) {
        memcpy(words, argv, n * sizeof *words);
        words[n] = "--port";
        words[n + 1] = port;
        out->pid = fork();
        if (out->pid == 0) become(words, environment, fileno(out->log));
    }
    free(words);
    free(environment);
    if (ready && out->pid > 0) return IS_OK;
    is_child_stop(out);
    return is_fail(err, IS_EIO, "cannot start %s: %s", argv[0], strerror(errno));
}

static bool has_ended(is_child *c)
{
    if (c->pid <= 0) return true;
    if (waitpid(c->pid, NULL, WNOHANG) == 0) return false;
    c->pid = 0;
    return true;
}

/* The last line of the log that is not blank. */
static void last_words(const is_child *c, char *out, size_t size)
{
    char line[512];
    out[0] = '\0';
    if (c->log == NULL) return;
    rewind(c->log);
    while (fgets(line, sizeof line, c->log) != NULL) {
        line[strcspn(line, "\r\n")] = '\0';
        if (line[strspn(line, " \t")] != '\0') (void)snprintf(out, size, "%s", line);
    }
}

is_status is_child_check(is_child *c, is_error *err)
{
    char words[512];
    if (!has_ended(c)) return IS_OK;
    last_words(c, words, sizeof words);
    return is_fail(err, IS_EENGINE, "the server at %s has ended: %s", c->url, words);
}

is_status is_child_wait(is_child *c, const char *path, bool (*go_on)(void), is_error *err)
{
    char url[128];
    double begin = is_now_ms();
    (void)snprintf(url, sizeof url, "%s%s", c->url, path);
    for (;;) {
        char *body = is_http_get(url, 2000);
        free(body);
        if (body != NULL) return IS_OK;
        is_status status = is_child_check(c, err);
        if (status != IS_OK) return status;
        if (!go_on()) return is_fail(err, IS_ECANCELED, "interrupted");
        if (is_now_ms() - begin > READY_MS)
            return is_fail(err, IS_EENGINE, "the server at %s does not become ready", c->url);
        pause_ms(STEP_MS * 5);
    }
}

void is_child_stop(is_child *c)
{
    double begin = is_now_ms();
    if (c->pid > 0) (void)kill(c->pid, SIGTERM);
    while (!has_ended(c) && is_now_ms() - begin < STOP_MS) pause_ms(STEP_MS);
    if (c->pid > 0) {
        (void)kill(c->pid, SIGKILL);
        (void)waitpid(c->pid, NULL, 0);
    }
    if (c->log != NULL) (void)fclose(c->log);
    *c = (is_child){0};
}
