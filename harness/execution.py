"""The expensive part of a run: a loaded model, and samples one after the other, each a row whatever happens."""

from __future__ import annotations

import copy
import resource
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from harness.backends.hf_model import LoadedModel
from harness.backends.hf_rope import shape_of
from harness.config import Choices
from harness.judged import judged
from harness.progress import counted
from harness.provenance import ModelFacts, collect
from harness.records import Row, StateSize, Status
from harness.script import Case
from harness.store import RunFolder
from harness.summarise import Heading
from harness.tasks.base import Executed
from harness.trajectory import Runner
from harness.validate import Parts
from harness.verified import verified
from harness.workload import Workload
from kernels.dispatch import describe, using
from methods.base import Method, Shape

OOM_LIMIT = 3  # after so many samples in a row without memory, the rest is recorded as such and not tried


@dataclass(frozen=True)
class Turn:
    """A sample at its place in the run's order."""

    repeat: int
    case: Case


def in_order(cases: Sequence[Case], repeats: int, seed: int) -> list[Turn]:
    """Samples of all repeats: the first in the data's order, the others permuted (warm-up always first), so that
    pools meet the samples in another order."""
    turns = []
    for repeat in range(repeats):
        warm, measured = [c for c in cases if c.warmup], [c for c in cases if not c.warmup]
        if repeat:
            order = np.random.default_rng([seed, repeat]).permutation(len(measured))
            measured = [measured[i] for i in order]
        turns += [Turn(repeat, case) for case in (*warm, *measured)]
    return turns


class Execution:
    """The expensive part of a run: a loaded model and the samples that are not done yet."""

    def __init__(
        self,
        cfg: DictConfig,
        parts: Parts,
        workload: Workload,
        names: Choices,
        store: RunFolder,
        cases: Sequence[Case],
    ) -> None:
        self.cfg, self.parts, self.workload, self.names, self.store = cfg, parts, workload, names, store
        self.turns = in_order(cases, cfg.repeats, cfg.seed)
        self.loaded: LoadedModel = parts.model.load()
        self.shape: Shape = shape_of(self.loaded.model)
        parts.backend.attach(self.loaded.model, self.shape, self.loaded.reader)
        self.pristine: Method = parts.method
        self.script = workload.write(self.loaded.tokenizer, frozenset(self.loaded.stop_ids), self.loaded.reader)
        self.command = ""

    @property
    def heading(self) -> Heading:
        names = self.names
        target = str(self.cfg.method._target_)
        return Heading(
            task=str(self.parts.task.name),
            method=names.method,
            model=names.model,
            backend=names.backend,
            layers=self.shape.layers,
            command=self.command,
            programs=isinstance(self.parts.task, Executed),
            verified=verified(names.method, names.model, self.loaded.facts.revision, target),
            built_from=str(self.cfg.method.get("fidelity") or ""),
            glue=str(self.cfg.method.get("glue") or "recompute"),
            teacher_forcing=bool(self.cfg.teacher_forcing),
            early=int(self.cfg.early),
        )

    def execute(self, prompt_sha256: str) -> None:
        """Run what is not done, a row at a time, on the chosen kernels."""
        with using(self.parts.backend.kernels):
            self._execute(prompt_sha256)

    def _execute(self, prompt_sha256: str) -> None:
        session = collect(self._model_facts(), self.workload.data, prompt_sha256)
        self.command = session.command
        self.store.begin(session)
        method, done = self._resume()
        failures = 0
        with counted(f"{self.names.method} on {self.parts.task.name}", len(self.turns), done) as advance:
            for index in range(done, len(self.turns)):
                turn = self.turns[index]
                if method is None or (index and self.turns[index - 1].repeat != turn.repeat):
                    method = self._fresh(turn.repeat)
                method, row = self._sample(method, turn, failures >= OOM_LIMIT)
                failures = failures + 1 if row.status is Status.oom else 0
                self.store.append(row)
                snapshot = method.snapshot()
                if snapshot is not None:
                    self.store.save_state(snapshot)
                advance()

    def _resume(self) -> tuple[Method | None, int]:
        """The method as of the last finished row, and how many rows are finished."""
        if not self.store.rows:
            return None, 0
        method = self._fresh(self.turns[max(len(self.store.rows) - 1, 0)].repeat)
        if method.snapshot() is not None:
            resumed = self.store.resume_state()
            if resumed.warning:
                print(f"warning: {resumed.warning}", file=sys.stderr)
            if resumed.snapshot is None:
                return None, 0
            method = self._fresh(self.turns[max(len(self.store.rows) - 1, 0)].repeat)
            method.restore(resumed.snapshot)
        return method, len(self.store.rows)

    def _fresh(self, repeat: int) -> Method:
        """The method with empty pools; each repeat has its own, and its own sketch seed."""
        method = copy.deepcopy(self.pristine)
        method.bind(self.shape, int(self.cfg.seed) + repeat)
        return method

    def _sample(self, method: Method, turn: Turn, hopeless: bool) -> tuple[Method, Row]:
        """One row, whatever happens; a method that failed half way goes back to where it was before the sample."""
        case, before = turn.case, method.snapshot()
        if case.missing:
            return method, self._failed(turn, Status.missing, case.missing)
        if hopeless:
            message = f"not run: {OOM_LIMIT} samples in a row ran out of memory"
            return method, self._failed(turn, Status.oom, message)
        runner = Runner(
            method,
            self.parts.backend,
            self.script,
            frozenset(self.loaded.stop_ids),
            bool(self.cfg.shadow) or self.workload.shadow,
            bool(self.cfg.teacher_forcing),
        )
        self._reset_peak()
        try:
            done = runner.run(case)
        except (torch.OutOfMemoryError, MemoryError) as error:
            return self._back(turn, before), self._failed(turn, Status.oom, _first_line(error))
        except Exception as error:  # a sample that fails is a row with a status, never the end of the run
            self._log_failure(case)
            return self._back(turn, before), self._failed(turn, Status.error, _first_line(error))
        size = method.state_bytes()
        status, program, message = judged(done.verdict)
        return method, Row(
            sample_id=case.sample_id,
            repeat=turn.repeat,
            subject=case.subject,
            status=status,
            message=message,
            prediction=done.verdict.prediction,
            target=case.target,
            correct=done.verdict.correct,
            program=program,
            raw=self.script.text(done.final_ids),
            e2e_s=done.seconds,
            peak_bytes=self._peak_bytes(),
            state_bytes=StateSize.of(size.base, size.correction),
            media=done.media,
            hops=done.hops,
        )

    def _log_failure(self, case: Case) -> None:
        with (self.store.path / "errors.log").open("a", encoding="utf-8") as log:
            log.write(f"sample {case.sample_id}\n{traceback.format_exc()}\n")

    def _failed(self, turn: Turn, status: Status, message: str) -> Row:
        case = turn.case
        return Row(
            sample_id=case.sample_id,
            repeat=turn.repeat,
            subject=case.subject,
            status=status,
            target=case.target,
            message=message,
        )

    def _back(self, turn: Turn, before: Any) -> Method:
        method = self._fresh(turn.repeat)
        if before is not None:
            method.restore(before)
        if self.shape.device.type == "cuda":
            torch.cuda.empty_cache()
        return method

    def _reset_peak(self) -> None:
        if self.shape.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.shape.device)

    def _peak_bytes(self) -> int:
        """Largest memory in use: of the CUDA allocator since the sample began, else of the process so far."""
        if self.shape.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.shape.device)
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def _model_facts(self) -> ModelFacts:
        loaded = self.loaded
        return ModelFacts(
            id=loaded.facts.name,
            revision=loaded.facts.revision,
            dtype=str(loaded.dtype).removeprefix("torch."),
            device=str(loaded.device),
            attention=loaded.model.config._attn_implementation,
            kernels=describe(self.shape.device),
        )


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"
