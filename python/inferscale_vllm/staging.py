"""A cache that the C library cannot reach, in a device's memory: rows pass through host memory, in blocks as the engine's own.

The library composes into host blocks, and the engine's own writer puts those rows into the cache, a call a layer. For
a chunk the cache's blocks are gathered in the order that was learnt.
"""

from array import array

import torch


class Staging:
    """The host's blocks, [blocks][K, V][block_tokens][heads][width] of each layer, and the way between them and the cache."""

    def __init__(self, handle, layers, caches, orders):
        """layers: the model's, with the engine's writer; caches, orders: of each layer its cache, and where in a block of it the elements of
        K [token][head][width], then V, lie."""
        self._handle, self._layers, self._caches, self._orders = handle, layers, caches, orders
        self._flat = [self._as_it_lies(cache, order) for cache, order in zip(caches, orders)]
        _, self._heads, self._block_tokens, both = caches[0].shape
        self._width = both // 2
        self._device = caches[0].device
        self._blocks = []  # of each layer
        self._reserve(1)

    def _reserve(self, n: int):
        """Room for n blocks a layer; it grows to what the longest prompt needed."""
        have = self._blocks[0].shape[0] if self._blocks else 0
        if n <= have:
            return
        elements = self._orders[0].numel()
        pinned = self._device.type == "cuda"
        numbers = torch.arange(1, elements + 1, dtype=torch.int64)
        low, high = (((numbers >> shift) & 0xFFFF).to(torch.uint16) for shift in (0, 16))
        blocks = [torch.empty((max(n, 2 * have), elements), dtype=cache.dtype, pin_memory=pinned) for cache in self._caches]
        for number, block in enumerate(blocks):
            self._handle.cache(number, block.data_ptr(), elements * block.element_size(), block.shape[0], self._block_tokens, low.data_ptr(),
                               high.data_ptr(), elements)
        self._blocks = blocks

    def _rows(self, blocks, begin: int, end: int):
        """K and V of tokens [begin, end) out of blocks [n][elements]."""
        parts = blocks.view(-1, 2, self._block_tokens, self._heads, self._width)
        return (parts[:, part].flatten(0, 1)[begin:end] for part in (0, 1))

    @staticmethod
    def _as_it_lies(cache, order):
        """The blocks, [blocks][elements up to the last one that is the cache's]."""
        return torch.as_strided(cache, (cache.shape[0], int(order.max()) + 1), (cache.stride(0), 1), cache.storage_offset())

    def load(self, load) -> tuple[int, str]:
        size = self._block_tokens
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
                k, v = self._rows(host[:n].to(self._device), begin, end)
                layer.impl.do_kv_cache_update(layer, k, v, cache, slots)
        return loaded, why

    def store(self, store):
        size = self._block_tokens
        first, last = store.begin // size, -(-(store.begin + store.n) // size)
        self._reserve(last - first)
        blocks = torch.tensor(store.blocks[first:last], dtype=torch.int64, device=self._device)
        for flat, order, host in zip(self._flat, self._orders, self._blocks):
            host[:last - first].copy_(flat[blocks][:, order])
        places = array("I", [0] * first) + array("I", range(last - first))
        self._handle.store(store, places)


def learnt_order(low, high):
    """Where each number lies, the first being 1, in a block that held the numbers' low 16 bits and then their high ones."""
    numbers = (low.to(torch.int64) & 0xFFFF) | (high.to(torch.int64) & 0xFFFF) << 16
    at = numbers.nonzero().flatten()
    order = at[numbers[at].argsort()]
    if not torch.equal(numbers[order], torch.arange(1, order.numel() + 1, device=order.device)):
        raise RuntimeError("the engine's writer leaves elements out or writes them twice")
    return order
