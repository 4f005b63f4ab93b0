"""Run folders as the report sees them: every folder becomes a run or a problem that says what to do; none vanishes.

Reads folders only, takes no lock and changes nothing. Rows are read leniently, since only what the report needs of them
must be there; a row that cannot be read is a problem with its line, and the rows around it still count.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from harness.errors import UserError
from harness.folder import CONFIG, PROVENANCE, ROWS, SUMMARY, read_provenance, read_summary
from harness.provenance import Session
from harness.records import Route, Status
from harness.summary import Summary

RIGHT = "find out which one is right and move the other away"
MARKS = (CONFIG, ROWS, SUMMARY)
OUTSIDE = ("hydra", "tracking", "results_dir", "points", "exhibit", "size", "sizes")  # of a configuration, no run's


class HopLine(msgspec.Struct, frozen=True, gc=False):
    """What the report reads of a hop; see :class:`harness.records.HopRecord`."""

    route: Route
    ttft_s: float
    e2e_s: float
    prompt_tokens: int
    output_tokens: int
    warmup: bool = False
    source_hop: bool = False
    kv_error_k: list[float] | None = None
    kv_error_v: list[float] | None = None
    first_token_kl: float | None = None
    prefix_match: int | None = None
    answer_agrees: bool | None = None
    shadow_ttft_s: float | None = None


class RowLine(msgspec.Struct, frozen=True, gc=False):
    """What the report reads of a row; see :class:`harness.records.Row`."""

    sample_id: str
    status: Status
    repeat: int = 0
    target: str | None = None
    correct: bool = False
    e2e_s: float = 0.0
    hops: list[HopLine] = []

    @property
    def key(self) -> tuple[str, int]:
        return self.sample_id, self.repeat

    @property
    def warmup(self) -> bool:
        return any(hop.warmup for hop in self.hops)

    @property
    def completed(self) -> bool:
        return self.status in (Status.ok, Status.invalid)

    @property
    def scored(self) -> bool:
        """In the denominator of the accuracy, as :func:`harness.metrics.scored`."""
        return self.status is not Status.missing and self.target is not None and not self.warmup


@dataclass(frozen=True)
class Problem:
    """A folder that is not simply a complete run."""

    folder: str
    what: str
    remedy: str


@dataclass(frozen=True, eq=False)
class Run:
    """A complete run.

    Attributes:
        folder: as shown, relative to where the report was made; path: where it lies.
        config: resolved options; ``{}`` if they cannot be read.
        sessions: of the provenance; shards: how many folders it was merged from.
        conflict: folders of the same run that have other results.
    """

    folder: str
    config: Mapping[str, Any]
    summary: Summary
    rows: tuple[RowLine, ...]
    path: Path
    sessions: tuple[Session, ...] = ()
    identity: str = ""
    shards: int = 1
    notes: tuple[str, ...] = ()
    conflict: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        return self.summary.method

    def option(self, key: str) -> Any:
        """The value of a dotted option; None where there is none."""
        node: Any = self.config
        for part in key.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        return node

    @property
    def counted(self) -> list[HopLine]:
        """Hops of completed rows, warm-up excluded, as :func:`harness.metrics.hops`."""
        return [h for r in self.rows if r.completed for h in r.hops if not h.warmup]

    @property
    def failed(self) -> int:
        """Samples that ended in no answer for a reason other than their input."""
        return sum(self.summary.statuses.get(s, 0) for s in (Status.error, Status.oom, Status.timeout))


@dataclass(frozen=True)
class Unfinished:
    """A folder without a summary: how many rows it has, and the command that goes on with it."""

    folder: str
    path: Path
    identity: str
    rows: int
    again: str


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
        return Run(shown, config, summary, tuple(rows), path, sessions, identity)

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
        file = path / ROWS
        try:
            *lines, rest = (file.read_bytes() if file.exists() else b"").split(b"\n")
        except OSError as error:
            self._says(shown, f"{ROWS} cannot be read ({error.strerror})")
            return (), False
        decoder, rows = msgspec.json.Decoder(RowLine), []
        for number, line in enumerate(lines, 1):
            try:
                rows.append(decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                self._says(shown, f"line {number} of {ROWS} is no row ({error})")
        return tuple(rows), bool(rest)

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
    runs = _told_apart([one for one in found if one is not None], reader)
    return Collected(tuple(runs), tuple(sorted(reader.problems, key=lambda p: (p.folder, p.what))), len(folders))


def options(run: Run, without: Sequence[str] = ()) -> dict[str, Any]:
    """The options that make the run what it is, by dotted name, but for the groups and options named."""
    kept = {k: v for k, v in run.config.items() if k not in (*OUTSIDE, *without)}
    return {k: v for k, v in flat(kept) if k not in without}


def flat(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings by dotted name."""
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _told_apart(found: Sequence[Run | Unfinished], reader: _Reader) -> list[Run]:
    """One run for each identity where its folders agree; all of them, each naming the others, where they do not."""
    by_identity: dict[str, list[Run | Unfinished]] = {}
    for one in found:
        by_identity.setdefault(one.identity or f"folder {one.folder}", []).append(one)
    runs = [run for here in by_identity.values() for run in _agreed(here, reader)]
    return sorted(runs, key=lambda run: run.folder)


def _agreed(here: Sequence[Run | Unfinished], reader: _Reader) -> list[Run]:
    """Of several folders of one run: a copy, and one that stops earlier in the same rows, count no second time. What
    contradicts the longest one stays beside it, and both say so."""
    complete = [one for one in here if isinstance(one, Run)]
    unfinished = [one for one in here if isinstance(one, Unfinished)]
    if not complete:
        for one in unfinished:
            reader.add(one.folder, f"not complete: {one.rows} rows and no {SUMMARY}", f"go on with it: {one.again}")
        return []
    if len(here) == 1:
        return complete
    held = {one.folder: _Content.of(one.path) for one in here}
    first, *others = sorted(complete, key=lambda run: (-held[run.folder].count, run.folder))
    longest, against = held[first.folder], [first]
    for other in others:
        mine = held[other.folder]
        if mine == longest:
            reader.add(other.folder, f"a copy of {first.folder}", "counted once; remove one of them")
        elif mine.begins(longest):
            said = f"its {mine.count} rows are the first of the {longest.count} of {first.folder}, which counts"
            reader.add(other.folder, said, "remove it")
        else:
            against.append(other)
    for one in unfinished:
        same = held[one.folder].begins(longest) or held[one.folder].rows == longest.rows
        reader.add(one.folder, f"not complete, and its rows are {'' if same else 'not '}those of {first.folder}, which "
                   "counts", "remove it" if same else RIGHT)  # fmt: skip
    if len(against) == 1:
        return [first]
    found = []
    for run in against:
        rest = tuple(other.folder for other in against if other is not run)
        said = f"in conflict with {' and '.join(rest)}: the same options, other results; all are shown"
        reader.add(run.folder, said, RIGHT)
        found.append(replace(run, conflict=rest))
    return found


@dataclass(frozen=True)
class _Content:
    """What copies of a folder have in common: the bytes of its whole rows, and of its summary."""

    rows: bytes
    summary: bytes

    @classmethod
    def of(cls, folder: Path) -> _Content:
        rows, summary = (f.read_bytes() if f.exists() else b"" for f in (folder / ROWS, folder / SUMMARY))
        return cls(rows[: rows.rfind(b"\n") + 1], summary)

    @property
    def count(self) -> int:
        return self.rows.count(b"\n")

    def begins(self, other: _Content) -> bool:
        return other.rows.startswith(self.rows) and self.count < other.count


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
