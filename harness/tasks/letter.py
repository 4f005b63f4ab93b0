"""The chosen letter of an answer to a multiple-choice question, read strictly and without a model."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.tasks import wording

LETTERS = tuple("ABCDEFGHIJ")

_LETTER = re.compile(r"(?<![A-Za-z0-9_])(?<![A-Za-z0-9]['.-])[A-Ja-j](?![A-Za-z0-9_+#]|['-][A-Za-z]|\.[A-Za-z]\b)")
_REACH = 160  # characters before a letter in which the phrase that introduces it may stand


@dataclass(frozen=True)
class _Claim:
    """A statement that these letters are chosen; more than one letter is no choice.

    ``bare``: a letter (or a whole option) that stands alone on its line, without a phrase that introduces it.
    """

    start: int
    letters: frozenset[str]
    bare: bool = False


def chosen_letter(text: str, choices: Sequence[str]) -> str | None:
    """The letter that ``text`` chooses, upper case; None if it chooses none or cannot be told which.

    1. A verbatim repetition of all options in order chooses nothing and is left out.
    2. Explicit choices: a letter after a phrase such as "the answer is", "answer:", "I choose", "so", "no, wait,", in
       a LaTeX box, before "is correct", or alone on its line. The last one counts, so that a corrected answer is read
       as corrected. A denied letter ("not B", "A is wrong") is no choice, and "A or B" is none either. The full text
       of exactly one option after such a phrase counts as that option.
    3. Otherwise letters marked as options: ``(B)``, ``option B``, ``B)`` or ``B.`` at a line start. If all of them are
       the same letter, that one; different letters without a phrase that chooses are no choice.
    4. Otherwise an answer, or a line of it, that equals the text of exactly one option counts as that option.

    A letter inside a word, or an article ("A dog ...", "the answer is a mammal"), is never a choice.
    """
    letters = LETTERS[: len(choices)] if choices else LETTERS[:4]
    options = [_plain(choice).strip().rstrip(".") for choice in choices]
    text = _without_echo(_plain(text), options)
    if short := re.fullmatch(r"\s*A\s*:\s*(\(?[A-J]\)?\.?)\s*", text):  # "A:" as the short form of "Answer:"
        text = short[1]
    spelled = list(_spelled(text, options))
    inside = [range(match.start() + 1, match.end()) for match, _ in spelled]
    found = [m for m in _LETTER.finditer(text) if m[0].upper() in letters and not any(m.start() in r for r in inside)]
    phrased = [*_phrased(text, found), *_introduced(text, spelled)]
    bare = list(_bare(text, found, options))
    if phrased or bare:
        return _decide(text, phrased, bare)
    if marked := frozenset(_marked(text, found)):
        return _only(marked)
    return _only(frozenset(letter for line in text.splitlines() for letter in _equal(line, options)))


def _only(letters: frozenset[str]) -> str | None:
    return next(iter(letters)) if len(letters) == 1 else None


def _decide(text: str, phrased: list[_Claim], bare: list[_Claim]) -> str | None:
    """The last claim; bare claims that contradict each other count only if the last one is announced as a change."""
    if len({claim.letters for claim in bare}) > 1:
        bare.sort(key=lambda claim: claim.start)
        between = text[bare[-2].start : bare[-1].start]
        bare = [bare[-1]] if wording.CHANGE.search(between) else []
    claims = [*phrased, *bare]
    return _only(max(claims, key=lambda claim: claim.start).letters) if claims else None


def _phrased(text: str, found: list[re.Match[str]]) -> Iterator[_Claim]:
    """Letters with a phrase in front of them that chooses, or behind them that calls them right."""
    for match in found:
        before, after = text[max(0, match.start() - _REACH) : match.start()], text[match.end() : match.end() + _REACH]
        if _denied(before, after):
            continue
        marked = _is_marked(before, after)
        ends = wording.END.match(after) is not None
        capital = match[0].isupper()
        strong = wording.STRONG.search(before) is not None and (ends or marked)
        weak = wording.WEAK.search(before) is not None and (ends or marked) and (capital or marked)
        praised = wording.PRAISE.match(after) is not None and (
            capital or marked or wording.NAMED.search(before) is not None
        )
        if strong or weak or praised:
            joined = {match[0].upper()}
            at = match.end()
            while more := wording.JOINED.match(text, at):
                joined.add(more["letter"].upper())
                at = more.end()
            yield _Claim(match.start(), frozenset(joined))


def _introduced(text: str, spelled: list[tuple[re.Match[str], str]]) -> Iterator[_Claim]:
    """Full option texts with a phrase in front of them that chooses."""
    for start in {match.start() for match, _ in spelled}:
        here = [(match, letter) for match, letter in spelled if match.start() == start]
        longest = max(match.end() for match, _ in here)
        before, after = text[max(0, start - _REACH) : start], text[longest : longest + _REACH]
        ends = wording.TEXT_END.match(after)
        if ends and wording.STRONG.search(wording.ARTICLE.sub("", before)) and not _denied(before, after):
            yield _Claim(start, frozenset(letter for match, letter in here if match.end() == longest))


def _bare(text: str, found: list[re.Match[str]], options: list[str]) -> Iterator[_Claim]:
    """Letters alone on their line, or followed by nothing but the text of their own option."""
    for match in found:
        begin = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", match.end())
        before, after = text[begin : match.start()], text[match.end() : len(text) if end < 0 else end]
        letter = match[0].upper()
        if not re.fullmatch(r"[\s>\"'(\[{<=-]*", before):
            continue
        own = options[LETTERS.index(letter)] if options else ""
        alone = re.fullmatch(r"[\s\"')\]}>.,:;!?]*", after) is not None
        delimited = re.match(r"\s*[)\]}.:,-]+\s*", after)
        if alone or (delimited and own and _same(after[delimited.end() :], own)):
            yield _Claim(match.start(), frozenset({letter}), bare=True)


def _marked(text: str, found: list[re.Match[str]]) -> Iterator[str]:
    """Letters that are written as options and not denied."""
    for match in found:
        before, after = text[max(0, match.start() - _REACH) : match.start()], text[match.end() : match.end() + _REACH]
        first = re.search(r"(?:^|\n)[\s>\"'-]*$", before) is not None
        opens = first and re.match(r"\s*[).:]\s|\s*[).:]$|\s+-\s", after) is not None
        opens = opens or (first and match[0].isupper() and re.match(r",|\s+(?:because|since|as)\b", after) is not None)
        closes = re.search(r"[.!?:;]\s+$", before) is not None and re.fullmatch(r"[.)!]?\s*", after) is not None
        named = wording.NAMED.search(before) is not None and (
            match[0].isupper() or wording.END.match(after) is not None
        )
        if (opens or closes or named or _is_marked(before, after)) and not _denied(before, after):
            yield match[0].upper()


def _is_marked(before: str, after: str) -> bool:
    """Whether brackets or quotes enclose the letter, or a bracket closes behind it."""
    enclosed = re.search(r"[(\[{<'\"]\s*$", before) and re.match(r"\s*[)\]}>'\"]", after)
    return enclosed is not None or re.match(r"\)(?!\w)", after) is not None


def _denied(before: str, after: str) -> bool:
    return wording.DENIED_BEFORE.search(before) is not None or wording.DENIED_AFTER.match(after) is not None


def _spelled(text: str, options: list[str]) -> Iterator[tuple[re.Match[str], str]]:
    """Occurrences of full option texts, except texts that are a single letter."""
    for letter, option in zip(LETTERS, options, strict=False):
        if option and not re.fullmatch(r"[A-Ja-j]", option):
            for match in re.finditer(rf"(?<!\w){_loose(option)}(?!\w)", text, re.IGNORECASE):
                yield match, letter


def _equal(line: str, options: list[str]) -> Iterator[str]:
    for letter, option in zip(LETTERS, options, strict=False):
        if _same(wording.ARTICLE_FIRST.sub("", line), option) or _same(line, option):
            yield letter


def _same(text: str, option: str) -> bool:
    """Equality up to case, spacing, surrounding quotes and final punctuation."""
    trimmed = text.strip().strip("\"'").rstrip(".!,; ")
    return bool(option) and " ".join(trimmed.casefold().split()) == " ".join(option.casefold().split())


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
    text = unicodedata.normalize("NFKC", text).translate(wording.SPELLINGS)
    text = re.sub(r"~~.*?~~", "", text)
    text = re.sub(r"<(b|i|u|em|strong|p|span)>(.*?)</\1>", r"\2", text, flags=re.DOTALL)
    text = re.sub(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox|bf|left|right|quad)\b|\\[,!;:()\[\]]", "", text)
    text = re.sub(r"(?<![A-Za-z0-9])_+|_+(?![A-Za-z0-9])", "", text)
    return re.sub(r"[*`$]", "", text)
