"""TTFT and throughput against load: ``python -m harness.report.serving results/runs/trace/* --out serving.png``.

Left and middle, TTFT of hops with a source and mean TTFT over whole trajectories (first agent included): median or mean
solid, 90th percentile dashed, bands are 95 % intervals (bootstrap over trajectories). Right, prompt tokens a second,
computed solid and reused dashed. A line per measurement, a point per offered load; runs that differ by their seed alone
are pooled. Simulated runs say so, and never share a figure with measured ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.report.curve import FORMATS
from harness.report.style import canvas, look
from harness.serving import Serving
from harness.traffic.pool import Pooled, pooled


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
        UserError: for a folder without a complete run of a trace, another kind of file, or runs that do not belong into
            one figure.
    """
    if target.suffix not in FORMATS:
        raise UserError(f"--out {target}: a figure is one of {', '.join(FORMATS)}")
    runs = pooled(folders)
    kinds = {(r.summary.model, r.summary.backend, r.serving.simulated, r.serving.trace) for r in runs}
    if len(kinds) > 1:
        listed = "; ".join(sorted(f"{t} on {m}, backend {b}" for m, b, _, t in kinds))
        raise UserError(f"the folders hold runs of several kinds ({listed}); give those of one")
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
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=150)
    pyplot.close(figure)


def _draw(axes: Any, line: Line, style: dict[str, Any]) -> None:
    dashed = {**style, "linestyle": "--", "marker": ""}
    later = [(q, s.ttft_downstream_s) for q, s in line.points if s.ttft_downstream_s is not None]
    if later:
        loads = [q for q, _ in later]
        axes[0].plot(loads, [s.p50 for _, s in later], label=line.label, **style)
        axes[0].plot(loads, [s.p90 for _, s in later], **dashed)
        low, high = zip(*(s.p50_ci95 for _, s in later), strict=True)
        axes[0].fill_between(loads, low, high, color=style["color"], alpha=0.15, linewidth=0)
    whole = [(q, s.ttft_trajectory_s) for q, s in line.points if s.ttft_trajectory_s is not None]
    if whole:
        loads = [q for q, _ in whole]
        axes[1].plot(loads, [s.mean for _, s in whole], **style)
        axes[1].plot(loads, [s.p90 for _, s in whole], **dashed)
        low, high = zip(*(s.mean_ci95 for _, s in whole), strict=True)
        axes[1].fill_between(loads, low, high, color=style["color"], alpha=0.15, linewidth=0)
    rates = [(q, s.tokens_s) for q, s in line.points if s.tokens_s is not None]
    if rates:
        axes[2].plot([q for q, _ in rates], [t.computed for _, t in rates], **style)
        axes[2].plot([q for q, _ in rates], [t.reused for _, t in rates], **dashed)


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
    parser = argparse.ArgumentParser(prog="python -m harness.report.serving", description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("results/figures/serving.png"))
    options = parser.parse_args(arguments)
    try:
        plot(options.folders, options.out)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"figure: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
