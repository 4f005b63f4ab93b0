"""Keys and values of tokens, and how they move: the only place where positions enter.

Shapes: L layers, H key/value heads, T tokens, D head dimension, C = H * D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernels.rope import place, rotate


@dataclass(frozen=True, eq=False)
class Rope:
    """Rotary facts read off a model, never recomputed from a base frequency.

    Attributes:
        inv_freq: fp32 ``[R / 2]``, R <= D rotated dimensions, half-split pairing (i with i + R/2).
        scaling: factor on cos and sin (YaRN's attention scaling; 1 elsewhere). A cached key carries it
            once, whatever its position.
    """

    inv_freq: Tensor
    scaling: float = 1.0

    def apply(self, keys: Tensor, positions: Tensor) -> Tensor:
        """De-rotated keys ``[..., T, D]`` -> keys as a model caches them at ``positions`` ``[T]``."""
        return rotate(keys, positions, self.inv_freq, self.scaling)

    def remove(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Keys ``[..., T, D]`` cached at ``positions`` ``[T]`` -> de-rotated keys, every row as if at 0."""
        return rotate(keys, -positions, self.inv_freq, 1.0 / self.scaling)

    def move(self, keys: Tensor, offset: int) -> Tensor:
        """Cached keys ``[..., T, D]`` moved by ``offset`` positions; offset 0 returns them bit for bit."""
        if offset == 0:
            return keys
        at = torch.full((keys.shape[-2],), offset, dtype=torch.long, device=keys.device)
        return rotate(keys, at, self.inv_freq, 1.0)


@dataclass(frozen=True, eq=False)
class Shape:
    """What a method must know about the model: sizes, dtype and device of its cache, rotary facts."""

    layers: int
    kv_heads: int
    head_dim: int
    hidden: int
    dtype: torch.dtype
    device: torch.device
    rope: Rope

    @property
    def width(self) -> int:
        """C, the flattened key (or value) width of one layer and token."""
        return self.kv_heads * self.head_dim

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of the full keys and values of ``tokens`` tokens over all layers: 2 L C T e."""
        return 2 * self.layers * self.width * tokens * self.dtype.itemsize


class Rows(Protocol):
    """Keys and values of T consecutive tokens that an engine can place in a cache."""

    def __len__(self) -> int: ...

    def write(self, keys: Tensor, values: Tensor, start: int, rope: Rope) -> None:
        """Fill ``keys`` and ``values`` ``[L, H, T, D]`` (views of a live cache) for rows start, start+1, ..."""


@dataclass(frozen=True, eq=False)
class KV:
    """Keys and values of T consecutive tokens, ``k`` and ``v`` of shape ``[L, H, T, D]``.

    Attributes:
        start: None if the keys are de-rotated (every row as if at position 0), which is the form that pools
            store and methods compute in. Otherwise the keys are as a model caches them with the first row at
            position ``start``: a relayed span keeps this form, so that moving it takes one rotation by the
            net offset, and none at all (bit for bit) when the offset is 0.
    """

    k: Tensor
    v: Tensor
    start: int | None = None

    def __post_init__(self) -> None:
        if self.k.shape != self.v.shape or self.k.dim() != 4:
            raise ValueError(
                f"k and v must share one [L, H, T, D] shape, got {tuple(self.k.shape)} and {tuple(self.v.shape)}"
            )

    def __len__(self) -> int:
        return int(self.k.shape[2])

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def derotated(self, rope: Rope) -> KV:
        """The same rows with de-rotated keys in fp32 arithmetic and the stored dtype."""
        if self.start is None:
            return self
        at = torch.arange(self.start, self.start + len(self), device=self.k.device)
        return KV(rope.remove(self.k, at), self.v)

    def rows(self, begin: int, end: int) -> KV:
        """Rows ``[begin, end)`` as views."""
        start = None if self.start is None else self.start + begin
        return KV(self.k[:, :, begin:end], self.v[:, :, begin:end], start)

    def write(self, keys: Tensor, values: Tensor, start: int, rope: Rope) -> None:
        values.copy_(self.v)
        if self.start == start:
            keys.copy_(self.k)
        elif self.start is None:
            place(
                keys, self.k, torch.arange(start, start + len(self), device=self.k.device), rope.inv_freq, rope.scaling
            )
        else:
            place(keys, self.k, torch.full((len(self),), start - self.start, device=self.k.device), rope.inv_freq)
