"""The expensive part of a run: a loaded model, and samples one after the other, each a row whatever happens."""

from __future__ import annotations

import copy
import traceback
from typing import Any

import torch

from harness.backends.hf_model import LoadedModel
from harness.backends.hf_rope import shape_of
from harness.errors import in_one_line
from harness.progress import counted
from harness.records import Row, StateSize, Status
from harness.samples import Turn, failed, finished, peak_bytes
from harness.sampling import Sampling
from harness.trajectory import Runner
from kernels.dispatch import using
from methods.base import Method, Shape

OOM_LIMIT = 3  # after so many samples in a row without memory, the rest is recorded as such and not tried


class Execution(Sampling):
    """One sample after the other in the transformers engine."""

    def execute(self, prompt_sha256: str) -> None:
        """Load the model, and run what is not done, a row at a time, on the chosen kernels."""
        backend = self.parts.backend
        self.loaded: LoadedModel = self.parts.model.load()
        self.shape: Shape = shape_of(self.loaded.model)
        backend.attach(self.loaded.model, self.shape, self.loaded.reader)
        self.script = self.workload.write(self.loaded.tokenizer, frozenset(self.loaded.stop_ids), self.loaded.reader)
        with using(backend.kernels):
            self._execute(prompt_sha256)

    def _execute(self, prompt_sha256: str) -> None:
        self.begin(self.loaded.provenance(), self.shape.layers, prompt_sha256)
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
        stateful = self._fresh(0).snapshot() is not None
        done, snapshot = self.resume(stateful)
        if not done:
            return None, 0
        method = self._fresh(self.turns[done - 1].repeat)
        if snapshot is not None:
            method.restore(snapshot)
        return method, done

    def _fresh(self, repeat: int) -> Method:
        """The method with empty pools; each repeat has its own, and its own sketch seed."""
        method: Method = copy.deepcopy(self.parts.method)
        method.bind(self.shape, int(self.cfg.seed) + repeat)
        return method

    def _sample(self, method: Method, turn: Turn, hopeless: bool) -> tuple[Method, Row]:
        """One row, whatever happens; a method that failed half way goes back to where it was before the sample."""
        case, before = turn.case, method.snapshot()
        if case.missing:
            return method, failed(turn, Status.missing, case.missing)
        if hopeless:
            message = f"not run: {OOM_LIMIT} samples in a row ran out of memory"
            return method, failed(turn, Status.oom, message)
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
            return self._back(turn, before), failed(turn, Status.oom, in_one_line(error))
        except Exception as error:  # a sample that fails is a row with a status, never the end of the run
            self.note(case.sample_id, traceback.format_exc())
            return self._back(turn, before), failed(turn, Status.error, in_one_line(error))
        size = method.state_bytes()
        found = StateSize.of(size.base, size.correction)
        return method, finished(turn, self.script.text(done.final_ids), done, found, peak_bytes(self.shape.device))

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
