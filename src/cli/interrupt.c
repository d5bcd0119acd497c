/*
 * Ctrl-C.  Long work looks at a flag between its steps and stops where all is whole; whoever presses twice means it,
 * and loses nothing either, since the store survives a process that is killed.
 */
#include <signal.h>
#include <stdatomic.h>

#include "cli.h"

static atomic_bool interrupted; /* no sig_atomic_t: the engine's thread looks at it too */

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = true;
}

void is_cli_catch_interrupts(void)
{
    struct sigaction action = {.sa_handler = on_interrupt};
    struct sigaction before;
    if (sigaction(SIGINT, NULL, &before) == 0 && before.sa_handler == SIG_IGN) return; /* nohup, a shell's & */
    action.sa_flags = (int)SA_RESETHAND; /* and no SA_RESTART: a read from a terminal or a pipe ends too */
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
}

bool is_cli_interrupted(void)
{
    return interrupted;
}
