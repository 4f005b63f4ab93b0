"""Whether the files of a run folder can be believed: they are files, their numbers possible, and the summary is that of
the rows. What is cheap to count is counted again; the rest of the summary is taken as it is."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import UserError
from harness.folder import CONFIG, PROVENANCE, ROWS, SUMMARY
from harness.records import Status
from harness.report.rows import MOST, RowLine
from harness.summary import Summary

REMOVE = "remove it and run the folder's command again"


def no_file(folder: Path) -> str | None:
    """Which of a run's files is there and is none: a folder, or a pipe, whose reading would wait for ever."""
    for name in (CONFIG, PROVENANCE, ROWS, SUMMARY):
        try:
            mode = (folder / name).stat().st_mode
        except OSError:
            continue  # it is not there, or is told where it is read
        if not stat.S_ISREG(mode):
            return f"{name} is {'a folder' if stat.S_ISDIR(mode) else 'no regular file'}"
    return None


def regular(folder: Path) -> None:
    """Raises UserError as :func:`no_file` says."""
    if (what := no_file(folder)) is not None:
        raise UserError(f"{folder}: {what}; {REMOVE}")


def impossible(summary: Summary) -> str | None:
    """A number that nothing can have measured, in short; None if there is none."""
    return _beyond(msgspec.to_builtins(summary))


def _beyond(node: Any) -> str | None:
    if isinstance(node, Mapping):
        node = list(node.values())
    if isinstance(node, list | tuple):
        return next((found for part in node if (found := _beyond(part)) is not None), None)
    return str(node)[:20] if isinstance(node, int | float) and abs(node) > MOST else None


def contradiction(summary: Summary, rows: Sequence[RowLine]) -> str | None:
    """In what the summary is not that of the rows: how they ended, how many of the scored ones are right."""
    told, found = Counter(summary.statuses), Counter(row.status for row in rows)
    if told != found:
        return f"{SUMMARY} counts {_counts(told)}, {ROWS} has {_counts(found)}"
    scored = [row.correct for row in rows if row.scored]
    right = sum(scored) / len(scored) if scored else None
    if (right is None) is (summary.accuracy is None) and abs((right or 0.0) - (summary.accuracy or 0.0)) < 1e-9:
        return None
    said = "no accuracy" if summary.accuracy is None else f"an accuracy of {100 * summary.accuracy:.4g} %"
    return f"{SUMMARY} has {said}, in {ROWS} {sum(scored)} of {len(scored)} scored rows are right"


def _counts(counts: Counter[Status]) -> str:
    return ", ".join(f"{counts[status]} {status}" for status in Status if counts[status]) or "nothing"
