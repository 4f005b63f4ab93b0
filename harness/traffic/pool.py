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

from harness.errors import UserError
from harness.folder import CONFIG, read_rows, read_summary
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


def pooled(folders: Sequence[Path]) -> list[Pooled]:
    """Complete runs of traces, in the order of their first folders.

    Raises:
        UserError: for a folder that holds no complete run of a trace.
    """
    groups: dict[str, list[tuple[Path, Summary]]] = {}
    options: dict[str, dict[str, Any]] = {}
    for folder in folders:
        summary = read_summary(folder)
        if summary is None or summary.serving is None:
            raise UserError(f"{folder} holds no complete run of task=trace; run its command (again), or leave it out")
        found = configured(folder)
        key = json.dumps(found, sort_keys=True, default=str)
        options[key] = found
        groups.setdefault(key, []).append((folder, summary))
    return [
        Pooled(runs[0][1], _together(runs), options[key], tuple(folder for folder, _ in runs))
        for key, runs in groups.items()
    ]


def configured(folder: Path) -> dict[str, Any]:
    """Options of a run, without its seed and what changes no result."""
    whole = OmegaConf.to_container(OmegaConf.load(folder / CONFIG))
    assert isinstance(whole, dict)
    found = {str(k): v for k, v in whole.items() if k not in IGNORED}
    trace = found.get("trace")
    if isinstance(trace, dict) and trace.get("seed") == whole.get("seed"):
        found["trace"] = {k: v for k, v in trace.items() if k != "seed"}
    return found


def _together(runs: Sequence[tuple[Path, Summary]]) -> Serving:
    first = runs[0][1].serving
    assert first is not None
    if len(runs) == 1:
        return first
    rows, repeats = list[Row](), list[Repeat]()
    for number, (folder, summary) in enumerate(runs):
        found = summary.serving
        assert found is not None
        base = len(repeats)
        rows += [
            msgspec.structs.replace(row, sample_id=f"{number}/{row.sample_id}", repeat=base + row.repeat)
            for row in read_rows(folder).rows
        ]
        repeats += [msgspec.structs.replace(r, repeat=base + r.repeat) for r in found.repeats]
    return serving(
        rows,
        repeats,
        layers=runs[0][1].layers,
        slo_ttft_s=first.goodput.slo_ttft_s,
        trace=first.trace,
        engine=first.engine,
        warmup_trajectories=first.warmup_trajectories,
        simulated=first.simulated,
    )
