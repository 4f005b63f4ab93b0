"""An analysis as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.table import columns, size

if TYPE_CHECKING:
    from harness.analysis.interval import Interval
    from harness.analysis.ridge_file import Analysis

NOTE = """\
K, V: delta energy that remains on held-out hops, of what rotation alone leaves (lower is better, 1 is no correction);
error: relative KV error, root mean square over keys, values and layers. KL: of the first token against dense, nats,
mean over held-out hops; ratios of means with 95 % intervals of a paired bootstrap. All gates are open, except in the
last table, where each orders the hops that the ridge corrects.
"""


def show(made: Analysis, path: str, console: Console | None = None) -> None:
    console = console or Console()
    console = Console(file=console.file, width=max(console.width, 120), force_terminal=console.is_terminal)
    shift = f", shift to {made.shift}" if made.shift else ""
    console.print(Text(f"\n{made.task}{shift}, model {made.model} ({made.dtype}), {made.held_out} held-out requests\n"))
    console.print(_remaining(made))
    if made.downstream:
        console.print(_downstream(made))
        console.print(_gates(made))
    console.print(Text(NOTE), soft_wrap=True)
    console.print(Text(f"file: {path}"), soft_wrap=True)


def _remaining(made: Analysis) -> Table:
    table = columns("method", "observed", "data", "span", "K", "V", "error", "state")
    for row in made.remaining:
        data = row.data if row.data == "held_out" else f"shift, {row.learned} learned"
        table.add_row(
            row.method, str(row.observed), data, row.span, f"{row.keys:.3f}", f"{row.values:.3f}", f"{row.error:.4f}",
            size(row.state_bytes),
        )  # fmt: skip
    return table


def _downstream(made: Analysis) -> Table:
    table = columns("method", "hops", "KL", "same\ntoken %", "of rotate only", "ridge, of it")
    for row in made.downstream:
        ridge = "" if row.ridge_over is None else _interval(row.ridge_over)
        kl, same = f"{row.first_token_kl:.2g}", f"{100 * row.same_token:.1f}"
        table.add_row(row.method, str(row.hops), kl, same, _interval(row.over_rotated), ridge)
    return table


def _gates(made: Analysis) -> Table:
    shares = list(made.gates[0].kl_at)
    table = columns("gate", "rank corr.\nwith error", *(f"KL at reuse\n{100 * float(s):.0f} %" for s in shares))
    for gate in made.gates:
        table.add_row(gate.gate, f"{gate.rank_correlation:.2f}", *(f"{gate.kl_at[s]:.2g}" for s in shares))
    return table


def _interval(value: Interval) -> str:
    return f"{value.ratio:.2f} ({value.low:.2f}-{value.high:.2f})"
