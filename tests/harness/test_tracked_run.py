"""A run that is interrupted and goes on is one W&B run, complete, with its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.store import RunFolder

pytest.importorskip("wandb", reason="the extra kvcmas[wandb] is not installed")


def test_a_run_that_was_interrupted_is_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["model=tiny", "method=kvcmas", "method.gate=always", "limit=3", "workflow.max_new_tokens=2",
             "tracking=offline", "shadow=true"]  # fmt: skip
    append = RunFolder.append

    def dying(self: RunFolder, row: object) -> None:
        append(self, row)  # type: ignore[arg-type]
        if len(self.rows) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "append", dying)
    assert main(words) == 130
    (folder,) = Path("results/runs/gsm8k").iterdir()
    assert not (folder / "wandb").exists()  # nothing of an unfinished run is sent
    monkeypatch.setattr(RunFolder, "append", append)
    for _ in range(2):  # a complete run that is asked for again is not sent again
        assert main(words) == 0
    (sent,) = folder.glob("wandb/offline-run-*")
    assert [p.name for p in sent.glob("*.wandb")] == [f"run-{folder.name}.wandb"]
    (table,) = sent.glob("files/media/table/*.table.json")
    assert len(json.loads(table.read_text())["data"]) == 3
    figures = {p.name.partition("_0_")[0] for p in sent.glob("files/media/images/figures/*.png")}
    assert figures == {"ttft_by_hop", "error_by_layer"}
