"""What an invariant is, and how two caches of the same tokens are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.backends.hf_run import Run
from harness.invariants.subject import Subject
from methods.base import KV


@dataclass(frozen=True)
class Tolerance:
    """The largest error that passes, by the model's dtype, and why it is not smaller."""

    float32: float
    float16: float
    bfloat16: float
    reason: str

    def of(self, dtype: torch.dtype) -> float:
        """Raises ValueError for a dtype that no model runs in."""
        name = str(dtype).removeprefix("torch.")
        if name not in ("float32", "float16", "bfloat16"):
            raise ValueError(f"there is no tolerance for {name}")
        return float(getattr(self, name))


EXACT = Tolerance(0.0, 0.0, 0.0, "a count, or the same kernels on the same numbers: there is nothing to round")


@dataclass(frozen=True)
class Invariant:
    """One property.

    Attributes:
        id: as in the design; ``also`` are ids of the same property.
        statement: one sentence.
        error: measures a method; 0 is perfect. Raises :class:`harness.invariants.subject.Inapplicable` with the reason.
    """

    id: str
    statement: str
    tolerance: Tolerance
    error: Callable[[Subject], float]
    also: tuple[str, ...] = ()


def relative(found: Tensor, true: Tensor) -> float:
    """||found - true|| / ||true|| in fp64; NaN if either holds one."""
    a, b = found.double(), true.double()
    return float((a - b).norm() / b.norm().clamp_min(torch.finfo(torch.float64).tiny))


def caches_apart(found: KV, true: KV) -> float:
    """Largest relative error of a layer's keys or values; both caches begin at the same position."""
    pairs = [(found.k, true.k), (found.v, true.v)]
    return worst([relative(a[layer], b[layer]) for a, b in pairs for layer in range(len(a))])


def apart(run: Run, logits: Tensor, kv: KV) -> float:
    """The larger of the relative errors of the first token's logits and of the prompt's rows."""
    return worst([relative(run.logits, logits), caches_apart(run.kv(0, run.prompt_tokens), kv)])


def worst(errors: list[float]) -> float:
    """The largest; NaN if there is one, 0 of none."""
    return float(torch.tensor([0.0, *errors], dtype=torch.float64).max())
