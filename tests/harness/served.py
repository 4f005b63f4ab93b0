"""Services and small traces for tests of open-loop load."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from harness.provenance import RanModel
from harness.records import Phases, Route
from harness.service import Answer, Call, EngineFigures, Failed
from harness.traffic.plan import Plan, plan
from harness.traffic.text import Text
from methods.base import StateBytes
from traces.agents import Agents
from traces.content import ids

AGENTS = Agents(
    trajectories=3,
    agents=3,
    system_tokens=8,
    shared_tokens=20,
    private_tokens=4,
    glue_tokens=2,
    output_tokens=5,
    tail_tokens=3,
    qps=3.0,
    arrivals="deterministic",
)


def words(seed: int = 0, vocab: int = 250) -> Text:
    return lambda piece: tuple(ids(piece, seed, 1, vocab).tolist())


def agents_plan(warmup: int = 0, **changes: object) -> Plan:
    options = {**AGENTS.__dict__, **changes}
    return plan(Agents(**options).trace(), warmup, None)


class Scripted:
    """One call at a time, ``seconds`` each, first token half way; calls whose id is in ``broken`` fail."""

    layers, simulated, label = 2, True, "scripted"
    model = RanModel(id="none", dtype="none", device="none", attention="none", kernels="none")

    def __init__(self, seconds: float = 1.0, broken: frozenset[str] = frozenset(), short: frozenset[str] = frozenset()):
        self.seconds, self.broken, self.short = seconds, broken, short
        self.calls: list[Call] = []
        self.ended: list[str] = []
        self.reset(0)

    def reset(self, repeat: int) -> None:
        self.queue: list[tuple[float, int, Call]] = []
        self.clock_s, self.count = 0.0, 0

    def begin(self) -> None:
        self.clock_s = 0.0

    def now(self) -> float:
        return self.clock_s

    def submit(self, call: Call) -> None:
        assert call.due_s <= self.clock_s, "a call was submitted before it was due"
        self.calls.append(call)
        heapq.heappush(self.queue, (call.due_s, self.count, call))
        self.count += 1

    def advance(self, until_s: float) -> Sequence[Answer | Failed]:
        if not self.queue:
            if until_s < math.inf:
                self.clock_s = max(self.clock_s, until_s)
            return ()
        _, _, call = heapq.heappop(self.queue)
        started_s, self.clock_s = self.clock_s, self.clock_s + self.seconds
        if call.id in self.broken:
            return (Failed(call.id, self.clock_s, "ValueError: broken", traceback="a traceback"),)
        tokens = call.output_tokens - (call.id in self.short)
        return (
            Answer(
                id=call.id,
                route=Route.reuse if call.upstream else Route.dense,
                dispatched_s=call.due_s,
                started_s=started_s,
                first_token_s=started_s + self.seconds / 2,
                ended_s=self.clock_s,
                learned_s=self.clock_s,
                output_ids=tuple(100 + i for i in range(tokens)),
                fresh_token_layers=self.layers * (10 if call.upstream else len(call.prompt)),
                phases=Phases(prefill_s=self.seconds / 2, decode_s=self.seconds / 2),
            ),
        )

    def end(self, trajectory: str) -> None:
        self.ended.append(trajectory)

    def state_bytes(self) -> StateBytes:
        return StateBytes()

    def figures(self) -> EngineFigures:
        return EngineFigures(seconds=self.clock_s, busy_share=0.5)
