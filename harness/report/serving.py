"""TTFT and throughput against load: ``python -m harness.report.serving results/runs/trace/* --out serving.png``.

Left and middle, TTFT of hops with a source and mean TTFT over whole trajectories (first agent included): median or mean
solid with its 95 % interval (bootstrap over trajectories), 90th percentile dashed and hollow. Right, prompt tokens a
second, computed solid, reused dashed and hollow. A line per measurement, a point per offered load; runs that differ by
their seed alone are pooled. Simulated runs say so, and never share a figure with measured ones. A folder that cannot be
used is named on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.report.standalone import run as program
from harness.report.standalone import same_kind, save, usable
from harness.report.style import canvas, look
from harness.serving import Serving
from harness.traffic.pool import Pooled, measured, pooled


@dataclass(frozen=True)
class Line:
    """One configuration over its loads: ``points`` are (calls per second, what was measured), by load."""

    label: str
    method: str
    points: tuple[tuple[float, Serving], ...]


def lines(runs: Sequence[Pooled]) -> list[Line]:
    """Runs that differ by nothing but ``trace.qps``, together; labelled by the options in which the lines differ.

    The load is the trace's ``qps``, or where it has none the rate at which calls really came.
    """
    groups: dict[str, list[tuple[float, Pooled]]] = {}
    for run in runs:
        trace = run.options.get("trace") or {}
        load = trace.get("qps", run.serving.offered_calls_s)
        if load is None:
            raise UserError(f"{run.folders[0]}: all calls come at once, so that there is no load to draw it over")
        options = {**run.options, "trace": {k: v for k, v in trace.items() if k != "qps"}}
        groups.setdefault(repr(sorted(_flat(options).items())), []).append((float(load), run))
    flat = {key: _flat(found[0][1].options) for key, found in groups.items()}
    names = [f[0][1].summary.method for f in groups.values()]
    out = []
    for key, found in groups.items():
        method = found[0][1].summary.method
        label = method if names.count(method) == 1 else f"{method} {_difference(key, method, flat, groups)}".strip()
        points = tuple((load, run.serving) for load, run in sorted(found, key=lambda point: point[0]))
        out.append(Line(label, method, points))
    return out


def plot(folders: Sequence[Path], target: Path) -> None:
    """Draw the runs in ``folders``.

    Raises:
        UserError: if no folder holds a complete run of a trace, or their runs do not belong into one figure.
    """
    runs = pooled(usable(folders, measured, "run task=trace first"))
    same_kind(f"{r.serving.trace} on {r.summary.model}, {_how(r)}" for r in runs)
    pyplot, found = canvas(), lines(runs)
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    styles: dict[str, int] = {}
    for line in found:
        style = {**look(line.method), "linestyle": "-"}
        repeat = styles[line.method] = styles.get(line.method, -1) + 1
        if repeat:
            style["markerfacecolor"] = "none"
            style["alpha"] = max(0.35, 1.0 - 0.2 * repeat)
        _draw(axes, line, style)
    axes[0].set(xlabel="calls per second", ylabel="TTFT of hops with a source, s", yscale="log")
    axes[1].set(xlabel="calls per second", ylabel="mean TTFT of a trajectory's hops, s", yscale="log")
    axes[2].set(xlabel="calls per second", ylabel="prompt tokens per second")
    first = runs[0]
    title = f"{first.serving.trace}, {first.summary.model}, {first.serving.engine}"
    figure.suptitle(f"SIMULATION: {title}" if first.serving.simulated else title)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize="small")
    save(figure, target)
    pyplot.close(figure)


def _how(run: Pooled) -> str:
    return f"backend {run.summary.backend}{', simulated' * run.serving.simulated}"


def _draw(axes: Any, line: Line, style: dict[str, Any]) -> None:
    hollow = {**style, "linestyle": "--", "markerfacecolor": "none"}
    later = [(q, s.ttft_downstream_s) for q, s in line.points if s.ttft_downstream_s is not None]
    if later:
        middle = [(q, s.p50, s.p50_ci95) for q, s in later]
        _bars(axes[0], middle, style, line.label)
        axes[0].plot([q for q, _ in later], [s.p90 for _, s in later], **hollow)
    whole = [(q, s.ttft_trajectory_s) for q, s in line.points if s.ttft_trajectory_s is not None]
    if whole:
        _bars(axes[1], [(q, s.mean, s.mean_ci95) for q, s in whole], style, line.label)
        axes[1].plot([q for q, _ in whole], [s.p90 for _, s in whole], **hollow)
    rates = [(q, s.tokens_s) for q, s in line.points if s.tokens_s is not None]
    if rates:
        axes[2].plot([q for q, _ in rates], [t.computed for _, t in rates], **style)
        axes[2].plot([q for q, _ in rates], [t.reused for _, t in rates], **hollow)


def _bars(
    axis: Any, points: Sequence[tuple[float, float, tuple[float, float]]], style: dict[str, Any], label: str
) -> None:
    """Values with their intervals, which need not lie around them evenly."""
    loads, values, bounds = zip(*points, strict=True)
    below = [max(0.0, v - low) for v, (low, _) in zip(values, bounds, strict=True)]
    above = [max(0.0, high - v) for v, (_, high) in zip(values, bounds, strict=True)]
    axis.errorbar(loads, values, yerr=[below, above], capsize=3, label=label, **style)


def _flat(options: Any, at: str = "") -> dict[str, Any]:
    """Options by dotted name."""
    if not isinstance(options, dict):
        return {at: options}
    found: dict[str, Any] = {}
    for name, value in options.items():
        found.update(_flat(value, f"{at}.{name}" if at else str(name)))
    return found


def _difference(
    key: str, method: str, flat: dict[str, dict[str, Any]], groups: dict[str, list[tuple[float, Pooled]]]
) -> str:
    """Options of a line that others of its method do not share, but for the load."""
    others = [flat[k] for k, found in groups.items() if k != key and found[0][1].summary.method == method]
    mine = {k: v for k, v in flat[key].items() if k != "trace.qps"}
    return " ".join(
        f"{name.removeprefix('method.')}={value}"
        for name, value in mine.items()
        if any(other.get(name) != value for other in others)
    )


def main(arguments: list[str] | None = None) -> int:
    return program("harness.report.serving", __doc__, plot, "serving.png", arguments)


if __name__ == "__main__":
    sys.exit(main())
