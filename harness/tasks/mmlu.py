"""MMLU: four options, scored by the letter as chosen (https://arxiv.org/abs/2009.03300)."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from harness.errors import UserError
from harness.tasks.base import Dataset, Item, content_hash
from harness.tasks.benchmark import Benchmark
from harness.tasks.letter import LETTERS, chosen_letter
from harness.tasks.lookup import EXTRACTS, FROZEN, LIVE, answer, live, read_extracts
from harness.tasks.source import Hub
from harness.tasks.subset import PaperSubset
from harness.tasks.table import Record
from harness.tasks.tool import ToolUse

OPTIONS = 4
ORDER_SEED = 888


@dataclass(frozen=True, kw_only=True)
class Mmlu(Benchmark):
    """Rows have ``question``, ``subject``, ``choices`` (four texts) and ``answer`` (0 to 3, or A to D).

    The hub's validation split runs in one fixed permutation (numpy, seed 888; KVCMAS arXiv 2609.34060), and so does
    the paper's subset, which is this split as a whole, 1,531 rows; every other source runs in file order. No list of
    ids is at hand, so that a file counts as the paper's by its rows and subjects.

    Attributes:
        extractor: ``letter``, the letter as chosen (:func:`harness.tasks.letter.chosen_letter`); or ``substring``,
            which counts an answer as right if the target's letter occurs in it anywhere, as the published scores
            do (E1). It inflates long answers and is there to reproduce them.
        lookup: where marked terms are looked up: ``frozen`` (extracts that come with this project), ``live``
            (Wikipedia, asked while the run goes on), or a path: JSONL of ``term`` and ``extract``, or a run's rows.

    Raises:
        UserError: if a field cannot be used.
    """

    extractor: str = "letter"
    lookup: str = FROZEN

    hub: ClassVar[Hub] = Hub("cais/mmlu", "all", (("dev", 285), ("validation", 1_531), ("test", 14_042)))
    paper: ClassVar[PaperSubset] = PaperSubset(
        1_531,
        "validation",
        rule=("a file of its 1,531 rows over 57 subjects in their order", lambda items: _is_validation(items)),
    )
    sample: ClassVar[str] = "mmlu_sample.jsonl"
    frozen: ClassVar[str] = EXTRACTS
    columns: ClassVar[tuple[str, ...]] = ("question", "subject", "choices", "answer")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.extractor not in ("letter", "substring"):
            raise UserError(f"task.extractor must be letter or substring, got {self.extractor!r}")

    def load(self) -> Dataset:
        """As every benchmark. Raises UserError too if the lookup table cannot be used."""
        if self.lookup != LIVE:
            read_extracts(self.lookup)
        return super().load()

    def use(self, tool: ToolUse, output: str, item: Item) -> str:
        """Extracts for the terms that an output marks with @."""
        return answer(output, live if self.lookup == LIVE else read_extracts(self.lookup))

    def item(self, index: int, record: Record) -> Item:
        question, subject = record.text("question"), record.text("subject")
        choices = _choices(record)
        target = _target(record)
        return Item(
            id=f"mmlu-{index:05d}-{content_hash(subject, question, *choices, target)}",
            question=question,
            target=target,
            choices=choices,
            fields={"subject": subject},
        )

    def order(self, items: list[Item]) -> list[Item]:
        if self.split != "validation" and self.subset != "paper":
            return items
        return [items[index] for index in np.random.RandomState(ORDER_SEED).permutation(len(items))]

    def question(self, item: Item) -> str:
        options = "\n".join(f"{letter}) {choice}" for letter, choice in zip(LETTERS, item.choices, strict=False))
        return f"{self.lead_in}{item.question}\n{options}"

    def extract(self, raw: str, item: Item) -> str | None:
        """The chosen letter, upper case; see ``extractor``."""
        if self.extractor == "substring" and item.target in raw.rpartition("output is: ")[2]:
            return item.target
        return chosen_letter(raw, item.choices)

    def score(self, prediction: str, item: Item) -> bool:
        """Equality of letters."""
        return prediction.strip().upper() == item.target


def _is_validation(items: Sequence[Item]) -> bool:
    return len(items) == 1_531 and len({item.fields["subject"] for item in items}) == 57


def _choices(record: Record) -> tuple[str, ...]:
    value = record.values["choices"]
    if isinstance(value, str):  # a CSV cell
        value = _list_of(value)
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise UserError(f"{record.where}: column 'choices' must hold a list of {OPTIONS} texts, found {value!r}")
    choices = tuple("" if choice is None else str(choice) for choice in value)
    for letter, choice in zip(LETTERS, choices, strict=False):
        if not choice.strip():
            raise UserError(
                f"{record.where}: column 'choices': choice {letter} is empty, but every option needs a text"
            )
    if len(choices) != OPTIONS:
        raise UserError(f"{record.where}: column 'choices' must hold {OPTIONS} texts, found {len(choices)}")
    return choices


def _list_of(cell: str) -> object:
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(cell)
        except (ValueError, SyntaxError):
            continue
    return cell


def _target(record: Record) -> str:
    text = record.text("answer").strip()
    letters = LETTERS[:OPTIONS]
    if text.upper() in letters:
        return text.upper()
    if text in ("0", "1", "2", "3"):
        return letters[int(text)]
    raise UserError(f"{record.where}: column 'answer' must be 0 to {OPTIONS - 1} or A to {letters[-1]}, found {text!r}")
