"""Where an answer says what its answer is: ``The answer is ...``, ``Answer: ...``, a LaTeX box, ``#### ...``."""

from __future__ import annotations

import re

_PHRASE = re.compile(
    r"\b(?:answer|ans|choice|option|solution)\b(?:\s+[\w'()-]+){0,6}?\s*"
    r"(?:\b(?:is|are|was|were|would be|should be|must be|will be|equals|be)\b\s*[:=]?|[:=])\s*"
    r"(?:(?:therefore|thus|then|hence|clearly|simply|approximately|about|roughly|indeed|option|choice)\b[:,]?\s*)*"
    r"|(?:答案|答え|正解|정답)\s*(?:是|为|為|は|은)?\s*[::]?\s*"
    r"|\b(?:respuesta|réponse|antwort|risposta|resposta|ответ)\b(?:\s+\w+){0,2}?\s*"
    r"(?::|\b(?:est|ist|es|lautet)\b|\bè\b|\bé\b)\s*"
    r"|#{4,}\s*|<(?:answer|final|final_answer|result)>\s*",
    re.IGNORECASE,
)
_BOX = re.compile(r"\\f?boxed\s*\{")
_END = re.compile(
    r"\n|</\w+>|(?<=[^\s.])[.!?;](?=\s|$)(?!\s*\d)|\s+[—–]\s"
    r"|\s+(?:because|since|as|when|where|given|if|but|wait|so|and not|not)\b"
    r"|,\s+(?:because|since|as|for|when|where|given|if|but|wait|so|which|not|and(?!\s+\d))\b",
    re.IGNORECASE,
)


def last_statement(text: str) -> str | None:
    """What the last explicit statement of an answer says, up to the end of its sentence; None if there is none.

    A statement without content ("The answer is", where the token limit struck) counts as none.
    """
    boxes = [(match.end(), True) for match in _BOX.finditer(text)]
    phrases = [(match.end(), False) for match in _PHRASE.finditer(text)]
    for start, box in sorted(boxes + phrases, reverse=True):
        said = _boxed(text, start) if box else _sentence(text, start)
        if re.search(r"\w", said):
            return said.strip()
    return None


def last_sentence(text: str) -> str:
    """The last sentence of the last line that says something."""
    lines = [line for line in text.splitlines() if re.search(r"\w", line)]
    sentences = re.split(r"(?<=[^\s.])[.!?](?=\s)", lines[-1] if lines else "")
    return next((sentence for sentence in reversed(sentences) if re.search(r"\w", sentence)), "").strip()


def _sentence(text: str, start: int) -> str:
    """The rest of the sentence at ``start``; empty if it is a box, which speaks for itself."""
    rest = text[start:].lstrip("*_`\"' \t\n")
    if _BOX.match(rest.lstrip("$\\([ ")):
        return ""
    end = _END.search(rest)
    return rest[: end.start()] if end else rest


def _boxed(text: str, start: int) -> str:
    """The content of the brace that was opened before ``start``; up to the end if it is never closed."""
    depth = 1
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if not depth:
            return text[start:end]
    return text[start:]
