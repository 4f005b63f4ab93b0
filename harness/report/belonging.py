"""Which runs are at a point of an exhibit: those of its own command, or the same options by any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import yaml

from harness.config import CONF
from harness.report.exhibit import INPUTS, Exhibit, Point
from harness.report.run import Run

# Of a task or workflow, what a user may change without leaving the experiment.
FREE = INPUTS | {
    "samples", "warmup", "max_new_tokens", "execute", "frames", "tau", "tau_distance", "sandbox", "timeout_s",
}  # fmt: skip


def belongs(run: Run, point: Point, exhibit: Exhibit, named: bool) -> bool:
    """Whether a run is at a point; ``named`` says that the experiment's own command made it, so that what is not in
    the point's words may be anything."""
    chosen = {"method": run.method, "task": run.option("task.name"), "workflow": run.option("workflow.name")}
    if any(key in chosen and chosen[key] != value for key, value in point.choices.items()):
        return False
    if any(not _same_mode(run.option(key), value) for key, value in exhibit.fixed.items()):
        return False
    wanted = {k: v for k, v in point.options.items() if k.rpartition(".")[2] not in INPUTS}
    if any(not _equal(run.option(key), _read(value)) for key, value in wanted.items()):
        return False
    if named:
        return not _unasked(run, point, ("method",))
    return not _unasked(run, point, ("method", "task", "workflow"))


def _same_mode(found: Any, wanted: Any) -> bool:
    """How many requests only fill pools is a user's choice, whether there are any is not."""
    return bool(found) is wanted if isinstance(wanted, bool) else _equal(found, wanted)


def _unasked(run: Run, point: Point, groups: Sequence[str]) -> bool:
    """Whether an option of these groups is neither the default of its YAML nor in the point's words."""
    typed = set(point.options)
    for group in groups:
        choice = run.method if group == "method" else run.option(f"{group}.name")
        own = run.option(group)
        for key, default in defaults(group, str(choice)).items():
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
def defaults(group: str, choice: str) -> Mapping[str, Any]:
    """Scalar options of a choice's YAML; {} for one from elsewhere."""
    path = CONF / group / f"{choice}.yaml"
    found = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {k: v for k, v in found.items() if not isinstance(v, list | dict) and k != "name"}


@cache
def _read(value: str) -> Any:
    if value in ("inf", "-inf"):
        return float(value)
    return yaml.safe_load(value)


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b) and isinstance(a, bool) is isinstance(b, bool)
