"""The page: one self-contained file, opened from disk, that shows every table and every figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from harness.report.drawing import Drawing
from harness.report.grid import Grid
from harness.report.quantity import QUANTITIES

TEMPLATE = "page.html.jinja"


@dataclass(frozen=True)
class Swatch:
    """One entry of a legend."""

    label: str
    colour: str
    marker: str
    hollow: bool
    line: str


@dataclass(frozen=True)
class Part:
    """A table with its figures.

    Attributes:
        heading: None where the section's own says enough. facts: what tells it from its neighbours.
        command: makes or completes its runs. missing: labels of runs that are not there. sources: folders, by run.
    """

    grid: Grid
    heading: str | None = None
    drawings: Sequence[Drawing] = ()
    legend: Sequence[Swatch] = ()
    command: str = ""
    missing: Sequence[str] = ()
    sources: Sequence[tuple[str, str, str]] = ()


@dataclass(frozen=True)
class Section:
    """Parts under one title; ``empty`` says what to do where there are none."""

    name: str
    title: str
    about: str
    parts: Sequence[Part] = ()
    command: str = ""
    empty: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Page:
    """Attributes:
    runs, folders, problems, verdicts: how many of each. svgs: panels, by the name of their table.
    """

    sections: Sequence[Section]
    runs: int
    folders: int
    problems: int
    verdicts: Counter[str]
    svgs: Mapping[str, Sequence[str]]

    def html(self) -> str:
        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        return environment.get_template(TEMPLATE).render(
            page=self, svgs=self._marked(), quantities=list(QUANTITIES.values())
        )

    def _marked(self) -> dict[str, list[Markup]]:
        """By the name of a grid; made by this program, from numbers and escaped labels."""
        return {name: list(map(Markup, svgs)) for name, svgs in self.svgs.items()}

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.html(), encoding="utf-8", errors="backslashreplace")
