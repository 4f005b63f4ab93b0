"""The paper's questions: chosen by their ids or a rule, whatever order or company a file has them in, or refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from harness.config import CONF
from harness.errors import UserError
from harness.tasks.base import Task
from tests.harness import real_data


def task(name: str, **options: Any) -> Task:
    made: Task = instantiate(OmegaConf.load(CONF / "task" / f"{name}.yaml"), **options)
    return made


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def mmlu_rows(count: int, subjects: int = 57) -> list[dict[str, Any]]:
    return [
        {"question": f"{n}?", "subject": f"s{n % subjects}", "choices": ["a", "b", "c", "d"], "answer": n % 4}
        for n in range(count)
    ]


def test_gsm8k_is_found_in_any_order_among_other_rows(tmp_path: Path) -> None:
    rows = real_data.rows("gsm8k/test.jsonl")
    mixed = [*rows, {"question": "One more?", "answer": "#### 1"}]
    random.Random(0).shuffle(mixed)
    loaded = task("gsm8k", source=write(tmp_path / "mixed.jsonl", mixed), subset="paper").load()
    assert [item.question for item in loaded.items] == [row["question"] for row in rows]
    assert (loaded.manifest.rows, loaded.manifest.subset) == (1_319, "paper")


@pytest.mark.parametrize("change", ["drop", "edit"])
def test_gsm8k_with_a_row_less_or_another_is_refused(change: str, tmp_path: Path) -> None:
    rows = real_data.rows("gsm8k/test.jsonl")
    rows[5:6] = [] if change == "drop" else [rows[5] | {"answer": "#### 1"}]
    with pytest.raises(UserError, match="lacks 1 of the paper's 1,319 questions"):
        task("gsm8k", source=write(tmp_path / "rows.jsonl", rows), subset="paper").load()


@pytest.mark.parametrize(("name", "rows"), [("gsm8k", "1,319"), ("mmlu", "1,531")])
def test_the_sample_is_not_the_papers_set(name: str, rows: str) -> None:
    with pytest.raises(UserError, match=f"task.subset=paper: task.source=sample .*the paper's {rows} questions") as e:
        task(name, subset="paper").load()
    assert "\n" not in str(e.value)


def test_mmlu_needs_all_rows_and_subjects(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.jsonl", mmlu_rows(1_531))
    items = task("mmlu", source=whole, subset="paper").load().items
    assert [int(item.question[:-1]) for item in items] == list(np.random.RandomState(888).permutation(1_531))
    for rows in (mmlu_rows(1_530), mmlu_rows(2_400), mmlu_rows(1_531, subjects=48)):
        with pytest.raises(UserError, match=f"it has {len(rows):,} rows"):
            task("mmlu", source=write(tmp_path / "part.jsonl", rows), subset="paper").load()
    assert len(task("mmlu", source=str(tmp_path / "part.jsonl")).load().items) == 1_531


def test_another_split_of_the_hub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"question": f"{n}?", "answer": "#### 1"} for n in range(7_473)]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_list(rows))
    with pytest.raises(UserError, match=r"are the split test, not train; set task\.split=test"):
        task("gsm8k", source="hub", split="train", subset="paper").load()
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_list(rows[:1_319]))
    assert task("gsm8k", source="hub", subset="paper").load().manifest.subset == "paper"


def test_the_papers_humaneval_is_not_known() -> None:
    with pytest.raises(UserError, match=r"161 problems of a reworded MultiPL-E file.*ids are not known"):
        task("humaneval", subset="paper", execute=True).load()


def test_an_unknown_subset_is_refused() -> None:
    with pytest.raises(Exception, match=r"task\.subset must be one of all, paper, got 'first'"):
        task("gsm8k", subset="first")
