# shellcheck shell=bash
#
# What the tests of the command line count with. A test has what the program printed in the files out and err, and its
# exit code in rc.

passed=0
failed=0

# is WHAT CONDITION...: counts; the condition is a command.
is() {
    local what=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
        return
    fi
    failed=$((failed + 1))
    printf 'FAILED: %s (%s)\n  exit %s\n' "$what" "$*" "${rc:-}"
    sed 's/^/  stdout: /' out | head -n 20
    sed 's/^/  stderr: /' err | head -n 20
}

exits() { [ "$rc" -eq "$1" ]; }
