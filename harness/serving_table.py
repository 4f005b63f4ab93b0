"""Tables of replayed traces, for eyes; what other programs read is ``summary.json``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from harness.serving import Serving, Spread
from harness.summary import Summary
from harness.table import NONE, VERIFY, columns, complete, hundreds, percent, seconds, size
from harness.traffic.pool import Pooled, measured, pooled
from harness.verified import mark

SIMULATION = "SIMULATION: times follow from a cost model, nothing ran"
WIDE = 1000

NOTE = """\
offered: calls/s as they arrive; busy: share of the time in which the engine worked; first, later: TTFT from the due
time of hops without and with a source (whatever route they took), median with its 95 % interval (bootstrap over
trajectories) and 90th percentile; trajectory: mean over a trajectory's hops, first agent included; x: how many times
lower than in the first line; end to end: arrival to last token, median; good: trajectories within the SLO; tokens/s:
prompt tokens computed and reused. Warm-up is in no number.
"""


def served(found: Serving) -> Table:
    """Spreads of one run, a line each."""
    table = columns("", "n", "mean", "95 %", "p10", "median", "95 %", "p90", "p99")
    named: tuple[tuple[str, Spread | None], ...] = (
        ("TTFT, all hops", found.ttft_s),
        ("  first hops", found.ttft_first_s),
        ("  hops with a source", found.ttft_downstream_s),
        ("  hops that reused", found.ttft_reuse_s),
        ("  mean of a trajectory", found.ttft_trajectory_s),
        ("queued", found.queued_s),
        ("load was late", found.late_s),
        ("trajectory, end to end", found.trajectory_s),
    )
    for name, s in named:
        if s is not None:
            means, medians = _interval(s.mean_ci95), _interval(s.p50_ci95)
            shown = (seconds(s.mean), means, seconds(s.p10), seconds(s.p50), medians, seconds(s.p90), seconds(s.p99))
            table.add_row(Text(name), str(s.n), *shown)
    return table


def print_run(folder: Path, console: Console | None = None) -> None:
    """Print the tables of the complete run in ``folder``.

    Raises:
        UserError: if the run has no summary, or one that cannot be read.
    """
    console = console or Console()
    summary = complete(folder)
    found = summary.serving
    assert found is not None
    names = f"{summary.method} on {summary.task}, model {summary.model}, backend {summary.backend}"
    note = SIMULATION if found.simulated else mark(summary.verified)
    console.print(Text("\n" + ", ".join(filter(None, (names, note)))), soft_wrap=True)
    lines = Table.grid(padding=(0, 2))
    lines.add_column(no_wrap=True)
    lines.add_column()
    for name, value in facts(summary, found):
        lines.add_row(Text(f"  {name}"), Text(value))
    console.print(lines)
    console.print()
    table = served(found)
    width = max(console.width, Measurement.get(console, console.options.update(width=WIDE), table).maximum)
    Console(file=console.file, width=width, force_terminal=console.is_terminal).print(table)
    console.print(Text(f"\nfiles: {folder}\n"), soft_wrap=True)  # a path is copied, so that it must not be broken


def facts(summary: Summary, found: Serving) -> list[tuple[str, str]]:
    """Names and values of what is no spread."""
    hops, goodput = summary.hops, found.goodput
    out = [
        ("engine", f"{found.engine}, busy {percent(found.busy_share)} of the time"),
        ("load", f"{found.trace}, {_rate(found.offered_calls_s)} calls/s offered"),
        ("trajectories", f"{found.trajectories} in {len(found.repeats)} repeats, {found.failed} failed"),
        ("warm-up", f"{found.warmup_trajectories} trajectories of each repeat, dense, in no number"),
        ("routes", f"{hops.reuse} reuse, {hops.dense} dense ({hops.source} had no source), {hops.fallback} fell back"),
        ("fresh share", f"{percent(summary.fresh_share)} of the dense token-layers"),
        ("goodput", f"{percent(goodput.share)} of trajectories with every TTFT within {seconds(goodput.slo_ttft_s)}"),
        ("drained", f"{seconds(found.drain_s)} from the last arrival to the last token"),
    ]  # fmt: skip
    if (t := found.tokens_s) is not None:
        out.append(("tokens/s", f"{t.computed:.1f} computed, {t.reused:.1f} reused, {t.output:.1f} generated"))
    if summary.learn_s:
        out.append(("learning", f"{seconds(summary.learn_s)} in all; what waits meanwhile has it in its TTFT"))
    if summary.state_bytes is not None:
        out.append(("state", size(summary.state_bytes.total)))
    out += [("WARNING", warning) for warning in summary.warnings]
    if found.wrong_lengths:
        out.append(("INVALID", f"{found.wrong_lengths} outputs have another length than the trace fixes"))
    return out


def print_served(folders: Sequence[Path], labels: Sequence[str], console: Console | None = None) -> None:
    """One table over complete runs, a line for every measurement; runs that differ by their seed alone are pooled.

    Raises:
        UserError: as :func:`harness.traffic.pool.measured`.
    """
    console = console or Console()
    runs = pooled([measured(folder) for folder in folders])
    names = dict(zip(folders, labels, strict=True))
    called = [_without_seed(names[run.folders[0]]) or run.summary.method for run in runs]
    first = runs[0]
    console.print(
        Text(f"\n{first.summary.task}: {first.serving.trace}, model {first.summary.model}, {_pooling(runs)}\n")
    )
    if any(run.serving.simulated for run in runs):
        console.print(Text(f"{SIMULATION}\n"))
    table = comparison(runs, called)
    width = max(console.width, Measurement.get(console, console.options.update(width=WIDE), table).maximum)
    Console(file=console.file, width=width, force_terminal=console.is_terminal).print(table)
    console.print()
    console.print(Text(NOTE), soft_wrap=True)
    if any(run.summary.verified is not True and not run.serving.simulated for run in runs):
        console.print(Text(f"unverified: no {VERIFY} has passed for that method on that model\n"), soft_wrap=True)
    for run, name in zip(runs, called, strict=True):
        for folder in run.folders:
            console.print(Text(f"files of {name}: {folder}"), soft_wrap=True)


def comparison(runs: Sequence[Pooled], names: Sequence[str]) -> Table:
    """A line per measurement; ratios are to the first."""
    table = columns(
        "run", "offered", "busy\n%", "first\nmedian", "later\nmedian", "95 %", "later\np90", "x", "trajectory\nmean",
        "95 %", "x", "end to end\nmedian", "good\n%", "computed\ntokens/s", "reused\ntokens/s", "failed",
    )  # fmt: skip
    base = runs[0].serving
    for run, name in zip(runs, names, strict=True):
        s, later, whole, tokens = (
            run.serving,
            run.serving.ttft_downstream_s,
            run.serving.ttft_trajectory_s,
            run.serving.tokens_s,
        )
        note = "simulation" if s.simulated else mark(run.summary.verified)
        table.add_row(
            Text("\n".join(filter(None, (name, note)))),
            _rate(s.offered_calls_s),
            hundreds(s.busy_share),
            NONE if s.ttft_first_s is None else seconds(s.ttft_first_s.p50),
            NONE if later is None else seconds(later.p50),
            NONE if later is None else _interval(later.p50_ci95),
            NONE if later is None else seconds(later.p90),
            _times(base.ttft_downstream_s, later, "p50"),
            NONE if whole is None else seconds(whole.mean),
            NONE if whole is None else _interval(whole.mean_ci95),
            _times(base.ttft_trajectory_s, whole, "mean"),
            NONE if s.trajectory_s is None else seconds(s.trajectory_s.p50),
            hundreds(s.goodput.share),
            NONE if tokens is None else f"{tokens.computed:.0f}",
            NONE if tokens is None else f"{tokens.reused:.0f}",
            f"{s.failed}/{s.trajectories}" + " INVALID" * bool(s.wrong_lengths),
        )
    return table


def _interval(bounds: tuple[float, float]) -> str:
    return f"{seconds(bounds[0])} - {seconds(bounds[1])}"


def _rate(value: float | None) -> str:
    return NONE if value is None else f"{value:.3g}"


def _times(base: Spread | None, found: Spread | None, of: str) -> str:
    if base is None or found is None or not getattr(found, of):
        return NONE
    return f"{getattr(base, of) / getattr(found, of):.2f}"


def _without_seed(label: str) -> str:
    return " ".join(word for word in label.split() if not word.startswith("seed="))


def _pooling(runs: Sequence[Pooled]) -> str:
    seeds = {run.seeds for run in runs}
    if all(run.serving.simulated for run in runs):
        return "simulated"
    if seeds == {1}:
        return "a run each, one after another: drifts of the machine are in the ratios"
    return f"pooled over {'/'.join(map(str, sorted(seeds)))} seeds, runs of different methods alternating"
