"""What a run of samples has in common on every engine: its inputs, its place in the folder, the summary's heading."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from omegaconf import DictConfig

from harness.config import Choices
from harness.provenance import RanModel, collect
from harness.samples import in_order
from harness.script import Case
from harness.store import Resumed, RunFolder
from harness.summarise import Heading
from harness.tasks.base import Executed
from harness.validate import Parts
from harness.verified import verified
from harness.workload import Workload
from methods.base import Snapshot


class Sampling:
    """The expensive part of a run: an engine, and the samples that are not done yet.

    Attributes:
        heading: what the summary says of the run as a whole; there since :meth:`begin`.
    """

    heading: Heading

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

    def begin(self, model: RanModel, layers: int, prompt_sha256: str) -> None:
        """The model is there: put this process into the provenance before it works on the run."""
        cfg, names, task = self.cfg, self.names, self.parts.task
        session = collect(model, self.workload.data, prompt_sha256)
        self.heading = Heading(
            task=str(task.name),
            method=names.method,
            model=names.model,
            backend=names.backend,
            layers=layers,
            command=session.command,
            programs=isinstance(task, Executed),
            verified=verified(names.method, names.model, model.revision or "", str(cfg.method._target_)),
            built_from=str(cfg.method.get("fidelity") or ""),
            glue=str(cfg.method.get("glue") or "recompute"),
            teacher_forcing=bool(cfg.teacher_forcing),
            early=int(cfg.early),
        )
        self.store.begin(session)

    def resume(self, stateful: bool) -> tuple[int, Snapshot | None]:
        """How many rows are finished, after those without a state have been dropped, and the state of a ``stateful``
        method after the last of them."""
        resumed = self.store.resume_state() if self.store.rows and stateful else Resumed(None)
        if resumed.warning:
            print(f"warning: {resumed.warning}", file=sys.stderr)
        self.store.warn()
        return 0 if stateful and resumed.snapshot is None else len(self.store.rows), resumed.snapshot

    def note(self, sample_id: str, text: str) -> None:
        """What became of a sample that failed, at length."""
        with (self.store.path / "errors.log").open("a", encoding="utf-8") as log:
            log.write(f"sample {sample_id}\n{text}\n")
