"""Placeholder with the agreed interface: the last number, or the last line. To be replaced by the full rules."""

from __future__ import annotations

from collections.abc import Sequence

from harness.tasks.letter import LETTERS, chosen_letter
from harness.tasks.number import last_number


def extract(
    raw: str,
    question_type: str,
    answer_type: str,
    choices: Sequence[str] | None,
    precision: float | None,
    unit: str | None,
) -> str | None:
    """The answer in ``raw``; None if it holds none."""
    if question_type == "multi_choice" and choices:
        letter = chosen_letter(raw, tuple(choices))
        return choices[LETTERS.index(letter)] if letter else None
    if answer_type in ("integer", "float"):
        number = last_number(raw)
        return None if number is None else str(float(number))
    return next((line.strip() for line in reversed(raw.splitlines()) if line.strip()), None)


def equal(
    prediction: str,
    answer: str,
    answer_type: str,
    choices: Sequence[str] | None,
    precision: float | None,
    unit: str | None,
) -> bool:
    """Whether an extracted answer is right."""
    if answer_type in ("integer", "float") and not choices:
        found, expected = last_number(prediction), last_number(answer)
        return found is not None and found == expected
    return prediction.strip().lower() == answer.strip().lower()
