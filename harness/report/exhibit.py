"""Exhibits: what an experiment's YAML says about how to show it, and the runs that belong to it.

::

    exhibit:
      title: Rank of the corrections
      columns: [accuracy, kl, state]          # quantities of the table
      baseline: full_reuse                    # method that relative quantities refer to (dense if not given)
      panels:                                 # of the figure; x is an option, a quantity or ``method``
        - {x: method.rank, y: kl}

A run belongs to an exhibit if it is one of its points: made by the experiment's own command, or the same options by any
other. Runs that differ in anything else (task, model, samples, mode) are blocks of their own, side by side, never one
line.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from harness.config import CONF
from harness.errors import UserError
from harness.points import sized
from harness.report.collect import Run, options

GROUPS = ("method", "task", "model", "workflow")
MODE = {"teacher_forcing": False, "warmup": 0}  # what an experiment does not say is as in conf/config.yaml
INPUTS = frozenset({"source", "subset", "split", "revision", "profile", "lookup", "videos", "path", "extractor"})
# Of a task or workflow, what a user may change without leaving the experiment.
FREE = INPUTS | {
    "samples", "warmup", "max_new_tokens", "execute", "frames", "tau", "tau_distance", "sandbox", "timeout_s",
}  # fmt: skip


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


@dataclass(frozen=True, eq=False)
class Placed:
    """A run at its point."""

    point: Point
    run: Run


@dataclass(frozen=True, eq=False)
class Block:
    """Runs of an exhibit that differ in their points only.

    Attributes:
        facts: what tells this block from others: task, model, mode and whatever else differs.
        size: the choice of the group ``size`` that its points are of.
        missing: points that no run of this block is at.
    """

    exhibit: Exhibit
    facts: Mapping[str, str]
    runs: tuple[Placed, ...]
    size: str
    missing: tuple[Point, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        said = "-".join(re.sub(r"[^a-z0-9]+", "-", v.lower()).strip("-") for v in self.facts.values())
        return f"{self.exhibit.name}-{said}"[:120].rstrip("-")

    def baseline(self, method: str | None = None) -> Run | None:
        wanted = method or self.exhibit.baseline
        return next((p.run for p in self.runs if p.run.method == wanted and not p.point.options.keys() & _own(p)), None)


def _own(placed: Placed) -> set[str]:
    return {key for key in placed.point.options if key.startswith("method.")}


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


def blocks(exhibit: Exhibit, runs: Sequence[Run]) -> list[Block]:
    """The runs of an exhibit in blocks, those with most runs first."""
    by_context: dict[tuple[str, str], dict[Point, Placed]] = {}
    for size in sizes():
        points = exhibit.points(size)
        swept = {key for point in points for key in (*point.options, *point.choices)}
        for run in runs:
            named = f"+experiment={exhibit.name}" in run.summary.command.split()
            point = next((p for p in points if belongs(run, p, exhibit, named)), None)
            if point is not None:
                context = json.dumps(_context(run, swept), sort_keys=True, default=str)
                by_context.setdefault((context, size), {}).setdefault(point, Placed(point, run))
    kept: dict[str, tuple[str, dict[Point, Placed]]] = {}
    for (context, size), placed in by_context.items():
        if len(placed) > len(kept.get(context, ("", {}))[1]):
            kept[context] = (size, placed)
    contexts = [json.loads(c) for c in kept]
    made = []
    for context, (size, placed) in zip(contexts, kept.values(), strict=True):
        points = exhibit.points(size)
        here = tuple(placed[p] for p in points if p in placed)
        mine = [p for p in points if _same_choices(p, here)]
        missing = tuple(p for p in mine if p not in placed)
        own = any(f"+experiment={exhibit.name}" in p.run.summary.command.split() for p in here)
        if own or 2 * len(here) >= max(len(mine), 3):  # a few runs that happen to fit are no exhibit
            made.append(Block(exhibit, _facts(context, contexts, here[0].run), here, size, missing))
    return sorted(made, key=lambda b: (-len(b.runs), b.name))


def belongs(run: Run, point: Point, exhibit: Exhibit, named: bool) -> bool:
    """Whether a run is at a point; ``named`` says that the experiment's own command made it, so that what is not in
    the point's words may be anything."""
    chosen = {"method": run.method, "task": run.option("task.name"), "workflow": run.option("workflow.name")}
    if any(key in chosen and chosen[key] != value for key, value in point.choices.items()):
        return False
    if any(not _equal(run.option(key) or type(value)(), value) for key, value in exhibit.fixed.items()):
        return False
    wanted = {k: v for k, v in point.options.items() if k.rpartition(".")[2] not in INPUTS}
    if any(not _equal(run.option(key), _read(value)) for key, value in wanted.items()):
        return False
    if named:
        return not _unasked(run, point, ("method",))
    return not _unasked(run, point, ("method", "task", "workflow"))


def _unasked(run: Run, point: Point, groups: Sequence[str]) -> bool:
    """Whether an option of these groups is neither the default of its YAML nor in the point's words."""
    typed = set(point.options)
    for group in groups:
        choice = run.method if group == "method" else run.option(f"{group}.name")
        own = run.option(group)
        for key, default in _defaults(group, str(choice)).items():
            name = f"{group}.{key}"
            loose = FREE if group != "method" else INPUTS
            if name in typed or key in loose or (isinstance(default, str) and "${" in default):
                continue
            if default is None and point.options.get("method.profile") is not None:
                continue  # a profile fills it in
            if isinstance(own, Mapping) and key in own and not _equal(own[key], default):
                return True
    return False


@cache
def _defaults(group: str, choice: str) -> Mapping[str, Any]:
    """Scalar options of a choice's YAML; {} for one from elsewhere."""
    path = CONF / group / f"{choice}.yaml"
    found = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {k: v for k, v in found.items() if not isinstance(v, list | dict) and k != "name"}


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


def _context(run: Run, swept: set[str]) -> dict[str, Any]:
    """What must be equal of two runs in one block, by dotted option."""
    own = {key for key in swept if "." in key and key.rpartition(".")[2] not in INPUTS}
    found = {k: v for k, v in options(run, ("method", "shard", *own)).items() if k not in own}
    return {k: v for k, v in found.items() if not k.startswith(("task.agents.", "task.final.", "task.tools"))}


def _facts(context: Mapping[str, Any], others: Sequence[Mapping[str, Any]], run: Run) -> dict[str, str]:
    """Task and model, and what other blocks have otherwise."""
    facts = {"task": run.summary.task, "model": run.summary.model}
    if run.summary.teacher_forcing:
        facts["mode"] = "teacher-forced"
    for key, value in context.items():
        values = {json.dumps(o.get(key), default=str) for o in others}
        if len(values) > 1 and not key.startswith(("task.name", "model.", "task._target_", "teacher_forcing")):
            same_task = [o for o in others if o.get("task.name") == context.get("task.name")]
            if len({json.dumps(o.get(key), default=str) for o in same_task}) > 1 and not isinstance(value, list | dict):
                facts[key] = f"{key}={value}"
    return facts


def _same_choices(point: Point, here: Sequence[Placed]) -> bool:
    """Whether the point is of the block's task: an experiment over several tasks has a block for each."""
    wanted = {k: v for k, v in point.choices.items() if k in ("task",)}
    return all(wanted == {k: v for k, v in p.point.choices.items() if k in ("task",)} for p in here[:1])


def _fixed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Modes of the experiment, where it does not go through them, and its task, where it names one."""
    found = {k: config.get(k, default) for k, default in MODE.items() if k not in _swept(config)}
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


@cache
def _read(value: str) -> Any:
    if value in ("inf", "-inf"):
        return float(value)
    return yaml.safe_load(value)


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b) and isinstance(a, bool) is isinstance(b, bool)
