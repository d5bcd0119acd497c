#!/usr/bin/env bash
# Runs test programs one after another and counts them: scripts/test.sh PROGRAM...
#
# A program passes when it exits with 0. Its output is shown when it fails; TEST_VERBOSE=1 shows it always. Models come
# from build/models.mk, which scripts/setup.sh writes.

set -uo pipefail

while IFS=' ' read -r name _ value; do
    case $name in
    CHAT_MODEL) export INFERSCALE_CHAT_MODEL=$value ;;
    EMBED_MODEL) export INFERSCALE_EMBEDDING_MODEL=$value ;;
    TEST_VENV) export INFERSCALE_TEST_VENV=$value ;;
    TEST_MODEL) export INFERSCALE_TEST_MODEL=$value ;;
    esac
done <build/models.mk
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-2000} # as the program itself has it, see src/cli/main.c
export INFERSCALE_BIN=$PWD/build/release/inferscale
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0}
export LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$PWD/tests/lsan.supp:print_suppressions=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$PWD/tests/tsan.supp:halt_on_error=1}

passed=0
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for program in "$@"; do
    begin=$SECONDS
    arguments=()
    case $program in # a fuzzer starts from a copy of its corpus, for a few seconds; the corpus itself stays as it is
    */fuzz_*)
        corpus=tests/corpus/${program##*/fuzz_}
        found=$(mktemp -d)
        arguments=(-max_total_time="${FUZZ_SECONDS:-15}" -timeout=20 -rss_limit_mb=4096 -artifact_prefix=build/ "$found" "$corpus")
        ;;
    esac
    if [ "${TEST_VERBOSE:-0}" = 1 ]; then
        "$program" "${arguments[@]}" 2>&1 | tee "$log"
        result=${PIPESTATUS[0]}
    else
        "$program" "${arguments[@]}" >"$log" 2>&1
        result=$?
    fi
    [ ${#arguments[@]} = 0 ] || rm -rf "$found"
    took=$((SECONDS - begin))
    if [ "$result" = 0 ]; then
        passed=$((passed + 1))
        printf 'ok    %-45s %4d s\n' "$program" "$took"
    else
        failed=$((failed + 1))
        printf 'FAIL  %-45s %4d s  exit code %d\n' "$program" "$took" "$result"
        [ "${TEST_VERBOSE:-0}" = 1 ] || tail -n 60 "$log"
    fi
done
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
