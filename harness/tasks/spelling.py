"""One spelling for texts that mean the same: LaTeX, markdown, signs, case and spacing aside."""

from __future__ import annotations

import re
import unicodedata

_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_STYLE = re.compile(
    r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|operatorname|mbox|bf|left|right|displaystyle|quad)\b"
)
_DENIED = re.compile(r"(?:\bnot|n't|\bnt|\bnor|\bneither|\bthan|\binstead of)\s+(?:the\s+|an?\s+)?\Z")
_FRACTION = re.compile(r"\\[dtc]?frac\s*\{\s*([^{}]*?)\s*\}\s*\{\s*([^{}]*?)\s*\}|\\[dtc]?frac\s*(\d)\s*(\d)")
_SIGNS = str.maketrans(dict.fromkeys("−–—‐‑﹣", "-") | dict.fromkeys("“”„«»‘’`´", "'") | {"∶": ":", "⁄": "/", "∕": "/"})
_DEGREES = re.compile(r"\s*\^\s*(?:\{\s*)?(?:\\circ|°|∘)(?:\s*\})?|\s*(?:\\degree|\bdegrees?\b|\bdeg\b)|\\circ")


def spaced(text: str) -> str:
    """``text`` in lower case with words kept apart by single spaces, no brackets and no quotes."""
    text = _SUPERSCRIPT.sub(lambda match: "^" + unicodedata.normalize("NFKC", match[0]), text)
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    text = re.sub(r"\\[,;:!]|~|\\(?=[()\[\]])", " ", _STYLE.sub("", text))
    text = re.sub(r"\\(?:times|cdot)\b|[×·⋅]", "*", text)
    text = re.sub(r"\\?sqrt\s*(?:\{([^{}]*)\}|\(([^()]*)\))|√\s*(?:\{([^{}]*)\}|\(([^()]*)\))", _root, text)
    while (shorter := _FRACTION.sub(_ratio, text)) != text:
        text = shorter
    text = re.sub(r"\\pi\b|(?<![A-Za-z])pi(?![A-Za-z])", "π", _DEGREES.sub("°", text))
    text = re.sub(r"\s*(?:\\%|\bper\s?cent\b)", "%", text)
    text = re.sub(r"[*_$\"'(){}\[\]<>#\\]", " ", text.casefold())
    text = re.sub(r"\s*([°%√^/:+=,])\s*", r"\1", text).replace(",", ", ")
    return " ".join(text.split()).strip(" .,;!?")


def form(text: str) -> str:
    """``text`` without anything that two spellings of it may differ in; equal forms are the same answer."""
    return re.sub(r"\s", "", spaced(text))


def mentioned(text: str, texts: list[str]) -> set[str]:
    """Forms of those ``texts`` that stand in ``text`` as whole words and are not denied.

    Of overlapping ones the longest counts: "quarter past" is no "quarter".
    """
    plain, found = spaced(text), list[tuple[int, int, str]]()
    for other in {spaced(other) for other in texts if form(other)}:
        words = r"\s*".join(re.escape(word) for word in re.findall(r"[^\W\d_]+|[\d.]+|[^\w\s]|_", other))
        first, last = other[0], other[-1]
        before = r"(?<![\w.√^/:+-])" if first.isalnum() or first == "√" else ""
        after = r"(?![\w√^/:]|[.,]\d)" if last.isdigit() else r"(?!\w)" if last.isalnum() else ""
        for match in re.finditer(before + words + after, plain):
            if not _DENIED.search(plain[max(0, match.start() - 20) : match.start()]):
                found.append((*match.span(), form(other)))
    return {
        name
        for start, stop, name in found
        if not any(a <= start and stop <= b and b - a > stop - start for a, b, _ in found)
    }


def _root(match: re.Match[str]) -> str:
    return "√" + next(part for part in match.groups() if part is not None)


def _ratio(match: re.Match[str]) -> str:
    top, below, one, other = match.groups()
    return f"{one}/{other}" if one else f"{top}/{below}"
