#!/usr/bin/env bash
#
# What src/cuda does on the GPU of this machine: whether it is right, by the host's own bytes, how fast, and what
# compute-sanitizer says where that is installed. Minutes; the result is one JSON object.
#
#     bench/gpu.sh [FILE]        default: build/gpu.json
#
# It takes build/cuda/gpu-bench as `make cuda` left it, which runs on any machine with a driver for CUDA 13 and cuBLAS; where
# that is missing it compiles for the GPU at hand with the nvcc that is there.

set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/gpu.json}

command -v nvidia-smi >/dev/null || {
    echo "there is no nvidia-smi, so no GPU" >&2
    exit 1
}
if [ ! -x build/cuda/gpu-bench ]; then
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
    make VARIANT=shared build/cuda/gpu-bench CUDA_ARCHS="$arch" ENGINE_DIR=. >&2
fi

# cuBLAS comes with the toolkit, or as a Python package beside PyTorch.
blas=$(ldd build/cuda/gpu-bench | sed -n 's/^\t\(libcublas\.so\.[0-9]*\) => not found/\1/p')
if [ -n "$blas" ]; then
    found=$(find /usr/local /opt /usr/lib "$HOME/.cache" -name "$blas" -print -quit 2>/dev/null || true)
    [ -n "$found" ] || {
        echo "$blas is not installed; it comes with CUDA, or as the Python package nvidia-cublas" >&2
        exit 1
    }
    export LD_LIBRARY_PATH=${found%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

mkdir -p build
build/cuda/gpu-bench >"$out"
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
