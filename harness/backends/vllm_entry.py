"""One request as the scheduler side knows it: what it asked for, what was decided, which rows ran and were loaded."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from harness.backends.vllm_call import Call, Encode
from harness.backends.vllm_orders import Range, Route, Verdict, merged


@dataclass(eq=False)
class Entry:
    """One request.

    Attributes:
        call: what it asked for; None if that cannot be understood.
        ids: its prompt; salted: whether it has a cache salt.
        failure: why it runs dense although more was asked.
        asked: the method has been asked to plan.
        local: rows that vLLM's own prefix cache held at admission.
        loads: rows to load in the step that schedules it next; gap: the same, granted only if it is scheduled from
            there.
        ran, loaded: prompt rows that ran, and that were loaded.
        match_s, load_s, encode_s: seconds of planning, of reconstruction and writing, of waiting for encodes.
        started_s: reading of the performance counter when the engine first turned to it.
    """

    call: Call | Encode | None
    ids: tuple[int, ...]
    salted: bool
    failure: str = ""
    asked: bool = False
    verdict: Verdict | None = None
    local: int = 0
    loads: list[Range] = field(default_factory=list)
    gap: Range | None = None
    ran: list[Range] = field(default_factory=list)
    loaded: list[Range] = field(default_factory=list)
    match_s: float = 0.0
    load_s: float = 0.0
    encode_s: float = 0.0
    started_s: float | None = None
    needed_s: float | None = None

    @property
    def usable(self) -> tuple[Range, ...]:
        """Rows that may be loaded."""
        if self.verdict is None or self.failure or self.verdict.route not in (Route.reuse, Route.exact):
            return ()
        return self.verdict.ranges

    @property
    def computed(self) -> int:
        return _size(self.ran)

    @property
    def reused(self) -> int:
        return sum(_outside(r, self.ran) for r in merged(self.loaded))

    @property
    def exact(self) -> bool:
        """Whether every row ran, or is what a dense run would hold."""
        if self.verdict is not None and self.verdict.route is Route.reuse and self.reused:
            return False
        head = self.call.pieces[0] if isinstance(self.call, Call) and self.call.pieces else None
        private = head.tokens if head is not None and not head.span else 0
        # Under a salt, vLLM's own cache holds exact rows of the role prompt, and behind it maybe approximate ones.
        return not self.salted or self.local <= private

    @property
    def route(self) -> str:
        """As records call it."""
        if self.verdict is not None and self.verdict.route is Route.refused:
            return "fallback"
        return "reuse" if self.reused and self.verdict is not None and self.verdict.route is Route.reuse else "dense"

    def facts(self) -> dict[str, Any]:
        """What records and clients hear of a request; durations in seconds, rows as counts."""
        verdict = self.verdict or Verdict()
        shared = 0
        if isinstance(self.call, Call):
            shared = sum(
                _within(r, (p.start, p.stop)) for p in self.call.prompt(self.ids).shared() for r in merged(self.loaded)
            )
        return {
            "route": self.route,
            "prompt": len(self.ids),
            "computed": self.computed,
            "reused": self.reused,
            "shared": shared,
            "local": self.local,
            "match_s": self.match_s,
            "load_s": self.load_s,
            "encode_s": self.encode_s,
            "started_s": self.started_s or time.perf_counter(),
            "failure": self.failure or verdict.failure,
            "notes": dict(verdict.notes),
        }


def _size(ranges: list[Range]) -> int:
    return sum(stop - start for start, stop in merged(ranges))


def _within(one: Range, other: Range) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))


def _outside(one: Range, others: list[Range]) -> int:
    return one[1] - one[0] - sum(_within(one, other) for other in merged(others))
