"""DroidSpeak (arXiv 2411.02820): recompute one contiguous group of layers of the relayed spans, reuse the rest.

The paper shares a prefix between fine-tuned models of different weights; here the weights are equal and the prompts
differ. Span rows enter layer ``first`` with the hidden states of the source's hop, run up to layer ``last`` against the
reader's own prefix, and drop out. With equal weights layer ``first`` itself keeps its keys and values, so that a group
[i, j] refreshes i+1..j; i = 0 needs no hidden states and is exact on all its layers. Which group is good is profiled
offline (section 4 of the paper). Contiguity, entry states and profile are the paper's; equal weights, rotation to the
reader's positions and ``chained`` are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from torch import Tensor

from methods.ability import Ability
from methods.base import Dense, Engine, FreshRows, Hop, Plan, Probe, Reuse, Rows, RowSchedule, RowView, Selection, Shape
from methods.layer_groups import GroupProfiler
from methods.limits import Limits
from methods.options import one_of
from methods.prefix import RolePrefixes
from methods.profile import Grain, Profiler
from methods.relayed import Entry, Relayed

Pick = Literal["quality", "cheap"]


@dataclass(frozen=True, eq=False)
class LayerGroup:
    """Span rows run the layers from ``entry.layer`` to ``last``; all other rows run every layer."""

    entry: Entry
    last: int

    def first_rows(self, view: RowView) -> Tensor:
        return self.entry.first_rows(view)

    def probes(self, layer: int) -> bool:
        return False

    def select(self, layer: int, view: RowView, current: Tensor, probe: Probe | None) -> Selection:
        if layer == self.entry.layer:
            return self.entry.selection(view, current)
        return Selection(current if layer <= self.last else view.fresh)


@dataclass
class DroidSpeak(Relayed):
    """Attributes:
    group: first and last recomputed layer; empty recomputes nothing, None waits for a profile.
    profile: file that the group was taken from; the harness reads it, not the method.
    pick: which group of the profile, ``quality`` (cheapest within the tolerance) or ``cheap`` (about L/3 layers).
    chained: relay the upstream agent's patched cache and states; else the first holder's, as they were. With one group
        for all agents the next reader recomputes just what was patched, and a reader's states are those that entered:
        the two differ by the rounding of repeated rotation alone.
    role_cache: take the agent's role prompt from an exact cache.
    fidelity: what the implementation was written from.
    """

    group: Sequence[int] | None = None
    profile: str | None = None
    pick: Pick = "quality"
    chained: bool = True
    role_cache: bool = True
    fidelity: str = "paper"
    profiled: ClassVar[tuple[str, ...]] = ("group",)
    _prefixes: RolePrefixes = field(default_factory=RolePrefixes, init=False, repr=False, compare=False)
    _notes: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown pick or a group that is none."""
        one_of("pick", self.pick, get_args(Pick))
        if self.group and not (len(self.group) == 2 and 0 <= self.group[0] <= self.group[1]):
            raise ValueError(f"group must be [first, last] with 0 <= first <= last, or [], got {list(self.group)}")

    def limits(self, layers: int) -> Limits:
        """See :class:`methods.limits.Limits`; a group that waits for a profile is the middle third."""
        middle = {} if self.group is not None else {"group": [layers // 3, 2 * layers // 3]}
        return Limits(reusing=middle, dense={"group": [0, layers - 1]}, reuse={"group": []})

    def bind(self, shape: Shape, seed: int) -> None:
        if self.group is None:
            raise ValueError("group is not set: give [first, last], or a profile that names it")
        if self.group and self.group[1] >= shape.layers:
            raise ValueError(f"group {list(self.group)} must end below layer {shape.layers}, the model has no more")
        super().bind(shape, seed)

    def plan(self, hop: Hop, engine: Engine) -> Plan:
        self._notes = {}
        if hop.warmup or self.group is None:
            return Dense()
        return self.recompute(hop, self.group, self._prefixes.rows(hop) if self.role_cache else None)

    def recompute(self, hop: Hop, group: Sequence[int], role: Rows | None = None) -> Plan:
        """Relay what the hop's sources hold and recompute the layers of ``group``; dense if nobody holds anything.

        ``role`` are rows of segment 0, the agent's role prompt.
        """
        sources = self.relayed(hop, hop.sources if self.chained else hop.first)
        if not sources:
            return Dense()
        rows: dict[int, Rows] = {} if role is None else {0: role}
        rows |= {index: source.kv for index, source in sources.items()}
        schedule: RowSchedule = FreshRows()
        if group:
            entry = Entry.of(group[0], sources)
            schedule = LayerGroup(entry, group[1])
            self._notes = {"shipped_bytes": float(entry.nbytes)}
        return Reuse(rows, schedule)

    @property
    def requires(self) -> frozenset[Ability]:
        return frozenset({Ability.row_schedule, Ability.hidden_states})

    @property
    def captures(self) -> frozenset[int]:
        return frozenset(self.group[:1]) - {0} if self.group else frozenset()

    def notes(self) -> Mapping[str, float]:
        return self._notes

    def profiler(self, shape: Shape, grain: Grain) -> Profiler:
        return GroupProfiler(shape.layers, grain, self.recompute)
