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
from staging import Staging, learnt_order, read_numbers

LAYERS, HEADS, BLOCK_TOKENS, WIDTH = 2, 3, 4, 8
CONFIG = {"rank": 0, "world": 1, "budget": 1 << 20, "threads": 1, "fingerprint": "0" * 32, "dtype": "bf16", "layers": LAYERS, "heads": HEADS,
          "k_dim": WIDTH, "v_dim": WIDTH, "rope": {"style": "half", "width": WIDTH, "base": 1e4, "scaling": "none"}}


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
    orders = [learnt_order(read_numbers(layer, cache, torch.bfloat16)) for cache in caches]
    handle = Library(str(ROOT / "build/libinferscale-connector.so")).open(json.dumps(CONFIG | {"folder": str(tmp_path)}))
    staging = Staging(handle, [layer] * LAYERS, caches, orders, torch.bfloat16)

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


class EightBits(Rows):
    """The same, rounding each value over the layer's scale to 8 bits."""

    def __init__(self, code):
        self.code = code

    def do_kv_cache_update(self, layer, k, v, cache, slots):
        k, v = ((x.float() / scale).to(self.code).view(torch.uint8) for x, scale in ((k, layer._k_scale_float), (v, layer._v_scale_float)))
        super().do_kv_cache_update(layer, k, v, cache, slots)


@pytest.mark.parametrize("code", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_cache_of_eight_bits(tmp_path, code):
    """The scales are powers of two, so what a chunk keeps is what the cache had; K is rounded once more where it moves."""
    scales = {"_k_scale_float": 0.25, "_v_scale_float": 2.0, "_k_scale": torch.tensor(0.25)}
    layer = SimpleNamespace(impl=EightBits(code), **scales)
    caches = [torch.zeros(9, HEADS, BLOCK_TOKENS, 2 * WIDTH, dtype=torch.uint8) for _ in range(LAYERS)]
    orders = [learnt_order(read_numbers(layer, cache, torch.bfloat16, code)) for cache in caches]
    assert vars(layer) == {"impl": layer.impl, **scales}
    handle = Library(str(ROOT / "build/libinferscale-connector.so")).open(json.dumps(CONFIG | {"folder": str(tmp_path)}))
    staging = Staging(handle, [layer] * LAYERS, caches, orders, torch.bfloat16, code)

    n, shift = 11, 4
    torch.manual_seed(2)
    rows = torch.randn(LAYERS, 2, n, HEADS, WIDTH).to(torch.bfloat16)
    slots = torch.arange(n)
    for cache, (k, v) in zip(caches, rows):
        layer.impl.do_kv_cache_update(layer, k, v, cache, slots)
    key = secrets.token_hex(8)
    (tmp_path / key[2:4] / f"{key}.parts").mkdir(parents=True)
    tokens = array("i", range(n))
    store = SimpleNamespace(key=key.encode(), recipe="isolated", tokens=tokens, begin=0, n=n, blocks=array("I", [0, 1, 2]))
    staging.store(store)
    own = SimpleNamespace(keys=key.encode(), lengths=array("I", [n]), tokens=tokens, blocks=array("I", [5, 6, 7]), begin=0, end=n)
    assert staging.load(own)[0] == n
    for cache in caches:
        assert torch.equal(cache[5:8], cache[0:3])

    first = secrets.token_hex(8)  # something that stands in front of the chunk, so that it moves
    (tmp_path / first[2:4] / f"{first}.parts").mkdir(parents=True)
    staging.store(SimpleNamespace(key=first.encode(), recipe="isolated", tokens=tokens, begin=0, n=shift, blocks=array("I", [0, 1, 2])))
    moved = SimpleNamespace(keys=first.encode() + key.encode(), lengths=array("I", [shift, n]), tokens=tokens[:shift] + tokens,
                            blocks=array("I", [8, 3, 4, 5]), begin=shift, end=shift + n)
    assert staging.load(moved)[0] == shift + n
    for cache in caches:
        was, now = (cache[blocks].view(code).float().transpose(1, 2).flatten(0, 1)[:n] for blocks in ([0, 1, 2], [3, 4, 5]))
        assert torch.equal(now[..., WIDTH:], was[..., WIDTH:])
        want = rotated((was[..., :WIDTH] * 0.25).bfloat16(), shift) / 0.25
        step = 2.0 ** (torch.floor(torch.log2(want.abs().clamp(min=2 ** -6))) - (3 if code is torch.float8_e4m3fn else 2))
        assert ((now[..., :WIDTH] - want).abs() <= 0.6 * step).all()  # half a step of the code, and a little of bfloat16
    handle.close()


def rotated(k, shift):
    """Section 3.4.2 of RoFormer (arXiv 2104.09864), with halves for pairs."""
    angle = shift * 1e4 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
    a, b = k.float().split(WIDTH // 2, dim=-1)
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), dim=-1)


def test_a_writer_that_loses_elements_is_refused():
    with pytest.raises(RuntimeError, match="leaves elements out"):
        learnt_order(torch.tensor([1, 2, 4, 0]))


@pytest.mark.parametrize("asynchronous, second, why", [(True, False, "--no-async-scheduling"), (False, True, "VLLM_USE_V2_MODEL_RUNNER=0"), (False, False, "")])
def test_where_a_failed_load_is_not_computed_nothing_is_injected(asynchronous, second, why):
    sys.path.insert(0, str(ROOT / "python"))
    from inferscale_vllm.worker import Unsupported, Worker

    config = SimpleNamespace(scheduler_config=SimpleNamespace(async_scheduling=asynchronous), use_v2_model_runner=second)
    if not why:
        return Worker._check_failed_loads(config)
    with pytest.raises(Unsupported, match=why):
        Worker._check_failed_loads(config)
