"""A worker's cache: what the C library must know of it, learnt from the engine itself at start."""

import hashlib
import json
import os
import pathlib

import torch
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.logger import init_logger
from vllm.model_executor.models.utils import extract_layer_index

from .staging import Shape, Staging, halves, is_latent, learnt_order, read_numbers

logger = init_logger("vllm.inferscale")

DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}
EIGHT_BITS = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
SCALINGS = {"default": "none", "linear": "linear", "yarn": "yarn", "deepseek_yarn": "yarn", "llama3": "llama3"}
SHIFTS = (1, 7, 333, 2000)
TOLERANCE = 0.02  # of a unit vector: the engine's tables may be bfloat16
EDGE = 1 << 16  # bytes of each end of a file of weights that make its fingerprint


class Unsupported(Exception):
    """Why this model's chunks cannot be injected."""


def fingerprint(model_config, cache_dtype: str) -> str:
    """Of the weights and what else makes KV what it is; whole files would take too long to read."""
    digest = hashlib.blake2b(digest_size=16)
    folder = pathlib.Path(model_config.model)
    digest.update(f"{model_config.dtype} {model_config.quantization} {cache_dtype}".encode())
    if not folder.is_dir():
        digest.update(f"{model_config.model} {model_config.revision}".encode())
        return digest.hexdigest()
    digest.update((folder / "config.json").read_bytes())
    for path in sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".bin", ".pt", ".gguf")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(EDGE))
            file.seek(max(size - EDGE, 0))
            digest.update(file.read(EDGE))
    return digest.hexdigest()


def rope_of(config, head_dim: int, offset: int, neox: bool) -> dict:
    """The library's rope settings out of the model's. offset: where in a head what is rotated begins."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kind = parameters.get("rope_type", "default")
    if kind not in SCALINGS:
        raise Unsupported(f"rotary embeddings of the kind {kind!r}")
    width = head_dim - offset if offset else int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    rope = {"style": "half" if neox else "pair", "offset": offset, "width": width,
            "base": float(parameters.get("rope_theta", 10000.0)), "scaling": SCALINGS[kind]}
    names = {"factor": "factor", "original_max_position_embeddings": "original_context", "beta_fast": "beta_fast", "beta_slow": "beta_slow",
             "attention_factor": "attention_factor", "low_freq_factor": "low_freq_factor", "high_freq_factor": "high_freq_factor"}
    for theirs, ours in names.items():
        if parameters.get(theirs) is not None:
            rope[ours] = int(parameters[theirs]) if ours == "original_context" else float(parameters[theirs])
    return rope


def engine_rope():
    """The rotation that this process's model uses, out of vLLM's own table of them."""
    from vllm.model_executor.layers import rotary_embedding

    modules = {id(m): m for m in rotary_embedding._ROPE_DICT.values()}
    if len(modules) != 1:
        raise Unsupported(f"{len(modules)} rotary embeddings in one model")
    return next(iter(modules.values()))


class Worker:
    def __init__(self, vllm_config, transfer_config, library, kv_caches):
        self._handle = self._way = None  # the library's, and what loads and stores: itself, or past it what passes through the host
        self._numbers = {}  # layers by name, where the library writes on a device
        self._device = self._waits = None  # that device; layers of what was started are still to be waited for
        self.rank = get_tensor_model_parallel_rank()
        self.fingerprint = fingerprint(vllm_config.model_config, vllm_config.cache_config.cache_dtype)
        self.why_not = ""
        try:
            self._open(vllm_config, transfer_config, library, kv_caches)
        except (Unsupported, RuntimeError) as error:
            self.close()
            self.why_not = f"injection is off: {error}"
            logger.error("%s; every prompt is computed", self.why_not)

    def _open(self, vllm_config, transfer_config, library, kv_caches):
        parallel = vllm_config.parallel_config
        if parallel.pipeline_parallel_size * parallel.prefill_context_parallel_size * parallel.decode_context_parallel_size != 1:
            raise Unsupported("a model that is divided otherwise than by heads")
        names = sorted(kv_caches, key=extract_layer_index)
        shapes = {(tuple(kv_caches[n].shape), kv_caches[n].dtype) for n in names}
        if len(shapes) != 1:
            raise Unsupported("layers whose caches differ in shape")
        shape, kept_as = next(iter(shapes))
        code = EIGHT_BITS.get(vllm_config.cache_config.cache_dtype) if kept_as.itemsize == 1 else None
        dtype = kept_as if code is None else vllm_config.model_config.dtype  # of chunks
        known = vllm_config.compilation_config.static_forward_context
        layers, caches = [known[name] for name in names], [kv_caches[name] for name in names]
        latent = is_latent(layers[0])
        if len(shape) not in ((3, 4) if latent else (4,)) or latent and shape[-1] <= layers[0].kv_lora_rank or dtype not in DTYPES:
            raise Unsupported(f"a cache of {kept_as} in the shape {list(shape)} ({vllm_config.cache_config.cache_dtype}); known are [blocks, heads, "
                              "tokens, 2 * width], or [blocks, tokens, width] of latent rows, of bfloat16 or float16, or of 8 bits by the names "
                              + ", ".join(EIGHT_BITS))
        block = Shape.of(layers[0], caches[0])
        if block.block_tokens != vllm_config.cache_config.block_size:
            raise Unsupported(f"a cache in blocks of {block.block_tokens} tokens under a scheduler that has blocks of "
                              f"{vllm_config.cache_config.block_size}; start vLLM with --block-size {block.block_tokens}")
        self._check_failed_loads(vllm_config)
        module = engine_rope()
        extra = transfer_config.get_from_extra_config
        config = {
            "folder": extra("folder", ""), "rank": self.rank, "world": parallel.tensor_parallel_size,
            "budget": int(extra("budget", 4 << 30)), "threads": int(extra("threads", len(os.sched_getaffinity(0)))),
            "fingerprint": self.fingerprint, "dtype": DTYPES[dtype], "layers": len(names), "heads": block.heads, "k_dim": block.k_dim,
            "v_dim": block.v_dim, "rope": rope_of(vllm_config.model_config.hf_text_config, block.k_dim, layers[0].kv_lora_rank if latent else 0,
                                                  module.is_neox_style),
        }
        self._handle = library.open(json.dumps(config))
        self._check_rotation(module, config["rope"])
        learnt = [self._learn(layer, cache, dtype, code) for layer, cache in zip(layers, caches)]
        reach = self.in_reach(caches[0])
        if reach and code is None or not reach and self._take_device(names, caches[0].device, int(extra("device_budget", 2 << 30)), code):
            for number, (layer, cache, numbers) in enumerate(zip(layers, caches, learnt)):
                if code is not None:
                    self._handle.eight_bits(number, layer._k_scale_float, layer._v_scale_float)
                low, high = halves(numbers)
                self._handle.cache(number, cache.data_ptr(), cache.stride(0) * cache.element_size(), cache.shape[0], block.block_tokens,
                                   low.data_ptr(), high.data_ptr(), cache.stride(0))
            self._way = self._handle
        else:
            self._way = Staging(self._handle, layers, caches, [learnt_order(numbers) for numbers in learnt], dtype, code)
        logger.info("chunks in %s are injected: %d layers, %d heads of %d, blocks of %d tokens of %s in %s memory", config["folder"], len(names),
                    block.heads, block.k_dim, block.block_tokens, code or dtype, caches[0].device.type)

    @staticmethod
    def _check_failed_loads(vllm_config):
        """A chunk may be gone in any step, and the engine must then compute its tokens. vLLM up to 0.33 does not in these two ways of working
        (github.com/vllm-project/vllm/issues/49250)."""
        if vllm_config.scheduler_config.async_scheduling:
            raise Unsupported("vLLM does not compute what failed to load when it schedules asynchronously; start it with --no-async-scheduling")
        if getattr(vllm_config, "use_v2_model_runner", False):
            raise Unsupported("vLLM's second model runner does not compute what failed to load; start it with VLLM_USE_V2_MODEL_RUNNER=0")

    @staticmethod
    def in_reach(cache) -> bool:
        """Of the library's own code on the host."""
        return cache.device.type == "cpu"

    def _take_device(self, names, device, budget: int, code) -> bool:
        """Has the library write on the device itself, if it was built for that."""
        if device.type != "cuda" or code not in (None, torch.float8_e4m3fn):
            return False
        try:
            self._handle.device(device.index or 0, budget)
        except RuntimeError as error:
            logger.warning("chunks pass through host memory: %s", error)
            return False
        self._device = device
        self._numbers = {name: number for number, name in enumerate(names)}
        return True

    @staticmethod
    def _learn(layer, cache, dtype, code):
        """Has the engine's own writer put numbers into a block; which number each element of it then has, 0 where nobody wrote."""
        if not hasattr(layer.impl, "do_kv_cache_update"):
            raise Unsupported(f"{type(layer.impl).__name__}, which has no writer of its own")
        return read_numbers(layer, cache, dtype, code)

    def _check_rotation(self, module, rope):
        """A move by the library against the engine's own tables: from where a token stood to where it shall stand."""
        half = rope["width"] // 2
        if module.rotary_dim != rope["width"]:
            raise Unsupported(f"the engine rotates {module.rotary_dim} elements of a head and the model's settings say {rope['width']}")
        table = module.cos_sin_cache.to(torch.float64).cpu()
        begin = 5
        for shift in (s for s in SHIFTS if begin + s < table.shape[0]):
            angles = []
            for position in (begin, begin + shift):
                cos, sin = table[position, :half], table[position, half:]
                angles.append(torch.complex(cos, sin) / torch.hypot(cos, sin))
            turn = angles[1] / angles[0]
            x = torch.randn(4, half, dtype=torch.complex128, generator=torch.Generator().manual_seed(shift))
            x /= x.abs()
            rows = self._rows(x, module.is_neox_style)
            self._handle.rotate(rows.data_ptr(), rows.shape[0], shift)
            worst = (rows - self._rows(x * turn, module.is_neox_style)).abs().max().item()
            if worst > TOLERANCE:
                raise Unsupported(f"moved by {shift} tokens, K is {worst:.3f} away from the engine's own rotation")

    @staticmethod
    def _rows(x, neox):
        pair = (x.real, x.imag)
        return (torch.cat(pair, dim=1) if neox else torch.stack(pair, dim=2).flatten(1)).to(torch.float32).contiguous()

    def begin(self):
        """A step of the engine: what is loaded and stored from now on is about its stream as it is then."""
        self._waits = None
        if self._device is not None:
            self._handle.stream(torch.cuda.current_stream(self._device).cuda_stream)

    def load(self, load) -> tuple[int, str]:
        if self._handle is None:
            return load.begin, self.why_not
        try:
            return self._way.load(load)
        except RuntimeError as error:
            return load.begin, str(error)

    def start(self, by_layer: bool) -> str:
        """Writes what was loaded; why it is all wrong, or nothing. by_layer: wait() is going to be called for each layer."""
        if self._device is None:
            return ""
        try:
            self._handle.start()
            self._waits = by_layer
            if not by_layer:
                self._handle.wait(len(self._numbers) - 1)
        except RuntimeError as error:
            return str(error)
        return ""

    def wait(self, layer_name: str):
        """The engine's stream goes on with this layer when it is written."""
        if self._waits and layer_name in self._numbers:
            self._handle.wait(self._numbers[layer_name])

    def end(self):
        """The forward pass is over. Layers that nobody waited for are in what comes behind it."""
        if self._waits:
            self._handle.wait(len(self._numbers) - 1)
        self._waits = None

    def store(self, store) -> bool:
        if self._handle is None:
            logger.error("no chunk is made: %s", self.why_not)
            return False
        try:
            self._way.store(store)
        except RuntimeError as error:
            logger.error("chunk %s is not made: %s", store.key.decode(), error)
            return False
        return True

    def close(self):
        if self._handle is not None:
            self._handle.close()
            self._handle = self._way = self._device = self._waits = None
