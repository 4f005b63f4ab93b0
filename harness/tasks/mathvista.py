"""MathVista: mathematics in pictures, scored by rules per answer type (https://arxiv.org/abs/2310.02255)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from harness import media
from harness.errors import UserError
from harness.tasks import mathvista_answer
from harness.tasks.attachment import attached
from harness.tasks.base import Item, content_hash
from harness.tasks.benchmark import Benchmark
from harness.tasks.drawing import draw
from harness.tasks.letter import LETTERS
from harness.tasks.source import Hub
from harness.tasks.subset import PaperSubset
from harness.tasks.table import Record

QUESTION_TYPES = ("multi_choice", "free_form")
ANSWER_TYPES = ("text", "integer", "float", "list")


@dataclass(frozen=True, kw_only=True)
class MathVista(Benchmark):
    """Rows have ``question``, ``answer``, ``question_type`` and ``answer_type``; also ``choices``, ``precision`` and
    ``unit`` where they apply, and pictures in ``decoded_image``, ``images`` or ``image``: paths relative to the data
    file, or bytes, one or a list. File order (KVCMAS arXiv 2609.34060).

    The target is the answer as the data has it. The split ``test`` of the hub has no answers, so it cannot be scored.
    """

    hub: ClassVar[Hub] = Hub("AI4Math/MathVista", "default", (("testmini", 1_000),))
    paper: ClassVar[PaperSubset] = PaperSubset(1_000, "testmini")
    sample: ClassVar[str] = "mathvista_sample.jsonl"
    columns: ClassVar[tuple[str, ...]] = ("question", "answer", "question_type", "answer_type")

    @property
    def extractor(self) -> str:
        return mathvista_answer.EXTRACTOR

    def item(self, index: int, record: Record) -> Item:
        question, answer = record.text("question"), record.text("answer")
        kind, form = _one_of(record, "question_type", QUESTION_TYPES), _one_of(record, "answer_type", ANSWER_TYPES)
        choices = _choices(record) if kind == "multi_choice" else ()
        facts = record.values.get("metadata")
        subject = facts.get("task") if isinstance(facts, dict) else None
        return Item(
            id=f"mathvista-{index:04d}-{content_hash(question, answer, *choices)}",
            question=question,
            target=answer.strip(),
            choices=choices,
            fields={
                "subject": str(subject or form),
                "question_type": kind,
                "answer_type": form,
                "precision": _precision(record),
                "unit": str(record.values.get("unit") or ""),
            },
            media=attached(
                record, ("decoded_image", "images", "image"), "image", Path(self.source).expanduser().parent, draw
            ),
        )

    def question(self, item: Item) -> str:
        """Lead-in, pictures, text, options, and which form the answer takes."""
        shown = media.MARK * len(item.media) + "\n" if item.media else ""
        lines = [item.question]
        lines += [f"({letter}) {choice}" for letter, choice in zip(LETTERS, item.choices, strict=False)]
        return f"{self.lead_in}{shown}" + "\n".join([*lines, _form(item)]).replace(media.MARK, " ")

    def extract(self, raw: str, item: Item) -> str | None:
        """See :mod:`harness.tasks.mathvista_answer`."""
        kind, form, choices, precision, unit = _facts(item)
        return mathvista_answer.extract(raw, kind, form, choices, precision, unit)

    def score(self, prediction: str, item: Item) -> bool:
        _, form, choices, precision, unit = _facts(item)
        return mathvista_answer.equal(prediction, item.target, form, choices, precision, unit)


def _facts(item: Item) -> tuple[str, str, Sequence[str] | None, float | None, str | None]:
    fields = item.fields
    precision = float(fields["precision"]) if fields["precision"] else None
    return fields["question_type"], fields["answer_type"], item.choices or None, precision, fields["unit"] or None


def _form(item: Item) -> str:
    unit = f", in {item.fields['unit']}" if item.fields["unit"] else ""
    if item.choices:
        return "Answer with the letter of one of these options."
    match item.fields["answer_type"], item.fields["precision"]:
        case "integer", _:
            return f"Answer with a whole number{unit}."
        case "float", "":
            return f"Answer with a number{unit}."
        case "float", places:
            return f"Answer with a number rounded to {float(places):g} decimal places{unit}."
        case "list", _:
            return "Answer with a list in square brackets."
    return f"Answer with a word or a short phrase{unit}."


def _one_of(record: Record, column: str, allowed: tuple[str, ...]) -> str:
    text = record.text(column).strip()
    if text not in allowed:
        raise UserError(f"{record.where}: column {column!r} must be one of {', '.join(allowed)}, found {text!r}")
    return text


def _choices(record: Record) -> tuple[str, ...]:
    value = record.values.get("choices")
    if isinstance(value, str) or not isinstance(value, Sequence) or not 2 <= len(value) <= len(LETTERS):
        raise UserError(
            f"{record.where}: column 'choices' of a multi_choice question must hold a list of 2 to {len(LETTERS)} "
            f"texts, found {value!r}"
        )
    return tuple(str(choice) for choice in value)


def _precision(record: Record) -> str:
    value = record.values.get("precision")
    if value is None or value == "":
        return ""
    try:
        return f"{float(str(value)):g}"
    except ValueError as error:
        raise UserError(
            f"{record.where}: column 'precision' must hold a number of decimals, found {value!r}"
        ) from error
