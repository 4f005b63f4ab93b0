"""Rows chosen at a check layer: what CacheBlend and the controls of its selection share.

The layers below the check layer run in full. At the check layer every row is projected and scored, and only the best
span rows go on, beside the fresh ones; all other rows keep what the cache holds for them from there on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from methods.base import KV, Engine, Hop, Probe, RowSchedule, RowView, Selection, Shape
from methods.limits import Limits
from methods.options import at_least, one_of
from methods.recompute import Origin, Recompute, among, candidates, check_layer_fits, share, top, union
from methods.scores import Score

Filtering = Literal["single", "gradual"]
WriteBack = Literal["all", "kept"]
Over = Literal["union", "span"]


@dataclass
class Checked(Recompute):
    """Hyperparameters of every selection at a check layer; subclasses say what is scored.

    Attributes:
        ratio: r, share of the span rows that run after the check layer, on average over those layers.
        ratio_over: the best r of all spans together (the paper), or of each span (protects short ones).
        schedule: ``single`` chooses once (the authors' code); ``gradual`` scores again at every later layer and
            shrinks linearly from 1.5 r to 0.5 r (the paper filters gradually; the line is ours). Where 1.5 r
            exceeds 1 the line is flatter: from 1 to 2 r - 1.
        write_back: where rows are scored, the fresh keys and values replace the reused ones of ``all`` rows
            (the authors' code) or of the ``kept`` ones (LMCache).
        check_layer: where rows are chosen; at least 1, since layer 0 does not deviate.
        source, role_cache: see :class:`methods.recompute.Recompute`.
    """

    ratio: float = 0.15
    ratio_over: Over = "union"
    schedule: Filtering = "single"
    write_back: WriteBack = "all"
    check_layer: int = 1
    source: Origin = "upstream"
    role_cache: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError for a value outside its range or its list of names."""
        share("ratio", self.ratio)
        at_least("check_layer", self.check_layer, 1, "layer 0 depends on no context and cannot deviate")
        for option, names in (
            ("ratio_over", Over), ("schedule", Filtering), ("write_back", WriteBack), ("source", Origin)
        ):  # fmt: skip
            one_of(option, getattr(self, option), get_args(names))

    def limits(self, layers: int) -> Limits:
        """See :class:`methods.limits.Limits`."""
        return Limits(dense={"ratio": 1.0}, reuse={"ratio": 0.0, "write_back": "kept", "check_layer": 1})

    def bind(self, shape: Shape, seed: int) -> None:
        check_layer_fits(self.check_layer, shape)
        super().bind(shape, seed)

    @abstractmethod
    def scored(self, hop: Hop, reused: Mapping[int, KV], engine: Engine) -> Score:
        """What ranks the rows of this hop."""

    def rows(self, hop: Hop, reused: Mapping[int, KV], engine: Engine) -> RowSchedule:
        last = self.bound.shape.layers - 1
        ratios = tuple(self._ratio(layer, last) for layer in range(self.check_layer, last + 1))
        again = self.schedule == "gradual"
        per_span, write_all = self.ratio_over == "span", self.write_back == "all"
        score = self.scored(hop, reused, engine)
        return CheckedRows(tuple(reused), score, self.check_layer, ratios, again, per_span, write_all)

    def _ratio(self, layer: int, last: int) -> float:
        """r of a layer at or after the check layer."""
        if self.schedule == "single" or self.check_layer == last:
            return self.ratio
        passed = (layer - self.check_layer) / (last - self.check_layer)
        return self.ratio + (1 - 2 * passed) * min(0.5 * self.ratio, 1 - self.ratio)


@dataclass(frozen=True, eq=False)
class CheckedRows:
    """The schedule.

    Attributes:
        spans: indices of the reused spans.
        ratios: share of span rows per layer from the check layer on.
        again: whether later layers choose again, among the rows that are left.
    """

    spans: tuple[int, ...]
    score: Score
    check_layer: int
    ratios: tuple[float, ...]
    again: bool
    per_span: bool
    write_all: bool

    def first_rows(self, view: RowView) -> Tensor:
        return union(view.fresh, *candidates(view, self.spans))

    def probes(self, layer: int) -> bool:
        return layer == self.check_layer or (self.again and layer > self.check_layer)

    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
        if probe is None:
            return Selection(current)
        spans = candidates(view, self.spans)
        if not self.per_span:
            spans = [union(*spans)]
        ratio = self.ratios[layer - self.check_layer]
        keep = [self._best(probe, view, among(rows, current), rounded(ratio * len(rows))) for rows in spans]
        return Selection(union(view.fresh, *keep), write=current if self.write_all else None)

    def _best(self, probe: Probe, view: RowView, rows: Tensor, count: int) -> Tensor:
        if not 0 < count < len(rows):
            return rows[:count]
        return rows[top(self.score(probe, view, rows), count)]


def rounded(count: float) -> int:
    """Nearest integer, halves upwards."""
    return int(count + 0.5)
