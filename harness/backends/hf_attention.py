"""Attention of the engine inside stock attention modules: scattered query rows at explicit positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from kernels.attention import Positions, attend

NAME = "kvcmas_rows"
BLOCK = 256
"""Query rows whose probabilities over the whole cache are held at once, one key head at a time."""


def rows_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    q_pos: Positions | None = None,
    **rest: Any,
) -> tuple[Tensor, Tensor | None]:
    """``[1, Hq, R, D]`` queries over ``[1, H, N, D]`` keys; returns ``[1, R, Hq, D]``.

    With ``q_pos`` the mask is ``kv_pos <= q_pos``, and grouped heads read the cache without being expanded.
    Without it this is transformers' own SDPA call, so that a dense prefill takes the very kernel of the stock model.
    """
    if q_pos is None:
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **rest
        )
        return found
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(query[0], key[0], value[0], q_pos, scale)[None].transpose(1, 2), None


def mass(q: Tensor, k: Tensor, q_pos: Tensor, scale: float) -> Tensor:
    """Attention that each key row receives, summed over query heads and query rows; fp32 ``[N]``.

    Args:
        q: ``[Hq, R, D]`` rotated queries at positions ``q_pos`` ``[R]``.
        k: ``[H, N, D]`` rotated keys, row j at position j; the mask is ``kv_pos <= q_pos``.
    """
    heads, rows, dim = k.shape
    total = torch.zeros(rows, device=k.device)
    at = torch.arange(rows, device=k.device)
    grouped = q.float().reshape(heads, -1, len(q_pos), dim)  # [H, G, R, D]
    for begin in range(0, len(q_pos), BLOCK):
        future = at > q_pos[begin : begin + BLOCK, None]
        for queries, keys in zip(grouped[:, :, begin : begin + BLOCK], k, strict=True):
            scores = (queries @ keys.float().T * scale).masked_fill(future, -torch.inf)  # [G, B, N]
            total += scores.softmax(-1).sum((0, 1))
    return total


def install(model: Any) -> None:
    """Make ``model`` attend through :func:`rows_attention`; again and again is harmless."""
    AttentionInterface.register(NAME, rows_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
