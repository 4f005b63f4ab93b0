"""What the scheduler side of the connector and its workers tell each other, once per engine step.

The scheduler side knows requests, blocks and verdicts, no tensors; a worker knows tensors. Orders go down, a report
comes back up; with several ranks the reports are merged, and a hop reuses only what all ranks agree on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from harness.backends.vllm_call import Call, Encode

Range = tuple[int, int]


class Route(StrEnum):
    """What a method decided. ``exact``: reuse of bit-true rows only."""

    dense = "dense"
    refused = "refused"
    reuse = "reuse"
    exact = "exact"


@dataclass(frozen=True)
class Plan:
    """Let the method plan a hop; the verdict comes back in the report."""

    request: str
    call: Call
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Load:
    """Write planned rows ``[start, stop)`` of a request into its blocks, before this step's forward."""

    request: str
    rows: Range
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Observe:
    """A request has ended and its blocks are still there: let the method learn, keep what later hops read.

    Attributes:
        ids: prompt and output; held: rows in its blocks.
        computed: prompt rows that ran; dense: all of them did, or the others are exact.
    """

    request: str
    call: Call | Encode
    ids: tuple[int, ...]
    prompt_tokens: int
    held: int
    blocks: tuple[int, ...]
    computed: int
    dense: bool


@dataclass(frozen=True)
class Forget:
    """A request ended without an answer."""

    request: str


Order = Plan | Load | Observe | Forget


@dataclass(frozen=True)
class Verdict:
    """What came of a plan.

    Attributes:
        ranges: covered rows, merged and in order, never the last row of the prompt.
        needs: ids that must be encoded alone before the method can decide; then there is nothing else.
        failure: why the hop runs dense although the method did not want that.
        notes: the method's facts about its plan.
    """

    route: Route = Route.dense
    ranges: tuple[Range, ...] = ()
    match_s: float = 0.0
    needs: tuple[int, ...] = ()
    failure: str = ""
    notes: Mapping[str, float] = field(default_factory=dict)

    def merge(self, other: Verdict) -> Verdict:
        """What two ranks can both do: the same, or dense."""
        worst = replace(self, match_s=max(self.match_s, other.match_s))
        if (self.route, self.ranges, self.needs, bool(self.failure)) == (
            other.route, other.ranges, other.needs, bool(other.failure)
        ):  # fmt: skip
            return worst
        failure = self.failure or other.failure or "ranks disagree"
        return Verdict(Route.dense, (), worst.match_s, failure=failure, notes=self.notes)


@dataclass(frozen=True)
class Learned:
    """What came of an observation: its seconds, and what the method holds afterwards (bytes of all ranks)."""

    seconds: float
    base_bytes: int = 0
    correction_bytes: int = 0

    def merge(self, other: Learned) -> Learned:
        return Learned(
            max(self.seconds, other.seconds),
            self.base_bytes + other.base_bytes,
            self.correction_bytes + other.correction_bytes,
        )


@dataclass(frozen=True)
class Report:
    """What the orders of one step led to.

    Attributes:
        loaded: seconds of the loads by request.
        failed: requests whose load failed, and why; their rows are computed instead.
        ended: trajectories that a worker ended to stay inside its limits.
    """

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    loaded: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    learned: Mapping[str, Learned] = field(default_factory=dict)
    ended: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.verdicts or self.loaded or self.failed or self.learned or self.ended)

    def merge(self, other: Report) -> Report:
        """The report of two ranks, which got the same orders."""
        return Report(
            {k: v.merge(other.verdicts[k]) for k, v in self.verdicts.items()},
            {k: max(v, other.loaded.get(k, 0.0)) for k, v in self.loaded.items()},
            {**self.failed, **other.failed},
            {k: v.merge(other.learned[k]) for k, v in self.learned.items()},
            self.ended | other.ended,
        )


def merged(ranges: list[Range]) -> tuple[Range, ...]:
    """Touching and overlapping ranges joined, empty ones left out, in order."""
    out = list[Range]()
    for start, stop in sorted(r for r in ranges if r[0] < r[1]):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(stop, out[-1][1]))
        else:
            out.append((start, stop))
    return tuple(out)
