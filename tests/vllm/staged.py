"""The connector, made to believe that the library cannot reach the cache, as is so with a device's memory."""

from inferscale_vllm import InferScaleConnector
from inferscale_vllm.worker import Worker

Worker.in_reach = staticmethod(lambda cache: False)

__all__ = ["InferScaleConnector"]
