# InferScale's build.
#
#   make demo    install, fetch, build, and run the main job on the bundled sample conversation
#   make test    install, fetch, build, and pass every test
#   make test-vllm  install vLLM for the CPU, and pass the tests of its connector
#   make lint    formatting, shell scripts, clang's warnings, clang-tidy
#   make cuda    compile the part for NVIDIA's GPUs, and say what its kernels take; no GPU is needed
#   make bench   a short evaluation with its report, build/evaluation/report.html; LOCOMO=FILE: of LoCoMo's data
#   make         build build/inferscale with what is installed already
#   make wheel   build/wheel/inferscale_vllm-*.whl, the connector for vLLM with its library
#   make install what was built, with libraries and models, into PREFIX (/usr/local), below DESTDIR
#
# A variant is a folder of its own: build/release, build/asan (ASan + UBSan), build/tsan (TSan), build/fuzz
# (libFuzzer, ASan, UBSan) and build/clang (clang's warnings).

VARIANT ?= release
B       := build/$(VARIANT)

-include build/models.mk # CHAT_MODEL, EMBED_MODEL
-include build/vllm.mk   # VLLM_VENV
-include build/cuda.mk   # CUDA_DIR: CUDA's compiler and libraries
-include build/engine.mk # ENGINE_DIR: where scripts/setup.sh put the engine (headers in include, libraries in lib)

clang_variants := fuzz clang
CC       := $(if $(filter $(VARIANT),$(clang_variants)),clang,gcc)
CXX      := $(if $(filter $(VARIANT),$(clang_variants)),clang++,g++)
WARN     := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-missing-field-initializers -Werror
BASE     := -std=c11 -D_GNU_SOURCE -Iinclude -Isrc -isystem $(ENGINE_DIR)/include -ffp-contract=off -fno-math-errno -g -pthread \
            -DIS_ENGINE_BUILD='"$(firstword $(subst -, ,$(notdir $(ENGINE_DIR))))"'
release  := -O2 -fno-semantic-interposition
asan     := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
tsan     := -O1 -fsanitize=thread -fno-omit-frame-pointer
fuzz     := -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
clang    := -O1
shared   := -O2 -fPIC -fvisibility=hidden
# The one file that is C++ is the way into llama.cpp's C++ library.
CXXBASE  := $(subst -std=c11,-std=c++17,$(BASE)) -isystem $(ENGINE_DIR)/include/llama-chat
CXXFLAGS := $(CXXBASE) $(WARN) $($(VARIANT)) -fno-sanitize=vptr
CFLAGS   := $(BASE) $(WARN) $($(VARIANT)) $(EXTRA_CFLAGS)
RPATH    := $(ENGINE_DIR)/lib
# llama.cpp's CUDA build needs the driver's library, which a machine that only builds has not.
DRIVERLESS := $(if $(wildcard $(ENGINE_DIR)/lib/libggml-cuda.so),-Xlinker --allow-shlib-undefined)
LDFLAGS   = -pthread $($(VARIANT)) -L$(ENGINE_DIR)/lib -Wl,-rpath,'$(RPATH)' $(DRIVERLESS)
LDLIBS   := -Wl,--as-needed -lllama-chat -lllama -lggml -lggml-base -lggml-cpu -lsqlite3 -ljansson -lxxhash -lmicrohttpd -lgnutls -lcurl -lstdc++ -lm

LIB_SRC  := $(wildcard src/common/*.c src/kv/*.c src/store/*.c src/retrieve/*.c src/engine/*/*.c src/memory/*.c src/server/*.c src/connector/*.c src/eval/*.c)
CXX_SRC  := $(wildcard src/engine/*/*.cpp)
CLI_SRC  := $(wildcard src/cli/*.c)
TEST_SRC := $(wildcard tests/test_*.c tests/crash_*.c)
FUZZ_SRC := $(wildcard tests/fuzz_*.c)
# The device's host side is in the library only where there is CUDA; its tests bring a device of their own.
CUDA_SRC := $(wildcard src/cuda/*.c)
CUDA_KERNELS := $(wildcard src/cuda/*.cu)
FAKE_SRC := $(filter-out tests/cuda/bench_time.c,$(wildcard tests/cuda/*.c))
LIB_OBJ  := $(LIB_SRC:%.c=$(B)/%.o) $(CXX_SRC:%.cpp=$(B)/%.o) $(B)/src/server/files.o
FAKE_OBJ := $(CUDA_SRC:%.c=$(B)/%.o) $(FAKE_SRC:%.c=$(B)/%.o)
CLI_OBJ  := $(CLI_SRC:%.c=$(B)/%.o) $(B)/src/cli/report.o

TESTS      := $(TEST_SRC:%.c=%)
TSAN_TESTS := $(filter tests/test_scan tests/test_cuda_pool tests/test_cuda_pool_stress tests/test_cuda_scan tests/test_cuda_retrieve tests/test_cuda_connector tests/test_connector tests/test_store_parts tests/test_retrieve tests/test_store_chunks tests/test_engine_serve tests/test_sampling tests/test_memory tests/test_memory_change tests/test_conversation,$(TESTS))
PROGRAMS   := $(TESTS:%=build/asan/%) $(TESTS:%=build/release/%) $(TSAN_TESTS:%=build/tsan/%) $(FUZZ_SRC:%.c=build/fuzz/%)

.PHONY: all cuda cuda-build build/libinferscale-connector.so wheel install demo test test-vllm check bench setup setup-test lint format clean tests-of-variant
.SECONDARY:

all: build/inferscale

# What was set up is read when make starts, so these begin a make of their own behind it.
demo: setup
	@$(MAKE) --no-print-directory build/inferscale
	@build/inferscale demo

test: setup-test
	@$(MAKE) --no-print-directory check

bench: setup
	@$(MAKE) --no-print-directory build/inferscale
	build/inferscale bench locomo $(if $(LOCOMO),--data $(LOCOMO))

# System packages, engine and models; a moment where all of that is there already.
setup:
	@scripts/setup.sh

setup-test:
	@scripts/setup.sh --test

# The connector and the server in front of it, with a real vLLM, which is fetched (5.9 GB).
test-vllm:
	@scripts/setup.sh --vllm
	@$(MAKE) --no-print-directory build/libinferscale-connector.so build/inferscale
	@tests/vllm/run.sh

check: build/inferscale build/release/examples/remember
	@for v in release asan; do $(MAKE) --no-print-directory VARIANT=$$v tests-of-variant || exit 1; done
	@$(MAKE) --no-print-directory VARIANT=asan build/asan/inferscale build/asan/tests/gpu-bench
	@$(MAKE) --no-print-directory VARIANT=tsan build/tsan/inferscale $(TSAN_TESTS:%=build/tsan/%)
	@$(MAKE) --no-print-directory VARIANT=fuzz $(FUZZ_SRC:%.c=build/fuzz/%)
	@scripts/test.sh $(PROGRAMS) $(wildcard tests/test_*.sh)

tests-of-variant: $(TESTS:%=$(B)/%)

build/inferscale: build/release/inferscale
	@ln -sf release/inferscale $@

$(B)/inferscale $(B)/inferscale-install: $(CLI_OBJ) $(B)/libinferscale.a
	@$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# The installed program finds the engine's libraries from where it stands itself.
$(B)/inferscale-install: RPATH := $$ORIGIN/../lib/inferscale

PREFIX ?= /usr/local
TO     := $(DESTDIR)$(PREFIX)
DOC    := $(TO)/share/doc/inferscale

install: $(B)/inferscale-install
	install -d $(TO)/bin $(TO)/lib/inferscale $(TO)/lib/systemd/system $(TO)/lib/sysusers.d $(TO)/share/man/man1 \
	    $(TO)/share/inferscale/models $(DOC)
	install -m 755 $< $(TO)/bin/inferscale
	cp -d --preserve=mode --remove-destination $(ENGINE_DIR)/lib/*.so.* $(ENGINE_DIR)/lib/libllama-chat.so $(TO)/lib/inferscale
	install -m 644 $(CHAT_MODEL) $(EMBED_MODEL) $(TO)/share/inferscale/models
	install -m 644 docs/inferscale.1 $(TO)/share/man/man1
	install -m 644 packaging/config.json LICENSE $(DOC)
	install -m 644 $(ENGINE_DIR)/LICENSE $(DOC)/LICENSE.llama.cpp
	install -m 644 packaging/inferscale.sysusers $(TO)/lib/sysusers.d/inferscale.conf
	sed 's|/usr/local|$(PREFIX)|' packaging/inferscale.service | \
	    install -m 644 /dev/stdin $(TO)/lib/systemd/system/inferscale.service

# What a connector inside another engine loads; see src/connector/connector.h.
CONNECTOR_SRC := $(filter-out src/common/http.c,$(wildcard src/common/*.c)) $(wildcard src/kv/*.c src/connector/*.c) src/store/tier.c

build/libinferscale-connector.so:
	@$(MAKE) --no-print-directory VARIANT=shared build/shared/libinferscale-connector.so
	@ln -sf shared/libinferscale-connector.so $@

build/shared/libinferscale-connector.so: $(CONNECTOR_SRC:%.c=build/shared/%.o)
	@$(CC) -shared -pthread -o $@ $^ -ljansson -lxxhash -lm

# For NVIDIA's GPUs.  Where CUDA is installed, `make cuda-build` takes it as it is.
CUDA_DIR   ?= $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v nvcc)))
CUDA_ARCHS ?= 80 90 100 120
NVFLAGS    := -std=c++17 -O3 -lineinfo -Iinclude -Isrc -Werror all-warnings \
              -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra,-Wno-missing-field-initializers \
              $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$a,code=sm_$a)

cuda:
	@scripts/setup.sh --cuda
	@$(MAKE) --no-print-directory cuda-build
	@scripts/cuda_resources.sh $(CUDA_KERNELS:%.cu=build/cuda/%.o)

cuda-build: $(CUDA_KERNELS:%.cu=build/cuda/%.o)
	@$(MAKE) --no-print-directory VARIANT=shared build/cuda/libinferscale-connector.so build/cuda/gpu-bench
	@$(MAKE) --no-print-directory build/cuda/inferscale

CUDA_FOLDERS := -L$(CUDA_DIR)/lib -L$(CUDA_DIR)/lib64
CUDA_LINK := $(CUDA_FOLDERS) -lcudart_static -ldl -lrt

# The same as without CUDA, and the way into caches on a GPU; CUDA's own runtime is in it.
build/cuda/libinferscale-connector.so: $(CONNECTOR_SRC:%.c=build/shared/%.o) build/shared/src/cuda/dev.o \
        build/cuda/libinferscale-cuda.a
	@$(CXX) -shared -pthread -Wl,--exclude-libs,ALL -o $@ $^ -ljansson -lxxhash -lm $(CUDA_LINK)

# A library of CUDA's by its whole name, since Python's packages have it under no other.
of_cuda   = -l:$(notdir $(firstword $(wildcard $(CUDA_DIR)/lib/$1.so.1? $(CUDA_DIR)/lib64/$1.so.1?)))
CUBLAS    = $(call of_cuda,libcublas) -Wl,-rpath-link,$(CUDA_DIR)/lib -Wl,-rpath,$(CUDA_DIR)/lib:$(CUDA_DIR)/lib64

# The program, with the exact scan on a GPU. It has CUDA's runtime as llama.cpp's CUDA build has it: one in a process.
build/cuda/inferscale: $(CLI_OBJ) $(CUDA_SRC:%.c=build/shared/%.o) build/cuda/libinferscale-cuda.a $(B)/libinferscale.a
	@$(CXX) $(LDFLAGS) -o $@ $^ build/cuda/libinferscale-cuda.a $(LDLIBS) $(CUBLAS) $(CUDA_FOLDERS) $(call of_cuda,libcudart)

GPU_BENCH_SRC := $(wildcard bench/gpu/*.c src/kv/*.c src/retrieve/scan*.c) src/common/common.c

build/cuda/gpu-bench: $(GPU_BENCH_SRC:%.c=build/shared/%.o) build/cuda/bench/gpu/time.o build/cuda/libinferscale-cuda.a
	@$(CXX) -pthread -o $@ $^ -l:libxxhash.a -lm $(CUBLAS) $(CUDA_LINK)

build/cuda/libinferscale-cuda.a: $(CUDA_SRC:%.c=build/shared/%.o) $(CUDA_KERNELS:%.cu=build/cuda/%.o)
	@rm -f $@ && $(AR) rcs $@ $^

build/cuda/%.o: %.cu $(wildcard build/cuda.mk)
	@test -x '$(CUDA_DIR)/bin/nvcc' || { echo 'there is no nvcc; run make cuda or scripts/setup.sh --cuda first'; exit 1; }
	@mkdir -p $(@D)
	@echo "  cuda $<"
	@$(CUDA_DIR)/bin/nvcc $(NVFLAGS) -MMD -MF $(@:.o=.d) -c -o $@ $<

# With what is there already: no network.
wheel: build/libinferscale-connector.so
	@rm -rf build/wheel
	@$(if $(VLLM_VENV),$(VLLM_VENV)/bin/python,python3) -m pip wheel --quiet --disable-pip-version-check --no-index --no-build-isolation --no-deps \
	    --wheel-dir build/wheel ./python
	@ls build/wheel/*

$(B)/libinferscale.a: $(LIB_OBJ)
	@rm -f $@ && $(AR) rcs $@ $^

# build/engine.mk is written anew when the engine is another one.
$(B)/%.o: %.c $(wildcard build/engine.mk)
	@test -n '$(ENGINE_DIR)' || { echo 'nothing is set up yet; run make demo, make test or scripts/setup.sh first'; exit 1; }
	@mkdir -p $(@D)
	@echo "  $(VARIANT) $<"
	@$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<

$(B)/%.o: %.cpp $(wildcard build/engine.mk)
	@mkdir -p $(@D)
	@echo "  $(VARIANT) $<"
	@$(CXX) $(CXXFLAGS) -MMD -MP -c -o $@ $<

# The dashboard's files are part of the program.
$(B)/src/server/files.o: src/server/files.S src/server/openapi.json $(wildcard src/server/web/*) build/chart.js
	@mkdir -p $(@D)
	@$(CC) -c -o $@ $<

$(B)/src/cli/report.o: src/cli/report.S $(wildcard src/cli/report/*)
	@mkdir -p $(@D)
	@$(CC) -c -o $@ $<

$(B)/examples/%: $(B)/examples/%.o $(B)/libinferscale.a
	@$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(B)/tests/fuzz_%: $(B)/tests/fuzz_%.o $(B)/libinferscale.a
	@$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)

$(patsubst %.c,$(B)/%,$(wildcard tests/test_cuda_*.c)): %: %.o $(FAKE_OBJ) $(B)/libinferscale.a
	@$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

# bench/gpu over the same device.
$(B)/tests/gpu-bench: $(patsubst %.c,$(B)/%.o,$(wildcard bench/gpu/*.c)) $(B)/tests/cuda/bench_time.o $(FAKE_OBJ) $(B)/libinferscale.a
	@$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(B)/tests/%: $(B)/tests/%.o $(B)/libinferscale.a
	@$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

$(B)/tests/test_cuda_scan: LDFLAGS += -Wl,--wrap=is_cuda_free,--wrap=is_cuda_host_malloc # to see what is left
$(B)/tests/%.o: CFLAGS += -Itests -Ibench

# What one instruction set needs is compiled with its flags in a file of its own.
ifeq ($(shell uname -m),x86_64)
$(B)/src/%_avx2.o: CFLAGS += -mavx2 -mf16c -mfma
$(B)/src/%_avx512.o: CFLAGS += -mavx512f -mavx512bw -mavx512vl -mavx512dq -mf16c -mfma
endif

FORMATTED := $(wildcard include/*.h src/*/*.[ch] src/*/*.cu src/*/*/*.[ch] src/*/*/*.cpp tests/*.[ch] tests/cuda/*.[ch] bench/gpu/*.[ch] \
               bench/gpu/*.cu scripts/*.c examples/*.c)

format:
	clang-format -i $(FORMATTED)

lint:
	clang-format --dry-run -Werror $(FORMATTED)
	@if git grep -nE '/(root|home/[a-z]+)/' -- ':!Makefile'; then echo 'these lines name folders of one machine' >&2; exit 1; fi
	shellcheck -x scripts/*.sh tests/*.sh tests/*/*.sh bench/*.sh .ci/run
	@$(MAKE) --no-print-directory VARIANT=clang build/clang/inferscale build/clang/tests/gpu-bench $(TESTS:%=build/clang/%)
	printf '%s\n' $(LIB_SRC) $(CUDA_SRC) $(CLI_SRC) $(wildcard bench/gpu/*.c) | xargs -P $(shell nproc) -I FILE clang-tidy --quiet FILE -- $(BASE) 2>build/tidy.log
	clang-tidy --quiet $(CXX_SRC) -- $(CXXBASE) 2>>build/tidy.log

clean:
	rm -rf build/release build/asan build/tsan build/fuzz build/clang build/shared build/cuda build/wheel build/inferscale build/libinferscale-connector.so

-include $(LIB_OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(FAKE_OBJ:.o=.d) $(wildcard $(B)/tests/*.d $(B)/bench/gpu/*.d build/cuda/*/*.d build/cuda/*/*/*.d)
