"""Data sources: the same rows from every format, and one sentence for everything that can be wrong with a file."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from harness.errors import UserError
from harness.tasks.base import Task

CONF = Path(__file__).parents[2] / "conf" / "task"
MATH = [{"question": f"What is {n} + {n}?", "answer": f"{n} + {n} = {2 * n}\n#### {2 * n}"} for n in range(1, 8)]
FACTS = [
    {
        "question": f"Which, of these, is {n}?",
        "subject": "sums",
        "choices": ["NA", str(n), 'a "b", c', "null"],
        "answer": 1,
    }
    for n in range(5)
]
ROWS = {"gsm8k": MATH, "mmlu": FACTS}


def task(name: str, **options: Any) -> Task:
    made: Task = instantiate(OmegaConf.load(CONF / f"{name}.yaml"), **options)
    return made


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    match path.suffix:
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case ".json":
            path.write_text(json.dumps(rows, indent=1))
        case ".parquet":
            datasets.Dataset.from_list(rows).to_parquet(str(path))
        case ".csv":
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(
                    {k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows
                )
    return path


@pytest.mark.parametrize("name", ROWS)
def test_every_format_gives_the_same_items(name: str, tmp_path: Path) -> None:
    loaded = [
        task(name, source=str(write(tmp_path / f"rows{suffix}", ROWS[name]))).load()
        for suffix in (".jsonl", ".json", ".csv", ".parquet")
    ]
    assert [dataset.items for dataset in loaded] == [loaded[0].items] * 4
    assert {dataset.manifest.sha256 for dataset in loaded} == {loaded[0].manifest.sha256}
    assert [item.question for item in loaded[0].items] == [row["question"] for row in ROWS[name]]
    assert loaded[0].manifest.rows == len(ROWS[name])
    assert loaded[0].manifest.source == "file:rows.jsonl"


def test_a_relative_path_starts_at_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "rows.jsonl", MATH)
    monkeypatch.chdir(tmp_path)
    assert task("gsm8k", source="rows.jsonl").load().manifest.rows == len(MATH)


def test_json_lines_may_have_a_mark_blank_lines_and_further_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(row | {"more": [1]}) for row in MATH]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode())
    assert [item.target for item in task("gsm8k", source=str(path)).load().items] == [str(2 * n) for n in range(1, 8)]


@pytest.mark.parametrize("change", ["edit", "swap", "drop"])
def test_the_hash_sees_every_change(change: str, tmp_path: Path) -> None:
    rows = [dict(row) for row in MATH]
    before = task("gsm8k", source=str(write(tmp_path / "a.jsonl", rows))).load().manifest
    match change:
        case "edit":
            rows[2]["answer"] = "doubled\n#### 6"
        case "swap":
            rows[0], rows[1] = rows[1], rows[0]
        case "drop":
            rows.pop()
    assert task("gsm8k", source=str(write(tmp_path / "b.jsonl", rows))).load().manifest.sha256 != before.sha256


def test_answers_may_be_letters_or_numbers(tmp_path: Path) -> None:
    answers = [0, "1", "C", "d", 3]
    rows = [row | {"answer": answer} for row, answer in zip(FACTS, answers, strict=True)]
    items = task("mmlu", source=str(write(tmp_path / "rows.jsonl", rows))).load().items
    assert [item.target for item in items] == ["A", "B", "C", "D", "D"]


BROKEN = [
    ("gsm8k", "rows.jsonl", '{"question": "a", "answer": "#### 1"}\n{"question": \n', "rows.jsonl:2"),
    ("gsm8k", "rows.jsonl", '{"question": "a", "answer": "#### 1"}\n\n[1]\n', "rows.jsonl:3"),
    ("gsm8k", "rows.jsonl", "[" * 100_000, "rows.jsonl:1"),
    ("gsm8k", "rows.jsonl", b'{"question": "a\xff", "answer": "#### 1"}\n', "rows.jsonl:1.*UTF-8"),
    ("gsm8k", "rows.jsonl", '{"question": ' + "1" * 5000 + "}", "rows.jsonl:1.*too many digits"),
    ("gsm8k", "rows.jsonl", '{"question": "a\\ud800", "answer": "#### 1"}', "rows.jsonl:1.*'question' holds half"),
    ("gsm8k", "rows.json", "[" * 100_000, "rows.json.*nested too deeply"),
    ("gsm8k", "rows.jsonl", "", "no rows"),
    ("gsm8k", "rows.jsonl", "\n \n", "no rows"),
    ("gsm8k", "rows.json", "[]", "no rows"),
    ("gsm8k", "rows.json", '[{"question": "a"\n "answer": 1}]', "rows.json:2"),
    ("gsm8k", "rows.json", "[1]", "row 1.*object"),
    ("gsm8k", "rows.csv", "", "missing column question, answer.*found none"),
    ("gsm8k", "rows.csv", "question,answer\na,#### 1\nb\n", "rows.csv:3.*expected 2 cells as in the header, found 1"),
    ("gsm8k", "rows.csv", "question,answer\na,#### 1,more\n", "rows.csv:2.*found 3"),
    ("gsm8k", "rows.csv", 'question,answer\n"a,#### 1\n', "rows.csv:2.*broken CSV"),
    ("gsm8k", "rows.csv", "question,answer\n", "no rows"),
    ("gsm8k", "rows.csv", "prompt,answer\na,#### 1\n", "missing column question.*found prompt, answer"),
    ("gsm8k", "rows.csv", b"question,answer\na\xff,#### 1\n", "UTF-8|utf-8"),
    ("gsm8k", "rows.parquet", "no parquet at all", "rows.parquet.*Parquet"),
    ("gsm8k", "rows.txt", "text", "sample, hub or a file ending in"),
    ("gsm8k", "rows.jsonl", '{"prompt": "a", "answer": "#### 1"}', "rows.jsonl:1.*found prompt, answer"),
    ("gsm8k", "rows.jsonl", '{"question": "a", "answer": ""}', "rows.jsonl:1.*'answer' is empty"),
    ("gsm8k", "rows.jsonl", '{"question": "a", "answer": null}', "rows.jsonl:1.*'answer' is empty"),
    ("gsm8k", "rows.jsonl", '{"question": " ", "answer": "#### 1"}', "rows.jsonl:1.*'question' is empty"),
    ("gsm8k", "rows.jsonl", '{"question": ["a"], "answer": "#### 1"}', "'question' must hold text, found list"),
    ("gsm8k", "rows.jsonl", '{"question": "a", "answer": "seven"}', "rows.jsonl:1.*#### <number>"),
    ("mmlu", "rows.jsonl", json.dumps(FACTS[0] | {"choices": ["a", "b", "c"]}), "rows.jsonl:1.*4 texts, found 3"),
    ("mmlu", "rows.jsonl", json.dumps(FACTS[0] | {"choices": "abcd"}), "must hold a list of 4 texts"),
    ("mmlu", "rows.jsonl", json.dumps(FACTS[0] | {"choices": ["a", "b", "", "d"]}), "choice C is empty"),
    ("mmlu", "rows.jsonl", json.dumps(FACTS[0] | {"answer": 4}), "rows.jsonl:1.*0 to 3 or A to D, found '4'"),
    ("mmlu", "rows.jsonl", json.dumps(FACTS[0] | {"answer": "AB"}), "found 'AB'"),
    ("mmlu", "rows.jsonl", json.dumps(FACTS[0] | {"answer": None}), "'answer' is empty"),
    ("mmlu", "rows.jsonl", '{"question": "a", "choices": [1, 2, 3, 4]}', "missing column subject, answer; expected"),
]


@pytest.mark.parametrize(("name", "file", "content", "message"), BROKEN)
def test_broken_data_is_refused_in_one_sentence(
    name: str, file: str, content: str | bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / file
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message) as error:
        task(name, source=str(path)).load()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ROWS)
def test_a_parquet_file_with_other_columns_is_refused(name: str, tmp_path: Path) -> None:
    other = [{"prompt": "a", "label": 1}]
    path = write(tmp_path / "rows.parquet", other)
    with pytest.raises(UserError, match=r"rows.parquet: missing column question.*found prompt, label") as error:
        task(name, source=str(path)).load()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_without_an_answer_is_refused_in_every_format(name: str, tmp_path: Path) -> None:
    rows = [*ROWS[name][:2], ROWS[name][2] | {"answer": None}]
    for suffix in (".jsonl", ".json", ".csv", ".parquet"):
        with pytest.raises(UserError, match="column 'answer' is empty, but every row needs it"):
            task(name, source=str(write(tmp_path / f"rows{suffix}", rows))).load()


@pytest.mark.parametrize("source", ["missing.jsonl", "missing.parquet", "no/such/folder/rows.csv"])
def test_a_missing_file_is_refused(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"task.source={source} is no file"):
        task("gsm8k", source=source).load()


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        task("gsm8k", source=str(tmp_path / "rows.jsonl")).load()


class Hub:
    """Stands in for the hub: hands out ``rows`` and records what was asked for."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.asked: tuple[Any, ...] = ()

    def __call__(self, path: str, config: str, *, split: str, revision: str | None) -> datasets.Dataset:
        self.asked = (path, config, split, revision)
        return datasets.Dataset.from_list(self.rows)


@pytest.mark.parametrize(("name", "split", "rows"), [("gsm8k", "test", 1_319), ("mmlu", "validation", 1_531)])
def test_the_hub_must_have_the_official_size(name: str, split: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub([ROWS[name][0]] * rows)
    monkeypatch.setattr(datasets, "load_dataset", hub)
    manifest = task(name, source="hub", split=split, revision="abc").load().manifest
    assert (manifest.rows, manifest.split, manifest.revision) == (rows, split, "abc")
    assert manifest.source == f"hub:{hub.asked[0]}"
    assert hub.asked[2:] == (split, "abc")
    hub.rows = hub.rows[1:]
    with pytest.raises(UserError, match=f"{rows - 1:,} rows, expected {rows:,}"):
        task(name, source="hub", split=split).load()


def test_mmlu_validation_runs_in_the_fixed_permutation(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [FACTS[0] | {"question": f"Question {n}?"} for n in range(1_531)]
    monkeypatch.setattr(datasets, "load_dataset", Hub(rows))
    items = task("mmlu", source="hub").load().items
    order = np.random.RandomState(888).permutation(1_531)
    assert [item.question for item in items] == [f"Question {n}?" for n in order]
    assert [item.id.split("-")[1] for item in items] == [f"{n:05d}" for n in order]


def test_gsm8k_runs_in_file_order(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [MATH[0] | {"question": f"Question {n}?"} for n in range(1_319)]
    monkeypatch.setattr(datasets, "load_dataset", Hub(rows))
    assert [item.question for item in task("gsm8k", source="hub").load().items] == [r["question"] for r in rows]


def test_an_unreachable_hub_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        try:
            raise ConnectionError("offline mode is enabled.\nmore")
        except ConnectionError as error:
            raise RuntimeError("could not reach the hub") from error

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(
        UserError, match=r"openai/gsm8k could not be loaded \(offline mode is enabled\).*task.source=sample"
    ) as e:
        task("gsm8k", source="hub").load()
    assert "\n" not in str(e.value)


def test_an_unknown_split_is_refused_before_the_hub_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", None)
    with pytest.raises(UserError, match=r"task\.split=tset is not a split of openai/gsm8k; choose one of train, test"):
        task("gsm8k", source="hub", split="tset").load()
