"""Several folders of one run: copies and beginnings count once, what contradicts is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.folder import ROWS, SUMMARY
from harness.report.run import Run, Unfinished

Tell = Callable[[str, str, str], None]  # folder, what is wrong, what to do
RIGHT = "find out which one is right and move the other away"


def told_apart(found: Sequence[Run | Unfinished], tell: Tell) -> list[Run]:
    """One run for each identity where its folders agree; all of them, each naming the others, where they do not."""
    by_identity: dict[str, list[Run | Unfinished]] = {}
    for one in found:
        by_identity.setdefault(one.identity or f"folder {one.folder}", []).append(one)
    runs = [run for here in by_identity.values() for run in _agreed(here, tell)]
    return sorted(runs, key=lambda run: run.folder)


def _agreed(here: Sequence[Run | Unfinished], tell: Tell) -> list[Run]:
    """Of several folders of one run the sound one counts, of several sound ones the longest: a copy, one that stops
    earlier in the same rows, and a damaged one count no second time. What contradicts it stays beside it, and both say
    so."""
    complete = [one for one in here if isinstance(one, Run)]
    unfinished = [one for one in here if isinstance(one, Unfinished)]
    if not complete:
        for one in unfinished:
            tell(one.folder, f"not complete: {one.rows} rows and no {SUMMARY}", f"go on with it: {one.again}")
        return []
    if len(here) == 1:
        return complete
    held = {one.folder: _Content.of(one.path) for one in here}
    first, *others = sorted(complete, key=lambda run: (not run.sound, -held[run.folder].count, run.folder))
    longest, against = held[first.folder], [first]
    for other in others:
        mine = held[other.folder]
        if mine == longest:
            tell(other.folder, f"a copy of {first.folder}", "counted once; remove one of them")
        elif mine.begins(longest):
            said = f"its {mine.count} rows are the first of the {longest.count} of {first.folder}, which counts"
            tell(other.folder, said, "remove it")
        elif first.sound and not other.sound:
            tell(other.folder, f"damaged, so that {first.folder} counts, which is the same run", "mend or remove it")
        else:
            against.append(other)
    for one in unfinished:
        same = held[one.folder].begins(longest) or held[one.folder].rows == longest.rows
        tell(one.folder, f"not complete, and its rows are {'' if same else 'not '}those of {first.folder}, which "
                   "counts", "remove it" if same else RIGHT)  # fmt: skip
    if len(against) == 1:
        return [first]
    found = []
    for run in against:
        rest = tuple(other.folder for other in against if other is not run)
        said = f"in conflict with {' and '.join(rest)}: the same options, other results; all are shown"
        tell(run.folder, said, RIGHT)
        found.append(replace(run, conflict=rest))
    return found


@dataclass(frozen=True)
class _Content:
    """What copies of a folder have in common: the bytes of its whole rows, and of its summary."""

    rows: bytes
    summary: bytes

    @classmethod
    def of(cls, folder: Path) -> _Content:
        rows, summary = map(_bytes, (folder / ROWS, folder / SUMMARY))
        return cls(rows[: rows.rfind(b"\n") + 1], summary)

    @property
    def count(self) -> int:
        return self.rows.count(b"\n")

    def begins(self, other: _Content) -> bool:
        return other.rows.startswith(self.rows) and self.count < other.count


def _bytes(file: Path) -> bytes:
    """Nothing of a file that is not there or cannot be read, which was told when the folder was."""
    try:
        return file.read_bytes()
    except OSError:
        return b""
