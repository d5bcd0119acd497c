"""What the connector counts, in vLLM's own /metrics."""

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.utils import create_metric_per_engine

COUNTERS = {
    "injected_tokens": "Tokens of prompts that came out of chunks.",
    "inject_seconds": "Seconds that workers spent injecting.",
    "failed_loads": "Loads of which a worker could not inject all.",
    "failed_load_tokens": "Tokens that these loads left to be computed.",
    "stored_chunks": "Chunks that were kept.",
    "failed_stores": "Chunks that a worker could not keep.",
}


@dataclass
class Stats(KVConnectorStats):
    """One worker's counters since they were last taken."""

    def __post_init__(self):
        if not self.data:
            self.reset()

    def reset(self):
        self.data = dict.fromkeys(COUNTERS, 0)

    def add(self, **counts):
        for name, n in counts.items():
            self.data[name] += n

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        self.add(**other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        return {name: round(n, 4) for name, n in self.data.items()}

    def is_empty(self) -> bool:
        return not any(self.data.values())


class Metrics(KVConnectorPromMetrics):
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {name: create_metric_per_engine(self._counter_cls(name=f"vllm:inferscale_{name}", documentation=text, labelnames=labelnames),
                                                         per_engine_labelvalues) for name, text in COUNTERS.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0):
        for name, n in transfer_stats_data.items():
            self._counters[name][engine_idx].inc(n)
