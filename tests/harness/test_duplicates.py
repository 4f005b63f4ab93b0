"""Repeated requests: their share, their names, and that they are what lets an exact key hit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.duplicates import duplicated
from harness.script import Case
from methods.segment import Span


def cases(count: int, warmup: int = 0) -> list[Case]:
    return [Case(f"s{i}", Span("question", (i,), "user"), None, warmup=i < warmup) for i in range(count)]


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9])
def test_so_many_requests_repeat_an_earlier_one(share: float) -> None:
    plain = cases(2000, warmup=3)
    found = duplicated(plain, share, 0)
    assert [case for case in found if case.repeat_of is None] == plain
    again = [case for case in found if case.repeat_of is not None]
    assert len(again) / len(found) == pytest.approx(share, abs=0.03)
    assert len({case.sample_id for case in found}) == len(found)
    seen: dict[str, Case] = {}
    for case in found:
        if case.repeat_of is not None:
            assert seen[case.repeat_of].question == case.question
            assert not seen[case.repeat_of].warmup
            assert case.sample_id.startswith(f"{case.repeat_of}~dup")
        seen[case.sample_id] = case


def test_the_seed_decides() -> None:
    assert duplicated(cases(50), 0.5, 3) == duplicated(cases(50), 0.5, 3)
    assert duplicated(cases(50), 0.5, 3) != duplicated(cases(50), 0.5, 4)


def test_an_exact_key_hits_repeated_requests_only(tmp_path: Path) -> None:
    options = ["model=tiny", "task=gsm8k", "workflow.max_new_tokens=6", "tracking=none", "limit=4", "method=kamera"]
    assert main([*options, "duplicates=0.6", f"results_dir={tmp_path}"]) == 0
    (found,) = tmp_path.glob("*/*/rows.jsonl")
    rows = [json.loads(line) for line in found.read_text().splitlines()]
    assert len(rows) > 4
    for row in rows:
        routes = {hop["route"] for hop in row["hops"]}
        assert row["status"] in ("ok", "invalid")
        if "~dup" in row["sample_id"]:
            assert row["hops"][0]["route"] == "reuse"
            original = next(r for r in rows if r["sample_id"] == row["sample_id"].split("~")[0])
            assert row["target"] == original["target"]
        else:
            assert routes == {"fallback"}
