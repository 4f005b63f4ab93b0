"""One table over several runs, a row per run: for eyes, in a terminal or a log.

What other programs read is ``summary.json``; nothing here computes a metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from harness.records import Status
from harness.serving_table import print_served
from harness.summary import Fidelity, Latency, Part, Summary
from harness.table import NONE, VERIFY, columns, complete, hundreds, seconds, size
from harness.verified import mark

NAMES = 32  # columns of a run's name before it is folded
WIDE = 1000  # columns that no table needs

NOTE = """\
from: what the method was implemented from; glue: what happens to private text between shared spans; accuracy with
its exact 95 % interval; fresh: token-layers computed, of dense's; reuse: hops that reused, of those that could; TTFT:
median of the hops that have a source; state: bytes kept between requests; K err, V err, KL (first token, nats), prefix
(of the greedy output) and same answer: means over reuse hops, against dense on the same prompt (shadow=true); not ok:
samples without a valid answer.
"""


def print_comparison(
    folders: Sequence[Path], labels: Sequence[str] | None = None, console: Console | None = None
) -> None:
    """Print one table over complete runs, a row per run in the order given; one for each mode if some are in closed
    loop and others teacher-forced.

    Args:
        labels: what to call the runs; their methods' names by default.

    Raises:
        UserError: if a run has no summary, or one that cannot be read.
    """
    console = console or Console()
    summaries = [complete(folder) for folder in folders]
    if all(summary.serving is not None for summary in summaries):
        print_served(folders, labels or [s.method for s in summaries], console)
        return
    tasks = sorted({f"{s.task}, model {s.model}" for s in summaries})
    console.print(Text(f"\n{'; '.join(tasks)}\n"))
    names = [label or s.method for label, s in zip(labels or [""] * len(summaries), summaries, strict=True)]
    runs = sorted(zip(summaries, names, strict=True), key=lambda run: run[0].teacher_forcing)  # stable
    several = len({s.teacher_forcing for s in summaries}) > 1
    for forced, group in groupby(runs, key=lambda run: run[0].teacher_forcing):
        found = list(group)
        if several or forced:
            console.print(Text(f"{'teacher-forced' if forced else 'closed loop'}\n"))
        table = comparison([s for s, _ in found], [name for _, name in found])
        # Nothing is cropped: where the terminal is narrower, it wraps the lines.
        width = max(console.width, Measurement.get(console, console.options.update(width=WIDE), table).maximum)
        Console(file=console.file, width=width, force_terminal=console.is_terminal).print(table)
        console.print()
    console.print(Text(NOTE), soft_wrap=True)
    if any(s.verified is not True for s in summaries):
        console.print(Text(f"unverified: no {VERIFY} has passed for that method on that model\n"), soft_wrap=True)
    for folder, name in zip(folders, names, strict=True):
        console.print(Text(f"files of {name}: {folder}"), soft_wrap=True)


def comparison(summaries: Sequence[Summary], names: Sequence[str]) -> Table:
    """A row per summary; below that of a method that reuses, the first samples and the later ones apart."""
    table = columns(
        "run", "from", "glue", "accuracy\n%", "fresh\n%", "reuse\n%", "TTFT", "state", "K err\n%", "V err\n%",
        "KL", "prefix\n%", "same\nans %", "not ok",
    )  # fmt: skip
    table.columns[0].min_width = table.columns[0].max_width = min(NAMES, max(12, *map(len, names), 0))
    for s, name in zip(summaries, names, strict=True):
        table.add_row(
            Text("\n".join(filter(None, (name, mark(s.verified))))),
            s.built_from or NONE,
            s.glue,
            _accuracy(s),
            *_shares(s.fresh_share, s.reuse_ratio, s.ttft_by_route_s.downstream),
            NONE if s.state_bytes is None else size(s.state_bytes.total),
            *_fidelity(s.fidelity),
            f"{s.n - s.statuses.get(Status.ok, 0)}/{s.n}",
        )
        if s.early is not None:
            for part, which in ((s.early.first, "first"), (s.early.later, "later")):
                table.add_row(Text(f"  {which} {part.n}"), "", "", *_part(part))
    return table


def _part(part: Part) -> list[str]:
    shares = _shares(part.fresh_share, part.reuse_ratio, part.ttft_s)
    return [hundreds(part.accuracy), *shares, "", *_fidelity(part.fidelity), ""]


def _shares(fresh: float | None, reuse: float | None, ttft: Latency | None) -> list[str]:
    return [hundreds(fresh), hundreds(reuse), NONE if ttft is None else seconds(ttft.p50)]


def _fidelity(f: Fidelity | None) -> list[str]:
    if f is None:
        return [NONE] * 5
    shares = hundreds(f.kv_error_k), hundreds(f.kv_error_v), f"{f.first_token_kl:.2g}"
    return [*shares, hundreds(f.prefix_share), hundreds(f.answer_agrees)]


def _accuracy(s: Summary) -> str:
    if s.accuracy is None or s.accuracy_ci95 is None:
        return NONE
    low, high = s.accuracy_ci95
    return f"{hundreds(s.accuracy)} ({100 * low:.0f}-{100 * high:.0f})"
