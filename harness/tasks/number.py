"""The last number of an answer, read strictly and without a model."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from harness.tasks.thought import spoken

MAX_DIGITS = 300  # longer runs of digits, and larger exponents, are noise and not a quantity

_GROUPED = r"\d{1,3}(?:,\d{3}){1,99}(?!\d)(?:\.\d+)?"  # 1,234.50
_INDIAN = r"\d{1,2}(?:,\d{2}){1,9},\d{3}(?!\d)(?:\.\d+)?"  # 12,34,567
_MARKED = r"\d{1,3}(?:_\d{3})+(?!\d)(?:\.\d+)?|\d{1,3}(?:'\d{3})+(?!\d)(?:\.\d+)?"  # 1_234, 1'234
_SPACED = r"(?<![\d.,])[1-9]\d{0,2}(?: \d{3})+(?![\d-])(?:\.\d+)?"  # 1 234 567
_COMMA = r"(?<![\d.,])(?:0,\d+|\d+,\d{1,2}|[1-9]\d{0,2}(?:\.\d{3})+,\d{1,2}|[1-9]\d{0,2}(?: \d{3})+,\d{1,2})(?![\d,])"
_DOTTED = rf"{_COMMA}|\d{{1,3}}(?:\.\d{{3}}){{2,}}(?!\d)"  # 12,5  1.234,50  1 234,50  1.234.567
_PLAIN = r"\d+(?:\.\d+)?|(?<![\w.)\]}])\.\d+"
_NUMBER = rf"(?:{_DOTTED}|{_INDIAN}|{_GROUPED}|{_MARKED}|{_SPACED}|{_PLAIN})"
_POWER = r"(?:\^|\*\*(?=\d))[{(]?(?P<power>-?\d+)[})]?"
_SCIENCE = r"(?:[eE](?P<e>[-+]?\d+)(?![A-Za-z\d])|[ ]?[×x*·][ ]?10\^[{(]?(?P<ten>[-+]?\d+)[})]?)"
_SCALE = r"(?:[ ]?(?P<scale>hundred|thousand|million|billion|trillion)s?\b|(?P<kilo>[kK])(?![A-Za-z]))"
_LATEX = (
    rf"\\[dtc]?frac\s*(?:\{{\s*(?P<ltop>-?{_NUMBER})\s*\}}\s*\{{\s*(?P<lbelow>-?{_NUMBER})\s*\}}"
    r"|(?P<l1>\d)\s*(?P<l2>\d))"
)
_TOKEN = re.compile(
    r"(?<![\d:.,])(?P<clock>\d{1,2}):00(?::00)?(?![\d:])"
    rf"|(?:(?P<whole>\d+)[ ]*)?{_LATEX}"
    rf"|(?:(?P<mixed>\d+)[ ]{{1,2}})?(?<![\d.,])(?P<top>{_NUMBER})[ ]?/[ ]?(?P<below>{_NUMBER})"
    rf"|(?P<number>{_NUMBER})(?:{_SCIENCE}|{_POWER})?(?:{_SCALE})?",
)
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_CURRENCY = "$€£¥₹₩₽₺₫฿₱₦¢"
_CODES = frozenset({"rs", "rm", "us", "usd", "eur", "gbp", "inr", "cad", "aud", "is", "equals"})
_LISTED = re.compile(r"^[ \t>*#_(-]*(\d{1,2})[.):](?=[\s*]|$)", re.MULTILINE)
_STEP = re.compile(r"\bstep\s+#?(\d+)(?=\s*(?:[:.)\]*,–—-]|$))", re.IGNORECASE | re.MULTILINE)
_SIGN_WORD = re.compile(r"(?:\bnegative|(?:^|\b(?:is|was|be|at|to|equals)|[=:])\s*minus)\s+$", re.IGNORECASE)
_DENIED = re.compile(
    rf"(?:(?:[,;(]|\band|\bbut)\s*not|\binstead of|\brather than)\s+[{_CURRENCY}*_-]*\Z", re.IGNORECASE
)
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b")
_NEAR = 40  # characters around a number that are kept
_VULGAR = "VULGAR FRACTION"
_SIMILAR = (
    dict.fromkeys("−–﹣-‐‑", "-")
    | dict.fromkeys("⁄∕÷/", "/")
    | dict.fromkeys("⋅∙", "·")
    | dict.fromkeys("٬,", ",")
    | dict.fromkeys("٫.", ".")
    | {"’": "'"}
)


@dataclass(frozen=True)
class Number:
    """A number of a text and what stands around it, in the plain spelling.

    Attributes:
        value: with its sign.
        aside: an ordinal (``3rd``), or set against another (``7, not 3``): the answer only where nothing else is.
        before, after: the text next to it, at most 40 characters each.
    """

    value: Fraction
    aside: bool
    before: str
    after: str


def last_number(text: str) -> Fraction | None:
    """The last number of ``text`` as an exact rational; None if there is none.

    Understood: signs, thousands separators (``1,234``, ``12,34,567``, ``1 234``, ``1_234``, ``1.234,50``), decimals
    (a comma before one or two last digits is a decimal sign: ``12,50``), currency signs, percent and units (left out:
    ``25%`` is 25), fractions (``3/4``, ``1 1/2``, LaTeX ``frac``, vulgar characters), powers and scientific notation,
    ``thousand`` to ``trillion`` and ``k``, LaTeX, markdown and code around the number, digits of every script.

    Not a number of the answer: an exponent or index (``cm^2``, ``x_1``, ``H2O``), the markers of a numbered list
    and ``Step 3:``, a division by zero. An ordinal (``3rd``) or a number set against another (``7, not 3``) counts
    only where nothing else does. Of a time on the full hour (``5:00 pm``) the hour is the number.
    A later number always replaces an earlier one, so a corrected answer is read as corrected.
    """
    found = list(numbers(text))
    meant = [number for number in found if not number.aside]
    return (meant or found)[-1].value if found else None


def numbers(text: str) -> Iterator[Number]:
    """All numbers of ``text`` in order, read as :func:`last_number` reads them."""
    text = _plain(text)
    labels = _labels(text)
    for match in _TOKEN.finditer(text):
        if match.start() in labels or _attached(text, match.start()):
            continue
        value = _value(match)
        if value is None:
            continue
        value = -value if _negative(text, match.start()) else value
        before, after = text[max(0, match.start() - _NEAR) : match.start()], text[match.end() : match.end() + _NEAR]
        aside = _ORDINAL.match(text, match.end()) or _DENIED.search(before)
        yield Number(value, aside is not None, before, after)


def gold_number(answer: str) -> Fraction | None:
    """The number after the last ``####`` of a worked GSM8K answer; None if there is none."""
    _, mark, tail = answer.rpartition("####")
    return last_number(tail) if mark else None


def canonical(number: Fraction) -> str:
    """Shortest exact text: an integer, a decimal where it terminates, else ``a/b``."""
    below, twos, fives = number.denominator, 0, 0
    while below % 2 == 0:
        below, twos = below // 2, twos + 1
    while below % 5 == 0:
        below, fives = below // 5, fives + 1
    places = max(twos, fives)
    if below != 1 or places == 0:
        return str(number)
    digits = str(abs(number.numerator) * 10**places // number.denominator).rjust(places + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"


def _plain(text: str) -> str:
    """One spelling for what means the same: ASCII digits and signs, no LaTeX spacing, ``^`` for superscripts."""
    text = "".join(_spelling(character) for character in spoken(text))
    text = re.sub(r"<sup>\s*(-?\d+)\s*</sup>", r"^\1", text)
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf|mathit|mbox|bf)\s*\{", "", text)
    text = re.sub(r"\\(?:times|cdot)(?![A-Za-z])", "×", text).replace("{,}", ",").replace("{\\,}", "")
    text = re.sub(r"\\n(?![A-Za-z])", "\n", text)
    text = re.sub(r"\\[,;: ]", " ", text.replace("\\!", ""))
    return re.sub(r"\\([$%#_&])", r"\1", text)


def _spelling(character: str) -> str:
    if character < "\x80":
        return character
    if character in _SIMILAR:
        return _SIMILAR[character]
    match unicodedata.category(character):
        case "Nd":
            return str(unicodedata.decimal(character))
        case "Zs":
            return " "
        case "Cf":  # joiners and direction marks
            return ""
    if unicodedata.name(character, "").startswith(_VULGAR):
        return " " + unicodedata.normalize("NFKC", character).replace("⁄", "/")
    decomposition = unicodedata.decomposition(character)
    if decomposition.startswith("<super>"):
        digit = unicodedata.normalize("NFKC", character)
        return f"^{digit}" if digit.isascii() and digit.isdigit() else character
    if decomposition.startswith("<wide>"):
        return unicodedata.normalize("NFKC", character)
    return character


def _labels(text: str) -> set[int]:
    """Where the numbers of list markers (runs 1, 2, ... at line starts) and of ``Step n`` begin."""
    marks = [(int(match[1]), match.start(1)) for match in _LISTED.finditer(text)]
    numbers = {number for number, _ in marks}
    starts = {match.start(1) for match in _STEP.finditer(text)}
    run: set[int] = set()
    for number, start in marks:
        if (number == 1 and 2 in numbers) or number - 1 in run:
            run.add(number)
            starts.add(start)
    return starts


def _attached(text: str, start: int) -> bool:
    """Whether the digits at ``start`` belong to a word, an exponent or an index."""
    before = text[max(0, start - 8) : start]
    if re.search(r"\^[{(]?-?\Z|[A-Za-z})]_[{]?\Z", before):
        return True
    word = re.search(r"[A-Za-z]+\Z", before)
    if word is None or word[0].lower() in _CODES:
        return False
    return not re.search(r"\d[xX]\Z", before)


def _negative(text: str, start: int) -> bool:
    """Whether a sign (not a binary minus, a range, a hyphen or a bullet) stands before the digits at ``start``."""
    before = text[max(0, start - 40) : start]
    bare = before.rstrip(" ").rstrip(_CURRENCY)
    if _SIGN_WORD.search(bare + " "):
        return True
    near = before if bare == before.rstrip(" ") else bare + " " * bare.endswith("- ")
    head = near.rstrip(" ")
    if not head.endswith("-"):
        return False
    spaced = near != head
    line = head[:-1].rsplit("\n", 1)[-1]
    previous = line.rstrip(" ")[-1:]
    if spaced:
        return previous in ("=", ":") or re.search(r"\b(?:is|are|was|be|equals)\s*\Z", line) is not None
    if line.endswith(" ") or not line:
        return not re.fullmatch(r"[\d)\]}%]", previous)
    return not re.fullmatch(r"[A-Za-z0-9)\]}%.-]", line[-1])


def _value(match: re.Match[str]) -> Fraction | None:
    part = match.groupdict()
    if any(text and len(text) > MAX_DIGITS for text in part.values()):
        return None
    for whole, top, below in _ratios(part):
        if below == 0:
            return None
        return whole + top / below if top >= 0 else top / below - whole
    if part["clock"]:
        return Fraction(part["clock"])
    value = _decimal(part["number"])
    exponent = int(part["e"] or part["ten"] or 0)
    power = int(part["power"] or 1)
    if abs(exponent) > MAX_DIGITS or abs(power) > MAX_DIGITS or (value == 0 and power < 0):
        return None
    if part["power"] and len(part["number"]) * abs(power) > MAX_DIGITS:
        return None
    if part["kilo"]:
        exponent += 3
    exponent += _SCALES.get(part["scale"] or "", 0)
    result = Fraction(value) ** power * Fraction(10) ** exponent
    return Fraction(result)


def _ratios(part: dict[str, str]) -> Iterator[tuple[Fraction, Fraction, Fraction]]:
    if part["top"]:
        yield Fraction(int(part["mixed"] or 0)), _decimal(part["top"]), _decimal(part["below"])
    if part["ltop"]:
        yield Fraction(int(part["whole"] or 0)), _decimal(part["ltop"]), _decimal(part["lbelow"])
    if part["l1"]:
        yield Fraction(int(part["whole"] or 0)), Fraction(int(part["l1"])), Fraction(int(part["l2"]))


def _decimal(text: str) -> Fraction:
    if re.fullmatch(rf"-?(?:{_DOTTED})", text):  # the comma is the decimal sign, the points group
        text = text.replace(".", "").replace(",", ".")
    return Fraction(re.sub(r"[, _']", "", text))
