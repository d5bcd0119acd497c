"""Caches out of the library's reach: all that holds of a cache in host memory holds when the rows pass through the host instead."""

import json
import secrets
import sys
from array import array
from types import SimpleNamespace

import pytest
import torch

from common import ROOT, Server
from test_connector import (reference, encoded, test_local_prefix_and_injection, test_moved_chunks_are_as_if_made_there,
                            test_what_cannot_be_injected_is_computed, test_whole_prompt_at_its_own_place_is_exact,
                            test_whole_prompt_in_pieces_is_exact)

sys.path.insert(0, str(ROOT / "python/inferscale_vllm"))  # without the package, which needs vLLM
from library import Library
from staging import Staging, learnt_order

LAYERS, HEADS, BLOCK_TOKENS, WIDTH = 2, 3, 4, 8


@pytest.fixture(scope="module")
def server():
    with Server("--max-num-batched-tokens", "512", "--enable-prompt-tokens-details", module="staged") as s:
        yield s
        assert "in cpu memory" in s.output() and "injection is off" not in s.output()


class Rows:
    """What vLLM's backends for devices do: K and V of a token side by side in a head's row, in blocks [heads][tokens] or [tokens][heads]."""

    def do_kv_cache_update(self, layer, k, v, cache, slots):
        size = cache.shape[2]
        keys, values = cache.transpose(1, 2).split(cache.shape[3] // 2, dim=-1)
        keys[slots // size, slots % size], values[slots // size, slots % size] = k, v


@pytest.mark.parametrize("physical", ["heads first", "tokens first", "blocks apart"])
def test_any_order_of_a_block(tmp_path, physical):
    shape = (9, HEADS, BLOCK_TOKENS, 2 * WIDTH)
    layer = SimpleNamespace(impl=Rows())
    caches = []
    for _ in range(LAYERS):
        if physical == "tokens first":
            caches.append(torch.zeros(9, BLOCK_TOKENS, HEADS, 2 * WIDTH, dtype=torch.bfloat16).transpose(1, 2))
        elif physical == "blocks apart":  # something else is between them
            caches.append(torch.zeros(9, 2, HEADS, BLOCK_TOKENS, 2 * WIDTH, dtype=torch.bfloat16)[:, 1])
        else:
            caches.append(torch.zeros(shape, dtype=torch.bfloat16))
    count = HEADS * BLOCK_TOKENS * WIDTH
    numbers = torch.arange(1, 2 * count + 1).to(torch.uint16).view(torch.bfloat16).view(2, BLOCK_TOKENS, HEADS, WIDTH)
    orders = []
    for cache in caches:
        layer.impl.do_kv_cache_update(layer, *numbers, cache, torch.arange(BLOCK_TOKENS))
        block = torch.as_strided(cache, (cache.stride(0),), (1,), cache.storage_offset()).view(torch.int16)
        orders.append(learnt_order(block, torch.zeros_like(block)))
    config = {"folder": str(tmp_path), "rank": 0, "world": 1, "budget": 1 << 20, "threads": 1, "fingerprint": "0" * 32, "dtype": "bf16",
              "layers": LAYERS, "heads": HEADS, "k_dim": WIDTH, "v_dim": WIDTH, "rope": {"style": "half", "width": WIDTH, "base": 1e4, "scaling": "none"}}
    handle = Library(str(ROOT / "build/libinferscale-connector.so")).open(json.dumps(config))
    staging = Staging(handle, [layer] * LAYERS, caches, orders)

    n, begin = 13, 3
    torch.manual_seed(1)
    rows = torch.randn(LAYERS, 2, n + begin, HEADS, WIDTH).to(torch.bfloat16)
    came_from, goes_to = array("I", [7, 2, 5, 3]), array("I", [1, 8, 6, 4])
    slots = {key: (torch.tensor(blocks)[:, None] * BLOCK_TOKENS + torch.arange(BLOCK_TOKENS)).flatten() for key, blocks in
             (("from", came_from), ("to", goes_to))}
    for cache, (k, v) in zip(caches, rows):
        layer.impl.do_kv_cache_update(layer, k, v, cache, slots["from"][:n + begin])
    key = secrets.token_hex(8)
    (tmp_path / key[2:4] / f"{key}.parts").mkdir(parents=True)
    tokens = array("i", range(n + begin))
    staging.store(SimpleNamespace(key=key.encode(), recipe="isolated", tokens=tokens, begin=begin, n=n, blocks=came_from))
    before = [cache.clone() for cache in caches]
    load = SimpleNamespace(keys=key.encode(), lengths=array("I", [n]), tokens=tokens[begin:], blocks=goes_to, begin=4, end=12)
    assert staging.load(load)[0] == 12
    for cache, old, (k, v) in zip(caches, before, rows):
        keys, values = (part.flatten(0, 1) for part in cache.transpose(1, 2).split(WIDTH, dim=-1))
        written = slots["to"][4:12]
        assert torch.equal(values[written], v[begin + 4:begin + 12])
        assert torch.allclose(keys[written].float(), rotated(k[begin + 4:begin + 12], -begin), atol=0.03)
        rest = torch.ones(9 * BLOCK_TOKENS, dtype=torch.bool)
        rest[written] = False
        assert torch.equal(cache.transpose(1, 2).flatten(0, 1)[rest], old.transpose(1, 2).flatten(0, 1)[rest])
    handle.close()


def rotated(k, shift):
    """Section 3.4.2 of RoFormer (arXiv 2104.09864), with halves for pairs."""
    angle = shift * 1e4 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
    a, b = k.float().split(WIDTH // 2, dim=-1)
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), dim=-1)


def test_a_writer_that_loses_elements_is_refused():
    with pytest.raises(RuntimeError, match="leaves elements out"):
        learnt_order(torch.tensor([1, 2, 4, 0], dtype=torch.int16), torch.zeros(4, dtype=torch.int16))


@pytest.mark.parametrize("asynchronous, second, why", [(True, False, "--no-async-scheduling"), (False, True, "VLLM_USE_V2_MODEL_RUNNER=0"), (False, False, "")])
def test_where_a_failed_load_is_not_computed_nothing_is_injected(asynchronous, second, why):
    sys.path.insert(0, str(ROOT / "python"))
    from inferscale_vllm.worker import Unsupported, Worker

    config = SimpleNamespace(scheduler_config=SimpleNamespace(async_scheduling=asynchronous), use_v2_model_runner=second)
    if not why:
        return Worker._check_failed_loads(config)
    with pytest.raises(Unsupported, match=why):
        Worker._check_failed_loads(config)
