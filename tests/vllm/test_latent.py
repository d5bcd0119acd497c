"""Latent rows (multi-head latent attention): one head a token, of which a slice at the end is rotated, and no V.

The model has DeepSeek-V2's form and the widths that vLLM's CPU build needs, and weights that mean nothing.
"""

import math

import pytest
import torch
import transformers

from common import MODEL, Server, fresh_salt, inject

BLOCK = 16
LATENT, ROTATED = 512, 64
BASE = 10000.0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("latent")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    config = transformers.DeepseekV2Config(
        vocab_size=len(tokenizer), hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
        kv_lora_rank=LATENT, q_lora_rank=None, qk_rope_head_dim=ROTATED, qk_nope_head_dim=128, v_head_dim=128, first_k_dense_replace=3,
        max_position_embeddings=4096, rope_theta=BASE, initializer_range=0.04, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, tie_word_embeddings=False)
    torch.manual_seed(3)
    transformers.DeepseekV2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with Server("--model", folder, "--block-size", BLOCK, "--max-model-len", "2048", "--enable-prompt-tokens-details") as s:
        yield s
        assert f"1 heads of {LATENT + ROTATED}, blocks of {BLOCK} tokens" in s.output() and "injection is off" not in s.output()


@pytest.fixture(scope="module")
def words(prompts):
    return sum(prompts.facts[:12], [])


def furthest(one, other):
    """Of the log-probabilities of the five most likely tokens."""
    best = sorted(one.steps[0].items(), key=lambda step: -step[1])[:5]
    return max(abs(other.steps[0].get(token, -math.inf) - p) for token, p in best)


def test_a_prompt_at_its_own_place(server, words):
    """Computed at once or behind what is in the cache: within bfloat16's noise."""
    front, tail = words[:160], words[200:206]
    prefilled = server.complete(front + tail, salt=fresh_salt())
    injected = server.complete(front + tail, salt=fresh_salt(), wish=inject(server.encode(front)))
    another = server.complete(front + tail, salt=fresh_salt(), wish=inject(server.encode(words[1:161])))  # of other tokens: is computed
    assert (prefilled.cached, injected.cached) == (0, 160)
    assert another.steps == prefilled.steps
    assert furthest(prefilled, injected) < 0.25 < furthest(prefilled, server.complete(tail, salt=fresh_salt()))
    assert injected.tokens[0] == prefilled.tokens[0]


def rows_of(part):
    """A part's position, and its K [layer][token][width] (src/kv/chunk_format.h)."""
    data = part.read_bytes()
    layers, n, position = (int.from_bytes(data[at:at + 4], "little") for at in (20, 24, 28))
    payload = int.from_bytes(data[40:48], "little")
    rows = []
    for layer in range(layers):
        record = data[256 + 48 * layer:256 + 48 * (layer + 1)]
        heads, k_dim, v_dim = (int.from_bytes(record[at:at + 4], "little") for at in (8, 12, 16))
        assert (heads, k_dim, v_dim) == (1, LATENT + ROTATED, 0)
        begin = payload + int.from_bytes(record[24:32], "little")
        rows.append(torch.frombuffer(bytearray(data[begin:begin + 2 * n * k_dim]), dtype=torch.bfloat16).view(n, k_dim).double())
    return position, torch.stack(rows)


def turned(k, shift):
    """Section 3.4.2 of RoFormer (arXiv 2104.09864), neighbours in pairs."""
    angle = shift * BASE ** (-torch.arange(0, ROTATED, 2, dtype=torch.float64) / ROTATED)
    a, b = k[..., ::2], k[..., 1::2]
    return torch.stack((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), dim=-1).flatten(-2)


def test_a_moved_chunk_is_turned_at_the_end_of_its_rows(server, words):
    """What was injected behind something else, read out of the cache again."""
    front, fact, tail = words[:37], words[60:60 + 75], words[200:201]
    chunks = [server.encode(front), server.encode(fact)]
    key = server.new_key()
    wish = inject(*chunks) | {"encode": {"key": key, "begin": len(front), "tokens": len(fact), "recipe": "isolated"}}
    assert server.complete(front + fact + tail, salt=fresh_salt(), wish=wish, n=1).cached == len(front + fact)
    (begun, was), (position, now) = rows_of(server.file(chunks[1][0])), rows_of(server.file(key))
    assert (begun, position) == (0, len(front))
    assert torch.equal(now[..., :LATENT], was[..., :LATENT])
    assert torch.allclose(now[..., LATENT:], turned(was[..., LATENT:], len(front)), rtol=2**-8, atol=1e-3)
    assert (now[..., LATENT:] - was[..., LATENT:]).abs().max() > 0.5
