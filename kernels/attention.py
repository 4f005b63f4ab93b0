"""Attention of scattered query rows at explicit positions over a whole cache: what selective recomputation needs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels.dispatch import Implementation, chosen
from kernels.operand import floating, placed, shaped, typed


def attend(q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, scale: float) -> Tensor:
    """Grouped-query attention under the mask ``kv_pos <= q_pos``; key row j sits at position j.

    Args:
        q: ``[Hq, R, D]``, R query rows in any order.
        k, v: ``[H, N, D]``, H divides Hq; query head i reads key head i // (Hq / H).
        q_pos: int64 ``[R]``, positions in 0..N-1.
        scale: factor on the scores.

    Returns:
        ``[Hq, R, D]`` in the dtype of ``q``.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    floating("q", q, 3)
    floating("k", k, 3)
    floating("v", v, 3)
    shaped("v", v, k.shape)
    if not k.shape[0] or q.shape[0] % k.shape[0] or q.shape[2] != k.shape[2]:
        raise ValueError(f"q must be [Hq, R, {k.shape[2]}] with Hq a multiple of {k.shape[0]}, got {tuple(q.shape)}")
    shaped("q_pos", q_pos, q.shape[1:2])
    typed("q_pos", q_pos, torch.int64)
    for name, tensor in (("k", k), ("v", v)):
        typed(name, tensor, q.dtype)
        placed(name, tensor, q.device)
    placed("q_pos", q_pos, q.device)
    if not q.shape[1]:
        return torch.empty_like(q)
    if chosen(q.device) is Implementation.TRITON:
        from kernels.attention_triton import launch

        return launch(q, k, v, q_pos, scale)
    mask = torch.arange(k.shape[1], device=q.device) <= q_pos[:, None]
    out = scaled_dot_product_attention(
        q[None], k[None], v[None], mask, scale=scale, enable_gqa=q.shape[0] != k.shape[0]
    )
    return out[0]
