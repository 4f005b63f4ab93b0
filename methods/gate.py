"""Is a span close enough to what the pool has seen to be corrected?

``Entropy`` is the papers' gate (KVComm 2510.12872, KVCMAS 2609.34060): it asks whether one anchor stands out, not
whether any is near, and refuses identical anchors for ever. ``Relative`` asks for nearness, whatever the length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from kernels.distance import span_l2
from methods.anchors import Anchor
from methods.weights import base_values

Usage = Literal["mass", "legacy_top_p"]
ZERO = 1e-2  # relative distance that 16-bit factors of an identical span may show


@dataclass(frozen=True)
class Verdict:
    """Attributes:
    reliable: whether the span may be corrected.
    value: entropy over log2 of the anchors, or relative distance of the nearest; NaN if nothing was measured.
    mass: by anchor name, softmax of the negative distances.
    """

    reliable: bool
    value: float = math.nan
    mass: tuple[tuple[str, float], ...] = ()


class Gate(Protocol):
    """Attributes:
    closed: refuses everything, unseen.
    """

    @property
    def closed(self) -> bool: ...

    def judge(self, values: Tensor, covering: Sequence[Anchor]) -> Verdict:
        """Reference values ``[L, H, n, D]`` of a span against the anchors with at least n rows."""


@dataclass(frozen=True)
class Entropy:
    """Reliable iff the entropy of softmax(-D) is at most ``tau`` log2 |A|, D the Frobenius distances of values.

    Attributes:
        tau: larger reuses more.
        guard: accept a span at distance zero (up to storage error) from an anchor, which entropy alone refuses
            when several anchors are that near, or when there is only one.
    """

    tau: float
    guard: bool = False
    closed: ClassVar[bool] = False

    def judge(self, values: Tensor, covering: Sequence[Anchor]) -> Verdict:
        if not covering:
            return Verdict(False)
        distance = span_l2(values, base_values(covering, values.shape[2]))
        share = torch.softmax(-distance, 0)
        bits = float(-(share * torch.log2(share + 1e-40)).sum())
        most = math.log2(len(covering))
        mass = _mass(covering, share)
        known = self.guard and _known(values, covering, distance)
        value = bits / most if most else 1.0
        return Verdict(known or (len(covering) > 1 and bits <= self.tau * most), value, mass)


@dataclass(frozen=True)
class Relative:
    """Reliable iff the nearest anchor's distance over the norm of the span's values is at most ``tau``."""

    tau: float
    closed: ClassVar[bool] = False

    def judge(self, values: Tensor, covering: Sequence[Anchor]) -> Verdict:
        if not covering:
            return Verdict(False)
        distance = span_l2(values, base_values(covering, values.shape[2]))
        norm = float(torch.linalg.vector_norm(values.float()))
        value = float(distance.min()) / norm if norm else 0.0
        return Verdict(value <= self.tau, value, _mass(covering, torch.softmax(-distance, 0)))


@dataclass(frozen=True)
class Always:
    """Correct whatever the pool holds."""

    closed: ClassVar[bool] = False

    def judge(self, values: Tensor, covering: Sequence[Anchor]) -> Verdict:
        return Verdict(True)


@dataclass(frozen=True)
class Never:
    """Always dense."""

    closed: ClassVar[bool] = True

    def judge(self, values: Tensor, covering: Sequence[Anchor]) -> Verdict:
        return Verdict(False)


def activated(mass: Sequence[tuple[str, float]], top_p: float, usage: Usage) -> list[str]:
    """Anchors that count as used.

    ``mass``: the smallest set, largest first, that holds at least ``top_p``. ``legacy_top_p``: everything up to the
    last anchor whose cumulative share is still below ``top_p``, and *all* anchors if the first alone reaches it.
    """
    order = sorted(mass, key=lambda item: -item[1])
    total, below = 0.0, 0
    for _, share in order:
        total += share
        if total >= top_p:
            break
        below += 1
    if usage == "legacy_top_p":
        return [name for name, _ in order[: below or len(order)]]
    return [name for name, _ in order[: below + 1]]


def _mass(anchors: Sequence[Anchor], share: Tensor) -> tuple[tuple[str, float], ...]:
    return tuple((a.name, float(p)) for a, p in zip(anchors, share.tolist(), strict=True))


def _known(values: Tensor, anchors: Sequence[Anchor], distance: Tensor) -> bool:
    """Whether an anchor is as near as its own stored form is to what it stores."""
    norm = float(torch.linalg.vector_norm(values.float()))
    slack = [ZERO * norm + (a.base.v.residual if a.length == values.shape[2] else 0.0) for a in anchors]
    return any(d <= s for d, s in zip(distance.tolist(), slack, strict=True))
