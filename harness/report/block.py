"""Blocks: the runs of an exhibit that may stand side by side.

Runs that differ by their seed alone are one line, with mean and standard deviation over seeds. Runs that differ in
anything else (task, model, samples, mode) are blocks of their own, never one line.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.report.belonging import belongs
from harness.report.exhibit import INPUTS, Exhibit, Point, sizes
from harness.report.run import Run, options

LONGEST = 100  # characters of a file's name, without its ending; what tells long ones apart is in a digest


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


def blocks(exhibit: Exhibit, runs: Sequence[Run]) -> list[Block]:
    """The runs of an exhibit in blocks, those with most runs first."""
    asked = f"+experiment={exhibit.name}"
    by_context: dict[tuple[str, str], dict[Point, dict[Any, Run]]] = {}
    for size in sizes():
        points = exhibit.points(size)
        swept = {key for point in points for key in (*point.options, *point.choices)}
        for run in sorted(runs, key=lambda run: not run.sound):  # at one point the first counts
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
