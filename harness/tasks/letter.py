"""The chosen letter of an answer to a multiple-choice question, read strictly and without a model."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.tasks import wording
from harness.tasks.thought import spoken

LETTERS = tuple("ABCDEFGHIJ")

_LETTER = re.compile(r"(?<![A-Za-z0-9_])(?<![A-Za-z0-9]['.|-])[A-Ja-j](?![A-Za-z0-9_+#]|['-][A-Za-z]|\.[A-Za-z]\b)")
_ANSWER = re.compile(r"^[ \t]*A[ \t]*:[ \t]*", re.MULTILINE)
_DELIMITER = r"[)\]}.:,'\"-]+\s*|\s+"
_REACH = 160  # characters before a letter in which the phrase that introduces it may stand


@dataclass(frozen=True)
class _Mention:
    """A letter that stands by itself in the text.

    ``before`` and ``after`` are what stands around it, without the text of its own option; ``joined`` holds it and the
    letters that it is enumerated with ("A, B and C"); ``marked`` says that brackets or quotes set it off.
    """

    letter: str
    capital: bool
    start: int
    end: int
    before: str
    after: str
    joined: frozenset[str]
    marked: bool
    denied: bool


@dataclass(frozen=True)
class _Claim:
    """A statement at ``start`` that these letters are chosen; more than one letter is no choice."""

    start: int
    letters: frozenset[str]


def chosen_letter(text: str, choices: Sequence[str]) -> str | None:
    """The letter that ``text`` chooses, upper case; None if it chooses none or cannot be told which.

    1. A verbatim repetition of all options in order chooses nothing and is left out.
    2. Explicit choices: a letter after a phrase such as "the answer is", "answer:", "I choose", "so", "no, wait,", in
       a LaTeX box, or alone on its line. The last one counts, so that a corrected answer is read as corrected. A
       denied letter ("not B", "A is wrong") is no choice, and "A or B" is none either. The full text of exactly one
       option after such a phrase counts as that option.
    3. A letter that is called correct, if nothing was chosen before or what was chosen is taken back ("no, wait").
    4. Otherwise letters marked as options: ``(B)``, ``option B``, ``B)`` or ``B.`` at a line start. If all of them are
       the same letter, that one; different letters without a phrase that chooses are no choice.
    5. Otherwise an answer, or a line of it, that equals the text of exactly one option counts as that option.

    A letter inside a word, or an article ("A dog ...", "the answer is a mammal"), is never a choice.
    """
    letters = LETTERS[: len(choices)] if choices else LETTERS[:4]
    options = [_trimmed(_plain(choice)) for choice in choices]
    text = _without_echo(_plain(text), options)
    text = _ANSWER.sub(lambda match: _answer(match, options), text)
    spelled = list(_spelled(text, options))
    inside = [range(*match.span()) for match, _ in spelled]
    found = [
        _mention(text, match, options)
        for match in _LETTER.finditer(text)
        if match[0].upper() in letters and not any(match.start() in span for span in inside)
    ]
    kept = [mention for mention in found if not mention.denied and not wording.NOT_MEANT.search(mention.before)]
    claims = [*_phrased(kept), *_introduced(text, spelled), *_agreed(text, list(_bare(text, kept, options)))]
    claims.sort(key=lambda claim: claim.start)
    judged = _agreed(text, list(_praised(kept)))
    if judged and (
        not claims or wording.RETRACT.search(text, claims[-1].start, max(claims[-1].start, judged[-1].start))
    ):
        claims = judged
    if claims:
        return _only(claims[-1].letters)
    if marked := [_Claim(mention.start, mention.joined) for mention in kept if _is_option(mention)]:
        return _only(frozenset(letter for claim in _agreed(text, marked)[-1:] for letter in claim.letters))
    return _only(frozenset(letter for line in text.splitlines() for letter in _equal(line, options)))


def _only(letters: frozenset[str]) -> str | None:
    return next(iter(letters)) if len(letters) == 1 else None


def _agreed(text: str, claims: list[_Claim]) -> list[_Claim]:
    """Claims that all say the same; of contradicting ones the last, if it takes back the one before, else none."""
    if len({claim.letters for claim in claims}) < 2:
        return claims
    return claims[-1:] if wording.RETRACT.search(text, claims[-2].start, claims[-1].start) else []


def _phrased(mentions: list[_Mention]) -> Iterator[_Claim]:
    """Letters with a phrase in front of them that chooses."""
    for mention in mentions:
        if mention.marked or wording.END.match(mention.after):
            last = mention.letter not in "AI" and re.fullmatch(r"\s*[.!]?\s*", mention.after)  # "it is c"
            clear = (mention.capital or mention.marked or last) and not re.match(r"\s*=", mention.after)  # a variable
            if wording.STRONG.search(mention.before) or (clear and wording.WEAK.search(mention.before)):
                yield _Claim(mention.start, mention.joined)


def _praised(mentions: list[_Mention]) -> Iterator[_Claim]:
    """Letters that are called correct."""
    for mention in mentions:
        clear = mention.capital or mention.marked or re.search(r"(?:^|[\n.,;:!?]\s)\s*$", mention.before)
        clear = clear or wording.NAMED.search(mention.before)
        if clear and wording.PRAISE.match(mention.after):
            earlier = wording.JOINED_BEFORE.search(mention.before)
            yield _Claim(mention.start, mention.joined | ({earlier[1].upper()} if earlier else set()))


def _introduced(text: str, spelled: list[tuple[re.Match[str], str]]) -> Iterator[_Claim]:
    """Full option texts with a phrase in front of them that chooses."""
    for start in {match.start() for match, _ in spelled}:
        here = [(match, letter) for match, letter in spelled if match.start() == start]
        longest = max(match.end() for match, _ in here)
        before, after = text[max(0, start - _REACH) : start], text[longest : longest + _REACH]
        ends = wording.TEXT_END.match(after) and not wording.DENIED_AFTER.match(after)
        other = wording.TEXT_JOIN.match(text, longest)
        joined = {letter for match, letter in spelled if other and match.start() == other.end()}
        if ends and wording.STRONG.search(wording.ARTICLE.sub("", before)):
            yield _Claim(start, frozenset({letter for match, letter in here if match.end() == longest} | joined))


def _bare(text: str, mentions: list[_Mention], options: list[str]) -> Iterator[_Claim]:
    """Letters alone on their line, or followed by nothing but the text of their own option."""
    for mention in mentions:
        begin = text.rfind("\n", 0, mention.start) + 1
        end = text.find("\n", mention.end)
        after = text[mention.end : len(text) if end < 0 else end]
        if re.fullmatch(r"(?:\d{1,2}[.)])?[\s>#\"'(\[{<=|/•·+-]*", text[begin : mention.start]):
            own = options[LETTERS.index(mention.letter)] if options else ""
            again = rf"(?:[\s,.]+{text[mention.start]}(?!\w))*"  # a model that goes round in circles
            aside = r"(?:\s*\((?:not\b[^()\n]*|\d+(?:\.\d+)?\s?%[^()\n]*)\))?"  # B (not A), B (95%)
            alone = re.fullmatch(rf"{again}[\s\"')\]}}>.,:;!?|/]*{aside}[.\s]*", after) is not None
            delimited = re.match(r"\s*[)\]}.:,-]+\s*|\s+", after)
            if alone or (delimited and _same(after[delimited.end() :], own)):
                yield _Claim(mention.start, frozenset({mention.letter}))


def _is_option(mention: _Mention) -> bool:
    """Whether the letter is written as an option is: in brackets, named, or opening a line or closing the text."""
    before, after = mention.before, mention.after
    if mention.marked:
        return True
    if re.search(r"(?:^|\n)[\s>\"'-]*$", before):
        if delimiter := re.match(r"\s*([).:])(?:\s|$)|\s+(-)\s", after):
            sign = re.escape(delimiter[1] or delimiter[2])
            line = after.partition("\n")[0]
            return re.search(rf"[,;]\s*\(?(?!{mention.letter})[A-J]\s*{sign}\s", line) is None  # A: 10%, B: 80%
        if re.match(r",?\s+(?:because|since)\b", after) or (mention.capital and re.match(r",|\s+as\b", after)):
            return True
    if re.search(r"[.!?:;]\s+$", before) and re.fullmatch(r"[.)!]?\s*", after):
        return True
    return wording.NAMED.search(before) is not None and (mention.capital or wording.END.match(after) is not None)


def _mention(text: str, match: re.Match[str], options: list[str]) -> _Mention:
    letter, joined, at = match[0].upper(), {match[0].upper()}, match.end()
    while len(joined) < len(LETTERS) and (more := wording.JOINED.match(text, at, at + _REACH)):
        if more["letter"].upper() in joined:
            break
        joined.add(more["letter"].upper())
        at = more.end()
    own = options[LETTERS.index(letter)] if options else ""
    before = text[max(0, match.start() - _REACH) : match.start()]
    after = text[match.end() : match.end() + 2 * len(own) + 2 * _REACH]
    if own and (spelled := re.compile(rf"(\s*=\s*|{_DELIMITER}){_loose(own)}(?!\w)", re.IGNORECASE).match(after)):
        after = spelled[1].rstrip(" =\n\t") + after[spelled.end() :]
    after = after[:_REACH]
    called = re.search(r"[A-Za-z0-9][(\[]$", before)  # P(A)
    enclosed = re.search(r"[(\[{<'\"]\s*$", before) and re.match(r"\s*[)\]}>'\"]", after)
    bracketed = not called and (enclosed or re.match(r"\)(?!\w)", after))
    equated = own and re.search(rf"(?<!\w){_loose(own)}\s*(?:is|=|-?>)\s*$", before, re.IGNORECASE)  # Paris is B
    beyond = after if len(joined) == 1 else text[at : at + _REACH]
    return _Mention(
        letter=letter,
        capital=match[0].isupper(),
        start=match.start(),
        end=match.end(),
        before=before,
        after=after,
        joined=frozenset(joined),
        marked=bool(bracketed or equated),
        denied=bool(wording.DENIED_BEFORE.search(before) or wording.DENIED_AFTER.match(beyond)),
    )


def _answer(match: re.Match[str], options: list[str]) -> str:
    """``A:`` in front of another option's letter or text is short for ``Answer:``."""
    rest = match.string[match.end() :]
    texts = [re.compile(rf"{_loose(option)}(?!\w)", re.IGNORECASE).match(rest) for option in options if option]
    if options and options[0] and texts[0]:
        return match[0]
    if any(texts) or re.match(r"\(?[A-J](?![\w'-])(?!\s+\w)", rest):
        return "Answer: "
    return match[0]


def _spelled(text: str, options: list[str]) -> Iterator[tuple[re.Match[str], str]]:
    """Occurrences of full option texts, except texts that could be the letter of an option."""
    for letter, option in zip(LETTERS, options, strict=False):
        if option and option.upper() not in LETTERS[: len(options)]:
            word = r"(?<![\w.-])" if option[0].isdigit() else r"(?<!\w)"
            for match in re.finditer(rf"{word}{_loose(option)}(?!\w)", text, re.IGNORECASE):
                yield match, letter


def _equal(line: str, options: list[str]) -> Iterator[str]:
    for letter, option in zip(LETTERS, options, strict=False):
        if _same(wording.ARTICLE_FIRST.sub("", line), option) or _same(line, option):
            yield letter


def _same(text: str, option: str) -> bool:
    """Equality up to case, spacing, surrounding quotes and final punctuation."""
    return bool(option) and _trimmed(text).casefold() == option.casefold()


def _trimmed(text: str) -> str:
    return " ".join(text.split()).lstrip("\"' ").rstrip("\"'.!?,; ")


def _loose(option: str) -> str:
    return r"\s+".join(re.escape(word) for word in option.split())


def _without_echo(text: str, options: list[str]) -> str:
    if len(options) < 2 or not all(options):
        return text
    parts = [
        rf"[(\[]?{letter}\s?[)\].:-]*\s*{_loose(option)}" for letter, option in zip(LETTERS, options, strict=False)
    ]
    whole = r"[\s;,.|]*".join(parts)
    return re.sub(rf"(?<!\w){whole}(?!\w)\.?", "\n", text, flags=re.IGNORECASE)


def _plain(text: str) -> str:
    """One spelling for what means the same: no markdown, no LaTeX styling, ASCII quotes, dashes and letters."""
    text = unicodedata.normalize("NFKC", spoken(text)).translate(wording.SPELLINGS)
    text = re.sub(r"~~.*?~~", "", text)
    text = re.sub(  # glued words: option_b, Answer-B, OptionB
        r"\b((?i:answer|option|choice))(?:\s?[-_]\s?(?=[A-Ja-j]\b)|(?=[A-J]\b))", r"\1 ", text
    )
    text = re.sub(r"<(b|i|u|em|strong|p|span)>(.*?)</\1>", r"\2", text, flags=re.DOTALL)
    text = re.sub(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox|bf|left|right|quad)\b|\\[,!;:()\[\]]", "", text)
    text = re.sub(r"(?<![A-Za-z0-9])_+|_+(?![A-Za-z0-9])", "", text)
    return re.sub(r"[*`$]", "", re.sub(r"\\n(?![A-Za-z])", "\n", text))
