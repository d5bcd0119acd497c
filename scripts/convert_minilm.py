"""Turns all-MiniLM-L6-v2 as its authors publish it (safetensors, vocab.txt, config.json) into a GGUF file.

    convert_minilm.py MODEL_FOLDER OUT.gguf

llama.cpp runs this sentence encoder with its "bert" architecture. Matrices become f16; vectors (biases, layer norms)
and the two small tables that are added to the token embeddings (positions, token types) stay f32. The pooler is left
out: a sentence's embedding is the mean over its tokens. The same input gives the same file, byte for byte.
"""

import json
import pathlib
import re
import sys

import gguf
import numpy as np
from safetensors.numpy import load_file

KEPT_F32 = ("position_embd.weight", "token_types.weight")


def tokens_of(vocab_file):
    """The vocabulary as llama.cpp's WordPiece tokenizer has it.

    It marks the start of a word (U+2581) where BERT marks the inside of one (##).
    """
    tokens, types = [], []
    for piece in vocab_file.read_text(encoding="utf-8").rstrip("\n").split("\n"):
        if re.fullmatch(r"\[\S+\]", piece):
            tokens.append(piece)
            types.append(gguf.TokenType.CONTROL)
        else:
            tokens.append(piece[2:] if piece.startswith("##") else "\u2581" + piece)
            types.append(gguf.TokenType.NORMAL)
    return tokens, types


def add_description(out, config):
    out.add_type(gguf.GGUFType.MODEL)
    out.add_name("all-MiniLM-L6-v2")
    out.add_license("apache-2.0")
    out.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_head_count(config["num_attention_heads"])
    out.add_layer_norm_eps(config["layer_norm_eps"])
    out.add_causal_attention(False)
    out.add_pooling_type(gguf.PoolingType.MEAN)


def add_tokenizer(out, config, tokens, types):
    if len(tokens) != config["vocab_size"]:
        sys.exit(f"vocab.txt has {len(tokens)} tokens, config.json says {config['vocab_size']}")
    out.add_tokenizer_model("bert")
    out.add_token_list(tokens)
    out.add_token_types(types)
    out.add_token_type_count(config["type_vocab_size"])
    out.add_bool("tokenizer.ggml.normalizer.lowercase", True)
    out.add_bos_token_id(tokens.index("[CLS]"))
    out.add_sep_token_id(tokens.index("[SEP]"))
    out.add_unk_token_id(tokens.index("[UNK]"))
    out.add_pad_token_id(tokens.index("[PAD]"))
    out.add_mask_token_id(tokens.index("[MASK]"))


def add_tensors(out, config, weights):
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    for source, tensor in sorted(weights.items()):
        if source == "embeddings.position_ids" or source.startswith("pooler."):
            continue
        name = names.get_name(source, try_suffixes=(".weight", ".bias"))
        if name is None:
            sys.exit(f"model.safetensors: no place for {source} in llama.cpp's bert architecture")
        is_matrix = tensor.ndim == 2 and name not in KEPT_F32
        out.add_tensor(name, tensor.astype(np.float16 if is_matrix else np.float32))


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: convert_minilm.py MODEL_FOLDER OUT.gguf")
    folder = pathlib.Path(sys.argv[1])
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    out = gguf.GGUFWriter(sys.argv[2], gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.BERT])
    add_description(out, config)
    add_tokenizer(out, config, *tokens_of(folder / "vocab.txt"))
    add_tensors(out, config, load_file(folder / "model.safetensors"))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


main()
