"""The connector: what vLLM's scheduler and workers call, handed on to the C library.

A request says in kv_transfer_params["inferscale"] what it wants:
  inject: {"keys": "<16 hexadecimal digits a chunk, one behind the other>", "lengths": [tokens of each chunk]}
          the prompt begins with these chunks; it needs a cache_salt of its own scope and chunks
  encode: {"key": "<16 digits>", "begin": first token, "tokens": how many, "recipe": "primed:8"}
          keep these tokens' KV as a chunk, in the folder that was made for it
  describe: true
          the response's kv_transfer_params say what a planner of prompts must know, see describe.py

The scheduler's side counts how many tokens can be injected; only whole blocks are, and at least one token is always
left to compute. The worker's side has one call in C for all layers of a request; on a GPU the requests of
a step are then written at once, layer by layer, while the engine computes the layers before. A chunk that is missing, broken, of
other tokens or of another model makes vLLM compute its tokens: the blocks are reported as not loaded.
"""

import time
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.config import CUDAGraphMode
from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1, KVConnectorHandshakeMetadata, KVConnectorMetadata,
                                                               KVConnectorRole)
from vllm.logger import init_logger
from vllm.tokenizers import cached_tokenizer_from_config

from .describe import describe
from .library import Library
from .stats import Metrics, Stats

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

logger = init_logger("vllm.inferscale")

KEY_DIGITS = 16


@dataclass
class Load:
    """Tokens [begin, end) of a prompt out of chunks into these blocks."""

    request_id: str
    keys: bytes
    lengths: array
    tokens: array
    blocks: array
    begin: int
    end: int


@dataclass
class Store:
    """Tokens [begin, begin + n) of a prompt as a chunk, after the forward pass."""

    key: bytes
    recipe: str
    tokens: array
    blocks: array
    begin: int
    n: int


@dataclass
class Metadata(KVConnectorMetadata):
    loads: list[Load] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)


@dataclass
class Handshake(KVConnectorHandshakeMetadata):
    """What a worker tells the scheduler at start."""

    fingerprint: str
    why_not: str


class Wish:
    """What a request's kv_transfer_params say, read once."""

    def __init__(self, request: "Request", wish: dict):
        inject, encode = wish.get("inject"), wish.get("encode")
        self.request = request
        self.tokens = array("i", request.prompt_token_ids or [])
        self.keys, self.lengths, self.encode = b"", array("I"), None
        self.computed = 0  # tokens that the engine itself had when it last asked
        self.stored = False
        self.describe = bool(wish.get("describe"))
        if inject:
            self.keys, self.lengths = inject["keys"].encode(), array("I", inject["lengths"])
            if len(self.keys) != KEY_DIGITS * len(self.lengths) or sum(self.lengths) > len(self.tokens):
                raise ValueError("inject needs a key and a length for each chunk, and no more tokens than the prompt has")
        if encode:
            key, begin, n = encode["key"].encode(), int(encode["begin"]), int(encode["tokens"])
            if len(key) != KEY_DIGITS or begin < 0 or n < 1 or begin + n > len(self.tokens):
                raise ValueError("encode needs a key, and tokens that the prompt has")
            self.encode = (key, begin, n, str(encode.get("recipe", "")))


class InferScaleConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig"):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        extra = self._kv_transfer_config.get_from_extra_config
        self._folder = extra("folder", "")
        if not self._folder:
            raise ValueError('kv_connector_extra_config needs "folder", where the chunks are')
        self._library = Library(extra("library", None))
        self._block_size = vllm_config.cache_config.block_size
        self._world = vllm_config.parallel_config.tensor_parallel_size
        self._meta = Metadata()
        self._wishes: dict[str, Wish | None] = {}
        self._handshakes: list[Handshake] = []
        self._worker = None
        self._failed_blocks: set[int] = set()
        self._stats = Stats()

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config) -> bool:
        """vLLM 0.33 asks: the library holds the cache's addresses, which change when it sleeps."""
        return False

    # ---- the scheduler's side

    def _wish(self, request: "Request") -> Wish | None:
        if not request.kv_transfer_params:
            return None
        if request.request_id not in self._wishes:
            try:
                said = request.kv_transfer_params.get("inferscale")
                wish = Wish(request, said) if said else None
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
                logger.error("request %s: kv_transfer_params are not what they must be, its prompt is computed: %r", request.request_id, error)
                wish = None
            self._wishes[request.request_id] = wish
        return self._wishes[request.request_id]

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        wish = self._wish(request)
        if wish is None or not wish.lengths:
            return 0, False
        if request.cache_salt is None:
            logger.warning("request %s: nothing is injected without a cache_salt, or others would find its blocks", request.request_id)
            return 0, False
        wish.computed = num_computed_tokens
        ready = self._library.ready(self._folder, self._world, wish.keys, len(wish.lengths))
        tokens = min(sum(wish.lengths[:ready]), len(wish.tokens) - 1)
        return max(tokens // self._block_size * self._block_size - num_computed_tokens, 0), False

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int):
        wish = self._wish(request)
        if wish is None or num_external_tokens == 0:
            return
        blocks_of_request = array("I", blocks.get_block_ids()[0])
        self._meta.loads.append(Load(request.request_id, wish.keys, wish.lengths, wish.tokens, blocks_of_request, wish.computed,
                                     wish.computed + num_external_tokens))

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KVConnectorMetadata:
        meta, self._meta = self._meta, Metadata()
        for request_id, wish in self._wishes.items():
            scheduled = scheduler_output.num_scheduled_tokens.get(request_id, 0)
            if wish is None or wish.encode is None or scheduled == 0:
                continue
            key, begin, n, recipe = wish.encode
            computed, end = wish.request.num_computed_tokens, begin + n
            # Once, and again when they are computed again: after a failed load, or a preemption.
            if computed + scheduled >= end and (not wish.stored or computed < end):
                wish.stored = True
                blocks = array("I", self._kv_cache_manager.get_block_ids(request_id)[0])
                meta.stores.append(Store(key, recipe, wish.tokens, blocks, begin, n))
        return meta

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        wish = self._wishes.pop(request.request_id, None)
        if wish is None or not wish.describe:
            return False, None
        told = describe(self._handshakes, self._world, self._block_size, lambda: cached_tokenizer_from_config(self._vllm_config.model_config))
        return False, {"inferscale": told}

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        self._handshakes = list(metadata.values())

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]) -> None:
        """vLLM's own refuses to start with stages of a pipeline; their workers say that injection is off."""
        self._handshakes = list(metadata.values())

    # ---- a worker's side

    def register_kv_caches(self, kv_caches):
        from .worker import Worker

        self._worker = Worker(self._vllm_config, self._kv_transfer_config, self._library, kv_caches)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return Handshake(self._worker.fingerprint, self._worker.why_not) if self._worker is not None else None

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        if not self.has_connector_metadata():
            return
        self._worker.begin()
        loads = self._get_connector_metadata().loads
        if not loads:
            return
        begun = time.perf_counter()
        results = [(load, *self._worker.load(load)) for load in loads]
        # A graph of the whole step has no place where a layer could be waited for; a model runner that is about to replay one may not say so
        # in its context, but has no attention metadata in it then.
        by_layer = forward_context.attn_metadata is not None and forward_context.cudagraph_runtime_mode != CUDAGraphMode.FULL
        failure = self._worker.start(by_layer)
        self._count_once(inject_seconds=time.perf_counter() - begun)
        for load, loaded, why in results:
            self._take_result(load, load.begin if failure else loaded, failure or why)

    def _take_result(self, load: Load, loaded: int, why: str) -> None:
        if loaded < load.end:
            size = self._block_size
            self._failed_blocks.update(load.blocks[loaded // size:-(-load.end // size)])
            loaded = max(loaded // size * size, load.begin)
            self._stats.add(failed_loads=1, failed_load_tokens=load.end - loaded)
            logger.warning("request %s: tokens from %d on are computed: %s", load.request_id, loaded, why)
        self._count_once(injected_tokens=loaded - load.begin)

    def _count_once(self, **counts) -> None:
        """What all ranks do alike; what goes wrong is counted wherever it does."""
        if self._worker.rank == 0:
            self._stats.add(**counts)

    def wait_for_layer_load(self, layer_name: str) -> None:
        self._worker.wait(layer_name)

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs: Any) -> None:
        pass

    def wait_for_save(self):
        self._worker.end()
        for store in self._get_connector_metadata().stores:
            if self._worker.store(store):
                self._count_once(stored_chunks=1)
            else:
                self._stats.add(failed_stores=1)

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def get_kv_connector_stats(self) -> Stats | None:
        if self._stats.is_empty():
            return None
        stats, self._stats = self._stats, Stats()
        return stats

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        return Stats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues) -> Metrics:
        return Metrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self):
        if self._worker is not None:
            self._worker.close()
            self._worker = None
