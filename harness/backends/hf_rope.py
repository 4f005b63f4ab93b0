"""Rotary facts of a loaded model, read off its rotary module and verified against the keys it caches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from harness.errors import UserError
from methods.base import Rope, Shape

FIXED_TYPES = ("default", "linear", "llama3", "yarn", "proportional")
PROBED = (0, 1, 3, 64, 1000)
TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}


def read_rope(model: Any, called: str | None = None) -> Rope:
    """The rotary facts of a causal language model of transformers, which an error calls ``called``.

    Frequencies and attention scaling are those of the model's rotary module, never recomputed from a base
    frequency. A partial rotary is a shorter table. Before they are returned they are checked against the
    model: its cos and sin at a few positions, and in every layer the keys it really caches there, which
    differ by O(1) if the model pairs neighbouring dimensions or leaves a layer unrotated.

    Raises:
        UserError: the frequencies depend on the length, or the model rotates in another way than
            :meth:`methods.base.Rope.apply`.
    """
    what = called or f"the model ({model.config.model_type}, {model.config.name_or_path or 'built in code'})"
    decoder = model.get_decoder()
    rotary = getattr(decoder, "rotary_emb", None)
    inv_freq = getattr(rotary, "inv_freq", None)
    if rotary is None or inv_freq is None or not hasattr(decoder, "layers"):
        raise UserError(f"{what} has no rotary module beside its layers; choose a Llama- or Qwen2-like model.")
    kind = getattr(rotary, "rope_type", "default")
    if kind not in FIXED_TYPES:
        raise UserError(refusal(what, kind))
    rope = Rope(inv_freq.detach().to(torch.float32).clone(), float(getattr(rotary, "attention_scaling", 1.0)))
    _verify(model, decoder, rotary, rope, what)
    return rope


def refusal(what: str, kind: object) -> str:
    """The sentence for a rotary type whose frequencies are not one fixed table."""
    return (
        f"{what} has rotary type {kind!r}, whose frequencies are not one table for every prompt length, so cached "
        f"keys cannot be moved between positions; choose a model with one of {', '.join(FIXED_TYPES)}."
    )


def shape_of(model: Any) -> Shape:
    """Sizes, dtype and device of the model's cache, and its rotary facts."""
    config = model.config.get_text_config()
    weight = model.get_input_embeddings().weight
    return Shape(
        layers=int(config.num_hidden_layers),
        kv_heads=int(config.num_key_value_heads),
        head_dim=head_dim(config),
        hidden=int(config.hidden_size),
        dtype=weight.dtype,
        device=weight.device,
        rope=read_rope(model),
    )


def head_dim(config: Any) -> int:
    """D of a text config; families that do not name it divide the width by the number of query heads."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


@torch.no_grad()
def _verify(model: Any, decoder: Any, rotary: Any, rope: Rope, what: str) -> None:
    weight = model.get_input_embeddings().weight
    at = torch.tensor(PROBED, device=weight.device)
    # One hidden state in every row: the rows' keys then differ by their positions alone.
    hidden = torch.linspace(-1.0, 1.0, weight.shape[1], device=weight.device, dtype=weight.dtype)
    rows = hidden.cos().expand(1, len(PROBED), -1)
    cos, sin = rotary(rows, position_ids=at[None])
    angle = at.float()[:, None] * rope.inv_freq
    expected = torch.cat([angle, angle], dim=-1)
    tolerance = TOLERANCE.get(weight.dtype, 3e-2)
    if cos.shape[1:] != expected.shape or not (
        _close(cos[0], expected.cos() * rope.scaling, tolerance)
        and _close(sin[0], expected.sin() * rope.scaling, tolerance)
    ):
        raise UserError(
            f"{what} orders its rotary angles in another way than half-split pairs; choose a Llama- or "
            "Qwen2-like model."
        )
    for layer in decoder.layers:
        cache = DynamicCache()
        index = layer.self_attn.layer_idx
        layer.self_attn(hidden_states=rows, position_embeddings=(cos, sin), attention_mask=None, past_key_values=cache)
        keys = cache.layers[index].keys[0]  # [H, R, D]
        bare = rope.remove(keys[:, :1].float(), at[:1])
        if not _close(keys, rope.apply(bare.expand(-1, len(PROBED), -1), at), tolerance):
            raise UserError(
                f"{what} does not rotate the keys of layer {index} by half-split pairs of its rotary "
                "table; choose a Llama- or Qwen2-like model."
            )


def _close(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    error = (found.float() - expected.float()).norm() / expected.float().norm().clamp_min(1e-12)
    return bool(error <= tolerance)  # NaN is not close
