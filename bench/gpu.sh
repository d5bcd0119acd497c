#!/usr/bin/env bash
#
# What this machine's GPU makes of InferScale, in minutes, as one JSON object:
#
#     bench/gpu.sh [FILE]        default: build/gpu.json
#
# compose, retrieve  src/cuda's kernels: whether they are right, by the host's own bytes, how fast, and what compute-sanitizer
#                    says where that is installed. It takes build/cuda/gpu-bench as `make cuda` left it, which runs on any
#                    machine with a driver for CUDA 13 and cuBLAS; where that is missing it compiles for the GPU at hand with
#                    the nvcc that is there.
# ttft, throughput   the embedded engine with chunks on the GPU, where build/cuda/inferscale has llama.cpp's CUDA build in it
#                    (docs/cuda.md): `inferscale bench` with the model that INFERSCALE_GPU_MODEL names, or one of
#                    Llama-3.1-8B's shape with made-up weights, 15 GB, which is made under $TMPDIR and removed. Its tokenizer
#                    comes from INFERSCALE_MODEL, of which the first 4 MB are enough.

set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/gpu.json}
mkdir -p build
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

command -v nvidia-smi >/dev/null || {
    echo "there is no nvidia-smi, so no GPU" >&2
    exit 1
}
if [ ! -x build/cuda/gpu-bench ]; then
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
    make VARIANT=shared build/cuda/gpu-bench CUDA_ARCHS="$arch" ENGINE_DIR=. >&2
fi

# cuBLAS and CUDA's runtime come with the toolkit, or as Python packages beside PyTorch.
missing=$({ ldd build/cuda/gpu-bench build/cuda/inferscale 2>/dev/null || true; } |
    sed -n 's/^\t\(libcu\(blas\|dart\)\.so\.[0-9]*\) => not found/\1/p' | sort -u)
for library in $missing; do
    found=$(find /usr/local /opt /usr/lib "$HOME/.cache" -name "$library" -print -quit 2>/dev/null || true)
    [ -n "$found" ] || {
        echo "$library is not installed; it comes with CUDA, or as the Python package nvidia-cublas or nvidia-cuda-runtime" >&2
        exit 1
    }
    export LD_LIBRARY_PATH=${found%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done

build/cuda/gpu-bench >"$work/kernels.json"

# Puts what was measured so far into $out: a member a benchmark behind those of the kernels.
write_result() {
    python3 - "$work" "$out" <<'EOF'
import json
import pathlib
import sys

work = pathlib.Path(sys.argv[1])
result = json.loads((work / "kernels.json").read_text())
for name in ("ttft", "throughput"):
    if (work / f"{name}.json").exists():
        result[name] = json.loads((work / f"{name}.json").read_text())
pathlib.Path(sys.argv[2]).write_text(json.dumps(result, indent=1) + "\n")
EOF
}

# bench NAME OPTION...: a benchmark of the program with chunks on the GPU.
bench() {
    build/cuda/inferscale bench "$@" --model "$model" --device-chunks 8G --memory 16G --json >"$work/part"
    mv "$work/part" "$work/$1.json"
    write_result
}

write_result
if [ -x build/cuda/inferscale ] && ldd build/cuda/inferscale | grep libggml-cuda >/dev/null; then
    model=${INFERSCALE_GPU_MODEL:-}
    if [ -z "$model" ]; then
        cache=${INFERSCALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferscale}
        model=$work/llama-3.1-8b.gguf
        bench/gpu/shape.py llama-3.1-8b "${INFERSCALE_MODEL:-$cache/models/SmolLM2-135M-Instruct-Q4_0.gguf}" "$model"
    fi
    bench ttft -k 5 -k 10 -k 20 -k 50 --limit 3 --repeat 3
    bench throughput -u 10 -u 25 --facts 55 --limit-prefill 8 --slots 8
else
    echo "build/cuda/inferscale has no llama.cpp for GPUs in it, so only the kernels were measured" >&2
fi
cat "$out"

if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        compute-sanitizer --tool $tool --kernel-regex kns=is_ --kernel-regex kns=select_ --error-exitcode 9 build/cuda/gpu-bench --quick >build/gpu-$tool.log 2>&1 || {
            tail -n 40 build/gpu-$tool.log >&2
            echo "compute-sanitizer's $tool found something; all of it is in build/gpu-$tool.log" >&2
            exit 1
        }
    done
fi
