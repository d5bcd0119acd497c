#!/usr/bin/env bash
#
# The server from the outside, by the clients that people use (tests/server), then again under ThreadSanitizer and
# AddressSanitizer.
#
#   INFERSCALE_BIN              the program (default: build/inferscale)
#   INFERSCALE_CHAT_MODEL       GGUF of a chat model
#   INFERSCALE_EMBEDDING_MODEL  GGUF of an embedding model
#   INFERSCALE_TEST_VENV        Python with the packages of tests/requirements.txt

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
run() { "$root/tests/server/run.sh" "$@"; }

# Sessions with servers of their own: the second one looks at the log too, where long facts leave a line.
run test_openai.py test_memories.py test_access.py
run test_limits.py test_leaving.py test_life.py
run test_load.py
run test_schema.py
run test_abuse.py

# Without the two that wait a minute each for the server's patience to end.
for variant in tsan asan; do
    echo "== $variant"
    INFERSCALE_BIN=$root/build/$variant/inferscale INFERSCALE_TEST_LOAD_SECONDS=20 \
        run test_openai.py test_memories.py test_access.py test_limits.py test_leaving.py test_load.py -k "not what_is_no_http"
done
