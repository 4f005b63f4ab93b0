"""Weights & Biases: a copy of a finished run, never the source of truth and never a reason for a run to fail.

Everything is sent when the run is complete, so that nothing of W&B runs beside a measurement and a run that was
killed and resumed appears once. It does not show a run while it is going on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from harness.config import Choices, Tracking, of_run
from harness.records import Row
from harness.summary import Summary

Draw = Callable[[Summary, Path], Sequence[Path]]
COLUMNS = ("sample_id", "repeat", "subject", "status", "prediction", "target", "correct", "raw", "message", "e2e_s")


@dataclass
class Tracker:
    """Mirrors one run folder into one W&B run: config, summary, figures and a table of the samples.

    Attributes:
        options: where to.
        folder: the run folder; its name is the W&B run's id, so that it is resumed and not doubled.
        config: the resolved configuration.
        name, group: as shown; the runs of one sweep share a group.
        warnings: what went wrong, for the user, once each.
    """

    options: Tracking
    folder: Path
    config: dict[str, Any]
    name: str
    group: str | None
    warnings: list[str] = field(default_factory=list)

    @classmethod
    @contextmanager
    def open(cls, options: Tracking, folder: Path, cfg: DictConfig, names: Choices) -> Iterator[Tracker]:
        """A tracker for a run, for the length of a ``with`` block. What can be known beforehand (no package, no
        account) is a warning from the start, and then nothing is tried at the end."""
        name = f"{names.method} on {names.task}"
        tracker = cls(options, folder, of_run(cfg), name, options.group or _sweep())
        if options.mode != "none" and find_spec("wandb") is None:
            tracker._warn("wandb is not installed (pip install 'kvcmas[wandb]', or tracking=none)")
        elif options.mode == "online":
            with tracker._warning():
                tracker._log_in()
        yield tracker

    def finish(self, rows: Sequence[Row], summary: Summary, draw: Draw | None = None) -> None:
        """Send everything, the figures that ``draw`` makes of the summary in a folder included; an exception becomes a
        warning."""
        if self.options.mode == "none" or self.warnings:
            return
        with self._warning(), self._run() as (wandb, run):
            run.summary.update(msgspec.to_builtins(summary))
            fields = [[msgspec.to_builtins(getattr(row, column)) for column in COLUMNS] for row in rows]
            with TemporaryDirectory() as folder:
                drawn = [] if draw is None else draw(summary, Path(folder))
                figures = {f"figures/{path.stem}": wandb.Image(str(path)) for path in drawn}
                run.log({"samples": wandb.Table(columns=list(COLUMNS), data=fields), **figures})

    @contextmanager
    def _run(self) -> Iterator[tuple[Any, Any]]:
        """The module and a started W&B run, which is finished whatever happens, or the next job would log into it."""
        with _staging(self.folder / "wandb"):
            import wandb

            settings = wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                init_timeout=60,
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            )
            options = self.options
            try:
                run = wandb.init(
                    mode="online" if options.mode == "online" else "offline",
                    project=options.project,
                    entity=options.entity,
                    id=self.folder.name,
                    name=self.name,
                    group=self.group,
                    tags=list(options.tags),
                    dir=self.folder,
                    resume="allow",
                    config=self.config,
                    settings=settings,
                )
                try:
                    yield wandb, run
                finally:
                    run.finish()
            finally:
                wandb.teardown()  # the service flushes and ends; it shall not idle beside the next job's measurements

    def _log_in(self) -> None:
        import wandb

        try:
            wandb.setup(settings=wandb.Settings(silent=True))
            if not wandb.login(prompt=False):  # a prompt would hang a job in a queue
                self._warn("no account (run `wandb login`, or tracking=offline and `wandb sync` later)")
        finally:
            wandb.teardown()  # asking for the account started the service, which is of no use before the run's end

    @contextmanager
    def _warning(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            first = str(error).strip().split("\n")[0]
            self._warn(f"{type(error).__name__}: {first}")

    def _warn(self, why: str) -> None:
        self.warnings.append(
            f"Weights & Biases has no copy of this run, which is complete in its folder all the same: {why}"
        )


def _sweep() -> str | None:
    """One name for the jobs of a multirun, the options it sets, which every job knows; None for a single run."""
    if not HydraConfig.initialized() or HydraConfig.get().mode is not RunMode.MULTIRUN:
        return None
    keys = sorted(override.partition("=")[0].lstrip("+~") for override in HydraConfig.get().overrides.task)
    return f"sweep of {', '.join(keys)}"[:128]  # W&B's limit


@contextmanager
def _staging(folder: Path) -> Iterator[None]:
    """W&B copies tables to a folder of its own before it sends them, which only the environment can move: keep them
    with the run, where they go when it goes. A place that the user chose is left alone."""
    name = "WANDB_DATA_DIR"
    if name in os.environ:
        yield
        return
    os.environ[name] = str(folder.resolve())
    try:
        yield
    finally:
        del os.environ[name]
