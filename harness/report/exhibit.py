"""Exhibits: what an experiment's YAML says about how to show it, and the runs that belong to it.

::

    exhibit:
      title: Rank of the corrections
      columns: [accuracy, kl, state]          # quantities of the table
      baseline: full_reuse                    # method that relative quantities refer to (dense if not given)
      panels:                                 # of the figure; x is an option, a quantity or ``method``
        - {x: method.rank, y: kl}

Its points are the runs that its command makes; :mod:`harness.report.belonging` says which runs are at them.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from harness.config import CONF
from harness.errors import UserError
from harness.points import sized

MODES = ("teacher_forcing", "warmup")  # on or off; what an experiment does not say is off, as in conf/config.yaml

INPUTS = frozenset({"source", "subset", "split", "revision", "profile", "lookup", "videos", "path", "extractor"})


@dataclass(frozen=True)
class Point:
    """One run of an experiment, as words that would be typed."""

    words: tuple[str, ...]

    @property
    def label(self) -> str:
        """Without what is the same everywhere in a table: groups, and the task and model of the block."""
        hidden = ("task=", "model=", *(f"task.{name}=" for name in INPUTS), "task.execute=")
        rest = (w for w in self.words if not w.startswith(hidden))
        return " ".join(w.removeprefix("method=").removeprefix("method.").removeprefix("task.") for w in rest)

    @cached_property
    def options(self) -> dict[str, str]:
        return {k: v for k, _, v in (w.partition("=") for w in self.words) if "." in k}

    @cached_property
    def choices(self) -> dict[str, str]:
        return {k: v for k, _, v in (w.partition("=") for w in self.words) if "." not in k}


@dataclass(frozen=True)
class Panel:
    """One plot: ``x`` an option, several of which the first that a run names counts, a quantity or ``method``."""

    x: str
    y: str

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(self.x.split(","))


@dataclass(frozen=True)
class Exhibit:
    """A table and a figure.

    Attributes:
        name: of the experiment. about: its comment lines. fixed: options that its YAML sets for every run.
    """

    name: str
    title: str
    about: str
    columns: tuple[str, ...]
    panels: tuple[Panel, ...]
    baseline: str
    lines: tuple[str, ...]
    fixed: Mapping[str, Any]

    @property
    def command(self) -> str:
        return f"python -m harness -m +experiment={self.name}"

    def points(self, size: str) -> tuple[Point, ...]:
        return _points(self.lines, size)


def exhibits(folder: Path = CONF / "experiment") -> list[Exhibit]:
    """Those of every experiment that says how to show it, by name.

    Raises:
        UserError: for one that names what is not there.
    """
    found = []
    for path in sorted(folder.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        config = yaml.safe_load(text)
        if "exhibit" not in config:
            continue
        said = config["exhibit"]
        try:
            found.append(
                Exhibit(
                    name=path.stem,
                    title=str(said["title"]),
                    about=_about(text),
                    columns=tuple(said["columns"]),
                    panels=tuple(Panel(str(p["x"]), str(p["y"])) for p in said["panels"]),
                    baseline=str(said.get("baseline", "dense")),
                    lines=tuple(str(line) for line in config.get("points", ())),
                    fixed=_fixed(config),
                )
            )
        except (KeyError, TypeError) as error:
            raise UserError(f"{path}: exhibit needs title, columns and panels with x and y ({error})") from error
    return found


@cache
def sizes() -> tuple[str, ...]:
    return tuple(sorted((p.stem for p in (CONF / "size").glob("*.yaml")), reverse=True))  # laptop before full


@cache
def _points(lines: tuple[str, ...], size: str) -> tuple[Point, ...]:
    values = yaml.safe_load((CONF / "size" / f"{size}.yaml").read_text(encoding="utf-8"))["sizes"]
    found = []
    for line in lines:
        words = [_choices(word) for word in shlex.split(sized(line, values))]
        found += [Point(chosen) for chosen in itertools.product(*words)]
    return tuple(found)


def _choices(word: str) -> list[str]:
    """``key=a,b`` as ``key=a`` and ``key=b``; commas inside brackets belong to a value."""
    key, _, value = word.partition("=")
    return [f"{key}={v}" for v in re.split(r",(?![^\[]*\])", value)]


def _fixed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Modes of the experiment, where it does not go through them, and its task, where it names one."""
    found: dict[str, Any] = {k: bool(config.get(k)) for k in MODES if k not in _swept(config)}
    tasks = [entry["override /task"] for entry in config.get("defaults", ()) if "override /task" in entry]
    return found | ({"task.name": tasks[0]} if tasks else {})


def _swept(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = config.get("hydra", {}).get("sweeper", {}).get("params", {})
    return found


def _about(text: str) -> str:
    """The comment at the head of a YAML, without the commands in it."""
    head = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    lines = [line.removeprefix("#").strip() for line in head]
    return " ".join(line for line in lines if not line.startswith(("@package", "python ", "[")))
