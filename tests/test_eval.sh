#!/usr/bin/env bash
#
# Stems, normalised words, scores and intervals compared with NLTK's and with a computation in Python
# (tests/eval/compare.py).
#
#   INFERSCALE_TEST_VENV  Python with the packages of tests/requirements.txt
#   INFERSCALE_LOCOMO     LoCoMo's locomo10.json, for its words and answers; optional

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
for variant in release asan; do
    echo "== $variant"
    "$INFERSCALE_TEST_VENV/bin/python" tests/eval/compare.py "build/$variant/tests/test_eval"
done
