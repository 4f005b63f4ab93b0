"""Traces that stand in files, as choices of a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from traces import mooncake
from traces.schema import Trace


@dataclass(frozen=True)
class File:
    """A file that ``python -m traces`` wrote."""

    path: str

    def trace(self) -> Trace:
        """Raises TraceError naming the line that does not fit."""
        return Trace.read(Path(self.path).expanduser())


@dataclass(frozen=True)
class Mooncake:
    """The first ``limit`` lines of a file in Mooncake's format."""

    path: str
    limit: int | None = None

    def trace(self) -> Trace:
        """Raises TraceError naming the line that does not fit."""
        return mooncake.read(Path(self.path).expanduser(), self.limit)
