"""Attention of scattered query rows at explicit positions over a whole cache: what selective recomputation needs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels.dispatch import Implementation, chosen
from kernels.operand import floating, placed, shaped, typed

BLOCK = 128  # query rows of a block: keys that none of them may see are not read
FEW = 64  # up to so many rows, the query heads of one key head are worth attending together


class Block(NamedTuple):
    """Query rows ``[begin, end)``, none of which sees a key from ``stop`` on.

    Attributes:
        mask: ``[end - begin, stop]`` in the dtype of the scores' operands, 0 where a key is visible, else -inf.
    """

    begin: int
    end: int
    stop: int
    mask: Tensor


class Positions:
    """Where query rows stand; all layers of a forward share one, and with it the masks that the reference needs.

    Attributes:
        at: int64 ``[R]``.
    """

    def __init__(self, at: Tensor) -> None:
        self.at = at
        self._blocks: dict[torch.dtype, list[Block]] = {}

    def __len__(self) -> int:
        return len(self.at)

    def blocks(self, dtype: torch.dtype) -> list[Block]:
        """Made once per dtype."""
        if dtype not in self._blocks:
            self._blocks[dtype] = [
                self._block(begin, min(begin + BLOCK, len(self)), dtype) for begin in range(0, len(self), BLOCK)
            ]
        return self._blocks[dtype]

    def _block(self, begin: int, end: int, dtype: torch.dtype) -> Block:
        at = self.at[begin:end]
        stop = int(at.max()) + 1
        hidden = torch.arange(stop, device=at.device) > at[:, None]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=at.device).masked_fill_(hidden, -torch.inf)
        return Block(begin, end, stop, mask)


def attend(q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor | Positions, scale: float) -> Tensor:
    """Grouped-query attention under the mask ``kv_pos <= q_pos``; key row j sits at position j.

    Args:
        q: ``[Hq, R, D]``, R query rows in any order; sorted ones are fastest.
        k, v: ``[H, N, D]``, H divides Hq; query head i reads key head i // (Hq / H).
        q_pos: int64 ``[R]``, positions in 0..N-1.
        scale: factor on the scores.

    Returns:
        ``[Hq, R, D]`` in the dtype of ``q``.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    where = q_pos if isinstance(q_pos, Positions) else Positions(q_pos)
    floating("q", q, 3)
    floating("k", k, 3)
    floating("v", v, 3)
    shaped("v", v, k.shape)
    if not k.shape[0] or q.shape[0] % k.shape[0] or q.shape[2] != k.shape[2]:
        raise ValueError(f"q must be [Hq, R, {k.shape[2]}] with Hq a multiple of {k.shape[0]}, got {tuple(q.shape)}")
    shaped("q_pos", where.at, q.shape[1:2])
    typed("q_pos", where.at, torch.int64)
    for name, tensor in (("k", k), ("v", v)):
        typed(name, tensor, q.dtype)
        placed(name, tensor, q.device)
    placed("q_pos", where.at, q.device)
    if not q.shape[1]:
        return torch.empty_like(q)
    if chosen(q.device) is Implementation.TRITON:
        from kernels.attention_triton import launch

        return launch(q, k, v, where.at, scale)
    blocks = where.blocks(q.dtype)
    if len(blocks) == 1:
        return _block(q, k, v, blocks[0], scale)
    return torch.cat([_block(q[:, block.begin : block.end], k, v, block, scale) for block in blocks], 1)


def _block(q: Tensor, k: Tensor, v: Tensor, block: Block, scale: float) -> Tensor:
    """``[Hq, t, D]`` of the rows of one block."""
    heads, rows, dim = q.shape
    groups = heads // k.shape[0]
    k, v, mask = k[None, :, : block.stop], v[None, :, : block.stop], block.mask
    if groups > 1 and rows <= FEW:  # the rows of a key head's query heads below each other read its keys once
        stacked = q.reshape(1, k.shape[1], groups * rows, dim)
        return scaled_dot_product_attention(stacked, k, v, mask.repeat(groups, 1), scale=scale).reshape(q.shape)
    return scaled_dot_product_attention(q[None], k, v, mask, scale=scale, enable_gqa=groups > 1)[0]
