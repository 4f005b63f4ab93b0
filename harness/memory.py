"""``python -m harness.memory``: how much memory methods take, without running a model.

First the estimate that the paper's 2.5, 6.2 and 14.9 follow from, at its unequal pools and at equal ones. Then what the
methods of this project would hold on a model of your choice: each method runs on tensors without storage, so that its
own bookkeeping is what is counted. Options (the rest are those of a run, such as ``method.rank=16``):

    model=llama31_8b           any model; the large ones need no files for this
    method=kvcmas,kvcomm       which methods
    shared=2048,8192,32768     tokens of the shared context
    pool=10,20                 anchors; for methods that have a pool
    agents=4                   agents, each reading the context and all earlier outputs
    requests=22                distinct requests that the method has learned from (default: pools and two more)
    sightings=1                how often each of them came
    dtype=bfloat16             of weights and caches
    out=<path>.csv             write the table as well
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.errors import HydraException
from rich.console import Console
from rich.text import Text

from harness.command import attempt, composed, split
from harness.errors import UserError
from harness.explain import CommandLine, explain
from harness.hint import nearest
from harness.ladder import ladder
from harness.output import writable
from harness.reported import read_reported
from harness.table import columns, size

if TYPE_CHECKING:
    import torch

OWN = ("method", "shared", "pool", "agents", "requests", "sightings", "dtype", "out")
OF_RUNS = ("model", "experiment")  # those without a dot; the others of a run change no number here
PAPER = {2048: "mem_ratio_2k", 8192: "mem_ratio_8k", 32768: "mem_ratio_32k"}

NOTE = """\
paper: as reported. Estimate: Llama-3.1-8B at 16 bit, 15 GiB of weights, 1 GiB of overhead, one live cache of the shared
tokens; an anchor is one base and four deltas of the shared span. Full tensors against rank 32; the numbers in brackets
are the anchors of either pool. The paper states no pool sizes: 20 and 10 are the defaults of the two public programs.
"""
NOTE_OURS = """\
kept: what the method keeps between requests, exact role prompts included; request: the most that one request holds at
once, the running hop's cache and those handed on; total: with the weights. No allocator, no activations.
"""


@dataclass(frozen=True)
class Options:
    """What a run does not have, or has once."""

    method: tuple[str, ...] = ("full_reuse", "kvcmas", "kvcomm", "kamera", "ridge")
    shared: tuple[int, ...] = (2048, 8192, 32768)
    pool: tuple[int, ...] = (10, 20)
    agents: int = 4
    requests: int = 0
    sightings: int = 1
    dtype: str = "bfloat16"
    out: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Raises UserError for a value that does not fit."""
        made = cls(
            method=tuple(given.get("method", ",".join(cls.method)).split(",")),
            shared=_counts("shared", given.get("shared"), cls.shared),
            pool=_counts("pool", given.get("pool"), cls.pool),
            agents=_counts("agents", given.get("agents"), (cls.agents,))[0],
            requests=_counts("requests", given.get("requests"), (0,))[0],
            sightings=_counts("sightings", given.get("sightings"), (1,))[0],
            dtype=given.get("dtype", cls.dtype),
            out=given.get("out"),
        )
        if made.out is not None and not made.out.endswith(".csv"):
            raise UserError(f"out={made.out}: the table is written as CSV, name a file that ends in .csv")
        return made


@dataclass(frozen=True)
class MemoryLine:
    """A line of the table; every size in bytes."""

    model: str
    method: str
    pool: int | None
    shared_tokens: int
    agents: int
    requests: int
    base_bytes: int
    correction_bytes: int
    kept_bytes: int
    request_bytes: int
    weight_bytes: int
    total_bytes: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables that ``arguments`` (those of the process by default) ask for; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    with attempt() as tried:
        own, rest = split(words, OWN)
        tried.asked = CommandLine(tuple(rest))
        _refuse(tried.asked)
        options = Options.parse(own)
        out = None if options.out is None else writable("out", Path(options.out).expanduser())
        found = list(lines_of(tried.asked, options))
        print_ladder()
        print_lines(found)
        if out is not None:
            write(found, out)
    return tried.code


def _refuse(asked: CommandLine) -> None:
    """Raises UserError for an option that is neither ours nor changes what a method keeps."""
    for word in asked.overrides:
        key = word.partition("=")[0].lstrip("+~")
        if not any(mark in key for mark in "./@") and key not in OF_RUNS:
            known = (*OWN, *OF_RUNS[:1])
            close = nearest(key, known)
            close = f"{close} " if close.startswith("did") else ""
            raise UserError(
                f"{word}: python -m harness.memory has no option {key}; {close}it has {', '.join(known)} and the "
                "options of methods, such as method.rank"
            )


def lines_of(asked: CommandLine, options: Options) -> Iterator[MemoryLine]:
    """A line for every method, pool size and length.

    Raises:
        UserError: for an option that does not fit, naming it.
    """
    from harness.backends.hf_facts import DTYPES

    if options.dtype not in DTYPES:
        raise UserError(f"dtype={options.dtype}: {nearest(options.dtype, DTYPES)}")
    import torch

    dtype = getattr(torch, DTYPES[options.dtype])
    if not any(word.startswith("model=") for word in asked.overrides):
        asked = CommandLine((*asked.overrides, "model=llama31_8b"))
    for name in options.method:
        words = (*asked.overrides, f"method={name}", "task=single_stream", f"task.agents={options.agents}")
        try:
            pooled = "pool" in composed(CommandLine(words))[0].method
        except HydraException as error:
            raise UserError(explain(error, CommandLine(words))) from error
        for pool in options.pool if pooled else (None,):
            for tokens in options.shared:
                chosen = () if pool is None else (f"method.pool={pool}",)
                yield _line(CommandLine((*words, *chosen, f"task.shared_tokens={tokens}")), options, pool, dtype)


def _line(asked: CommandLine, options: Options, pool: int | None, dtype: torch.dtype) -> MemoryLine:
    from harness.footprint import footprint
    from harness.sizes import size_of
    from harness.validate import build

    cfg, names = composed(asked)
    parts = build(cfg)
    model = size_of(parts.model, names.model)
    requests = options.requests or max(options.pool) + 2
    found = footprint(parts.method, model.shape(dtype), parts.task, requests, options.sightings)
    weights = model.weight_bytes(dtype)
    return MemoryLine(
        names.model, names.method, pool, parts.task.shared_tokens, options.agents, requests, found.state.base,
        found.state.correction, found.state.total, found.request_bytes, weights,
        found.state.total + found.request_bytes + weights,
    )  # fmt: skip


def print_ladder(console: Console | None = None) -> None:
    """The paper's ratios beside the estimate, at unequal and equal pools."""
    console, reported = console or Console(width=100), read_reported()
    table = columns("shared tokens", "paper", "full (20) /\nrank 32 (10)", "full (10) /\nrank 32 (10)",
                    "full (20) /\nrank 32 (20)", "full (20)\nGiB", "full (10)\nGiB", "rank 32 (10)\nGiB")  # fmt: skip
    for step in ladder():
        ratios = [f"{step.ratio(*pools):.2f}" for pools in ((20, 10), (10, 10), (20, 20))]
        sizes = [f"{x:.1f}" for x in (step.full_gib[20], step.full_gib[10], step.low_rank_gib[10])]
        table.add_row(f"{step.tokens:,}", f"{reported[PAPER[step.tokens]].value:g}", *ratios, *sizes)
    console.print(Text("\nThe paper's memory ratios, KVComm / KVCMAS\n"))
    console.print(table)
    console.print(Text(f"\n{NOTE}"), soft_wrap=True)


def print_lines(found: Sequence[MemoryLine], console: Console | None = None) -> None:
    console = console or Console(width=100)
    first = found[0]
    table = columns("method", "pool", "shared", "base", "corrections", "kept", "request", "total")
    for line in found:
        sizes = (line.base_bytes, line.correction_bytes, line.kept_bytes, line.request_bytes, line.total_bytes)
        pool = "-" if line.pool is None else str(line.pool)
        table.add_row(Text(line.method), pool, f"{line.shared_tokens:,}", *map(size, sizes))
    console.print(Text(f"{first.model}, {first.agents} agents, after {first.requests} requests; "
                       f"weights {size(first.weight_bytes)}\n"))  # fmt: skip
    console.print(table)
    console.print(Text(f"\n{NOTE_OURS}"), soft_wrap=True)


def write(found: Sequence[MemoryLine], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, [f.name for f in fields(MemoryLine)])
        table.writeheader()
        table.writerows(asdict(line) for line in found)
    print(f"written: {path}")


def _counts(option: str, text: str | None, default: tuple[int, ...]) -> tuple[int, ...]:
    if text is None:
        return default
    try:
        values = tuple(int(word) for word in text.split(","))
    except ValueError:
        values = ()
    if not values or min(values) < 1:
        example = ",".join(str(max(1, value)) for value in default)  # 0: what others ask for
        raise UserError(f"{option}={text}: expected positive integers, such as {example}")
    return values


if __name__ == "__main__":
    sys.exit(main())
