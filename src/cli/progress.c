/*
 * Progress of long work on stderr: a bar that redraws itself on a terminal, and elsewhere, where lines stay, a plain
 * line every few seconds.
 */
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"
#include "common/common.h"

#define REDRAW_MS 100.0  /* on a terminal */
#define LINE_MS   5000.0 /* elsewhere */
#define MAX_BAR   40

void is_cli_progress_begin(is_cli_progress *progress, const is_cli *cli, const char *doing, const char *what)
{
    *progress = (is_cli_progress){.doing = doing, .what = what, .quiet = cli->quiet, .begun = is_now_ms()};
    progress->terminal = isatty(STDERR_FILENO) == 1;
    progress->shown = progress->begun;
}

static double per_second(const is_cli_progress *progress, double now)
{
    return now > progress->begun ? (double)progress->done * 1e3 / (now - progress->begun) : 0;
}

/* "80 of 178 facts, 5.2 a second, 19 s left" */
static void describe(const is_cli_progress *progress, double now, char *out, size_t size)
{
    double rate = per_second(progress, now);
    if (progress->total == 0) {
        (void)snprintf(out, size, "%s %s, %.1f a second", is_cli_count(progress->done).s, progress->what, rate);
        return;
    }
    char left[64] = "";
    double seconds = rate > 0 ? (double)(progress->total - progress->done) / rate : 0;
    if (seconds >= 60)
        (void)snprintf(left, sizeof left, ", %s left", is_cli_duration(seconds * 1e3).s);
    else if (rate > 0)
        (void)snprintf(left, sizeof left, ", %.0f s left", seconds);
    (void)snprintf(out, size, "%s of %s %s, %.1f a second%s", is_cli_count(progress->done).s,
                   is_cli_count(progress->total).s, progress->what, rate, left);
}

static unsigned percent(const is_cli_progress *progress)
{
    return (unsigned)(100.0 * (double)progress->done / (double)progress->total);
}

/* As wide as the terminal leaves room for; a line that wraps could not be redrawn. It is written as one piece, so that
 * nothing of others stands within it. */
static void draw_bar(const is_cli_progress *progress, const char *text)
{
    struct winsize window = {0};
    size_t columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 ? window.ws_col : 80;
    size_t used = strlen(progress->doing) + strlen(text) + sizeof " [] 100 %  ";
    size_t width = columns > used ? columns - used : 0;
    if (width > MAX_BAR) width = MAX_BAR;
    char bar[MAX_BAR + 16] = "";
    if (progress->total > 0) {
        size_t filled = (size_t)((double)width * (double)progress->done / (double)progress->total), n = 0;
        if (width >= 5) {
            bar[n++] = '[';
            for (size_t i = 0; i < width; i++) bar[n++] = i < filled ? '#' : '-';
            bar[n++] = ']';
            bar[n++] = ' ';
        }
        (void)snprintf(bar + n, sizeof bar - n, "%3u %%  ", percent(progress));
    }
    char line[512];
    int n = snprintf(line, sizeof line, "\r\033[K%s %s%.*s", progress->doing, bar, (int)columns, text);
    (void)fwrite(line, 1, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1, stderr);
    (void)fflush(stderr);
}

bool is_cli_progress_step(void *user, uint64_t done, uint64_t total)
{
    is_cli_progress *progress = user;
    double now = is_now_ms();
    progress->total = total;
    progress->done = total > 0 && done > total ? total : done;
    bool ended = !progress->terminal && total > 0 && done >= total; /* what stands there then says more */
    if (progress->quiet || ended || now - progress->shown < (progress->terminal ? REDRAW_MS : LINE_MS))
        return !is_cli_interrupted();
    char text[256];
    progress->shown = now;
    describe(progress, now, text, sizeof text);
    if (progress->terminal)
        draw_bar(progress, text);
    else if (total > 0)
        fprintf(stderr, "%s: %u %%, %s\n", progress->doing, percent(progress), text);
    else
        fprintf(stderr, "%s: %s\n", progress->doing, text);
    return !is_cli_interrupted();
}

void is_cli_progress_end(is_cli_progress *progress)
{
    if (progress->terminal && !progress->quiet && progress->shown > progress->begun) fputs("\r\033[K", stderr);
}

is_status is_cli_encode(const is_cli *cli, is_memory *memory, const is_scope *scope, uint64_t *encoded, is_error *err)
{
    is_cli_progress progress;
    is_cli_progress_begin(&progress, cli, "encoding", "facts");
    is_status status = is_encode_pending(memory, scope, is_cli_progress_step, &progress, err);
    is_cli_progress_end(&progress);
    if (encoded != NULL) *encoded = progress.done;
    double took = is_now_ms() - progress.begun;
    if (progress.done > 0)
        is_cli_note(cli, "encoded %s facts in %s (%.1f a second)", is_cli_count(progress.done).s,
                    is_cli_duration(took).s, (double)progress.done * 1e3 / (took > 1 ? took : 1));
    if (status == IS_ECANCELED && is_cli_interrupted())
        is_cli_note(cli, "what is encoded is kept; `inferscale add` without a text encodes the rest");
    return status;
}
