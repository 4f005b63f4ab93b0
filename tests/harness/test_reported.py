"""The paper's numbers: every line is one, with its setting, and a damaged file is refused by name and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UserError
from harness.reported import COLUMNS, PAPER, read_reported

HEAD = ",".join(COLUMNS)
LINE = "a,TTFT,kvcmas,dense,here,2.0,x,measured"


def written(folder: Path, *lines: str) -> Path:
    path = folder / "paper.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_paper_s_numbers_are_there_with_their_settings() -> None:
    found = read_reported()
    ladder = [found[f"mem_ratio_{n}k"].value for n in (2, 8, 32)]
    assert ladder == [2.5, 6.2, 14.9]
    assert found["chain_mmlu_on"].value - found["chain_mmlu_off"].value == pytest.approx(6.44)
    assert all(number.setting for number in found.values())
    assert all(number.unit for number in found.values())
    counts = {i.removeprefix("n_"): n.value for i, n in found.items() if i.startswith("n_")}
    assert counts == {"mmlu": 1531, "gsm8k": 1319, "humaneval": 161, "mathvista": 1000, "videomme": 1296}


def test_the_file_is_kept_by_git() -> None:
    rules = (PAPER.parent.parent / ".gitignore").read_text().split()
    assert not [rule for rule in rules if rule in ("results/", "results/*", "*.csv", "results/paper.csv")]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["id,value", "a,1"], "has the columns"),
        ([HEAD, LINE.replace("2.0", "two")], "paper.csv:2 is no reported number"),
        ([HEAD, LINE.replace("measured", "guessed")], "paper.csv:2 is no reported number"),
        ([HEAD, LINE, LINE], "paper.csv:3 has the id a a second time"),
        ([HEAD, "a,TTFT"], "paper.csv:2 is no reported number"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_reported(written(tmp_path, *lines))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read from"):
        read_reported(tmp_path / "none.csv")
