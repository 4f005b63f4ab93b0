"""Attention of scattered rows with an online softmax; see ``kernels.attention`` for the specification.

A program owns a tile of query rows of one head and walks the keys up to the last position that one of its rows may
see. Rows may come in any order; sorted rows skip most of the keys that they mask.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.tile import block, interpreted

ROWS = 64
KEYS = 64


@triton.jit
def attention_kernel(
    q, q_head, q_row, k, k_head, k_row, v, v_head, v_row, out, out_head, out_row, q_pos, scale, rows, keys,
    GROUPS: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    kind: tl.constexpr = tl.float32 if WIDE else q.dtype.element_ty
    head = tl.program_id(1).to(tl.int64)
    m = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    n = tl.arange(0, BN).to(tl.int64)
    d = tl.arange(0, BD)
    at = tl.load(q_pos + m, m < rows, -1)
    query = tl.load(
        q + head * q_head + m[:, None] * q_row + d[None, :], (m[:, None] < rows) & (d[None, :] < D), 0.0
    ).to(kind)
    key = k + (head // GROUPS) * k_head
    value = v + (head // GROUPS) * v_head
    peak = tl.full((BM,), float("-inf"), tl.float32)
    mass = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BD), tl.float32)
    last = tl.minimum(tl.max(at, 0) + 1, keys)
    for begin in range(0, last, BN):
        j = begin + n
        x = tl.load(key + j[None, :] * k_row + d[:, None], (j[None, :] < keys) & (d[:, None] < D), 0.0).to(kind)
        score = tl.dot(query, x, input_precision="ieee") * scale
        score = tl.where((j[None, :] <= at[:, None]) & (j[None, :] < keys), score, float("-inf"))
        top = tl.maximum(peak, tl.max(score, 1))
        safe = tl.where(top == float("-inf"), 0.0, top)  # a row that has seen no key yet
        p = tl.exp2(score - safe[:, None])
        shrink = tl.exp2(peak - safe)
        y = tl.load(value + j[:, None] * v_row + d[None, :], (j[:, None] < keys) & (d[None, :] < D), 0.0).to(kind)
        mass = mass * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(kind), y, acc * shrink[:, None], input_precision="ieee")
        peak = top
    acc = acc / tl.where(mass == 0.0, 1.0, mass)[:, None]  # rows beyond the last one saw no key
    tl.store(
        out + head * out_head + m[:, None] * out_row + d[None, :],
        acc.to(out.dtype.element_ty), (m[:, None] < rows) & (d[None, :] < D),
    )  # fmt: skip


def launch(q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, scale: float) -> Tensor:
    """``attend``; operands are checked by the caller."""
    heads, rows, dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    attention_kernel[(triton.cdiv(rows, ROWS), heads)](
        q, *q.stride()[:2], k, *k.stride()[:2], v, *v.stride()[:2], out, *out.stride()[:2],
        q_pos, scale * 1.4426950408889634, rows, k.shape[1],
        GROUPS=heads // k.shape[0], D=dim, WIDE=interpreted(q.device), BM=ROWS, BN=KEYS, BD=block(dim),
    )  # fmt: skip
    return out
