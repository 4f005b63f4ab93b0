"""Run folders as the report sees them: every folder becomes a run or a problem that says what to do; none vanishes.

Reads folders only, takes no lock and changes nothing. A row that cannot be read is a problem with its line, and the
rows around it still count.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from harness.errors import UserError
from harness.folder import CONFIG, PROVENANCE, ROWS, SUMMARY, read_provenance, read_summary
from harness.provenance import Session
from harness.report.copies import told_apart
from harness.report.rows import RowLine, read
from harness.report.run import Problem, Run, Unfinished

MARKS = (CONFIG, ROWS, SUMMARY)


@dataclass(frozen=True)
class Collected:
    """Everything that lies in the folders."""

    runs: tuple[Run, ...]
    problems: tuple[Problem, ...]
    folders: int


@dataclass
class _Reader:
    problems: list[Problem] = field(default_factory=list)

    def run(self, path: Path, shown: str) -> Run | Unfinished | None:
        config = self._config(path, shown)
        try:
            summary = read_summary(path)
        except UserError as error:
            self._says(shown, str(error).replace(str(path), shown))
            return None
        rows, torn = self._rows(path, shown)
        sessions, identity = self._provenance(path, shown)
        if summary is None:
            again = sessions[-1].command if sessions else "the command that made it"
            return Unfinished(shown, path, identity, len(rows), again)
        if torn or len(rows) != summary.n:
            what = f"{ROWS} ends in the middle of a row" if torn else f"{ROWS} has {len(rows)} readable rows"
            self.add(shown, f"{what}, {SUMMARY} counts {summary.n}; its intervals are left out",
                      f"delete {SUMMARY} and go on with it: {summary.command}")  # fmt: skip
            rows = ()
        return Run(shown, config, summary, rows, path, sessions, identity)

    def _config(self, path: Path, shown: str) -> dict[str, Any]:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            found = yaml.load((path / CONFIG).read_bytes(), Loader=loader)
        except FileNotFoundError:
            self.add(shown, f"there is no {CONFIG}", "its options are unknown; run the command again elsewhere")
            return {}
        except (OSError, yaml.YAMLError) as error:
            self._says(shown, f"{CONFIG} cannot be read ({' '.join(str(error).split())[:200]})")
            return {}
        return found if isinstance(found, dict) else {}

    def _provenance(self, path: Path, shown: str) -> tuple[tuple[Session, ...], str]:
        try:
            found = read_provenance(path)
        except UserError as error:
            self._says(shown, str(error).replace(str(path), shown))
            return (), ""
        if found is None:
            self.add(shown, f"there is no {PROVENANCE}", "where its numbers come from is unknown")
            return (), ""
        return tuple(found.sessions), found.identity_sha256

    def _rows(self, path: Path, shown: str) -> tuple[tuple[RowLine, ...], bool]:
        """Whole rows, and whether the file ends in the middle of one."""
        try:
            found = read(path)
        except OSError as error:
            self._says(shown, f"{ROWS} cannot be read ({error.strerror})")
            return (), False
        for number, why in found.bad:
            self._says(shown, f"line {number} of {ROWS} is no row ({why})")
        return found.rows, found.torn

    def _says(self, shown: str, what: str) -> None:
        self.add(shown, what.partition("; move its folder away")[0], "move the folder away and run its command again")

    def add(self, shown: str, what: str, remedy: str) -> None:
        self.problems.append(Problem(shown, what, remedy))


def collect(places: Sequence[Path]) -> Collected:
    """All runs below ``places``, which are run folders or hold some; sorted by folder.

    Raises:
        UserError: for a place that does not exist.
    """
    for place in places:
        if not place.is_dir():
            raise UserError(f"{place} is no folder; give run folders, or folders that hold some, such as results/runs")
    reader = _Reader()
    folders = sorted({f for place in places for f in _folders(place)})
    found = [reader.run(f, _shown(f)) for f in folders]
    runs = told_apart([one for one in found if one is not None], reader.add)
    return Collected(tuple(runs), tuple(sorted(reader.problems, key=lambda p: (p.folder, p.what))), len(folders))


def _folders(place: Path) -> Iterator[Path]:
    """Run folders at or below ``place``; what lies inside one belongs to it."""
    for folder, below, files in os.walk(place):
        if any(mark in files for mark in MARKS):
            below.clear()
            yield Path(folder)


def _shown(folder: Path) -> str:
    """Relative to the working directory where it lies below it; else without the folders above the task's."""
    try:
        return folder.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return Path(*folder.resolve().parts[-3:]).as_posix()
