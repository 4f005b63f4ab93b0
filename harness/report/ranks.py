"""Analyses of effective rank (``python -m harness.analyse rank``) as the report reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from harness.report.run import Problem
from harness.report.text import printable


class LayerRank(msgspec.Struct, frozen=True):
    """One layer of one kind of matrix; see :class:`harness.analysis.rank.LayerRank`."""

    kind: str
    frame: str
    layer: int
    energy_rank: dict[str, float]
    entropy_rank: float
    rows: float
    spans: int


class RankFile(msgspec.Struct, frozen=True):
    """The file; see :class:`harness.analysis.rank.Ranks`."""

    model: str
    task: str
    requests: int
    layers: list[LayerRank]
    command: str = ""
    subject: str = ""


class Ranks:
    """One analysis."""

    def __init__(self, file: str, found: RankFile) -> None:
        self.file, self.found = file, found
        self.model, self.task, self.requests = found.model, found.task, found.requests

    def most(self, energy: float, frame: str = "derotated") -> float:
        """The largest mean rank of a layer of span deltas at this share of the energy."""
        return max(
            row.energy_rank[f"{energy:g}"] for row in self.found.layers
            if row.kind.startswith("delta") and row.frame in (frame, "none")
        )  # fmt: skip

    def of(self, kind: str, frame: str) -> list[LayerRank]:
        return sorted((r for r in self.found.layers if (r.kind, r.frame) == (kind, frame)), key=lambda r: r.layer)

    @property
    def kinds(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys((row.kind, row.frame) for row in self.found.layers))


def read_ranks(folder: Path) -> tuple[list[Ranks], list[Problem]]:
    """All analyses of ranks in ``folder``, and the files that look like one and are none."""
    found, problems = list[Ranks](), list[Problem]()
    for path in sorted(folder.glob("rank-*.json")) if folder.is_dir() else ():
        try:
            made = msgspec.json.decode(path.read_bytes(), type=RankFile)
            if not made.layers:
                raise msgspec.ValidationError("it has no layers")
            found.append(Ranks(printable(path.name), made))
        except (OSError, msgspec.DecodeError) as error:
            problems.append(Problem(printable(path.name), f"no analysis of ranks ({error})",
                                    "make it again: python -m harness.analyse rank"))  # fmt: skip
    return found, problems


def titles(found: Sequence[Ranks]) -> list[str]:
    return [f"{r.task}, {r.model}" for r in found]
