#!/usr/bin/env bash
#
# The tests of this folder; scripts/setup.sh --vllm makes what they need, and build/vllm.mk names it. Arguments go to
# pytest.

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
while IFS=' ' read -r name _ value; do
    case $name in
    VLLM_VENV) venv=$value ;;
    HF_MODEL) export INFERSCALE_HF_MODEL=$value ;;
    esac
done <"$root/build/vllm.mk"
cd "$root/tests/vllm"
export PYTHONDONTWRITEBYTECODE=1
exec "$venv/bin/python" -m pytest -p no:cacheprovider --durations=5 "$@"
