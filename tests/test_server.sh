#!/usr/bin/env bash
#
# The server from the outside, by the clients that people use (tests/server). test_schema.py (schemathesis) and
# test_abuse.py (floods) take some minutes more: run them with
#   "$INFERSCALE_TEST_VENV/bin/python" -m pytest tests/server/test_schema.py tests/server/test_abuse.py
#
#   INFERSCALE_BIN              the program (default: build/inferscale)
#   INFERSCALE_CHAT_MODEL       GGUF of a chat model
#   INFERSCALE_EMBEDDING_MODEL  GGUF of an embedding model
#   INFERSCALE_TEST_VENV        Python with the packages of tests/requirements.txt

set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/server"
export PYTHONDONTWRITEBYTECODE=1
# Sessions with servers of their own: the second one looks at the log too, where long facts leave a line.
for files in "test_openai.py test_memories.py test_access.py" "test_limits.py test_leaving.py test_life.py" test_load.py; do
    # shellcheck disable=SC2086 # several names
    "$INFERSCALE_TEST_VENV/bin/python" -m pytest $files
done
