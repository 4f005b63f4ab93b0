"""vLLM as an engine: the same methods, in its paged cache and its scheduler. Importable where vLLM is not installed."""

from __future__ import annotations

NAME, MODULE = "KVCMASConnector", "harness.backends.vllm_connector"


def register() -> None:
    """Make the connector known by name; vLLM calls this in each of its processes (entry point
    ``vllm.general_plugins``). Again and again is harmless, and nothing heavy loads."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if NAME not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(NAME, MODULE, NAME)
