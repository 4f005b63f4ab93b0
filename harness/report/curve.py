"""Fidelity against what it costs: ``python -m harness.report.curve results/runs/gsm8k/* --out curve.pdf``.

Three panels share the vertical axis, the mean KL of a reuse hop's first token to dense: against fresh share, bytes kept
between requests, and the median TTFT of the hops that have a source. A line per method, a point per run; runs without a
shadow have no fidelity, and are named on stderr as damaged ones are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.errors import UserError
from harness.report.standalone import run, same_kind, save, usable
from harness.report.style import canvas, look
from harness.summary import Summary
from harness.table import complete

FLOOR = 1e-7  # nats; below, bf16 and fp32 rounding decide


def curves(summaries: Sequence[Summary]) -> dict[str, list[tuple[float, float, float, float]]]:
    """By method, points (fresh share, state bytes, TTFT in s, KL in nats) sorted by fresh share."""
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for s in summaries:
        downstream = s.ttft_by_route_s.downstream
        if s.fidelity is not None and s.fresh_share is not None and downstream is not None:
            held = float(s.state_bytes.total if s.state_bytes is not None else 0)
            point = (s.fresh_share, held, downstream.p50, max(s.fidelity.first_token_kl, FLOOR))
            found.setdefault(s.method, []).append(point)
    return {method: sorted(points) for method, points in sorted(found.items())}


def read(folder: Path) -> Summary:
    """Raises UserError unless there is a complete run with fidelity in ``folder``."""
    summary = complete(folder)
    if summary.fidelity is None:
        raise UserError(f"{folder} has no reuse hop with a shadow (shadow=true)")
    return summary


def plot(folders: Sequence[Path], target: Path) -> None:
    """Draw the curves of the runs in ``folders``.

    Raises:
        UserError: if no folder can be used, or they are of several tasks, models or modes.
    """
    summaries = usable(folders, read, "run +experiment=curve first")
    same_kind(f"{s.task} on {s.model}{', teacher-forced' * s.teacher_forcing}" for s in summaries)
    pyplot = canvas()
    lines = curves(summaries)
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 4), sharey=True, layout="constrained")
    for method, points in lines.items():
        fresh, held, ttft, kl = zip(*points, strict=True)
        style = look(method, tuple(lines))
        axes[0].plot([100 * x for x in fresh], kl, label=method, **style)
        axes[1].plot([x / 2**20 for x in held], kl, **{**style, "linestyle": "none"})
        axes[2].plot([1e3 * x for x in ttft], kl, **{**style, "linestyle": "none"})
    axes[0].set(xlabel="fresh token-layers, % of dense", ylabel="KL of the first token to dense, nats", yscale="log")
    axes[1].set(xlabel="kept between requests, MiB", xscale="symlog")
    axes[2].set(xlabel="median TTFT, ms", xscale="log")
    task, model = summaries[0].task, summaries[0].model
    figure.suptitle(f"{task}, {model}{', teacher-forced' * summaries[0].teacher_forcing}")
    figure.legend(loc="outside right center", fontsize="small")
    save(figure, target)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> int:
    return run("harness.report.curve", __doc__, plot, "curve.png", arguments)


if __name__ == "__main__":
    sys.exit(main())
