"""MathVista answers, read and compared by rules, without a model (https://arxiv.org/abs/2310.02255).

A choice is read by its letter or its text, whichever the answer gives; a number, a list or a text from the last
explicit statement ("The answer is ...", a box), else from the end of the answer. The authors' scores let another
model extract the answer, and the KVCMAS code takes the first capital A-H of the tail (E4): both move scores, so the
name of the rules, ``EXTRACTOR``, belongs into every record.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from harness.tasks.letter import LETTERS, chosen_letter
from harness.tasks.number import Number, canonical, last_number, numbers
from harness.tasks.spelling import form, mentioned
from harness.tasks.statement import last_sentence, last_statement
from harness.tasks.thought import spoken

EXTRACTOR = "mathvista_rules"

_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_WORD = re.compile(rf"\b({'|'.join(word for word in _WORDS if word != 'one')})\b", re.IGNORECASE)
_LABEL = re.compile(r"[(\[]?([A-Ja-j])[)\].:]?")


def extract(
    raw: str,
    question_type: str,
    answer_type: str,
    choices: Sequence[str] | None,
    precision: float | None,
    unit: str | None,
) -> str | None:
    """The prediction in ``raw``: the text of the chosen option, a number in canonical form, a list, or a text.

    Args:
        question_type: ``multi_choice`` or ``free_form``.
        answer_type: ``integer``, ``float``, ``list`` or ``text``.
        choices: option texts in the order of their letters; None for a free-form question.
        precision: decimals of a float answer; :func:`equal` uses it.
        unit: unit of the answer, if the question names one; of several numbers, the one that has it counts.

    Returns:
        None if nothing can be extracted, which is invalid and not wrong.
    """
    raw = spoken(raw)
    if question_type == "multi_choice" and choices:
        return _choice(raw, choices)
    match answer_type:
        case "integer" | "float":
            number = _number(raw, unit)
            return None if number is None else canonical(number)
        case "list":
            return _list(raw)
    return _text(raw)


def equal(
    prediction: str,
    answer: str,
    answer_type: str,
    choices: Sequence[str] | None,
    precision: float | None,
    unit: str | None,
) -> bool:
    """Whether a prediction is the answer.

    Options and texts: the same text up to case, spacing and spelling (:func:`harness.tasks.spelling.form`). Integers:
    the same number. Floats: at most half a unit of the last place of ``precision`` apart (of the answer's own last
    place, if there is none). Lists: element by element.
    """
    if choices:
        forms = {form(choice) for choice in choices}
        label = _LABEL.fullmatch(prediction.strip())
        if form(prediction) not in forms and label and LETTERS.index(label[1].upper()) < len(choices):
            prediction = choices[LETTERS.index(label[1].upper())]
        return form(prediction) == form(answer)
    match answer_type:
        case "integer":
            number = last_number(prediction)
            return number is not None and number == last_number(answer)
        case "float":
            number, target = last_number(prediction), last_number(answer)
            if number is None or target is None:
                return False
            places = len(answer.strip().partition(".")[2]) if precision is None else int(precision)
            return abs(number - target) <= Fraction(1, 2 * 10**places)
        case "list":
            ours, theirs = _elements(prediction), _elements(answer)
            return ours is not None and ours == theirs
    return bool(form(prediction)) and form(prediction) == form(answer)


def _choice(raw: str, choices: Sequence[str]) -> str | None:
    """The option that ``raw`` chooses, as the choices spell it.

    The last statement, if it is the text of an option; else the letter as chosen; else the only option that the last
    statement or sentence names, opens the answer with, or whose number it ends in.
    """
    by_form = {form(choice): choice for choice in reversed(choices)}
    said = last_statement(raw)
    for text in (said, raw):
        if text is not None and (exact := [c for c in choices if c.strip() == text.strip(" .*`$")]):
            return exact[0]
    letterlike = all(form(choice).upper() in LETTERS for choice in choices)
    for text in (said, last_sentence(raw)) if letterlike else ():  # options such as "(b)", whose own letter is another
        if text and len(found := {c for c in choices if re.search(rf"(?<!\w){re.escape(c.strip())}(?!\w)", text)}) == 1:
            return found.pop()
    if said is not None and not letterlike and form(said) in by_form:
        return by_form[form(said)]
    # A variable is no option: "so A = 40".
    text = re.sub(r"(?<![A-Za-z(\[])[A-J]\s*=\s*(?=[-\d\\$])", "", raw)
    shown = [""] * len(choices) if letterlike else _distinct(choices)
    if letter := chosen_letter(text, shown):
        return choices[LETTERS.index(letter)]
    for text in filter(None, (said, last_sentence(raw))):
        if found := mentioned(text, list(choices)):
            return by_form[found.pop()] if len(found) == 1 else None
    opening = [c for c in choices if re.match(rf"\W*{re.escape(c.strip())}\s*[,.:;!\n]", raw, re.IGNORECASE)]
    if len(opening) == 1:
        return opening[0]
    number = _number(raw, None)
    numeric = {form(choice): choice for choice in choices if number is not None and _alone(choice) == number}
    return next(iter(numeric.values())) if len(numeric) == 1 else None


def _distinct(choices: Sequence[str]) -> list[str]:
    """Choices with later repetitions blanked, since a text that two options have tells neither letter."""
    return [choice if choice not in choices[:index] else "" for index, choice in enumerate(choices)]


def _alone(choice: str) -> Fraction | None:
    """The number of an option that is nothing but a number and perhaps a unit."""
    found = list(numbers(choice))
    return found[0].value if len(found) == 1 and not re.search(r"[√π*^]|\\(?:sqrt|pi)", choice) else None


def _number(raw: str, unit: str | None) -> Fraction | None:
    said = last_statement(raw)
    if said is not None:
        said = re.split(r"\s(?:at|for|with|in the|on)\s", said)[0] if re.match(r"\W*\S*\d", said) else said
        found = list(numbers(re.split(r"[=≈]", said)[-1])) or list(numbers(said))
        if found:
            return (_with_unit(found, unit) or found)[0].value
    found = list(numbers(raw))
    if found:
        suited = _with_unit(found, unit)
        return suited[-1].value if suited else last_number(raw)
    word = _WORD.findall(raw) or re.findall(r"^\W*(one)\W*$", said or raw, re.IGNORECASE)
    return Fraction(_WORDS.index(word[-1].lower())) if word else None


def _with_unit(found: Sequence[Number], unit: str | None) -> list[Number]:
    """Those of ``found`` that have the unit next to them."""
    if not unit:
        return []
    sign = re.escape(unit.strip().rstrip("s") if len(unit) > 3 else unit.strip())
    after, before = re.compile(rf"\W*{sign}", re.IGNORECASE), re.compile(rf"{sign}\s*-?$", re.IGNORECASE)
    return [number for number in found if after.match(number.after) or before.search(number.before)]


def _list(raw: str) -> str | None:
    """The last list of ``raw``: in brackets, else separated by commas in the last statement or sentence."""
    bracketed = re.findall(r"[\[({]([^\[\](){}]*,[^\[\](){}]*)\\?[\])}]", raw)
    for text in (*reversed(bracketed), last_statement(raw), last_sentence(raw)):
        elements = _elements(text) if text and "," in text else None
        if elements:
            return f"[{', '.join(elements)}]"
    return None


def _elements(text: str) -> list[str] | None:
    """Elements of a list in canonical form; None for an empty one."""
    inner = text.strip().strip("[](){}").strip()
    if not inner:
        return None
    found = []
    for element in re.split(r"\s*[,;、]\s*(?:and\s+)?|\s+and\s+", inner.strip(" .,;")):
        number = last_number(element)
        found.append(form(element) if number is None else canonical(number))
    return found


def _text(raw: str) -> str | None:
    said = last_statement(raw) or last_sentence(raw)
    said = re.sub(r"[*`$]|\\(?:text|mathrm|textbf)\b", "", said).strip(" .,;:!?\"'{}")
    return said or None
