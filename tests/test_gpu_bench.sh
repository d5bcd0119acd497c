#!/usr/bin/env bash
#
# The device's benchmark over a device that is none: it runs to its end, finds the host's bytes and facts, and what it
# prints is the JSON that its readers expect.

set -euo pipefail
cd "$(dirname "$0")/.."

build/asan/tests/gpu-bench --quick | python3 -c '
import json, sys

result = json.load(sys.stdin)
compose, retrieve = result["compose"], result["retrieve"]
assert len(compose) == 7 and len(retrieve) == 2, result
assert all(c.get("wrong_bytes", 0) == c.get("wrong_bytes_gathered", 0) == 0 for c in compose), compose
assert all(c["bytes"] > 0 and c["kernel_gb_s"] > 0 and c["copy_gb_s"] > 0 for c in compose), compose
assert all(r["found"] > 0.99 and r["p50_ms"] > 0 for r in retrieve), retrieve
'
if build/asan/tests/gpu-bench --slow 2>/dev/null; then
    echo "an option that is none was taken" >&2
    exit 1
fi
