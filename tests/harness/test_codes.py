"""A run that goes on with other code says so: when it goes on, in its summary, and in the tables made of it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from harness import provenance
from harness.cli import main
from harness.folder import read_summary
from harness.provenance import Git
from harness.serving_table import print_run as print_replayed
from harness.store import RunFolder
from harness.table import print_run

SAMPLES = ["task=gsm8k", "limit=2", "workflow.max_new_tokens=1"]
LOAD = [
    "task=trace", "backend=sim", "repeats=2", "task.warmup=1", "trace.trajectories=2", "trace.agents=2",
    "trace.shared_tokens=24",
]  # fmt: skip


@pytest.mark.parametrize(("options", "show"), [(SAMPLES, print_run), (LOAD, print_replayed)], ids=["samples", "trace"])
def test_a_run_that_goes_on_with_other_code(
    options: list[str],
    show: Callable[[Path, Console], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    append = RunFolder.append

    def interrupted(self: RunFolder, row: object) -> None:
        if len(self.rows) == 1:
            raise KeyboardInterrupt
        append(self, row)  # type: ignore[arg-type]

    words = ["model=tiny", "method=dense", "tracking=none", *options, f"results_dir={tmp_path}"]
    monkeypatch.setattr(provenance, "git", lambda folder: Git("a" * 40, False, None))
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", interrupted)
        assert main(words) == 130
    assert "other code" not in capsys.readouterr().err
    monkeypatch.setattr(provenance, "git", lambda folder: Git("b" * 40, False, None))
    assert main(words) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    (folder,) = (path.parent for path in tmp_path.glob("*/*/summary.json"))
    assert line.startswith(f"warning: {folder}: its first rows were written by other code (aaaaaaaaaaaa)")
    assert line.endswith("; to start anew, delete that folder or set another results_dir")
    summary = read_summary(folder)
    assert summary is not None
    assert len(summary.warnings) == 1
    assert summary.warnings[0] in line
    assert str(tmp_path) not in summary.warnings[0]  # a summary is given away
    out = io.StringIO()
    show(folder, Console(file=out, width=1000))
    assert f"WARNING {summary.warnings[0]}" in " ".join(out.getvalue().split())
