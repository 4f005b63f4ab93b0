"""What the connector must know of a vLLM engine: whether it fits, its shape, and the worker of a rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from hydra.utils import instantiate
from torch import Tensor

from harness.backends.hf_folder import miniature_rope
from harness.backends.vllm_pages import Pages
from harness.backends.vllm_worker import Worker
from methods.base import Rope, Shape

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

GIB = 1 << 30
POSITIONS = (0, 1, 2, 17, 101)
"""Where vLLM's rotary table is compared with ours."""


def check(config: VllmConfig, cache: KVCacheConfig) -> None:
    """Refuse an engine whose cached rows cannot be moved, or are not all there.

    Raises:
        ValueError: hybrid, MLA or sliding-window caches, M-RoPE, quantised caches, pipeline or context parallelism,
            speculative decoding, LoRA, or a policy that fails a request whose load fails.
    """
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    specs = [group.kv_cache_spec for group in cache.kv_cache_groups]
    if len(specs) != 1 or type(specs[0]) is not FullAttentionSpec or specs[0].sliding_window is not None:
        kinds = ", ".join(sorted({type(spec).__name__ for spec in specs}))
        raise ValueError(f"every layer must attend to the whole prompt (one FullAttentionSpec), this model has {kinds}")
    if config.model_config.uses_mrope:
        raise ValueError("the model rotates by three coordinates (M-RoPE), so its cached keys cannot be moved")
    if config.cache_config.cache_dtype not in ("auto", "float16", "bfloat16", "float32"):
        raise ValueError(
            f"kv_cache_dtype={config.cache_config.cache_dtype}: quantised rows cannot be corrected, use auto"
        )
    parallel = config.parallel_config
    if parallel.pipeline_parallel_size > 1 or parallel.decode_context_parallel_size > 1:
        raise ValueError("a rank must hold all layers and all rows: pipeline and context parallelism are not supported")
    if config.speculative_config is not None or config.lora_config is not None:
        raise ValueError("speculative decoding and LoRA are not supported: kept rows would belong to another model")
    transfer = config.kv_transfer_config
    if transfer is None or transfer.kv_load_failure_policy != "recompute":
        raise ValueError(
            "kv_load_failure_policy must be recompute, so that a load that fails costs time, not an answer"
        )


def build_worker(config: VllmConfig, caches: Mapping[str, Tensor], note: Callable[[str], None]) -> Worker:
    """The worker of this rank, its method bound to the rank's heads.

    Raises:
        ValueError: the method asks for more than vLLM offers, or does not fit the model.
    """
    from vllm.model_executor.models.utils import extract_layer_index

    assert config.kv_transfer_config is not None
    extra = config.kv_transfer_config.kv_connector_extra_config
    names = sorted(caches, key=extract_layer_index)
    context = config.compilation_config.static_forward_context
    held = [caches[name] for name in names]
    shape = shape_of(config, held[0])
    if len(names) != shape.layers:
        raise ValueError(f"the model has {shape.layers} layers, vLLM has caches for {len(names)}")
    pages = Pages(shape, [context[name] for name in names], held)
    limit = int(float(extra.get("store_gib", 8)) * GIB)
    worker = Worker(pages, limit, int(extra.get("open", 4096)), note)
    worker.renew(instantiate(dict(extra["method"]), _convert_="all"), int(extra.get("seed", 0)))
    return worker


def shape_of(config: VllmConfig, cache: Tensor) -> Shape:
    """Sizes of this rank's cache, and the rotary facts, compared with the table that vLLM computed.

    Raises:
        ValueError: vLLM rotates by another table.
    """
    model, parallel = config.model_config, config.parallel_config
    rope = miniature_rope(model.hf_config, f"model {os.path.basename(str(model.model))}")
    rope = Rope(rope.inv_freq.to(cache.device), rope.scaling)
    _compare(rope)
    return Shape(
        layers=int(model.get_num_layers(parallel)),
        kv_heads=int(model.get_num_kv_heads(parallel)),
        head_dim=int(model.get_head_size()),
        hidden=int(model.get_hidden_size()),
        dtype=cache.dtype,
        device=cache.device,
        rope=rope,
    )


def _compare(rope: Rope) -> None:
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

    at = torch.tensor(POSITIONS)
    angle = at[:, None] * rope.inv_freq.cpu()
    expected = torch.cat([angle.cos(), angle.sin()], dim=-1) * rope.scaling
    for rotary in _ROPE_DICT.values():  # one, unless several engines were built in this process
        table: Any = getattr(rotary, "cos_sin_cache", None)
        if table is None or not rotary.is_neox_style or table.shape[-1] != expected.shape[-1]:
            continue
        if torch.allclose(table[at.to(table.device)].float().cpu(), expected, atol=1e-2):
            return
    raise ValueError("vLLM rotates keys by another table than transformers does, so cached keys cannot be moved")
