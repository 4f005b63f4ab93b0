"""A run on an engine that serves many requests at once: samples in blocks, each a row whatever happens.

Samples of a block are on their way together and all plan against what the blocks before have taught. When the block is
through, what its samples taught is committed in their order, and their rows are written. So answers do not depend on
which hop was faster, and a resumed run goes on at the beginning of a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from omegaconf import DictConfig

from harness.config import Choices
from harness.errors import UserError
from harness.progress import counted
from harness.records import Row, StateSize, Status
from harness.samples import Turn, failed, finished, peak_bytes
from harness.sampling import Sampling
from harness.service import Answer, Call, Failed, Server, Service
from harness.trajectory import Finished
from harness.walk import Walk
from harness.workload import Workload
from methods.base import Snapshot


class BatchService(Service, Protocol):
    """A service whose calls may end at a stop token, and whose method's state can be kept."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a turn."""

    def submit(self, call: Call, stop_ids: frozenset[int] = frozenset(), plain: bool = False) -> None:
        """As :meth:`harness.service.Service.submit`; at most ``output_tokens`` are generated. The method has no part in
        a ``plain`` call."""

    def snapshot(self) -> Snapshot | None: ...

    def restore(self, snapshot: Snapshot) -> None: ...


@runtime_checkable
class BatchServer(Server, Protocol):
    """A backend with such a service; ``concurrency`` is the number of samples of a block."""

    concurrency: int


def refuse(cfg: DictConfig, names: Choices, workload: Workload) -> None:
    """What needs an engine of one request at a time. Raises UserError naming it."""
    asked = [f"{option}=true" for option in ("shadow", "teacher_forcing") if cfg[option]]
    if workload.shadow and not asked:
        asked = [f"task={names.task}, which measures every hop against dense,"]
    if workload.media:
        asked.append(f"task={names.task}, which shows pictures or clips,")
    if asked:
        raise UserError(f"{asked[0]} is not there with backend={names.backend}; use backend=hf")


class Served(Sampling):
    """Samples in blocks on a service; see :class:`harness.execution.Execution` for one after the other."""

    def execute(self, prompt_sha256: str) -> None:
        """Run what is not done, a block at a time."""
        parts, names = self.parts, self.names
        with parts.backend.serve(parts.model, parts.method, names.method, int(self.cfg.seed)) as service:
            self.script = self.workload.write(parts.model.tokenizer(), service.stop_ids, None)
            self.begin(service.model, service.layers, prompt_sha256)
            done = self._resume(service)
            with counted(f"{names.method} on {parts.task.name}", len(self.turns), done) as advance:
                for block in self._blocks(done):
                    if block[0] is self._first_of(block[0].repeat):
                        service.reset(block[0].repeat)
                    for row in self._run(service, block):
                        self.store.append(row)
                        advance()
                    snapshot = service.snapshot()
                    if snapshot is not None:
                        self.store.save_state(snapshot)

    def _resume(self, service: BatchService) -> int:
        """Rows that are finished; the service goes on as of the last of them."""
        if not self.store.rows:
            return 0
        service.reset(0)
        done, snapshot = self.resume(service.snapshot() is not None)
        if done:
            service.reset(self.turns[done - 1].repeat)
        if snapshot is not None:
            service.restore(snapshot)
        return done

    def _first_of(self, repeat: int) -> Turn:
        return next(turn for turn in self.turns if turn.repeat == repeat)

    def _blocks(self, done: int) -> Iterator[list[Turn]]:
        """The turns that are not done; a block lies within a repeat."""
        block: list[Turn] = []
        for turn in self.turns[done:]:
            if block and (len(block) == self.parts.backend.concurrency or turn.repeat != block[0].repeat):
                yield block
                block = []
            block.append(turn)
        if block:
            yield block

    def _run(self, service: BatchService, block: Sequence[Turn]) -> Iterator[Row]:
        """The rows of a block, in its order, each after its sample's lessons are committed."""
        walks = {t.case.sample_id: Walk(t.case, self.script, service.stop_ids) for t in block if not t.case.missing}
        failures = dict[str, Failed]()
        for walk in walks.values():
            service.submit(*walk.call(service.now()), plain=walk.plain)
        while any(not w.over and name not in failures for name, w in walks.items()):
            answers = service.advance(float("inf"))
            if not answers:
                raise RuntimeError("the engine is idle while samples wait for it")
            for answer in answers:
                name = answer.id.rpartition("#")[0]
                if isinstance(answer, Failed):
                    failures[name] = answer
                else:
                    self._take(service, walks[name], answer)
        for turn in block:
            yield self._row(service, turn, walks.get(turn.case.sample_id), failures.get(turn.case.sample_id))

    def _take(self, service: BatchService, walk: Walk, answer: Answer) -> None:
        walk.take(answer, service.state_bytes())
        begin = service.now()
        walk.use_tool()
        if not walk.over:
            walk.aside_s += service.now() - begin
            service.submit(*walk.call(service.now()), plain=walk.plain)

    def _row(self, service: BatchService, turn: Turn, walk: Walk | None, failure: Failed | None) -> Row:
        if walk is None:
            return failed(turn, Status.missing, turn.case.missing)
        service.end(turn.case.sample_id)
        if failure is not None:
            self.note(turn.case.sample_id, failure.traceback or failure.message)
            return failed(turn, Status.oom if failure.out_of_memory else Status.error, failure.message)
        size = service.state_bytes()
        done = Finished(walk.hops, walk.final, self.script.judge(turn.case, walk.final), walk.seconds)
        raw = self.script.text(walk.final)
        return finished(turn, raw, done, StateSize.of(size.base, size.correction), peak_bytes(None))
