"""A cache that the C library does not write itself: one in a device's memory, or one of 8 bits.

Rows pass through host memory, in blocks as the engine's own.  The library composes into host blocks, and the engine's own writer puts those
rows into the cache, a call a layer, and rounds them to 8 bits where it keeps such.  For a chunk the cache's blocks are gathered in the order
that was learnt.
"""

import contextlib
from array import array
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Shape:
    """Of a block of the cache."""

    block_tokens: int
    heads: int
    k_dim: int
    v_dim: int  # 0: latent rows, which have no V of their own (DeepSeek-V2, arXiv 2405.04434, section 2.1.2)

    @classmethod
    def of(cls, layer, cache):
        if is_latent(layer):  # a token has its latent vector and the slice that is rotated
            return cls(cache.shape[-2], 1, cache.shape[-1], 0)
        _, heads, block_tokens, both = cache.shape  # K and V of a head's token
        return cls(block_tokens, heads, both // 2, both // 2)

    @property
    def elements(self):
        return self.block_tokens * self.heads * (self.k_dim + self.v_dim)

    def parts(self, blocks):
        """All K and all V, views of blocks of the one and then the other."""
        return blocks.tensor_split((self.block_tokens * self.heads * self.k_dim,), dim=1)

    def rows(self, blocks):
        """K and V, [tokens][heads][width], out of such blocks; V None where there is none."""
        k, v = self.parts(blocks)
        return k.reshape(-1, self.heads, self.k_dim), v.reshape(-1, self.heads, self.v_dim) if self.v_dim else None


def is_latent(layer) -> bool:
    return hasattr(layer, "kv_lora_rank")


def write(layer, cache, k, v, slots):
    """By the engine's own writer. k, v: [tokens][heads][width]; v None: k is latent rows."""
    if v is not None:
        layer.impl.do_kv_cache_update(layer, k, v, cache, slots)
        return
    latent, rotated = k.split((layer.kv_lora_rank, k.shape[-1] - layer.kv_lora_rank), dim=-1)
    layer.impl.do_kv_cache_update(latent[:, 0].contiguous(), rotated.contiguous(), cache, slots, layer.kv_cache_dtype, layer._k_scale)


class Staging:
    """The host's blocks, [blocks][K, then V] of each layer, and the way between them and the cache."""

    def __init__(self, handle, layers, caches, orders, dtype, code=None):
        """layers: the model's, with the engine's writer; caches, orders: of each layer its cache, and where in a block of it the elements of
        K [token][head][width], then V, lie. dtype: of chunks. code: of 8 bits, what the cache is of; None: of what chunks are."""
        self._handle, self._layers, self._caches, self._orders, self._dtype, self._code = handle, layers, caches, orders, dtype, code
        bits = [cache if code is None else cache.view(torch.uint8) for cache in caches]  # not every device picks codes by number
        self._flat = [self._as_it_lies(cache, order) for cache, order in zip(bits, orders)]
        self._shape = Shape.of(layers[0], caches[0])
        self._device = caches[0].device
        self._blocks = []  # of each layer
        self._reserve(1)

    def _reserve(self, n: int):
        """Room for n blocks a layer; it grows to what the longest prompt needed."""
        have = self._blocks[0].shape[0] if self._blocks else 0
        if n <= have:
            return
        elements = self._shape.elements
        pinned = self._device.type == "cuda"
        low, high = halves(torch.arange(1, elements + 1, dtype=torch.int64))
        blocks = [torch.empty((max(n, 2 * have), elements), dtype=self._dtype, pin_memory=pinned) for _ in self._caches]
        for number, block in enumerate(blocks):
            self._handle.cache(number, block.data_ptr(), elements * block.element_size(), block.shape[0], self._shape.block_tokens, low.data_ptr(),
                               high.data_ptr(), elements)
        self._blocks = blocks

    @staticmethod
    def _as_it_lies(cache, order):
        """The blocks, [blocks][elements up to the last one that is the cache's]."""
        return torch.as_strided(cache, (cache.shape[0], int(order.max()) + 1), (cache.stride(0), 1), cache.storage_offset())

    def load(self, load) -> tuple[int, str]:
        size = self._shape.block_tokens
        first = load.begin // size
        n = -(-load.end // size) - first
        self._reserve(n)
        places = array("I", [0] * first) + array("I", range(n))
        loaded, why = self._handle.load(load, places)
        begin, end = load.begin - first * size, loaded - first * size
        if end > begin:
            blocks = torch.tensor(load.blocks[first:first + n], dtype=torch.int64)
            slots = (blocks[:, None] * size + torch.arange(size)).flatten()[begin:end].to(self._device)
            for layer, cache, host in zip(self._layers, self._caches, self._blocks):
                k, v = self._shape.rows(host[:n].to(self._device))
                write(layer, cache, k[begin:end], None if v is None else v[begin:end], slots)
        return loaded, why

    def store(self, store):
        size = self._shape.block_tokens
        first, last = store.begin // size, -(-(store.begin + store.n) // size)
        self._reserve(last - first)
        blocks = torch.tensor(store.blocks[first:last], dtype=torch.int64, device=self._device)
        for layer, flat, order, host in zip(self._layers, self._flat, self._orders, self._blocks):
            host[:last - first].copy_(self._values(layer, flat[blocks][:, order]))
        places = array("I", [0] * first) + array("I", range(last - first))
        self._handle.store(store, places)

    def _values(self, layer, elements):
        """What the cache's elements, [blocks][K, V], mean."""
        if self._code is None:
            return elements
        values = elements.view(self._code).to(torch.float32)
        k, v = self._shape.parts(values)
        k *= layer._k_scale_float
        v *= layer._v_scale_float
        return values


@contextlib.contextmanager
def unscaled(layer):
    """The layer as if its scales were 1, so that small whole numbers are kept as they are."""
    was = {name: getattr(layer, name) for name in ("_k_scale", "_v_scale", "_k_scale_float", "_v_scale_float") if hasattr(layer, name)}
    try:
        for name, value in was.items():
            setattr(layer, name, torch.ones_like(value) if isinstance(value, torch.Tensor) else 1.0)
        yield
    finally:
        for name, value in was.items():
            setattr(layer, name, value)


def read_numbers(layer, cache, dtype, code=None):
    """Has the engine's own writer put numbers into a block, from 1 on, K [token][head][width] and then V: which number each element of the
    block then has, 0 where nobody wrote. 16 bits of them are written at a time; where the cache's elements are of 8 bits, three, as 1 to 8, which
    every such code can tell apart."""
    shape = Shape.of(layer, cache)
    block = torch.as_strided(cache, (cache.stride(0),), (1,), cache.storage_offset())
    numbered = torch.arange(1, shape.elements + 1, dtype=torch.int64, device=cache.device)[None]
    slots = torch.arange(shape.block_tokens, dtype=torch.int64, device=cache.device)
    numbers = torch.zeros(block.numel(), dtype=torch.int64, device=cache.device)
    bits, least = (16, 0) if code is None else (3, 1)
    with contextlib.nullcontext() if code is None else unscaled(layer):
        for shift in range(0, shape.elements.bit_length(), bits):
            block.zero_()
            digits = ((numbered >> shift) & ((1 << bits) - 1)) + least
            write(layer, cache, *shape.rows(digits.to(torch.uint16).view(dtype) if code is None else digits.to(dtype)), slots)
            seen = block.view(torch.int16).to(torch.int64) & 0xFFFF if code is None else block.view(code).to(torch.int64)
            numbers |= torch.where(seen > 0, seen - least, 0) << shift
    block.zero_()
    return numbers


def halves(numbers):
    """The low and the high 16 bits, which the library reads on the host."""
    return [((numbers.cpu() >> shift) & 0xFFFF).to(torch.uint16) for shift in (0, 16)]


def learnt_order(numbers):
    """Where each number lies, the first being 1."""
    at = numbers.nonzero().flatten()
    order = at[numbers[at].argsort()]
    if not torch.equal(numbers[order], torch.arange(1, order.numel() + 1, device=order.device)):
        raise RuntimeError("the engine's writer leaves elements out or writes them twice")
    return order
