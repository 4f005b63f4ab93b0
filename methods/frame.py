"""In which rotation of the keys deltas live, bases are matched and corrections are added (KVCMAS, arXiv 2609.34060).

``derotated``: every key as if at position 0; deltas transfer between offsets and keep their rank. ``local``: token t
of a span rotated by t; deltas transfer too, but rotation inflates their rank. ``absolute`` is the authors' form:
bases local, deltas as they stood at the anchor request's own offset, added unrotated wherever the span now starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kernels.lowrank import correct
from kernels.rope import place
from methods.base import KV, Rope
from methods.lowrank import Operand

FrameKind = Literal["derotated", "local", "absolute"]
Arithmetic = Literal["fp32", "model_dtype"]


@dataclass(frozen=True, eq=False)
class Blend:
    """A weighted sum of stored deltas over layers 1 .. L-1.

    Attributes:
        deltas_k, deltas_v: A operands of L - 1 layers.
        weights_k, weights_v: fp32 ``[A, cover]``; later rows stay uncorrected.
        hot: bool ``[L, A]``, the anchors that each layer mixes; None mixes all of them.
    """

    deltas_k: list[Operand]
    deltas_v: list[Operand]
    weights_k: Tensor
    weights_v: Tensor
    hot: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Frame:
    """One choice of rotation and precision.

    Attributes:
        kind: the rotation, see the module.
        arithmetic: ``fp32`` rounds once, when rows enter the cache; ``model_dtype`` rounds after every rotation,
            subtraction and addition, as the authors' code does.
    """

    kind: FrameKind
    arithmetic: Arithmetic
    rope: Rope

    def keys(self, kv: KV) -> Tensor:
        """Keys ``[L, H, T, D]`` in the frame of bases and matching; fp32 unless arithmetic says otherwise."""
        return self._at(kv, None if self.kind == "derotated" else 0)

    def delta(self, exact: KV, base: KV) -> tuple[Tensor, Tensor]:
        """What the reader's context adds: exact minus base rows, keys and values ``[L, H, T, D]``.

        ``exact`` is a live copy (its start is the offset of the absolute frame).
        """
        where = {"derotated": None, "local": 0, "absolute": exact.start}[self.kind]
        return self._at(exact, where) - self._at(base, where), self._cast(exact.v) - self._cast(base.v)

    def write(self, keys: Tensor, values: Tensor, base_k: Tensor, base_v: Tensor, blend: Blend, start: int) -> None:
        """Corrected rows into a cache; ``base_k`` as :meth:`keys` gave them, ``keys`` and ``values [L, H, T, D]``."""
        if self.kind == "derotated" and self.arithmetic == "fp32":
            _blend_into(keys, values, base_k, base_v, blend, start, self.rope.inv_freq, self.rope.scaling)
            return
        if self.kind == "absolute":
            base_k = self.rope.move(base_k, start)
        still = torch.zeros_like(self.rope.inv_freq)
        mixed, mixed_v = torch.empty_like(base_k), torch.empty_like(base_v)
        _blend_into(mixed, mixed_v, base_k, base_v, blend, 0, still, 1.0)
        values.copy_(mixed_v)
        if self.kind == "absolute":
            keys.copy_(mixed)
        elif self.kind == "local":
            keys.copy_(self.rope.move(mixed, start))
        else:
            at = torch.arange(start, start + mixed.shape[2], device=mixed.device)
            keys.copy_(self.rope.apply(mixed, at))

    def values(self, kv: KV) -> Tensor:
        """Values ``[L, H, T, D]`` as they are: no rotation has touched them, and kernels widen what they read."""
        return kv.v

    def _at(self, kv: KV, where: int | None) -> Tensor:
        """Keys of ``kv`` with the first row at position ``where``, de-rotated if None."""
        rope, at = self.rope, torch.arange(len(kv), device=kv.k.device)
        if kv.start is None:
            return self._cast(kv.k) if where is None else self._turn(kv.k, at + where, rope.scaling)
        if where is None:
            return self._turn(kv.k, -(at + kv.start), 1.0 / rope.scaling)
        if where == kv.start:
            return self._cast(kv.k)
        return self._turn(kv.k, torch.full_like(at, where - kv.start), 1.0)

    def _turn(self, keys: Tensor, by: Tensor, scaling: float) -> Tensor:
        """Widened and rotated in one pass, one allocation."""
        out = torch.empty(
            keys.shape, dtype=torch.float32 if self.arithmetic == "fp32" else keys.dtype, device=keys.device
        )
        place(out, keys, by, self.rope.inv_freq, scaling)
        return out

    def _cast(self, x: Tensor) -> Tensor:
        return x.float() if self.arithmetic == "fp32" else x


def _blend_into(
    keys: Tensor,
    values: Tensor,
    base_k: Tensor,
    base_v: Tensor,
    blend: Blend,
    start: int,
    inv_freq: Tensor,
    scaling: float,
) -> None:
    if blend.hot is None:
        correct(
            keys, values, base_k, base_v, blend.deltas_k, blend.deltas_v, blend.weights_k, blend.weights_v,
            start=start, inv_freq=inv_freq, scaling=scaling,
        )  # fmt: skip
        return
    for layer in range(keys.shape[0]):
        at = slice(layer, layer + 1)
        chosen = [] if layer == 0 else blend.hot[layer].nonzero().flatten().tolist()
        correct(
            keys[at], values[at], base_k[at], base_v[at],
            [_layer(blend.deltas_k[i], layer - 1) for i in chosen],
            [_layer(blend.deltas_v[i], layer - 1) for i in chosen],
            _renormalised(blend.weights_k[chosen]), _renormalised(blend.weights_v[chosen]),
            start=start, inv_freq=inv_freq, scaling=scaling, first_layer=0,
        )  # fmt: skip


def _layer(operand: Operand, layer: int) -> Operand:
    left, right = operand
    return left[layer : layer + 1], None if right is None else right[layer : layer + 1]


def _renormalised(weights: Tensor) -> Tensor:
    return weights / weights.sum(0).clamp_min(torch.finfo(weights.dtype).tiny)
