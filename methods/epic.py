"""EPIC (arXiv 2410.15332): recompute the first k tokens of every span but the first.

Cut off from its context, a span's first tokens become an attention sink that the prompt does not have there. Which
rows run is known beforehand, nothing is scored, and no layer runs in full. Faithful: the rule. Ours: the upstream
agent's cache is the default source; ``source=isolated`` is the paper's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from torch import Tensor

from methods.base import KV, Engine, FreshRows, Hop, Probe, RowSchedule, RowView, Selection
from methods.limits import Limits
from methods.options import at_least, one_of
from methods.recompute import Origin, Recompute, union


@dataclass
class Epic(Recompute):
    """Attributes:
    k: rows recomputed at the head of each span.
    first_span: recompute the head of the first span as well; the paper trusts it, since it keeps its sink.
    source, role_cache: see :class:`methods.recompute.Recompute`.
    fidelity: what the implementation was written from.
    """

    k: int = 16
    first_span: bool = False
    source: Origin = "upstream"
    role_cache: bool = True
    fidelity: str = "abstract"

    def __post_init__(self) -> None:
        """Raises ValueError for a negative k or an unknown source."""
        at_least("k", self.k, 0)
        one_of("source", self.source, get_args(Origin))

    def limits(self, layers: int) -> Limits:
        """See :class:`methods.limits.Limits`."""
        return Limits(dense={"k": sys.maxsize, "first_span": True}, reuse={"k": 0})

    def rows(self, hop: Hop, reused: Mapping[int, KV], engine: Engine) -> RowSchedule:
        first = next(hop.prompt.shared()).index
        spans = tuple(index for index in reused if self.first_span or index != first)
        return HeadRows(spans, self.k) if spans and self.k else FreshRows()


@dataclass(frozen=True)
class HeadRows:
    """The first ``k`` rows of the reused ``spans`` run beside the fresh rows, at every layer."""

    spans: tuple[int, ...]
    k: int

    def first_rows(self, view: RowView) -> Tensor:
        return union(view.fresh, *(view.reused[index][: self.k] for index in self.spans))

    def probes(self, layer: int) -> bool:
        return False

    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
        return Selection(current)
