"""The scheduler side: what every request of the engine asked for, what the workers answered, and what to order next.

Pure bookkeeping on ids and ranges, without tensors or vLLM. Nothing here raises on a request's account: the engine
serves others too, so a request that cannot be understood runs dense and says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from harness.backends.vllm_call import KEY, Call, Encode, parse
from harness.backends.vllm_entry import Entry
from harness.backends.vllm_figures import Figures
from harness.backends.vllm_orders import (
    Forget,
    Learned,
    Load,
    Observe,
    Order,
    Plan,
    Report,
    Route,
    Verdict,
)

Blocks = Callable[[str], Sequence[int]]


class Directory:
    """All requests of one engine.

    Args:
        gaps: the scheduler can skip rows in the middle of a prompt; else only its beginning can be loaded.
        encodes: somebody sends the encodes that plans ask for (see :meth:`take_needs`).

    Attributes:
        heard: by request, what the workers made of it, for somebody in this process who takes it out; None if nobody
            listens.
    """

    def __init__(self, gaps: bool, encodes: bool = False) -> None:
        self.gaps, self.encodes = gaps, encodes
        self.entries: dict[str, Entry] = {}
        self.figures = Figures()
        self.heard: dict[str, Learned] | None = None
        self._orders: list[Order] = []
        self._needs: dict[tuple[str, tuple[int, ...]], None] = {}
        self._running: dict[tuple[str, int], str] = {}
        self._finished: dict[str, set[int]] = {}

    def arrive(self, request: str, found: Any, ids: Sequence[int], salted: bool) -> None:
        """A request with the ``kv_transfer_params`` ``found``; one that asks for nothing is left alone."""
        entry = Entry(None, tuple(ids), salted)
        try:
            entry.call = parse(found)
            if entry.call is None:
                return
            if isinstance(entry.call, Call):
                entry.call.prompt(entry.ids)
        except ValueError as error:
            entry.call, entry.failure = None, f"the request is not understood: {error}"
        if isinstance(entry.call, Call):
            key = (entry.call.trajectory, entry.call.hop)
            if key in self._running or entry.call.hop in self._finished.get(entry.call.trajectory, ()):
                entry.call, entry.failure = None, f"hop {key[1]} of trajectory {key[0]} was called before"
            else:
                self._running[key] = request
        self.entries[request] = entry

    def match(self, request: str, local: int) -> int | None:
        """Rows that can be loaded behind the ``local`` ones that vLLM has; None if that is not known yet."""
        entry = self.entries.get(request)
        if entry is None:
            return 0
        if entry.started_s is None:
            entry.started_s = time.perf_counter()
        if not isinstance(entry.call, Call):
            return 0
        if entry.verdict is None or entry.verdict.needs:
            if not entry.asked and not any((entry.call.trajectory, hop) in self._running for hop in entry.call.sources):
                self._orders.append(Plan(request, entry.call, entry.ids))
                entry.asked = True
            return None
        entry.local, end = local, local
        for start, stop in entry.usable:
            if start <= end < stop:
                end = stop
        return end - local

    def granted(self, request: str, external: int) -> None:
        """The request is admitted, with ``external`` rows to load."""
        entry = self.entries.get(request)
        if entry is not None:
            entry.gap, entry.loads = None, [(entry.local, entry.local + external)] if external else []

    def skip(self, request: str, computed: int) -> int | None:
        """With gaps: where a running request goes on that has ``computed`` rows, if it need not compute the next."""
        entry = self.entries.get(request)
        for start, stop in entry.usable if entry is not None and self.gaps else ():
            if entry is not None and start <= computed < stop:
                entry.gap = (computed, stop)
                return stop
        return None

    def room(self, request: str, computed: int) -> int | None:
        """With gaps: rows left until the next ones that need not be computed."""
        entry = self.entries.get(request)
        ahead = [start for start, _ in (entry.usable if entry and self.gaps else ()) if start > computed]
        return min(ahead) - computed if ahead else None

    def orders(self, scheduled: Iterable[tuple[str, int, int]], blocks: Blocks) -> list[Order]:
        """What the workers do in a step that runs, by request, rows [computed, computed + count)."""
        for request, computed, count in scheduled:
            entry = self.entries.get(request)
            if entry is None:
                continue
            if entry.gap is not None and entry.gap[1] == computed:
                entry.loads.append(entry.gap)
            entry.gap = None
            for rows in entry.loads:
                self._orders.append(Load(request, rows, tuple(blocks(request))))
            entry.loaded += entry.loads
            entry.loads = []
            if computed < len(entry.ids):
                entry.ran.append((computed, min(computed + count, len(entry.ids))))
        out, self._orders = self._orders, []
        return out

    def report(self, report: Report) -> None:
        """What the workers made of their orders."""
        for request, verdict in report.verdicts.items():
            if (entry := self.entries.get(request)) is not None:
                self._decide(request, entry, verdict)
        for request, seconds in report.loaded.items():
            if (entry := self.entries.get(request)) is not None:
                entry.load_s += seconds
            self.figures.load_s += seconds
        for request, why in report.failed.items():
            if (entry := self.entries.get(request)) is not None:
                entry.failure, entry.gap = f"a load failed: {why}", None
        for request, learned in report.learned.items():
            self._learn(request, learned)
        for trajectory in report.ended:
            self._finished.pop(trajectory, None)

    def finish(self, request: str, ids: Sequence[int], held: int, blocks: Sequence[int]) -> tuple[bool, dict[str, Any]]:
        """The request has its answer: whether its blocks must stay until the workers have learned from it, and what
        its client hears."""
        entry = self.entries[request]
        self._leave(entry)
        if isinstance(entry.call, Call):
            self._finished.setdefault(entry.call.trajectory, set()).add(entry.call.hop)
        facts = entry.facts()
        if entry.call is None:
            del self.entries[request]
            self.figures.count(facts, entry.failure)
            return False, {KEY: facts}
        held = min(held, len(ids) - 1)
        self._orders.append(
            Observe(request, entry.call, tuple(ids), len(entry.ids), held, tuple(blocks), entry.computed, entry.exact)
        )
        if isinstance(entry.call, Call):
            self.figures.count(facts, entry.failure)
        return True, {KEY: facts}

    def abort(self, request: str) -> None:
        """The request ended without an answer; its hop may be called again."""
        entry = self.entries.pop(request, None)
        if entry is None:
            return
        self._leave(entry)
        self._orders.append(Forget(request))
        if isinstance(entry.call, Encode):
            self._give_up((entry.call.trajectory, entry.ids), "an encode was aborted")

    def take_needs(self) -> list[tuple[str, tuple[int, ...]]]:
        """Trajectories and the ids that are to be encoded for them, each once."""
        out = list(self._needs)
        self._needs.clear()
        return out

    def forget(self, trajectory: str | None = None) -> None:
        """The trajectory was ended from outside; None for all that are not on their way."""
        if trajectory is None:
            self._finished.clear()
        else:
            self._finished.pop(trajectory, None)

    @property
    def pending(self) -> bool:
        """Whether orders wait for the next step."""
        return bool(self._orders)

    def _decide(self, request: str, entry: Entry, verdict: Verdict) -> None:
        entry.match_s += verdict.match_s
        self.figures.match_s += verdict.match_s
        if verdict.needs and isinstance(entry.call, Call):
            if not self.encodes:
                verdict = Verdict(failure="nobody sends the encode that the plan asks for; set backend.gaps=true")
            elif verdict.needs != (entry.verdict.needs if entry.verdict else ()):
                self._needs[entry.call.trajectory, verdict.needs] = None
                entry.needed_s = time.perf_counter()
            else:
                verdict = Verdict(failure="the plan asks for the same encode again")
        entry.verdict, entry.failure = verdict, verdict.failure if verdict.route is Route.dense else ""
        if verdict.route is Route.reuse and not entry.salted:
            entry.failure = "the request has no cache_salt, and approximate rows must not be taken for exact ones"

    def _learn(self, request: str, learned: Learned) -> None:
        entry = self.entries.pop(request, None)
        if self.heard is not None:
            self.heard[request] = learned
        if entry is None:
            return
        if isinstance(entry.call, Encode):
            for other in self.entries.values():
                waits = isinstance(other.call, Call) and other.call.trajectory == entry.call.trajectory
                if waits and other.verdict is not None and other.verdict.needs == entry.ids:
                    other.asked = False
                    other.encode_s += time.perf_counter() - (other.needed_s or time.perf_counter())
            return
        self.figures.learn_s += learned.seconds
        self.figures.base_bytes, self.figures.correction_bytes = learned.base_bytes, learned.correction_bytes
        if isinstance(entry.call, Call) and entry.call.last:
            self._finished.pop(entry.call.trajectory, None)

    def _give_up(self, need: tuple[str, tuple[int, ...]], why: str) -> None:
        for entry in self.entries.values():
            waits = isinstance(entry.call, Call) and entry.call.trajectory == need[0]
            if waits and entry.verdict is not None and entry.verdict.needs == need[1]:
                entry.verdict, entry.failure = Verdict(failure=why), why

    def _leave(self, entry: Entry) -> None:
        if isinstance(entry.call, Call):
            self._running.pop((entry.call.trajectory, entry.call.hop), None)
