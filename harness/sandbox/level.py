"""Which level of isolation works on this machine, found out by trying."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from harness.errors import UserError
from harness.sandbox import execute
from harness.sandbox.base import Execution, Level, Limits

_PROBE = "import os, sys\nanswer = [len(sys.path) > 0, os.getpid(), len(os.environ)]\n"


@cache
def best() -> tuple[Level | None, str]:
    """The strongest level that works here, and why no stronger one does (no level: why none does)."""
    reasons = list[str]()
    for level in Level:
        if level is not Level.isolated and (reason := _private_library()):
            return None, "; ".join([*reasons, reason])
        tried = probe(level)
        if tried.passed:
            return level, "; ".join(reasons)
        reasons.append(f"{level}: {tried.message}")
    return None, "; ".join(reasons)


def probe(level: Level) -> Execution:
    """A small program at ``level``."""
    return execute.value(_PROBE, "answer", level, Limits())


def require(least: str, option: str) -> Level:
    """The best level here.

    Args:
        least: the weakest level that will do.
        option: how the user names it, for the message.

    Raises:
        UserError: if ``least`` is no level, or nothing as strong works here.
    """
    if least not in list(Level):
        raise UserError(f"{option} must be one of {', '.join(Level)}, got {least!r}")
    found, reason = best()
    if found is None:
        raise UserError(f"{option}={least}: generated programs cannot be run on this machine ({reason})")
    if not found.meets(Level(least)):
        raise UserError(
            f"{option}={least}: this machine reaches {found} only ({reason}); "
            f"set {option}={found} to accept that, or run where user namespaces are allowed"
        )
    return found


def _private_library() -> str:
    """Why a program of root's cannot run in the file tree of the machine: it gives up root's rights first, and then
    cannot read a standard library in a private folder."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return ""
    library = Path(os.__file__).resolve()
    if all(parent.stat().st_mode & 0o001 for parent in library.parents):
        return ""
    return (
        f"as root and without an own file tree it needs a Python that everybody may read, {library.parent} is private"
    )
