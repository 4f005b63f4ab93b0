"""The benchmarks' own data, which is not part of this repository: every row loads, every gold answer is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from harness.config import CONF
from harness.tasks.base import Task
from harness.tasks.letter import LETTERS
from harness.tasks.mathvista_answer import equal, extract
from harness.tasks.spelling import form
from tests.harness import real_data


def task(name: str, **options: Any) -> Task:
    made: Task = instantiate(OmegaConf.load(CONF / "task" / f"{name}.yaml"), **options)
    return made


SENTENCES = [
    "{}",
    "{}.",
    "The answer is {}.",
    "**{}**",
    "\\boxed{{{}}}",
    "$\\boxed{{{}}}$",
    "Answer: {}",
    "Final answer: **{}**",
    "<answer>{}</answer>",
    "```\n{}\n```",
    "The picture shows it.\n\n{}",
    "I looked at the picture and it is {}.",
    "The answer is 999. Wait, that is wrong, so the answer is {}.",
]
LETTERED = [
    "{}",
    "({})",
    "{}.",
    "{})",
    "**({})**",
    "The answer is ({}).",
    "the answer is {}",
    "\\boxed{{\\text{{{}}}}}",
]
LETTERED += ["The correct option is {}.", "I think {} is correct.", "Answer: {}\n"]
MEASURED = ["{} {}", "The answer is {} {}.", "\\boxed{{{}\\text{{ {}}}}}", "x = {}{}", "It is about **{} {}**"]


@pytest.mark.parametrize(
    "frame", ["{}", "The answer is {}", "So she has ${}.", "**{}**", "\\boxed{{{}}}", "#### {}", "= {}\n"]
)
def test_every_gold_answer_of_gsm8k_scores_right_against_itself(frame: str) -> None:
    made = task("gsm8k", source=str(real_data.path("gsm8k/test.jsonl")))
    items = made.load().items
    raw = [frame.format(f"{int(item.target):,}") for item in items]
    predictions = [made.extract(text, item) for text, item in zip(raw, items, strict=True)]
    assert len(items) == 1_319
    assert sum(p is not None and made.score(p, i) for p, i in zip(predictions, items, strict=True)) == 1_319


def test_every_worked_answer_of_gsm8k_is_read_as_its_gold_number() -> None:
    made = task("gsm8k", source=str(real_data.path("gsm8k/test.jsonl")))
    items = made.load().items
    assert [made.extract(item.fields["solution"], item) for item in items] == [item.target for item in items]


def test_every_row_of_mmlu_loads_and_its_letter_is_right() -> None:
    made = task("mmlu", source=str(real_data.path("mmlu/test.jsonl")))
    rows, items = real_data.rows("mmlu/test.jsonl"), made.load().items
    assert len(items) == len(rows) == 2_400
    assert [item.target for item in items] == ["ABCD"[row["answer"]] for row in rows]
    for item in items[::6]:
        listed = made.question(item).removeprefix(made.lead_in)
        for raw in (f"The answer is ({item.target}).", f"{listed}\n\nAnswer: {item.target}", item.target.lower()):
            assert made.extract(raw, item) == item.target, (item.question, raw)


def written(row: dict[str, Any], answer: str) -> Iterator[str]:
    """Forms in which a model writes ``answer``."""
    yield from (sentence.format(answer) for sentence in SENTENCES)
    choices = row["choices"]
    if choices:
        letter = LETTERS[choices.index(answer)]
        yield from (lettered.format(letter) for lettered in LETTERED)
        yield from (pair.format(letter, answer) for pair in ("({}) {}", "**{}. {}**", "The answer is ({}) {}."))
        if form(answer).upper() not in LETTERS:  # options such as "(b)", whose case is all that tells them apart
            yield from (answer.upper(), answer.lower(), letter.lower(), f"({letter.lower()})")
    else:
        yield from (measured.format(answer, row["unit"] or "cm") for measured in MEASURED)


def right(row: dict[str, Any], raw: str) -> bool:
    about = (row["answer_type"], row["choices"], row["precision"], row["unit"])
    prediction = extract(raw, row["question_type"], *about)
    return prediction is not None and equal(prediction, str(row["answer"]), *about)


def test_every_gold_answer_of_mathvista_scores_right_in_every_form() -> None:
    for row in real_data.rows("mathvista/testmini_text.jsonl"):
        for raw in written(row, str(row["answer"])):
            assert right(row, raw), (row["pid"], raw)


def test_another_answer_of_mathvista_scores_wrong_in_every_form() -> None:
    rows = real_data.rows("mathvista/testmini_text.jsonl")
    for row in rows[::2]:
        if row["choices"]:
            other = next(choice for choice in row["choices"] if choice != row["answer"])
        else:
            same = (r for r in rows if r["answer_type"] == row["answer_type"] and not r["choices"])
            other = next((str(r["answer"]) for r in same if r["answer"] != row["answer"]), "[1, 2]")
        for raw in written(row, other):
            assert not right(row, raw), (row["pid"], raw)


def test_options_of_mathvista_that_differ_keep_different_forms() -> None:
    for row in real_data.rows("mathvista/testmini_text.jsonl"):
        choices = set(row["choices"] or [])
        assert len({form(choice) for choice in choices}) == len(choices), row["pid"]
