"""Exhibits: what an experiment's YAML says about how to show it, and the runs that belong to it.

::

    exhibit:
      title: Rank of the corrections
      columns: [accuracy, kl, state]          # quantities of the table
      baseline: full_reuse                    # method that relative quantities refer to (dense if not given)
      panels:                                 # of the figure; x is an option, a quantity or ``method``
        - {x: method.rank, y: kl}

A run belongs to an exhibit if it is one of its points: made by the experiment's own command, or the same options by any
other. Runs that differ by their seed alone are one line, with mean and standard deviation over seeds. Runs that differ
in anything else (task, model, samples, mode) are blocks of their own, side by side, never one line.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
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


LONGEST = 100  # characters of a file's name, without its ending; what tells long ones apart is in a digest


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
    """What is at a point: a run, or several that differ by their seed alone, by seed."""

    point: Point
    runs: tuple[Run, ...]

    @property
    def run(self) -> Run:
        """The first; what is no number is the same in all."""
        return self.runs[0]


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
        name = f"{self.exhibit.name}-{said}"
        if len(name) <= LONGEST:
            return name
        return f"{name[:LONGEST].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"

    def baseline(self, like: Run, method: str | None = None) -> Run | None:
        """The run of the baseline, or of ``method`` as it is by itself, with the seed of the run ``like``."""
        wanted = method or self.exhibit.baseline
        for placed in self.runs:
            if placed.run.method == wanted and not any(key.startswith("method.") for key in placed.point.options):
                return next((run for run in placed.runs if run.option("seed") == like.option("seed")), None)
        return None

    @property
    def each(self) -> Iterator[Placed]:
        """Every run by itself."""
        return (Placed(placed.point, (run,)) for placed in self.runs for run in placed.runs)


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
    asked = f"+experiment={exhibit.name}"
    by_context: dict[tuple[str, str], dict[Point, dict[Any, Run]]] = {}
    for size in sizes():
        points = exhibit.points(size)
        swept = {key for point in points for key in (*point.options, *point.choices)}
        for run in runs:
            named = asked in run.summary.command.split()
            point = next((p for p in points if belongs(run, p, exhibit, named)), None)
            if point is not None:
                context = json.dumps(_context(run, swept), sort_keys=True, default=str)
                here = by_context.setdefault((context, size), {}).setdefault(point, {})
                here.setdefault(run.option("seed"), run)
    kept: dict[str, tuple[str, dict[Point, dict[Any, Run]]]] = {}
    for (context, size), found in by_context.items():
        if len(found) > len(kept.get(context, ("", {}))[1]):
            kept[context] = (size, found)
    contexts = [json.loads(c) for c in kept]
    telling = _telling(contexts)
    made = []
    for context, (size, found) in zip(contexts, kept.values(), strict=True):
        points = exhibit.points(size)
        placed = tuple(Placed(p, _by_seed(found[p])) for p in points if p in found)
        mine = [p for p in points if _same_choices(p, placed)]
        missing = tuple(p for p in mine if p not in found)
        own = any(asked in run.summary.command.split() for p in placed for run in p.runs)
        if own or 2 * len(placed) >= max(len(mine), 3):  # a few runs that happen to fit are no exhibit
            made.append(Block(exhibit, _facts(context, telling, placed[0].run), placed, size, missing))
    return sorted(made, key=lambda b: (-len(b.runs), b.name))


def _by_seed(runs: Mapping[Any, Run]) -> tuple[Run, ...]:
    return tuple(runs[seed] for seed in sorted(runs, key=lambda seed: seed if isinstance(seed, int) else -1))


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
    """What must be equal of two runs in one block, by dotted option: all but the seed and what the exhibit sweeps."""
    own = {key for key in swept if "." in key and key.rpartition(".")[2] not in INPUTS} | {"seed"}
    if run.option("trace.seed") == run.option("seed"):  # it follows the run's
        own.add("trace.seed")
    found = {k: v for k, v in options(run, ("method", "shard", *own)).items() if k not in own}
    return {k: v for k, v in found.items() if not k.startswith(("task.agents.", "task.final.", "task.tools"))}


def _telling(contexts: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    """By task, the options in which its blocks differ."""
    by_task: dict[str, list[Mapping[str, Any]]] = {}
    for context in contexts:
        by_task.setdefault(str(context.get("task.name")), []).append(context)
    return {
        task: {key for key in set().union(*here) if len({json.dumps(c.get(key), default=str) for c in here}) > 1}
        for task, here in by_task.items()
    }


def _facts(context: Mapping[str, Any], telling: Mapping[str, set[str]], run: Run) -> dict[str, str]:
    """Task and model, and what other blocks of the task have otherwise."""
    facts = {"task": run.summary.task, "model": run.summary.model}
    if run.summary.teacher_forcing:
        facts["mode"] = "teacher-forced"
    for key, value in context.items():
        tells = key in telling[str(context.get("task.name"))] and not isinstance(value, list | dict)
        if tells and not key.startswith(("task.name", "model.", "task._target_", "teacher_forcing")):
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
