"""Shards share out the samples, and together are the run, for a method that keeps nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli import main
from harness.errors import UserError
from harness.folder import read_rows
from harness.report.collect import collect
from harness.report.shards import merged
from harness.script import Case
from harness.shard import Shard
from methods.segment import Span


def cases(measured: int, warm: int = 0) -> list[Case]:
    span = Span("question", (1,), "user", (1,))
    return [Case(f"w{n}", span, None, warmup=True) for n in range(warm)] + [
        Case(f"s{n}", span, None) for n in range(measured)
    ]


def test_every_sample_is_in_one_shard_and_warmup_in_all() -> None:
    parts = [[case.sample_id for case in Shard(k, 3).of(cases(7, warm=2))] for k in (1, 2, 3)]
    assert all(part[:2] == ["w0", "w1"] for part in parts)
    assert sorted(s for part in parts for s in part[2:]) == [f"s{n}" for n in range(7)]
    assert max(len(part) for part in parts) - min(len(part) for part in parts) <= 1


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "1/0", "a/b", "1/2/3"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"shard={text}: expected a part"):
        Shard.parse(text)


def test_more_shards_than_samples_are_refused() -> None:
    with pytest.raises(UserError, match="there are 2 samples; take fewer shards"):
        Shard(1, 3).of(cases(2, warm=5))


def test_shards_together_are_the_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["model=tiny", "method=full_reuse", "limit=4", "workflow=chain", "workflow.max_new_tokens=3",
             "tracking=none"]  # fmt: skip
    assert main([*words, "results_dir=whole"]) == 0
    assert main(["-m", *words, "shard=1/2,2/2", "results_dir=parts"]) == 0
    (whole,) = Path("whole").rglob("rows.jsonl")
    (run,), problems = merged(collect([Path("parts")]).runs)
    assert not problems
    assert (run.shards, run.summary.n) == (2, 4)
    single = {r.sample_id: (r.prediction, r.correct, r.raw) for r in read_rows(whole.parent).rows}
    parts = [read_rows(p.parent).rows for p in sorted(Path("parts").rglob("rows.jsonl"))]
    assert {r.sample_id: (r.prediction, r.correct, r.raw) for rows in parts for r in rows} == single
    assert sorted(len(rows) for rows in parts) == [2, 2]
    assert main([*words, "shard=3/2"]) == 2
    assert "shard=3/2: expected a part" in capsys.readouterr().err
