/* inferscale key: a new API key for a tenant of the server. */
#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "cli.h"
#include "common/common.h"
#include "server/server.h"

static is_status append_line(const char *path, const char *line, is_error *err)
{
    mode_t before = umask(077);
    FILE *out = fopen(path, "ae");
    (void)umask(before);
    bool ok = out != NULL && fputs(line, out) >= 0;
    if (out != NULL) ok = fclose(out) == 0 && ok;
    return ok ? IS_OK : is_fail(err, IS_EIO, "cannot write %s: %s", path, strerror(errno));
}

static int make_key(const is_cli *cli, const char *path)
{
    uint8_t random[32];
    char key[80] = "is-";
    char hash[65];
    char line[400];
    is_error err = {0};
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        (void)is_fail(&err, IS_EIO, "the system gives no random bytes: %s", strerror(errno));
        return is_cli_fail(cli, &err);
    }
    for (size_t i = 0; i < sizeof random; i++) (void)snprintf(key + 3 + 2 * i, 3, "%02x", random[i]);
    is_server_key_hash(key, hash);
    (void)snprintf(line, sizeof line, "%s %s\n", cli->args[0], hash);
    if (path != NULL && append_line(path, line, &err) != IS_OK) return is_cli_fail(cli, &err);
    if (cli->json) {
        json_t *root = json_object();
        is_cli_set(root, "key", json_string(key));
        is_cli_set(root, "tenant", is_cli_json_text(cli->args[0]));
        is_cli_set(root, "hash", json_string(hash));
        is_cli_print_json(root);
    } else {
        printf("%s\n", key);
        if (path == NULL)
            is_cli_note(cli, "for the server's file of keys: %s %s", cli->args[0], hash);
        else
            is_cli_note(cli, "%s has its hash; the key itself is shown only now", path);
    }
    return IS_EXIT_OK;
}

int is_cmd_key(int argc, char **argv)
{
    const char *path = NULL;
    const is_cli_option options[] = {
        {"keys", 0, IS_CLI_TEXT, &path, 0, 0, "FILE", "append the key's line to this file"},
    };
    const is_cli_spec spec = {
        .synopsis = "key [options] TENANT",
        .about = "Makes a random API key for a tenant and prints it. The server keeps its SHA-256 only: the line\n"
                 "\"TENANT SHA256\" in the file that `inferscale serve --keys` reads.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .examples = "inferscale key acme --keys keys.txt",
    };
    is_cli cli;
    if (!is_cli_parse(&cli, &spec, argc, argv)) return cli.exit;
    if (cli.n_args != 1 || cli.args[0][0] == '\0' || strlen(cli.args[0]) > 200 ||
        strpbrk(cli.args[0], " \t\r\n;#") != NULL)
        return is_cli_usage(&cli, "one tenant's name is wanted, without blanks, ; and #");
    return make_key(&cli, path);
}
