"""Runs beside another, hop by hop: ``python -m harness.report.paired results/runs/gsm8k/ridge-* --over <run>``.

Only hops that both runs reused on the very same prompt count (under ``teacher_forcing=true`` all prompts are; in closed
loop, until their texts part), so that a gate's choice of hops does not decide. ``--after 64`` leaves out the first
samples of each repeat, in which methods still learn. Mean KL of the first token against dense, nats; ratio of both
means with the central 95 % of a paired bootstrap over samples; of the greedy outputs, the mean share of the common
prefix; answers equal to dense's. ``whole`` are the means over samples of which every such hop was reused by both: whole
trajectories.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.analysis.interval import Interval
from harness.errors import UserError
from harness.folder import SUMMARY, read_rows
from harness.records import HopRecord, Route, Row
from harness.report.soundness import regular
from harness.report.standalone import usable
from harness.summary import Summary
from harness.table import columns, complete, hundreds

Key = tuple[str, int]  # sample, repeat


@dataclass(frozen=True)
class Pairs:
    """Hops of two runs with one prompt each, by (sample, repeat).

    Attributes:
        both: hops that both reused.
        whole: samples of which no hop that could reuse is missing in ``both``.
    """

    both: dict[Key, list[tuple[HopRecord, HopRecord]]]
    whole: frozenset[Key]

    @classmethod
    def of(cls, run: Sequence[Row], over: Sequence[Row], after: int = 0) -> Pairs:
        other = {r.key: r for r in over if r.completed}
        both, whole = dict[Key, list[tuple[HopRecord, HopRecord]]](), set[Key]()
        for row in _later(run, after):
            if not row.completed or row.key not in other:
                continue
            shared = list(_same(row, other[row.key]))
            found = [(a, b) for a, b in shared if a.route is Route.reuse and b.route is Route.reuse]
            found = [(a, b) for a, b in found if a.first_token_kl is not None and b.first_token_kl is not None]
            if found:
                both[row.key] = found
                if len(found) == sum(not h.source_hop for h in row.hops):
                    whole.add(row.key)
        return cls(both, frozenset(whole))

    @property
    def hops(self) -> list[tuple[HopRecord, HopRecord]]:
        return [pair for pairs in self.both.values() for pair in pairs]

    def ratio(self, keys: Sequence[Key] | None = None) -> Interval | None:
        """Of mean KL, the run's over the other's; None without a hop. Resamples whole samples, whose hops belong
        together."""
        chosen = [self.both[k] for k in (self.both if keys is None else keys)]
        if not chosen:
            return None
        above, below = ([sum(_kl(p[i]) for p in pairs) for pairs in chosen] for i in (0, 1))
        return Interval.of(above, below)


def _later(rows: Sequence[Row], after: int) -> Iterator[Row]:
    seen = Counter[int]()
    for row in rows:
        if not row.warmup:
            seen[row.repeat] += 1
            if seen[row.repeat] > after:
                yield row


def _same(a: Row, b: Row) -> Iterator[tuple[HopRecord, HopRecord]]:
    """Hops of the same sample up to the first whose prompt reads another text."""
    for x, y in zip(a.hops, b.hops, strict=False):
        if (x.agent, x.index, x.prompt_tokens) != (y.agent, y.index, y.prompt_tokens):
            return
        yield x, y
        if (x.output_ids, x.tool) != (y.output_ids, y.tool):
            return


def _kl(hop: HopRecord) -> float:
    assert hop.first_token_kl is not None
    return hop.first_token_kl


def _shares(hops: Sequence[HopRecord]) -> tuple[float | None, float | None]:
    """Mean share of the greedy prefix; share of answers that agree."""
    prefix = [h.prefix_match / h.output_tokens for h in hops if h.prefix_match is not None and h.output_tokens]
    agree = [h.answer_agrees for h in hops if h.answer_agrees is not None]
    return (sum(prefix) / len(prefix) if prefix else None), (sum(agree) / len(agree) if agree else None)


def table(folders: Sequence[Path], over: Path, after: int) -> Table:
    """A row per run. Raises UserError for runs that are not of the same task, model and mode."""
    regular(over)
    _, base, rows = _read(over)
    made = columns(
        "run", "hops", "KL", "KL,\nother", "ratio", "prefix %\nboth", "answer %\nboth", "whole", "ratio,\nwhole"
    )
    for folder, summary, own in usable(folders, _read, "give complete runs"):
        for what in ("task", "model", "teacher_forcing"):
            mine, its = getattr(summary, what), getattr(base, what)
            if mine != its:
                raise UserError(f"{folder} has {what} {mine}, {over} has {its}: give runs of the same kind")
        pairs = Pairs.of(own, rows, after)
        if not (hops := pairs.hops):
            made.add_row(folder.name, "0", *[""] * 7)
            continue
        mine, its = ([pair[i] for pair in hops] for i in (0, 1))
        prefix, agree = zip(_shares(mine), _shares(its), strict=True)
        kl = [sum(map(_kl, side)) / len(side) for side in (mine, its)]
        whole = sorted(pairs.whole)
        made.add_row(
            folder.name, str(len(hops)), *(f"{x:.2g}" for x in kl), _interval(pairs.ratio()), _two(prefix), _two(agree),
            str(len(whole)), _interval(pairs.ratio(whole)),
        )  # fmt: skip
    return made


def _read(folder: Path) -> tuple[Path, Summary, tuple[Row, ...]]:
    """Raises UserError unless there is a complete run in ``folder``, with all of its rows."""
    summary, found = complete(folder), read_rows(folder)
    if found.torn or len(found.rows) != summary.n:
        raise UserError(
            f"{folder} has {len(found.rows)} whole rows but its summary counts {summary.n}; delete its {SUMMARY} and "
            "run its command again"
        )
    return folder, summary, found.rows


def _two(values: Sequence[float | None]) -> str:
    return " / ".join(hundreds(v) for v in values)


def _interval(found: Interval | None) -> str:
    return "" if found is None else f"{found.ratio:.2f} ({found.low:.2f}-{found.high:.2f})"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.report.paired", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--over", type=Path, required=True, help="the run that the others are compared with")
    parser.add_argument("--after", type=int, default=0, help="samples of each repeat to leave out")
    options = parser.parse_args(arguments)
    try:
        made = table(options.folders, options.over, options.after)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    console = Console()
    console = Console(width=max(console.width, 120))
    console.print(Text(f"over {options.over.name}, after {options.after} samples"), made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
