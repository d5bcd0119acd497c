#!/usr/bin/env python3
"""Makes a Hugging Face folder of a GGUF of the llama architecture, for engines that want one.

    make_hf_model.py MODEL.gguf FOLDER

Weights are dequantised to bfloat16. llama.cpp keeps rows of the query and key weights so that neighbouring elements are
rotated together; Hugging Face's order, where element i is rotated with i + width / 2, is restored.
"""
import argparse
import json
import pathlib

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hf_name(name):
    *front, part, kind = name.split(".")
    if front:
        return f"model.layers.{front[1]}.{NAMES[part]}.{kind}"
    return f"{NAMES[part]}.{kind}"


def halves(weight, heads):
    """[heads * width, n] from pairs of neighbours to halves."""
    width = weight.shape[0] // heads
    return weight.reshape(heads, width // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("gguf", type=pathlib.Path)
    options.add_argument("folder", type=pathlib.Path)
    arguments = options.parse_args()
    reader = gguf.GGUFReader(arguments.gguf)

    def value(key):
        return reader.fields[key].contents()

    if value("general.architecture") != "llama":
        raise SystemExit(f"{arguments.gguf} has the architecture {value('general.architecture')}; only llama is known here")
    heads, kv_heads = value("llama.attention.head_count"), value("llama.attention.head_count_kv")
    weights = {}
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":
            raise SystemExit(f"{arguments.gguf} scales its rotation; only plain rotation is known here")
        data = np.ascontiguousarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if ".attn_q." in tensor.name:
            data = np.ascontiguousarray(halves(data, heads))
        if ".attn_k." in tensor.name:
            data = np.ascontiguousarray(halves(data, kv_heads))
        weights[hf_name(tensor.name)] = torch.from_numpy(data).to(torch.bfloat16)
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.gguf.parent, gguf_file=arguments.gguf.name)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": value("llama.embedding_length"), "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"), "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "max_position_embeddings": value("llama.context_length"), "rms_norm_eps": value("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": value("llama.rope.freq_base"), "vocab_size": len(weights["model.embed_tokens.weight"]),
        "tie_word_embeddings": "lm_head.weight" not in weights, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
    }
    arguments.folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(arguments.folder)
    save_file(weights, arguments.folder / "model.safetensors", metadata={"format": "pt"})
    (arguments.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
