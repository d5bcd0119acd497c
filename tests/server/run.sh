#!/usr/bin/env bash
#
# All tests of this folder against one program, which may be a variant: some five minutes.
#
#   INFERSCALE_BIN=build/asan/inferscale tests/server/run.sh -k leaving
#
#   INFERSCALE_BIN              the program (default: build/inferscale)
#   INFERSCALE_CHAT_MODEL       GGUF of a chat model
#   INFERSCALE_EMBEDDING_MODEL  GGUF of an embedding model
#   INFERSCALE_TEST_VENV        Python with the packages of tests/requirements.txt (default: where scripts/setup.sh
#                               --test puts it)
#   INFERSCALE_TEST_LOAD_SECONDS, INFERSCALE_TEST_EXAMPLES
#                               how long the mixed load lasts (60), how many requests schemathesis makes up (2)
#
# Arguments go to pytest. Ends with "N passed, M failed".

set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
INFERSCALE_BIN=$(realpath "${INFERSCALE_BIN:-$root/build/inferscale}")
venv=${INFERSCALE_TEST_VENV:-${INFERSCALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferscale}/venv-test}
[ -x "$INFERSCALE_BIN" ] || { echo "no program at $INFERSCALE_BIN; set INFERSCALE_BIN"; exit 1; }
[ -r "${INFERSCALE_CHAT_MODEL:-}" ] || { echo "INFERSCALE_CHAT_MODEL names no file"; exit 1; }
[ -r "${INFERSCALE_EMBEDDING_MODEL:-}" ] || { echo "INFERSCALE_EMBEDDING_MODEL names no file"; exit 1; }
[ -x "$venv/bin/python" ] || { echo "no Python at $venv; run scripts/setup.sh --test, or set INFERSCALE_TEST_VENV"; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export INFERSCALE_BIN TMPDIR=$work INFERSCALE_TEST_COUNTS=$work/counts PYTHONDONTWRITEBYTECODE=1
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0}
export LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$root/tests/lsan.supp:print_suppressions=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$root/tests/tsan.supp:halt_on_error=1}

cd "$root/tests/server" || exit 1
"$venv/bin/python" -m pytest "$@"
result=$?
passed=0
failed=0
[ ! -s "$INFERSCALE_TEST_COUNTS" ] || read -r passed failed <"$INFERSCALE_TEST_COUNTS"
[ "$result" -eq 0 ] || [ "$failed" -gt 0 ] || failed=1 # what pytest itself could not do
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
