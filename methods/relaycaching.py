"""RelayCaching (arXiv 2603.13289): relay decode-phase caches, recompute a middle range of layers for a few tokens.

Span rows enter layer ``start_layer`` with the producer's hidden states and all run up to layer ``detect_layer``. There
each token's deviation is seen, 1 - cos(relayed value, fresh value) with heads concatenated. From there to layer
``end_layer`` only tokens run on whose deviation is above ``tau_dev`` times the span's mean, or whose influence is at
least ``tau_inf`` times its mean. Influence is the attention that the last ``suffix`` rows of the span, as its producer
saw it, give to the span's tokens, summed over heads and the layers from start to end; it is computed once, with the
producer's hop, outside the time to first token.

Written from the abstract, third-party code that cites the paper's constants (1.5, 1.45, 10), and second-hand
descriptions. Means per span, the strict comparison with a floor and ``write_back`` are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from methods.ability import Ability
from methods.base import Dense, Engine, Executed, Hop, Plan, Probe, Reuse, RowView, Selection, Shape, Source
from methods.limits import Limits
from methods.options import at_least, one_of
from methods.prefix import RolePrefixes
from methods.profile import Grain, Profiler
from methods.recompute import union
from methods.relayed import Entry, Relayed

WriteBack = Literal["kept", "all"]


@dataclass(eq=False)
class RelayRows:
    """The schedule of one hop; ``selected`` span rows run from ``detect`` on, known once that layer has run."""

    method: RelayCaching
    entry: Entry
    influential: Mapping[int, Tensor]
    detect: int
    end: int
    selected: int = 0

    def first_rows(self, view: RowView) -> Tensor:
        return self.entry.first_rows(view)

    def probes(self, layer: int) -> bool:
        return self.entry.layer < layer == self.detect

    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
        if layer == self.entry.layer:
            return self.entry.selection(view, current)
        if probe is None:
            return Selection(current if layer <= self.end else view.fresh)
        rows, chosen = self.entry.spans(view), self._chosen(view, probe)
        self.selected = int(chosen.sum())
        rest = rows[~chosen] if self.method.write_back == "all" else None
        return Selection(union(view.fresh, rows[chosen]), write=rest)

    def _chosen(self, view: RowView, probe: Probe) -> Tensor:
        """Bool over the spans' rows: those that deviate and those that matter."""
        found = []
        for index in self.entry.segments:
            at = torch.searchsorted(probe.rows, view.reused[index])
            d = deviation(probe.reused_v[:, at], probe.fresh_v[:, at])
            found.append(self.method.deviates(d) | self.influential[index])
        return torch.cat(found)


@dataclass
class RelayCaching(Relayed):
    """Attributes:
    start_layer, detect_layer, end_layer: as above, in this order; None waits for a profile. Where the first two are
        equal there is no deviation to see (the states that enter made the relayed rows): influence alone selects.
    profile: file that the layers were taken from; the harness reads it, not the method.
    tau_dev, tau_inf: factors on the span's mean deviation (strictly above) and mean influence (at least).
    suffix: last rows of a span whose attention is its influence; 0 switches influence off.
    floor: a deviation of at most this is rounding, so that an identical prefix selects nothing; right for fp32 and
        fp16, while bf16 rounds up to 4e-5 on tiny models, which selects a few tokens in vain.
    write_back: fresh keys and values of layer ``detect_layer`` replace those of the ``kept`` tokens or of ``all``.
    role_cache: take the agent's role prompt from an exact cache.
    fidelity: what the implementation was written from.
    """

    start_layer: int | None = None
    detect_layer: int | None = None
    end_layer: int | None = None
    profile: str | None = None
    tau_dev: float = 1.5
    tau_inf: float = 1.45
    suffix: int = 10
    floor: float = 1e-6
    write_back: WriteBack = "kept"
    role_cache: bool = True
    fidelity: str = "abstract"
    profiled: ClassVar[tuple[str, ...]] = ("start_layer", "detect_layer", "end_layer")
    _prefixes: RolePrefixes = field(default_factory=RolePrefixes, init=False, repr=False, compare=False)
    _influence: dict[str, dict[int, Tensor]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _last: RelayRows | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises ValueError for layers out of order, an unknown write_back or a suffix below 0."""
        one_of("write_back", self.write_back, get_args(WriteBack))
        at_least("suffix", self.suffix, 0)
        given = (self.start_layer, self.detect_layer, self.end_layer)
        known = [0, *(layer for layer in given if layer is not None)]
        if known != sorted(known):
            raise ValueError(f"start_layer, detect_layer and end_layer must not fall nor be negative, got {given}")

    def limits(self, layers: int) -> Limits:
        """See :class:`methods.limits.Limits`; layers that wait for a profile are a quarter, a half, three quarters."""
        given = zip(self.profiled, (self.start_layer, self.detect_layer, self.end_layer), (1, 2, 3), strict=True)
        middle = {name: quarters * layers // 4 for name, value, quarters in given if value is None}
        all_layers = {"start_layer": 0, "detect_layer": min(1, layers - 1), "end_layer": layers - 1}
        nothing = {"start_layer": 0, "detect_layer": 0, "end_layer": 0, "suffix": 0}
        return Limits(reusing=middle, dense={**all_layers, "suffix": 1, "tau_inf": 0.0}, reuse=nothing)

    def bind(self, shape: Shape, seed: int) -> None:
        _, _, end = self.layers
        if end >= shape.layers:
            raise ValueError(f"end_layer must be below {shape.layers}, the layers of the model, got {end}")
        super().bind(shape, seed)
        self._influence, self._last = {}, None

    @property
    def layers(self) -> tuple[int, int, int]:
        """Start, detection and end layer. Raises ValueError while one of them is not set."""
        if self.start_layer is None or self.detect_layer is None or self.end_layer is None:
            raise ValueError("start_layer, detect_layer and end_layer must be set: give all, or a profile with them")
        return self.start_layer, self.detect_layer, self.end_layer

    def plan(self, hop: Hop, engine: Engine) -> Plan:
        self._last = None
        sources = self.relayed(hop, hop.sources)
        if hop.warmup or not sources:
            return Dense()
        start, detect, end = self.layers
        influential = {index: self._influential(hop, source) for index, source in sources.items()}
        early = torch.cat([influential[i] for i in sorted(influential)]) if detect == start else None
        # States are the producer's: a reader never computes its own at the layer where they enter.
        entry = Entry.of(start, self.relayed(hop, hop.first), early)
        self._last = RelayRows(self, entry, influential, detect, end, 0 if early is None else int(early.sum()))
        prefix = self._prefixes.rows(hop) if self.role_cache else None
        rows = {index: source.kv for index, source in sources.items()}
        return Reuse(rows if prefix is None else {0: prefix, **rows}, self._last)

    def observe(self, hop: Hop, executed: Executed) -> None:
        super().observe(hop, executed)
        if self.suffix:
            self._influence.setdefault(hop.trajectory, {})[hop.index] = self._scores(hop, executed)

    def end(self, trajectory: str) -> None:
        super().end(trajectory)
        self._last = None
        self._influence.pop(trajectory, None)

    def deviates(self, d: Tensor) -> Tensor:
        """Which tokens of a span deviate; ``d`` fp32 ``[T]``."""
        return (d > self.tau_dev * d.mean()) & (d > self.floor)

    def _influential(self, hop: Hop, source: Source) -> Tensor:
        """Which tokens of a span matter to its own end, bool ``[T]``."""
        s = torch.zeros(len(source.kv), device=source.kv.k.device)
        if self.suffix:
            s = _rows_of(source, self._influence[hop.trajectory][source.hop])
        return s >= self.tau_inf * s.mean() if bool(s.any()) else s > 0

    def _scores(self, hop: Hop, executed: Executed) -> Tensor:
        """Influence by row of this hop's cache, fp32: spans that are new here get theirs, relayed ones keep it."""
        start, _, end = self.layers
        held = executed.prompt_tokens + max(len(executed.output_ids) - 1, 0)
        scores = torch.zeros(held, device=executed.logits.device)
        spans_end = 0
        for place in hop.prompt.shared():
            source = hop.sources.get(place.span.id) if place.span is not None else None
            if source is not None:
                found = _rows_of(source, self._influence[hop.trajectory][source.hop])
            else:
                begin = max(place.start, place.stop - self.suffix)
                found = executed.attention(begin, place.stop, range(start, end + 1))[place.start :]
            scores[place.start : place.stop] = found
            spans_end = place.stop
        begin = max(executed.prompt_tokens, held - self.suffix)
        # A label at the prompt's end may belong to the output's span, hence all rows after the last span.
        scores[spans_end:] = executed.attention(begin, held, range(start, end + 1))[spans_end:]
        return scores

    @property
    def requires(self) -> frozenset[Ability]:
        return frozenset({Ability.row_schedule, Ability.hidden_states, Ability.attention})

    @property
    def captures(self) -> frozenset[int]:
        return frozenset({self.start_layer} if self.start_layer else ())

    def notes(self) -> Mapping[str, float]:
        if self._last is None:
            return {}
        rows = sum(len(mask) for mask in self._last.influential.values())
        return {"selected_share": self._last.selected / rows, "shipped_bytes": float(self._last.entry.nbytes)}

    def profiler(self, shape: Shape, grain: Grain) -> Profiler:
        from methods.layer_range import RangeProfiler  # with scipy.stats, which only a profile needs

        return RangeProfiler(shape)


def deviation(relayed: Tensor, fresh: Tensor) -> Tensor:
    """1 - cosine of each token's rows ``[..., H, T, D]``, heads concatenated; fp32 ``[..., T]``."""
    a, b = (x.float().movedim(-3, -2).flatten(-2) for x in (relayed, fresh))
    return 1.0 - torch.cosine_similarity(a, b, dim=-1)


def _rows_of(source: Source, scores: Tensor) -> Tensor:
    """The part of a hop's scores that belongs to a span it holds. Raises ValueError if its place is not known."""
    if source.kv.start is None:
        raise ValueError("the cache of a span does not say at which row of its hop it begins")
    return scores[source.kv.start : source.kv.start + len(source.kv)]
