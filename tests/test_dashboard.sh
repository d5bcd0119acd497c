#!/usr/bin/env bash
#
# A real browser drives the dashboard of a real server (tests/web/dashboard.py).
#
#   INFERSCALE_BIN              the program (default: build/inferscale)
#   INFERSCALE_CHAT_MODEL       GGUF of a chat model
#   INFERSCALE_EMBEDDING_MODEL  GGUF of an embedding model
#   INFERSCALE_TEST_VENV        Python with the packages of tests/requirements.txt
#   SCREENSHOTS                 a folder for them (default: build/screenshots)

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$(realpath "${INFERSCALE_BIN:-$root/build/inferscale}")
shots=${SCREENSHOTS:-$root/build/screenshots}
work=$(mktemp -d)
server=
end() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    [ -z "$server" ] || wait "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT

export INFERSCALE_MODEL=$INFERSCALE_CHAT_MODEL HOME=$work/home
mkdir -p "$shots" "$HOME"
"$bin" serve --store "$work/store" --port 0 --slots 2 --threads 1 --json >"$work/out" 2>"$work/err" &
server=$!
for _ in $(seq 600); do
    [ -s "$work/out" ] && break
    kill -0 "$server" 2>/dev/null || { cat "$work/err"; exit 1; }
    sleep 0.2
done
url=$("$INFERSCALE_TEST_VENV/bin/python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["url"])' "$work/out")
"$INFERSCALE_TEST_VENV/bin/python" "$root/tests/web/dashboard.py" "$url" "$shots" --timeout 120
