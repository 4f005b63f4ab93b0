"""Where a token's keys and values lie inside a block of vLLM's paged cache, and rows read from and written to it.

A backend's own cache update is the only thing that knows its layout (on CPU a block holds keys transposed; others
pack otherwise), so it is asked: it writes codes into a scratch block, and where they turn up is the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DIGIT = 128  # codes are written in digits below this, which even bf16 holds exactly


@dataclass(frozen=True, eq=False)
class Half:
    """The keys, or the values, of a block: flat offsets of (token, head, dimension), int64 ``[B * H * D]``; where they
    are affine, the offset of the first and the three strides, so that reading is one strided copy."""

    offsets: Tensor
    affine: tuple[int, int, int, int] | None

    def gather(self, blocks: Tensor, size: tuple[int, int, int]) -> Tensor:
        """Flat blocks ``[N, E]`` -> ``[N, B, H, D]``."""
        if self.affine is None:
            return blocks[:, self.offsets].view(len(blocks), *size)
        first, *strides = self.affine
        return blocks.as_strided((len(blocks), *size), (blocks.stride(0), *strides), blocks.storage_offset() + first)


@dataclass(frozen=True, eq=False)
class Layout:
    """The layout of one layer's cache tensor, whose first axis counts blocks.

    Attributes:
        block: tokens of a block. heads, dim: those of this rank.
    """

    block: int
    heads: int
    dim: int
    keys: Half
    values: Half

    @classmethod
    def probe(cls, layer: Any, cache: Tensor, heads: int, dim: int) -> Layout:
        """Find the layout of ``cache``, which stays untouched.

        Raises:
            ValueError: if what the backend writes is no permutation of a block.
        """
        each = cache[0].numel()
        block, rest = divmod(each, 2 * heads * dim)
        if rest:
            raise ValueError(f"a block of {each} elements is no multiple of 2 x {heads} heads x {dim} dimensions")
        size = (block, heads, dim)
        codes = torch.arange(block * heads * dim, device=cache.device).view(size)
        digits = list[Tensor]()
        while not digits or int(codes.max()) >= DIGIT ** len(digits):
            digits.append((codes // DIGIT ** len(digits)) % DIGIT + 1)
        found = []
        for key in (True, False):
            number = torch.zeros(each, dtype=torch.long, device=cache.device)
            held = torch.zeros(each, dtype=torch.bool, device=cache.device)
            for place, digit in enumerate(digits):
                flat = _written(layer, cache, digit.to(cache.dtype), key, block)
                held = flat > 0 if place == 0 else held & (flat > 0)
                number += (flat - 1) * DIGIT**place
            offsets = torch.full((codes.numel(),), -1, dtype=torch.long, device=cache.device)
            at = held.nonzero()[:, 0]
            if len(at) != codes.numel() or int(number[at].min()) < 0 or int(number[at].max()) >= codes.numel():
                raise ValueError(
                    f"the cache keeps {len(at)} of {codes.numel()} elements of a block as they are written"
                )
            offsets[number[at]] = at
            found.append(Half(offsets, _affine(offsets.view(size))))
        both = torch.cat([half.offsets for half in found])
        if int(both.min()) < 0 or int(both.bincount(minlength=each).max()) > 1 or len(both) != each:
            raise ValueError("keys and values of a block overlap, or do not fill it")
        return cls(block, heads, dim, *found)

    def read(self, cache: Tensor, blocks: Sequence[int], start: int, stop: int) -> tuple[Tensor, Tensor]:
        """A copy of rows ``[start, stop)`` of the request that holds ``blocks``: keys and values ``[H, T, D]``."""
        first, last = start // self.block, -(-stop // self.block)
        chosen = torch.tensor(blocks[first:last], dtype=torch.long, device=cache.device)
        flat = cache[chosen].reshape(len(chosen), -1)
        begin, size = start - first * self.block, (self.block, self.heads, self.dim)
        rows = [
            half.gather(flat, size).reshape(-1, self.heads, self.dim)[begin : begin + stop - start].transpose(0, 1)
            for half in (self.keys, self.values)
        ]
        return rows[0], rows[1]

    def slots(self, blocks: Sequence[int], start: int, stop: int, device: torch.device) -> Tensor:
        """Slots of rows ``[start, stop)``, int64 ``[T]``."""
        rows = torch.arange(start, stop, device=device)
        table = torch.tensor(blocks, dtype=torch.long, device=device)
        return table[rows // self.block] * self.block + rows % self.block


def write(layer: Any, cache: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
    """Write rows ``[H, T, D]`` (keys rotated to their positions) into ``slots``, through the backend's own update."""
    k, v = (rows.transpose(0, 1).to(cache.dtype).contiguous() for rows in (keys, values))
    layer.impl.do_kv_cache_update(layer, k, v, cache, slots)


def _written(layer: Any, cache: Tensor, codes: Tensor, key: bool, block: int) -> Tensor:
    """What a block holds, flat and as integers, after ``codes`` were written as its keys (or values), zeros as the
    other half."""
    scratch = torch.zeros_like(cache[:2])
    slots = torch.arange(block, 2 * block, device=cache.device)
    none = torch.zeros_like(codes)
    pair = (codes, none) if key else (none, codes)
    layer.impl.do_kv_cache_update(layer, pair[0].contiguous(), pair[1].contiguous(), scratch, slots)
    return scratch[1].reshape(-1).long()


def _affine(offsets: Tensor) -> tuple[int, int, int, int] | None:
    """First offset and strides of ``[B, H, D]`` offsets, if they are affine."""
    first = int(offsets[0, 0, 0])
    strides = []
    for axis in range(3):
        step = offsets.select(axis, 1)[0, 0] - first if offsets.shape[axis] > 1 else 0
        strides.append(int(step))
    expected = torch.full((), first, device=offsets.device)
    for axis, stride in enumerate(strides):
        index = torch.arange(offsets.shape[axis], device=offsets.device) * stride
        expected = expected + index.view([-1 if a == axis else 1 for a in range(3)])
    return (first, *strides) if torch.equal(expected.expand_as(offsets), offsets) else None  # type: ignore[return-value]
