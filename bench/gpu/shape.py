#!/usr/bin/env python3
"""Makes a model of a large one's shape, in float16, with made-up weights: what it says has no meaning, what it costs has.

    bench/gpu/shape.py llama-3.1-8b VOCABULARY.gguf OUT.gguf

The tokenizer is that of VOCABULARY.gguf, a Llama-like model in the same format, of which no more than the head is read;
so the matrices of the vocabulary are as long as that is, and a little of the shape.
The format is GGUF 3 (ggml-org/ggml, docs/gguf.md). Needs Python alone.
"""

import argparse
import math
import random
import struct
import sys

# Layers, width, heads, heads of K and V, width of the feed-forward part, base of the rotation, longest context.
SHAPES = {
    "llama-3.1-8b": (32, 4096, 32, 8, 14336, 500000.0, 131072),
    "llama-3.2-1b": (16, 2048, 32, 8, 8192, 500000.0, 131072),
    "tiny": (2, 256, 4, 2, 512, 10000.0, 8192),
}
U32, F32, STRING, ARRAY = 4, 6, 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
TYPE_F32, TYPE_F16 = 0, 1
ALIGN = 32
BLOCK = 1_000_003  # values, a prime: no two rows of a matrix begin at the same place of it


def fail(text):
    sys.exit(f"shape.py: {text}")


class Head:
    """The head of a GGUF file, read from its beginning."""

    def __init__(self, file):
        self.file = file
        if self.take(4) != b"GGUF" or self.number("<I") < 2:
            fail(f"{file.name} is no GGUF file of version 2 or 3")
        self.number("<Q")
        self.left = self.number("<Q")

    def take(self, n):
        data = self.file.read(n)
        if len(data) != n:
            fail(f"{self.file.name} ends within its head")
        return data

    def number(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self):
        n = self.number("<Q")
        return struct.pack("<Q", n) + self.take(n)

    def value(self, kind):
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            if kind not in SIZES:
                fail(f"{self.file.name} has a value of unknown type {kind}")
            return self.take(SIZES[kind])
        of, n = self.number("<I"), self.number("<Q")
        return struct.pack("<IQ", of, n) + b"".join(self.value(of) for _ in range(n))

    def __iter__(self):
        for _ in range(self.left):
            name, kind = self.text()[8:].decode(), self.number("<I")
            yield name, kind, self.value(kind)


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def metadata(shape, vocabulary):
    """The new file's entries, and how many tokens the vocabulary has."""
    layers, width, heads, kv_heads, hidden, base, context = SHAPES[shape]
    entries = {"general.architecture": (STRING, text("llama")), "general.name": (STRING, text(f"shape of {shape}"))}
    numbers = {"general.file_type": 1, "llama.block_count": layers, "llama.embedding_length": width,
               "llama.feed_forward_length": hidden, "llama.attention.head_count": heads,
               "llama.attention.head_count_kv": kv_heads, "llama.context_length": context,
               "llama.rope.dimension_count": width // heads}
    entries.update({name: (U32, struct.pack("<I", n)) for name, n in numbers.items()})
    entries["llama.rope.freq_base"] = (F32, struct.pack("<f", base))
    entries["llama.attention.layer_norm_rms_epsilon"] = (F32, struct.pack("<f", 1e-5))
    n_tokens = 0
    with open(vocabulary, "rb") as file:
        for name, kind, value in Head(file):
            if name.startswith("tokenizer."):
                entries[name] = (kind, value)
            if name == "tokenizer.ggml.tokens":
                n_tokens = struct.unpack_from("<Q", value, 4)[0]
    if n_tokens == 0:
        fail(f"{vocabulary} has no tokens")
    entries["llama.vocab_size"] = (U32, struct.pack("<I", n_tokens))
    return entries, n_tokens


def tensors(shape, n_tokens):
    """(name, dimensions, type), the fastest dimension first."""
    layers, width, heads, kv_heads, hidden, _, _ = SHAPES[shape]
    narrow = width // heads * kv_heads
    yield "token_embd.weight", (width, n_tokens), TYPE_F16
    for i in range(layers):
        yield f"blk.{i}.attn_norm.weight", (width,), TYPE_F32
        yield f"blk.{i}.attn_q.weight", (width, width), TYPE_F16
        yield f"blk.{i}.attn_k.weight", (width, narrow), TYPE_F16
        yield f"blk.{i}.attn_v.weight", (width, narrow), TYPE_F16
        yield f"blk.{i}.attn_output.weight", (width, width), TYPE_F16
        yield f"blk.{i}.ffn_norm.weight", (width,), TYPE_F32
        yield f"blk.{i}.ffn_gate.weight", (width, hidden), TYPE_F16
        yield f"blk.{i}.ffn_up.weight", (width, hidden), TYPE_F16
        yield f"blk.{i}.ffn_down.weight", (hidden, width), TYPE_F16
    yield "output_norm.weight", (width,), TYPE_F32
    yield "output.weight", (width, n_tokens), TYPE_F16


def write_cyclic(out, block, at, n):
    """n bytes of the block over and over, from its byte `at` on; where it then stands."""
    while n > 0:
        part = block[at:at + n]
        out.write(part)
        n -= len(part)
        at = (at + len(part)) % len(block)
    return at


def write(shape, vocabulary, path):
    entries, n_tokens = metadata(shape, vocabulary)
    all_tensors = list(tensors(shape, n_tokens))
    draw = random.Random(1)
    block = struct.pack(f"<{BLOCK}e", *(draw.gauss(0, 0.02) for _ in range(BLOCK)))
    with open(path, "wb") as out:
        out.write(struct.pack("<4sIQQ", b"GGUF", 3, len(all_tensors), len(entries)))
        for name, (kind, value) in entries.items():
            out.write(text(name) + struct.pack("<I", kind) + value)
        offset = 0
        for name, dims, kind in all_tensors:
            out.write(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset))
            offset += -(-math.prod(dims) * (2 if kind == TYPE_F16 else 4) // ALIGN) * ALIGN
        at = 0
        for _, dims, kind in all_tensors:
            out.write(bytes(-out.tell() % ALIGN))
            if kind == TYPE_F16:
                at = write_cyclic(out, block, at, 2 * math.prod(dims))
            else:
                out.write(struct.pack("<f", 1.0) * math.prod(dims))
        out.write(bytes(-out.tell() % ALIGN))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("vocabulary", metavar="VOCABULARY.gguf")
    parser.add_argument("out", metavar="OUT.gguf")
    a = parser.parse_args()
    try:
        write(a.shape, a.vocabulary, a.out)
    except OSError as error:
        fail(f"{error.filename or a.out}: {error.strerror}")


if __name__ == "__main__":
    main()
