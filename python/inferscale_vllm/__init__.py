"""InferScale's KV connector for vLLM: facts' KV state goes into the paged cache instead of being prefilled.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "InferScaleConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "inferscale_vllm", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"folder": "/var/lib/inferscale/chunks"}}'

docs/vllm.md has the whole of it.
"""

from .connector import InferScaleConnector

__all__ = ["InferScaleConnector"]
