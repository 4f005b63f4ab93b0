"""What every run does around its execution: hold the folder, execute what is missing, track, show."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from harness.config import Choices, of_run
from harness.folder import read_summary
from harness.records import Row
from harness.store import RunFolder
from harness.summary import Summary
from harness.track import Draw, Tracker


def recorded(
    cfg: DictConfig,
    names: Choices,
    folder: Path,
    identity: str,
    execute: Callable[[RunFolder], None],
    show: Callable[[Path], None],
    draw: Draw | None = None,
) -> tuple[Sequence[Row], Summary | None]:
    """Rows and summary of the run in ``folder``, which ``execute`` completes unless it is complete already.

    Args:
        cfg: the options that the folder records.
        identity: of the run, see :func:`harness.identity.identify`.
        show: prints the run.
        draw: its figures, for the tracker.

    Raises:
        UserError: if the folder is another run's, or held by another process.
    """
    config_yaml = OmegaConf.to_yaml(OmegaConf.create(of_run(cfg)))
    with RunFolder.open(folder, config_yaml, identity=identity) as store:
        done, mirrored = store.complete, (folder / "wandb").exists()
        with Tracker.open(cfg.tracking, folder, cfg, names) as tracker:
            if not done:
                execute(store)
            summary = read_summary(folder)
            if summary is not None and not (done and mirrored):  # a kill may have come between the two
                tracker.finish(store.rows, summary, draw)
        show(folder)
        if done:
            print("This run was complete already; change an option, or remove its folder to run it again.")
    for warning in tracker.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return store.rows, summary
