# InferScale's build.
#
#   make demo    install, fetch, build, and run the main job on the bundled sample conversation
#   make test    install, fetch, build, and pass every test
#   make         build build/inferscale with what is installed already
#
# A variant is a folder of its own: build/release, build/asan (ASan + UBSan), build/tsan (TSan).

CACHE   := $(or $(INFERSCALE_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/inferscale)
VARIANT ?= release
B       := build/$(VARIANT)

-include build/engine.mk   # ENGINE_DIR: where scripts/setup put the engine (headers in include, libraries in lib)

WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror
BASE    := -std=c11 -D_GNU_SOURCE -Iinclude -Isrc -isystem $(ENGINE_DIR)/include -ffp-contract=off -fno-math-errno -g -pthread
release := -O2 -fno-semantic-interposition
asan    := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
tsan    := -O1 -fsanitize=thread -fno-omit-frame-pointer
CFLAGS  := $(BASE) $(WARN) $($(VARIANT)) $(EXTRA_CFLAGS)
LDFLAGS := -pthread $($(VARIANT)) -L$(ENGINE_DIR)/lib -Wl,-rpath,$(ENGINE_DIR)/lib
LDLIBS  := -Wl,--as-needed -lllama -lggml -lggml-base -lggml-cpu -lsqlite3 -ljansson -lxxhash -lm

LIB_SRC := $(wildcard src/common/*.c src/kv/*.c src/store/*.c src/retrieve/*.c src/engine/*.c src/engine/*/*.c src/memory/*.c)
CLI_SRC := $(wildcard src/cli/*.c)
TESTS   := $(patsubst tests/test_%.c,test_%,$(wildcard tests/test_*.c))
FUZZERS := $(patsubst tests/fuzz_%.c,fuzz_%,$(wildcard tests/fuzz_*.c))
LIB_OBJ := $(LIB_SRC:%.c=$(B)/%.o)
CLI_OBJ := $(CLI_SRC:%.c=$(B)/%.o)

.PHONY: all demo test check setup setup-test clean format lint
.SECONDARY:

all: build/inferscale

# System packages, engine and models; a moment where all of that is there already.
setup:
	@scripts/setup.sh

setup-test:
	@scripts/setup.sh --test

build/inferscale: build/release/inferscale
	ln -sf release/inferscale $@

$(B)/inferscale: $(CLI_OBJ) $(B)/libinferscale.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(B)/libinferscale.a: $(LIB_OBJ)
	rm -f $@ && $(AR) rcs $@ $^

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<

$(B)/tests/%: $(B)/tests/%.o $(B)/libinferscale.a
	$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

# What one instruction set needs is compiled with its flags in a file of its own.
$(B)/src/%_avx2.o: CFLAGS += -mavx2 -mf16c -mfma
$(B)/src/%_avx512.o: CFLAGS += -mavx512f -mavx512bw -mavx512vl -mavx512dq -mf16c -mfma

-include $(LIB_OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(wildcard $(B)/tests/*.d)
