"""The transformers engine as a service: one call at a time, the one that was due first.

It does not batch and does not interrupt a call: what waits meanwhile is queueing, and what a method learns after a call
holds up the next one.
"""

from __future__ import annotations

import copy
import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from harness.backends.hf import HF
from harness.backends.hf_facts import LoadedModel
from harness.backends.hf_run import Decoding
from harness.hop import HopRun, SpanCaches
from harness.provenance import RanModel
from harness.service import Answer, Call, Failed
from harness.serving import EngineFigures
from harness.traffic.occupancy import Occupancy, covered
from methods.base import Hop, Method, StateBytes


@dataclass
class Log(Occupancy):
    """Since :meth:`HFService.begin`."""

    held_bytes_peak: int = 0


class HFService:
    """See :class:`harness.service.Service`."""

    simulated = False
    label = "hf, one call at a time"

    def __init__(self, backend: HF, loaded: LoadedModel, method: Method, seed: int) -> None:
        self.backend, self.loaded, self.pristine, self.seed = backend, loaded, method, seed
        self.reset(0)

    @property
    def layers(self) -> int:
        return self.backend.shape.layers

    @property
    def model(self) -> RanModel:
        return self.loaded.provenance()

    def reset(self, repeat: int) -> None:
        self.method = copy.deepcopy(self.pristine)
        self.method.bind(self.backend.shape, self.seed + repeat)
        self.queue: list[tuple[float, int, Call, float]] = []
        self.caches: dict[str, SpanCaches] = {}
        self.count = 0
        self.begin()

    def begin(self) -> None:
        self.epoch = self.backend.clock.now()
        self.free_s = 0.0
        self.log = Log()

    def now(self) -> float:
        return self.backend.clock.now() - self.epoch

    def submit(self, call: Call) -> None:
        # While the engine was at work nobody could hand it anything: that time is the queue's.
        late_s = max(0.0, self.now() - max(call.due_s, self.free_s))
        heapq.heappush(self.queue, (call.due_s, self.count, call, call.due_s + late_s))
        self.count += 1

    def advance(self, until_s: float) -> Sequence[Answer | Failed]:
        if not self.queue:
            if until_s != float("inf"):
                time.sleep(max(0.0, until_s - self.now()))
            return ()
        _, _, call, dispatched_s = heapq.heappop(self.queue)
        started_s = self.now()
        try:
            result: Answer | Failed = self._run(call, dispatched_s, started_s)
        except (torch.OutOfMemoryError, MemoryError) as error:
            result = self._failed(call, error, out_of_memory=True)
        except Exception as error:  # a call that fails is an answer of its own; the others go on
            result = self._failed(call, error)
        self.free_s = self.now()
        self.log.waiting.append((dispatched_s, started_s))
        self.log.running.append((started_s, self.free_s))
        return (result,)

    def end(self, trajectory: str) -> None:
        self.method.end(trajectory)
        self.caches.pop(trajectory, None)
        self.free_s = self.now()

    def state_bytes(self) -> StateBytes:
        return self.method.state_bytes()

    def figures(self) -> EngineFigures:
        found = self.log.figures(self.now(), covered(self.log.running))
        return replace(found, held_bytes_peak=self.log.held_bytes_peak, slots=1)

    def _run(self, call: Call, dispatched_s: float, started_s: float) -> Answer:
        caches = self.caches.setdefault(call.trajectory, SpanCaches())
        upstream, first = caches.sources(call.upstream), caches.sources(call.first)
        hop = Hop(call.trajectory, call.index, call.agent, call.prompt, upstream, first, call.warmup)
        going = HopRun(self.method, self.backend, hop)
        going.decide()
        run = going.execute(Decoding(call.output_tokens))
        ended_s = self.now()

        def hand_on() -> None:
            for keep in call.keeps:
                caches.keep(hop, run, keep.span, keep.start, keep.stop, keep.until)
            caches.drop_used(call.index)
            self.log.held_bytes_peak = max(self.log.held_bytes_peak, sum(c.nbytes for c in self.caches.values()))

        going.learn(run, hand_on)
        return Answer(
            id=call.id,
            route=going.route,
            dispatched_s=dispatched_s,
            started_s=started_s,
            first_token_s=run.first_token_at - self.epoch,
            ended_s=ended_s,
            learned_s=self.now(),
            output_ids=run.output_ids,
            fresh_token_layers=sum(run.fresh_rows),
            phases=going.phases(run),
            notes=going.notes(),
        )

    def _failed(self, call: Call, error: BaseException, out_of_memory: bool = False) -> Failed:
        found = Failed.of(call, self.now(), error, out_of_memory)
        if self.backend.shape.device.type == "cuda":
            torch.cuda.empty_cache()
        return found
