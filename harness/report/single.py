"""Figures of one run: time to first token by hop and route, error by layer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from harness.report.drawing import Drawing, Sheet
from harness.report.style import PALETTE
from harness.summary import Fidelity, HopTtft, Summary

ROUTES = {"dense": PALETTE[6], "reuse": PALETTE[0], "fallback": PALETTE[1]}


def draw_run(summary: Summary, folder: Path) -> list[Path]:
    """Draw what the summary has into ``folder``; returns the PNG files."""
    drawings = dict[str, Drawing]()
    if summary.ttft_by_hop_s:
        drawings["ttft_by_hop"] = Drawing("TTFT by hop", partial(_ttft, summary.ttft_by_hop_s))
    if summary.fidelity is not None and summary.fidelity.kv_error_k_by_layer:
        drawings["error_by_layer"] = Drawing("relative error by layer", partial(_errors, summary.fidelity))
    files = list[Path]()
    for name, drawing in drawings.items():
        with Sheet([drawing], name) as sheet:
            files += sheet.save(folder)
    return [path for path in files if path.suffix == ".png"]


def _ttft(hops: list[HopTtft], axes: Any) -> None:
    """Medians with the 90th percentile above."""
    for shift, (route, colour) in zip((-0.25, 0.0, 0.25), ROUTES.items(), strict=True):
        found = [(hop.index, latency) for hop in hops if (latency := getattr(hop, route)) is not None]
        if found:
            at, medians = [index + shift for index, _ in found], [1e3 * latency.p50 for _, latency in found]
            above = [1e3 * (latency.p90 - latency.p50) for _, latency in found]
            axes.bar(at, medians, 0.25, yerr=[[0.0] * len(found), above], color=colour, label=route)
    axes.set(xlabel="hop", ylabel="TTFT, ms (median, 90th percentile)")
    axes.set_xticks([hop.index for hop in hops])


def _errors(fidelity: Fidelity, axes: Any) -> None:
    for errors, name, colour, line in (
        (fidelity.kv_error_k_by_layer, "keys", PALETTE[0], "-"),
        (fidelity.kv_error_v_by_layer, "values", PALETTE[1], "--"),
    ):
        axes.plot(range(len(errors)), [100 * e for e in errors], color=colour, linestyle=line, label=name)
    axes.set(xlabel="layer", ylabel="relative error of reused rows, %")
