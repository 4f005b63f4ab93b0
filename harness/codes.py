"""Which code wrote the rows of a run. A run id does not see the code, so that a run that was killed may go on with
another; its rows are then a mixture, and the run says so."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from harness.provenance import Session


def mixture(sessions: Sequence[Session]) -> str | None:
    """What to say where the last of ``sessions`` goes on with rows that other code wrote; None if there are none.

    A session wrote rows if the next one found more than it had; where an older record does not say how many, it is
    taken to have written some.
    """
    if not sessions or sessions[-1].rows == 0:
        return None
    now, writers = sessions[-1], list[Session]()
    for session, following in pairwise(sessions):
        if session.rows == 0:
            writers = []
        if session.rows is None or following.rows is None or following.rows > session.rows:
            writers.append(session)
    others = list(dict.fromkeys(code(s) for s in writers if _differ(s, now)))
    if not others:
        return None
    return (
        f"its first rows were written by other code ({', '.join(others)}) than those that follow ({code(now)}), so "
        "that its numbers mix them"
    )


def code(session: Session) -> str:
    """The commit, or the version outside a repository."""
    if session.git is None:
        return f"version {session.packages.get('kvcmas', 'unknown')}"
    changes = f" with changes {session.git.diff_sha256[:6]}" if session.git.diff_sha256 else ""
    return f"{session.git.sha[:12]}{changes}"


def _differ(one: Session, other: Session) -> bool:
    if one.git is not None and other.git is not None:
        return one.git != other.git
    return one.packages.get("kvcmas") != other.packages.get("kvcmas")
