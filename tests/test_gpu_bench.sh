#!/usr/bin/env bash
#
# The benchmarks for a GPU, over a device that is none: they run to their end, find the host's bytes and facts, and what
# they print is the JSON that its readers expect.  The engine's part runs the real program on the CPU, with a model of
# made-up weights.
#
#   INFERSCALE_BIN, INFERSCALE_CHAT_MODEL   as in test_cli.sh

set -euo pipefail
cd "$(dirname "$0")/.."

if build/asan/tests/gpu-bench --slow 2>/dev/null; then
    echo "an option that is none was taken" >&2
    exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME=$work/home TMPDIR=$work
unset XDG_CACHE_HOME INFERSCALE_CACHE INFERSCALE_STORE INFERSCALE_EMBEDDING_MODEL

# No more than the head of the tokenizer's model is read.
head -c 4M "$INFERSCALE_CHAT_MODEL" >"$work/head.gguf"
bench/gpu/shape.py tiny "$work/head.gguf" "$work/tiny.gguf"
head -c 4K "$INFERSCALE_CHAT_MODEL" >"$work/less.gguf"
if bench/gpu/shape.py tiny "$work/less.gguf" "$work/none.gguf" 2>"$work/err"; then
    echo "half a head was taken" >&2
    exit 1
fi
grep -q 'ends within its head' "$work/err"

# A copy of the tree whose programs need no GPU, and tools that say that there is one.
mkdir -p "$work/tree/build/cuda" "$work/tree/data" "$work/bin"
cp -R bench "$work/tree/"
cp -R data/sample "$work/tree/data/"
program() { # FILE LINE
    printf '#!/usr/bin/env bash\n%s\n' "$2" >"$1"
    chmod +x "$1"
}
program "$work/bin/nvidia-smi" 'echo 9.0'
program "$work/bin/ldd" "printf '\\tlibggml-cuda.so.0\\n\\tlibcudart.so.99 => not found\\n'"
program "$work/tree/build/cuda/gpu-bench" "exec '$PWD/build/asan/tests/gpu-bench' --quick"
program "$work/tree/build/cuda/inferscale" "args=()
for word; do
    [ \"\$word\" = --device-chunks ] || [ \"\$word\" = 8G ] || args+=(\"\$word\")
done
[ \$# -eq \$((\${#args[@]} + 2)) ] && exec '$(realpath "${INFERSCALE_BIN:-build/inferscale}")' \"\${args[@]}\" --threads 1 --quiet"
export PATH=$work/bin:$PATH INFERSCALE_GPU_MODEL=$work/tiny.gguf
if "$work/tree/bench/gpu.sh" >"$work/out" 2>"$work/err"; then
    echo "a library that is nowhere was not missed" >&2
    exit 1
fi
grep -q 'libcudart.so.99 is not installed' "$work/err"
mkdir -p "$HOME/.cache/cuda"
touch "$HOME/.cache/cuda/libcudart.so.99"
"$work/tree/bench/gpu.sh" >"$work/out"
cmp "$work/out" "$work/tree/build/gpu.json"

python3 - "$work/out" <<'END'
import json, sys

result = json.load(open(sys.argv[1]))
compose, retrieve = result["compose"], result["retrieve"]
assert len(compose) == 7 and len(retrieve) == 2, result
assert all(c.get("wrong_bytes", 0) == c.get("wrong_bytes_gathered", 0) == 0 for c in compose), compose
assert all(c["bytes"] > 0 and c["kernel_gb_s"] > 0 and c["copy_gb_s"] > 0 for c in compose), compose
assert all(r["found"] > 0.99 and r["p50_ms"] > 0 for r in retrieve), retrieve
assert [t["k"] for t in result["ttft"]["ttft"]] == [5, 10, 20, 50], result["ttft"]
assert result["ttft"]["model"].startswith("llama"), result["ttft"]
assert {t["users"] for t in result["throughput"]["throughput"]} == {10, 25}, result["throughput"]
assert all(t["errors"] == 0 for t in result["throughput"]["throughput"]), result["throughput"]
END
if ls "$work"/tmp.* >/dev/null 2>&1; then
    echo "the script left its folder" >&2
    exit 1
fi
