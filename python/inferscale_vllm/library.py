"""libinferscale-connector.so through ctypes; src/connector/connector.h says what each function does."""

import ctypes
import os
import pathlib
from array import array

TEXT_BYTES = 1024


def find_library(given: str | None = None) -> str:
    name = "libinferscale-connector.so"
    places = [given, os.environ.get("INFERSCALE_CONNECTOR"), pathlib.Path(__file__).with_name(name), f"/usr/local/lib/inferscale/{name}"]
    for place in places:
        if place and os.path.exists(place):
            return str(place)
    raise FileNotFoundError(f"{name} is nowhere; build it with `make build/{name}` and name it in $INFERSCALE_CONNECTOR")


def pointer(numbers: array):
    return numbers.buffer_info()[0]


class Library:
    """The functions, with errors as exceptions."""

    def __init__(self, path: str | None = None):
        self._so = so = ctypes.CDLL(find_library(path))
        p, u32, u64, i64, text = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64, ctypes.c_char_p
        so.is_connector_open.argtypes = [text, ctypes.POINTER(p), text]
        so.is_connector_close.argtypes = [p]
        so.is_connector_close.restype = None
        so.is_connector_cache.argtypes = [p, u32, p, u64, u32, u32, p, p, u64, text]
        so.is_connector_eight_bits.argtypes = [p, u32, ctypes.c_float, ctypes.c_float, text]
        so.is_connector_load.argtypes = [p, text, p, u32, p, u32, p, u32, u32, u32, ctypes.POINTER(u32), text]
        so.is_connector_store.argtypes = [p, text, text, p, u32, u32, p, u32, text]
        so.is_connector_ready.argtypes = [text, u32, text, u32]
        so.is_connector_ready.restype = u32
        so.is_connector_rotate.argtypes = [p, p, u32, i64, text]
        so.is_connector_device.argtypes = [p, u32, u64, text]
        so.is_connector_stream.argtypes = [p, p]
        so.is_connector_stream.restype = None
        so.is_connector_start.argtypes = [p, text]
        so.is_connector_wait.argtypes = [p, u32, text]

    def ready(self, folder: str, world: int, keys: bytes, n: int) -> int:
        """How many of the chunks are there, from the first on."""
        return self._so.is_connector_ready(folder.encode(), world, keys, n)

    def open(self, config: str) -> "Handle":
        return Handle(self._so, config)


class Handle:
    """One worker's is_connector."""

    def __init__(self, so, config: str):
        self._so, self._text = so, ctypes.create_string_buffer(TEXT_BYTES)
        self._handle = ctypes.c_void_p()
        self._check(so.is_connector_open(config.encode(), ctypes.byref(self._handle), self._text))

    def _check(self, status: int):
        if status != 0:
            raise RuntimeError(self._text.value.decode(errors="replace"))

    def close(self):
        self._so.is_connector_close(self._handle)
        self._handle = ctypes.c_void_p()

    def cache(self, layer, base, block_stride, n_blocks, block_tokens, low, high, block_elements):
        """low, high: addresses of [block_elements] 16-bit numbers."""
        self._check(self._so.is_connector_cache(self._handle, layer, base, block_stride, n_blocks, block_tokens, low, high, block_elements,
                                                self._text))

    def eight_bits(self, layer, k_scale, v_scale):
        """On a device, before cache(): what is kept there are E4M3 codes."""
        self._check(self._so.is_connector_eight_bits(self._handle, layer, k_scale, v_scale, self._text))

    def load(self, load, blocks: array | None = None) -> tuple[int, str]:
        """Where the tokens end that are right, and why it is not `end`.  blocks: others than the request's."""
        blocks = load.blocks if blocks is None else blocks
        loaded = ctypes.c_uint32(load.begin)
        self._check(self._so.is_connector_load(self._handle, load.keys, pointer(load.lengths), len(load.lengths), pointer(load.tokens),
                                               len(load.tokens), pointer(blocks), len(blocks), load.begin, load.end, ctypes.byref(loaded),
                                               self._text))
        return loaded.value, self._text.value.decode(errors="replace")

    def store(self, store, blocks: array | None = None):
        blocks = store.blocks if blocks is None else blocks
        self._check(self._so.is_connector_store(self._handle, store.key, store.recipe.encode(), pointer(store.tokens), store.begin, store.n,
                                                pointer(blocks), len(blocks), self._text))

    def rotate(self, address: int, n: int, shift: int):
        """[n][width] f32 rows at this address, in place."""
        self._check(self._so.is_connector_rotate(self._handle, address, n, shift, self._text))

    def device(self, number: int, budget: int):
        """The caches are on this CUDA device, and so are chunks, in `budget` bytes."""
        self._check(self._so.is_connector_device(self._handle, number, budget, self._text))

    def stream(self, address: int):
        """The engine's CUDA stream from now on."""
        self._so.is_connector_stream(self._handle, address)

    def start(self):
        """On a device: writes what was loaded since the last time."""
        self._check(self._so.is_connector_start(self._handle, self._text))

    def wait(self, layer: int):
        """On a device: the engine's stream waits until this layer and those below are written."""
        self._check(self._so.is_connector_wait(self._handle, layer, self._text))
