"""The expensive part of ``python -m harness.analyse rank``: dense requests, and the spectra of what they leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor

from harness.analysis.dense import Asked, tracked
from harness.analysis.file import place, write
from harness.analysis.replay import Recorded
from harness.analysis.spectrum import ENERGIES, Spectrum
from harness.errors import UserError
from harness.explain import CommandLine
from harness.provenance import command_line
from harness.table import columns
from methods.base import KV, Rope

if TYPE_CHECKING:
    from harness.analysis.rank_options import Options

RANK_SCHEMA = 1


class LayerRank(msgspec.Struct, frozen=True):
    """Means over ``spans`` spans of one layer.

    Attributes:
        kind: ``delta_k``, ``delta_v`` (what the reader's context added), ``base_k``, ``base_v`` (the cache it could
            have reused).
        frame: of keys, ``derotated`` or ``rotated`` to the reader's positions; ``none`` for values.
        energy_rank: by share of the energy ("0.95"), as :meth:`harness.analysis.spectrum.Spectrum.rank_at`.
        rows: tokens of a span, which bound its rank.
    """

    kind: str
    frame: str
    layer: int
    energy_rank: dict[str, float]
    entropy_rank: float
    rows: float
    spans: int


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    schema: int = RANK_SCHEMA
    subject: str = "rank"
    model: str
    revision: str
    dtype: str
    task: str
    requests: int
    spans: str
    command: str
    layers: list[LayerRank]


def analyse(asked: CommandLine, options: Options) -> Ranks:
    """Run dense, take spectra, write, show.

    Raises:
        UserError: for anything the user can mend, before weights are loaded.
    """
    dense = Asked.of(asked.overrides)
    names, cases = dense.names, dense.cases()[: options.requests]
    if len(cases) < options.requests:
        raise UserError(f"requests={options.requests}: task={names.task} has {len(cases)}; lower it, or give more data")
    path = place("rank", names, options.out)
    ready = dense.load(cases, options.hops)
    tally = Tally(ready.engine.shape.rope)
    for case in tracked(cases, "running dense"):  # one request's caches at a time
        for recorded in ready.record(ready.recorder(), case):
            tally.add(recorded, options.spans)
    if not tally.sums:
        raise UserError(f"spans={options.spans}: no agent reads such a span after another; choose another workflow")
    words = ["rank", *asked.overrides, *(f"{k}={v}" for k, v in vars(options).items() if v is not None and k != "out")]
    found = Ranks(
        model=names.model,
        revision=ready.loaded.facts.revision,
        dtype=ready.dtype,
        task=str(dense.parts.task.name),
        requests=len(cases),
        spans=options.spans,
        command=command_line(words, Path.cwd(), "harness.analyse"),
        layers=tally.layers(),
    )
    write(found, path)
    show(found, path)
    return found


@dataclass(eq=False)
class Tally:
    """Sums over spans, by kind and frame: ranks ``[energies + 1, layers]``, rows, spans."""

    rope: Rope
    sums: dict[tuple[str, str], tuple[Tensor, int, int]] = field(default_factory=dict)

    def add(self, recorded: Recorded, spans: str) -> None:
        for placed in recorded.hop.prompt.shared():
            span = placed.span
            if span is None or span.id not in recorded.hop.sources or not len(placed):
                continue
            if spans not in ("all", "question" if span.producer == "user" else "output"):
                continue
            both = recorded.rows[placed.index], recorded.hop.sources[span.id].kv
            exact, base = (kv.derotated(self.rope) for kv in both)
            for kind, frame, matrices in matrices_of(exact, base, self.rope, placed.start):
                self._count(kind, frame, Spectrum.of(matrices), len(placed))

    def layers(self) -> list[LayerRank]:
        found = []
        for (kind, frame), (ranks, rows, spans) in self.sums.items():
            first = 1 if kind.startswith("delta") else 0
            for at, column in enumerate((ranks / spans).T.tolist()):
                energy = {f"{share:g}": value for share, value in zip(ENERGIES, column, strict=False)}
                found.append(LayerRank(kind, frame, first + at, energy, column[-1], rows / spans, spans))
        return found

    def _count(self, kind: str, frame: str, spectrum: Spectrum, rows: int) -> None:
        mine = torch.stack([*(spectrum.rank_at(s).double() for s in ENERGIES), spectrum.entropy_rank()]).cpu()
        ranks, seen, spans = self.sums.get((kind, frame), (torch.zeros_like(mine), 0, 0))
        self.sums[kind, frame] = ranks + mine, seen + rows, spans + 1


def matrices_of(exact: KV, base: KV, rope: Rope, start: int) -> Iterator[tuple[str, str, Tensor]]:
    """(kind, frame, ``[layers, T, C]``) of a span whose first row stands at ``start``; both caches de-rotated. A delta
    has the layers from 1 on."""
    at = torch.arange(start, start + len(exact), device=exact.k.device)
    delta_k, delta_v = exact.k.float() - base.k.float(), exact.v.float() - base.v.float()
    yield "delta_k", "derotated", _wide(delta_k)[1:]
    yield "delta_k", "rotated", _wide(rope.apply(delta_k, at))[1:]
    yield "delta_v", "none", _wide(delta_v)[1:]
    yield "base_k", "derotated", _wide(base.k)
    yield "base_k", "rotated", _wide(rope.apply(base.k.float(), at))
    yield "base_v", "none", _wide(base.v)


def show(made: Ranks, path: Path, console: Console | None = None) -> None:
    """A row per matrix: mean over layers and the layer that needs most."""
    console = console or Console(width=100)
    table = columns("matrix", "keys", "rows", *(f"{100 * e:g} %\nmean" for e in ENERGIES),
                    *(f"{100 * e:g} %\nmost" for e in ENERGIES), "entropy\nmean")  # fmt: skip
    for kind, frame in dict.fromkeys((row.kind, row.frame) for row in made.layers):
        rows = [row for row in made.layers if (row.kind, row.frame) == (kind, frame)]
        by_energy = [[row.energy_rank[f"{e:g}"] for row in rows] for e in ENERGIES]
        mean = [f"{sum(r) / len(r):.1f}" for r in by_energy]
        most = [f"{max(r):.1f}" for r in by_energy]
        entropy = f"{sum(row.entropy_rank for row in rows) / len(rows):.1f}"
        table.add_row(kind, "" if frame == "none" else frame, f"{rows[0].rows:.0f}", *mean, *most, entropy)
    names = f"{made.task}, model {made.model} ({made.dtype})"
    console.print(Text(f"\n{names}, {made.requests} requests, spans: {made.spans}\n"))
    console.print(table)
    console.print(Text(f"\nfile: {path}"), soft_wrap=True)


def _wide(x: Tensor) -> Tensor:
    """``[L, H, T, D]`` -> ``[L, T, H * D]``."""
    return x.transpose(1, 2).flatten(2)
