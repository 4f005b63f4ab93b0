"""Samples that only teach: dense, learned from by everybody, counted nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import metrics
from harness.cli import main
from harness.errors import UserError
from harness.folder import read_rows, read_summary
from harness.records import Route
from harness.workload import warmed
from tests.harness.test_duplicates import cases


def test_the_first_that_are_measured_become_warm_up() -> None:
    plain = cases(6, warmup=2)
    assert warmed(plain, 0) == plain
    found = warmed(plain, 3)
    assert [c.warmup for c in found] == [True] * 5 + [False]
    assert [c.sample_id for c in found] == [c.sample_id for c in plain]
    with pytest.raises(UserError, match="warmup=4: there are 4 samples, so none is left"):
        warmed(plain, 4)


def test_methods_learn_from_warm_up_and_no_metric_counts_it(tmp_path: Path) -> None:
    options = ["model=tiny", "task=gsm8k", "workflow.max_new_tokens=4", "tracking=none", "limit=4", "shadow=true"]
    own = ["method=kvcmas", "method.gate=always"]
    assert main([*options, *own, "warmup=3", f"results_dir={tmp_path}"]) == 0
    (folder,) = tmp_path.glob("gsm8k/*")
    rows, summary = read_rows(folder).rows, read_summary(folder)
    assert summary is not None
    assert summary.fidelity is not None
    routes = [{hop.route for hop in row.hops if not hop.source_hop} for row in rows]
    assert routes == [{Route.dense}] * 3 + [{Route.reuse}]
    assert summary.reuse_ratio == 1.0
    assert summary.hops.warmup == sum(len(row.hops) for row in rows[:3])
    assert summary.fidelity.n == len(rows[3].hops) - 1
    assert len(metrics.scored(rows)) == 1


def test_a_warm_up_that_leaves_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model=tiny", "task=gsm8k", "limit=2", "warmup=2", f"results_dir={tmp_path}"]) == 2
    assert "warmup=2: there are 2 samples" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
