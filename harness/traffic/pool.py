"""Runs of a trace side by side: those that differ by nothing but their seed are repeats of one measurement.

Alternating methods within a sweep over seeds keeps slow drifts of a machine out of their ratios, which repeats inside
one run do not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from harness.errors import UserError
from harness.folder import CONFIG, ROWS, SUMMARY, read_rows, read_summary
from harness.records import Row
from harness.serving import Repeat, Serving
from harness.summary import Summary
from harness.traffic.measure import serving

IGNORED = ("seed", "tracking", "results_dir", "points")


@dataclass(frozen=True)
class Pooled:
    """One measurement.

    Attributes:
        summary: of its first run.
        serving: over the rows of all its runs.
        options: what was configured, without the seed.
        folders: of its runs.
    """

    summary: Summary
    serving: Serving
    options: dict[str, Any]
    folders: tuple[Path, ...]

    @property
    def seeds(self) -> int:
        return len(self.folders)


@dataclass(frozen=True)
class Measured:
    """A complete run of a trace."""

    folder: Path
    summary: Summary
    serving: Serving
    rows: tuple[Row, ...]
    options: dict[str, Any]


def measured(folder: Path) -> Measured:
    """The run in ``folder``.

    Raises:
        UserError: if it holds no complete run of a trace, or a part of it is damaged.
    """
    summary = read_summary(folder)
    if summary is None or summary.serving is None:
        raise UserError(f"{folder} holds no complete run of task=trace; run its command (again), or leave it out")
    found = read_rows(folder)
    if found.torn or len(found.rows) != summary.n:
        raise UserError(
            f"{folder / ROWS} has {len(found.rows)} whole rows{', then a torn one,' * bool(found.torn)} and {SUMMARY} "
            f"counts {summary.n}; delete {SUMMARY} and go on with it: {summary.command}"
        )
    return Measured(folder, summary, summary.serving, found.rows, configured(folder))


def pooled(found: Sequence[Measured]) -> list[Pooled]:
    """Those that differ by their seed alone as one, in the order of their first."""
    groups: dict[str, list[Measured]] = {}
    for run in found:
        groups.setdefault(json.dumps(run.options, sort_keys=True, default=str), []).append(run)
    return [
        Pooled(runs[0].summary, _together(runs), runs[0].options, tuple(run.folder for run in runs))
        for runs in groups.values()
    ]


def configured(folder: Path) -> dict[str, Any]:
    """Options of a run, without its seed and what changes no result.

    Raises:
        UserError: if there is no such file, or it is no YAML.
    """
    try:
        whole = OmegaConf.to_container(OmegaConf.load(folder / CONFIG))
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        said = " ".join(str(error).split())[:200]
        raise UserError(f"{folder / CONFIG} cannot be read ({said}); move its folder away and run again") from error
    if not isinstance(whole, dict):
        raise UserError(f"{folder / CONFIG} holds no options; move its folder away and run again")
    found = {str(k): v for k, v in whole.items() if k not in IGNORED}
    trace = found.get("trace")
    if isinstance(trace, dict) and trace.get("seed") == whole.get("seed"):
        found["trace"] = {k: v for k, v in trace.items() if k != "seed"}
    return found


def _together(runs: Sequence[Measured]) -> Serving:
    first = runs[0].serving
    if len(runs) == 1:
        return first
    rows, repeats = list[Row](), list[Repeat]()
    for number, run in enumerate(runs):
        base = len(repeats)
        rows += [
            msgspec.structs.replace(row, sample_id=f"{number}/{row.sample_id}", repeat=base + row.repeat)
            for row in run.rows
        ]
        repeats += [msgspec.structs.replace(r, repeat=base + r.repeat) for r in run.serving.repeats]
    return serving(
        rows,
        repeats,
        layers=runs[0].summary.layers,
        slo_ttft_s=first.goodput.slo_ttft_s,
        trace=first.trace,
        engine=first.engine,
        warmup_trajectories=first.warmup_trajectories,
        simulated=first.simulated,
    )
