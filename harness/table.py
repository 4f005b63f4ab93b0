"""A short table at the end of a run: for eyes, in a terminal or a log, 80 columns wide.

What other programs read is ``summary.json``; nothing here computes a metric.
"""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.errors import UserError
from harness.folder import read_summary
from harness.records import Status
from harness.summary import Fidelity, Latency, Summary
from harness.verified import mark

NONE = "-"
VERIFY = "python -m harness.verify"


def print_run(folder: Path, console: Console | None = None) -> None:
    """Print the table of the complete run in ``folder``.

    Raises:
        UserError: if the run has no summary, or one that cannot be read.
    """
    console = console or Console()
    summary = complete(folder)
    names = f"{summary.method} on {summary.task}, model {summary.model}, backend {summary.backend}"
    console.print(Text(", ".join(filter(None, (f"\n{names}", mark(summary.verified))))))
    if summary.verified is not True:
        console.print(Text(f"({VERIFY} model={summary.model} method={summary.method})"), soft_wrap=True)
    console.print(_facts(summary))
    console.print()
    if summary.ttft_by_hop_s:
        console.print(_by_hop(summary))
    console.print(Text(f"\nfiles: {folder}\n"), soft_wrap=True)  # a path is copied, so that it must not be broken


def seconds(value: float | None) -> str:
    """Three significant digits, in seconds from 1 s on, in milliseconds below."""
    if value is None:
        return NONE
    number, unit = (value, "s") if value >= 0.9995 else (value * 1e3, "ms")
    return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f} {unit}"


def size(value: int | None) -> str:
    """Bytes in binary units, one decimal."""
    if value is None:
        return NONE
    if value < 1024:
        return f"{value} B"
    number, units = value / 1024, ["KiB", "MiB", "GiB", "TiB"]
    while number >= 1023.95 and len(units) > 1:
        number, units = number / 1024, units[1:]
    return f"{number:.1f} {units[0]}"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{hundreds(value)} %"


def hundreds(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f}"


def complete(folder: Path) -> Summary:
    if not (folder / "config.yaml").exists() and not (folder / "summary.json").exists():
        raise UserError(f"{folder} is no run folder: it has no config.yaml")
    summary = read_summary(folder)
    if summary is None:
        raise UserError(f"the run in {folder} is not complete; run its command again to go on with it")
    return summary


def _facts(s: Summary) -> Table:
    """Names and values, one a line; what does not exist in this run is left out."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column()

    def add(name: str, value: str) -> None:
        if value != NONE:
            facts.add_row(Text(f"  {name}"), Text(value))

    others = ", ".join(f"{n} {status}" for status, n in s.statuses.items() if n and status is not Status.ok)
    for warning in s.warnings:
        add("WARNING", warning)
    add("built from", " ".join(filter(None, (s.built_from, f"(glue: {s.glue})"))))
    add("mode", "teacher-forced: every hop reads what dense would have written" if s.teacher_forcing else NONE)
    add("samples", f"{s.n}, {others or 'all ok'}")
    if s.accuracy is not None and s.accuracy_ci95 is not None:
        low, high = s.accuracy_ci95
        add("accuracy", f"{percent(s.accuracy)}, 95 % interval {percent(low)} to {percent(high)}")
    if s.pass_at_k is not None:
        add("pass@k", ", ".join(f"pass@{k} {percent(value)}" for k, value in s.pass_at_k.items()))
    add("fresh share", NONE if s.fresh_share is None else f"{percent(s.fresh_share)} of the dense token-layers")
    counts = f"{s.hops.reuse} of {s.hops.dense + s.hops.reuse + s.hops.fallback - s.hops.source} hops that could"
    add(
        "reuse ratio",
        NONE if s.reuse_ratio is None else f"{percent(s.reuse_ratio)}, {counts}; {s.hops.fallback} fell back",
    )
    add("warm-up", f"{s.hops.warmup} hops, not in these numbers" if s.hops.warmup else NONE)
    add("TTFT", _latency(s.ttft_s))
    reuse, dense = s.ttft_by_route_s.reuse, s.ttft_by_route_s.shadow
    if reuse is not None and dense is not None and s.speedup is not None:
        ratio, share = s.speedup.ttft_ratio, percent(s.speedup.correction_share)
        add("TTFT of reuse", f"{seconds(reuse.mean)}, dense {seconds(dense.mean)}: {ratio:.1f} x lower")
        add("", f"(matching, assembly and encodes: {share} of the dense TTFT)")
    add("end to end", _latency(s.e2e_s))
    if s.throughput_tokens_s is not None:
        t = s.throughput_tokens_s
        add("throughput", f"{t.output:.1f} generated, {t.computed:.1f} computed, {t.reused:.1f} reused tokens/s")
    add("learning", f"{seconds(s.learn_s)} in all, outside TTFT" if s.learn_s else NONE)
    if s.state_bytes is not None:
        b = s.state_bytes
        add("state", f"{size(b.total)}: base {size(b.base)}, corrections {size(b.correction)}")
    add("peak memory", size(s.peak_bytes))
    if s.fidelity is not None:
        _add_fidelity(facts, s.fidelity)
    return facts


def _add_fidelity(facts: Table, f: Fidelity) -> None:
    lines = [
        f"K error {percent(f.kv_error_k)}, V error {percent(f.kv_error_v)}",
        f"first-token KL {f.first_token_kl:.3g} nats",
        f"common prefix {f.prefix_match:.1f} tokens, {percent(f.prefix_share)} of the output",
    ]
    if f.answer_agrees is not None:
        lines.append(f"same answer as dense {percent(f.answer_agrees)}")
    for name, line in zip(("  fidelity", *[""] * len(lines)), lines, strict=False):
        facts.add_row(Text(name), Text(line))
    facts.add_row(Text(""), Text(f"(means over {f.n} reuse hops, against dense on the same prompt)"))


def _latency(value: Latency | None) -> str:
    if value is None:
        return NONE
    return (
        f"mean {seconds(value.mean)}, median {seconds(value.p50)}, p90 {seconds(value.p90)}, p99 {seconds(value.p99)}"
    )


def _by_hop(s: Summary) -> Table:
    table = columns("TTFT of hop", "route", "hops", "mean", "median", "p90", "p99")
    for hop in s.ttft_by_hop_s:
        for route, value in (("dense", hop.dense), ("reuse", hop.reuse), ("fallback", hop.fallback)):
            if value is not None:
                times = (seconds(t) for t in (value.mean, value.p50, value.p90, value.p99))
                table.add_row(str(hop.index), route, str(value.n), *times)
    return table


def columns(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table
