#!/usr/bin/env bash
#
# What each kernel takes on each architecture: registers of a thread, shared memory of a block, and whether anything
# spills, as cuobjdump reads it out of what was compiled.  Fails where a kernel keeps anything in local memory.
#
#     scripts/cuda_resources.sh build/cuda/src/cuda/*.o

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tool=$(sed -n 's/^CUDA_DIR := //p' "$root/build/cuda.mk" 2>/dev/null)/bin/cuobjdump
[ -x "$tool" ] || tool=cuobjdump
command -v "$tool" >/dev/null || {
    echo "there is no cuobjdump; run scripts/setup.sh --cuda first" >&2
    exit 1
}

printf '%-8s %-32s %9s %13s %11s\n' target kernel registers 'shared, bytes' 'local, bytes'
for object; do
    "$tool" --dump-resource-usage "$object"
done 2>&1 | c++filt | awk '
    /^arch = / { target = $3 }
    / Function / {
        name = $0
        sub(/^ *Function /, "", name)
        sub(/^void /, "", name)
        sub(/\(.*/, "", name)
    }
    / REG:/ {
        for (i = 1; i <= NF; i++) {
            split($i, part, ":")
            value[part[1]] = part[2]
        }
        local = value["STACK"] + value["LOCAL"]
        printf "%-8s %-32s %9d %13d %11d\n", target, name, value["REG"], value["SHARED"], local
        kernels++
        spilled += local > 0
    }
    END {
        if (kernels == 0 || spilled > 0) {
            print (kernels == 0 ? "no kernels in what was given" : "a kernel keeps something in local memory") > "/dev/stderr"
            exit 1
        }
    }'
