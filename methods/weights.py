"""How much each anchor's delta counts for each token of a span.

The paper's form (KVComm 2510.12872, KVCMAS 2609.34060) is a softmax over anchors of the negative mean absolute
deviation between the candidate's and the anchor's reference rows, one weight per anchor and token, keys and values
apart. Its L2 sibling needs no expansion of the factors. Uniform and nearest are controls: is matching decorative, and
does averaging beat selection?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernels.distance import channel_l2, layer_l1, softmax_weights, span_l2, token_l1, token_l2
from methods.anchors import Anchor
from methods.lowrank import Operand


@dataclass(frozen=True, eq=False)
class TokenWeights:
    """fp32 ``[A, cover]`` for keys and for values, each column sums to 1; ``hot`` bool ``[L, A]`` or None for all."""

    k: Tensor
    v: Tensor
    hot: Tensor | None = None


class Weighting(Protocol):
    def match(self, keys: Tensor, values: Tensor, anchors: Sequence[Anchor], cover: int) -> tuple[Tensor, Tensor]:
        """Reference rows ``[L, H, T, D]`` of the span against the anchors' bases -> two ``[A, cover]``, fp32."""


@dataclass(frozen=True)
class SoftmaxL1:
    temperature: float = 1.0

    def match(self, keys: Tensor, values: Tensor, anchors: Sequence[Anchor], cover: int) -> tuple[Tensor, Tensor]:
        return (
            softmax_weights(token_l1(keys, base_keys(anchors, cover), cover), self.temperature),
            softmax_weights(token_l1(values, base_values(anchors, cover), cover), self.temperature),
        )


@dataclass(frozen=True)
class SoftmaxL2:
    """Root mean square instead of mean absolute deviation: new, and cheap on factors."""

    temperature: float = 1.0

    def match(self, keys: Tensor, values: Tensor, anchors: Sequence[Anchor], cover: int) -> tuple[Tensor, Tensor]:
        return (
            softmax_weights(token_l2(keys, base_keys(anchors, cover), cover), self.temperature),
            softmax_weights(token_l2(values, base_values(anchors, cover), cover), self.temperature),
        )


@dataclass(frozen=True)
class Uniform:
    """The mean delta."""

    def match(self, keys: Tensor, values: Tensor, anchors: Sequence[Anchor], cover: int) -> tuple[Tensor, Tensor]:
        even = torch.full((len(anchors), cover), 1 / len(anchors), device=keys.device)
        return even, even


@dataclass(frozen=True)
class Nearest:
    """The anchor at the smallest Frobenius distance over the covered rows takes all, the oldest among equals."""

    def match(self, keys: Tensor, values: Tensor, anchors: Sequence[Anchor], cover: int) -> tuple[Tensor, Tensor]:
        return (
            _one_hot(span_l2(keys[:, :, :cover], base_keys(anchors, cover)), cover),
            _one_hot(span_l2(values[:, :, :cover], base_values(anchors, cover)), cover),
        )


def hot_anchors(keys: Tensor, anchors: Sequence[Anchor], cover: int, most: int) -> Tensor | None:
    """Per layer the ``most`` anchors whose base keys are nearest, bool ``[L, A]``; None if there are no more."""
    if len(anchors) <= most:
        return None
    nearest = layer_l1(keys, base_keys(anchors, cover), cover).argsort(dim=0, stable=True)[:most]  # [most, L]
    hot = torch.zeros(keys.shape[0], len(anchors), dtype=torch.bool, device=keys.device)
    return hot.scatter_(1, nearest.T, True)


def channel_weights(x: Tensor, bases: Sequence[Operand], cover: int, temperature: float) -> Tensor:
    """Weights of glue deltas: softmax over anchors per layer, head and dimension, fp32 ``[A, L, C]``."""
    return softmax_weights(channel_l2(x, bases, cover), temperature).flatten(2)


def effective(weights: Tensor) -> float:
    """Effective number of anchors: exp of the entropy over anchors ``[A, T]``, mean over tokens."""
    return float(torch.special.entr(weights).sum(0).exp().mean())


def base_keys(anchors: Sequence[Anchor], cover: int) -> list[Operand]:
    return [a.base.k.operand(cover) for a in anchors]


def base_values(anchors: Sequence[Anchor], cover: int) -> list[Operand]:
    return [a.base.v.operand(cover) for a in anchors]


def _one_hot(distance: Tensor, cover: int) -> Tensor:
    out = torch.zeros(len(distance), cover, device=distance.device)
    out[int(distance.argmin())] = 1.0
    return out
