"""Names that others gave, as one line that every output can hold."""

from __future__ import annotations

import os


def printable(name: str) -> str:
    """``name`` with what cannot be shown (bytes of a path that are no UTF-8, line breaks, controls) escaped."""
    known = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in known)
