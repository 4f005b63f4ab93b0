"""Run folders as the report sees them: every folder becomes a run or a problem that says what to do; none vanishes.

Reads folders only, takes no lock and changes nothing. A run whose rows and summary do not belong together is shown as
its summary has it, marked, without its rows; nothing is concluded from it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from harness.errors import UserError
from harness.folder import CONFIG, PROVENANCE, ROWS, SUMMARY, read_provenance, read_summary, run_folders
from harness.provenance import Session
from harness.report.copies import told_apart
from harness.report.rows import Lines, read
from harness.report.run import Problem, Run, Unfinished
from harness.report.soundness import REMOVE, contradiction, impossible, no_file
from harness.report.text import printable
from harness.summary import Summary

GIVE = "give run folders, or folders that hold some, such as results/runs"


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
        if (what := no_file(path)) is not None:
            self.add(shown, what, REMOVE)
            return None
        config = self._config(path, shown)
        try:
            summary = read_summary(path)
        except UserError as error:
            self._says(shown, str(error).replace(str(path), shown))
            return None
        except OSError as error:
            self._says(shown, f"{SUMMARY} cannot be read ({error.strerror})")
            return None
        if summary is not None and (number := impossible(summary)) is not None:
            self._says(shown, f"{SUMMARY} has a number that nothing can have measured ({number})")
            return None
        lines, why = self._lines(path)
        sessions, identity = self._provenance(path, shown)
        if summary is None:
            if why:
                self._says(shown, why)
            again = sessions[-1].command if sessions else "the command that made it"
            return Unfinished(shown, path, identity, len(lines.rows), again)
        for warning in summary.warnings:
            self.add(shown, warning, "to be sure, delete the folder and run its command again")
        doubts = self._doubts(shown, summary, lines, why)
        return Run(shown, config, summary, () if doubts else lines.rows, path, sessions, identity, doubts=doubts)

    def _doubts(self, shown: str, summary: Summary, lines: Lines, why: str) -> tuple[str, ...]:
        """Tell in what the rows are not those of the summary; the mark of the run, none if they are."""
        n = len(lines.rows)
        if why:
            self._says(shown, why)
            return ("rows damaged",)
        if lines.torn or n != summary.n:
            what = f"{ROWS} ends in the middle of a row" if lines.torn else f"{ROWS} has {n} readable rows"
            self.add(shown, f"{what}, {SUMMARY} counts {summary.n}; its intervals are left out",
                      f"delete {SUMMARY} and go on with it: {summary.command}")  # fmt: skip
            return (f"{n} of {summary.n} rows",)
        if (what_ := contradiction(summary, lines.rows)) is not None:
            self.add(shown, what_, f"if a rescore was interrupted: python -m harness.rescore {shlex.quote(shown)} "
                      f"--write; else delete {SUMMARY} and run its command again: {summary.command}")  # fmt: skip
            return ("summary contradicts its rows",)
        return ()

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
        if not isinstance(found, dict):
            self._says(shown, f"{CONFIG} holds no options")
            return {}
        return found

    def _provenance(self, path: Path, shown: str) -> tuple[tuple[Session, ...], str]:
        try:
            found = read_provenance(path)
        except UserError as error:
            self._says(shown, str(error).replace(str(path), shown))
            return (), ""
        except OSError as error:
            self._says(shown, f"{PROVENANCE} cannot be read ({error.strerror})")
            return (), ""
        if found is None:
            self.add(shown, f"there is no {PROVENANCE}", "where its numbers come from is unknown")
            return (), ""
        return tuple(found.sessions), found.identity_sha256

    def _lines(self, path: Path) -> tuple[Lines, str]:
        """Whole rows, and what is wrong with the file apart from its end."""
        try:
            found = read(path)
        except OSError as error:
            return Lines((), (), False), f"{ROWS} cannot be read ({error.strerror})"
        if not found.bad:
            return found, ""
        (number, why), *more = found.bad
        others = f", and {len(more)} other lines are none" if more else ""
        return found, f"line {number} of {ROWS} is no row ({why}){others}"

    def _says(self, shown: str, what: str) -> None:
        self.add(shown, what.partition("; move its folder away")[0], "move the folder away and run its command again")

    def add(self, shown: str, what: str, remedy: str) -> None:
        self.problems.append(Problem(shown, what, remedy))


def collect(places: Sequence[Path]) -> Collected:
    """All runs below ``places``, which are run folders or hold some; sorted by folder.

    Raises:
        UserError: for a place that does not exist, or if there is no run folder in any.
    """
    for place in places:
        if not place.is_dir():
            raise UserError(f"{place} is no folder; {GIVE}")
    reader, folders = _Reader(), set[Path]()
    for place in places:
        here = set(run_folders(place))
        folders |= here
        if not here:
            reader.add(_shown(place), "there is no run folder in it", GIVE)
    if not folders:
        raise UserError(f"there is no run folder in {' or '.join(map(str, places))}; {GIVE}")
    found = [reader.run(f, _shown(f)) for f in sorted(folders)]
    runs = told_apart([one for one in found if one is not None], reader.add)
    return Collected(tuple(runs), tuple(sorted(reader.problems, key=lambda p: (p.folder, p.what))), len(folders))


def _shown(folder: Path) -> str:
    """Relative to the working directory where it lies below it; else without the folders above the task's."""
    try:
        return printable(folder.resolve().relative_to(Path.cwd()).as_posix())
    except ValueError:
        return printable(Path(*folder.resolve().parts[-3:]).as_posix())
