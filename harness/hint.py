"""Nearest valid names for a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, options: Iterable[str]) -> str:
    """The end of a sentence: ``did you mean rank?``, or all ``options`` when none is close to ``name``."""
    known = sorted(set(options))
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"valid here: {', '.join(known)}" if known else "nothing is valid here"


def render(value: object) -> str:
    """``value`` as it would be typed in an override."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(render(v) for v in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{k}:{render(v)}' for k, v in value.items())}}}"
    return str(value)
