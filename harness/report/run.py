"""A run as the report knows it, and a folder that is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.provenance import Session
from harness.records import Status
from harness.report.rows import HopLine, RowLine
from harness.summary import Summary

OUTSIDE = ("hydra", "tracking", "results_dir", "points", "exhibit", "size", "sizes")  # of a configuration, no run's


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
        doubts: why its numbers support nothing, in short; its rows are left out then.
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
    doubts: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Nothing of it is damaged or missing."""
        return not self.doubts and bool(self.config)

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
