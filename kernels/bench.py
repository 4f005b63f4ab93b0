"""Time the kernels against the ceiling of the machine they run on.

``python -m kernels.bench --out kernels.csv`` sweeps tokens, anchors, rank, types and implementation and writes one CSV.
The ceiling of a row is measured in the same run: the rate of a large copy and of a large matrix product; the least time
of an operation is the larger of its bytes over the one and its FLOPs over the other. ``products_s`` times nothing but
the matrix products that a correction or a match needs, round by round beside the operation, in fp32 on a CPU. Data
are random: the file says nothing about accuracy.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.ceiling import ceiling, peak_extra, seconds
from kernels.dispatch import chosen, using
from kernels.workload import MODELS, Point, bare, operands, works


@dataclass(frozen=True)
class Row:
    """One line of the CSV; times are seconds, the median over the rounds unless the name says otherwise."""

    operation: str
    implementation: str
    device: str
    model: str
    tokens: int
    anchors: int
    rank: int
    dtype: str
    factor_dtype: str
    time_s: float
    least_s: float
    products_s: float
    bytes_moved: int
    flops: int
    bytes_per_s: float
    flops_per_s: float
    copy_bytes_per_s: float
    product_flops_per_s: float
    fraction_of_ceiling: float
    span_bytes: int
    peak_extra_bytes: int


def measure(point: Point, operations: Sequence[str], rounds: int, device: torch.device) -> Iterator[Row]:
    """All operations of a point: peak memory on the first call, then rounds in which everything takes its turn."""
    span = operands(point, device)
    every = [work for work in works(point, span) if work.name in operations]
    products = bare(point, device)
    limit = ceiling(device, span.anchors_k[0][0].dtype, rounds)
    peaks = [peak_extra(work.run, device) for work in every]
    products.run()
    times: list[list[float]] = [[] for _ in every]
    reference: list[float] = []
    for _ in range(rounds):
        reference.append(seconds(products.run, device))
        for at, work in enumerate(every):
            times[at].append(seconds(work.run, device))
    for work, taken, peak in zip(every, times, peaks, strict=True):
        typical = statistics.median(taken)
        yield Row(
            work.name, chosen(device).value, device.type, **dataclasses.asdict(point),
            time_s=typical, least_s=min(taken), products_s=min(reference),
            bytes_moved=work.bytes_moved, flops=work.flops,
            bytes_per_s=work.bytes_moved / typical, flops_per_s=work.flops / typical,
            **dataclasses.asdict(limit), fraction_of_ceiling=limit.least_s(work.bytes_moved, work.flops) / typical,
            span_bytes=2 * span.keys.nbytes, peak_extra_bytes=peak,
        )  # fmt: skip


def deviation_from_line(tokens: Sequence[int], times: Sequence[float]) -> float:
    """Largest relative deviation of times from their best line in tokens, fitted to relative errors."""
    t = torch.tensor(tokens, dtype=torch.float64)
    y = torch.tensor(times, dtype=torch.float64)
    design = torch.stack([1 / y, t / y], 1)
    fit = torch.linalg.lstsq(design, torch.ones(len(y), 1, dtype=torch.float64)).solution
    return float((design @ fit - 1).abs().max())


def main(arguments: list[str] | None = None) -> int:
    names = ["rotate", "correct", "token_l1", "token_l2", "span_l2", "factorise"]
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="smollm2")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--anchors", type=int, nargs="+", default=[10])
    parser.add_argument("--ranks", type=int, nargs="+", default=[32])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float32/bfloat16"], help="span type[/anchor type]")
    parser.add_argument("--implementations", nargs="+", default=["auto"], choices=["auto", "torch", "triton"])
    parser.add_argument("--operations", nargs="+", default=names, choices=names)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("results/tables/kernels.csv"))
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with options.out.open("w", newline="") as file:
        table = csv.DictWriter(file, [field.name for field in dataclasses.fields(Row)])
        table.writeheader()
        sweep = itertools.product(
            options.implementations, options.dtypes, options.anchors, options.ranks, options.tokens
        )
        for implementation, dtype, anchors, rank, tokens in sweep:
            data, _, factors = dtype.partition("/")
            point = Point(options.model, tokens, anchors, rank, data, factors or data)
            with using(implementation):
                for row in measure(point, options.operations, options.rounds, device):
                    table.writerow(dataclasses.asdict(row))
                    file.flush()
                    rows.append(row)
                    print(_line(row), flush=True)
    for key, group in itertools.groupby(sorted(rows, key=_group), key=_group):
        series = list(group)
        if len(series) > 2:
            off = deviation_from_line([row.tokens for row in series], [row.least_s for row in series])
            print(f"{' '.join(map(str, key[:-1]))}: {100 * off:.0f} % off a line in tokens")
    return 0


def _group(row: Row) -> tuple[str, str, str, str, int, int, int]:
    """Everything but the tokens, then the tokens: sorts a series, groups once the last entry is dropped."""
    return (row.operation, row.implementation, row.dtype, row.factor_dtype, row.anchors, row.rank, 0)


def _line(row: Row) -> str:
    return (
        f"{row.operation:10} {row.implementation:6} {row.dtype}/{row.factor_dtype} T={row.tokens} A={row.anchors}"
        f" r={row.rank}: {1e3 * row.least_s:.1f} ms, {row.least_s / row.products_s:.2f} x the products,"
        f" {100 * row.fraction_of_ceiling:.0f} % of the ceiling,"
        f" {100 * row.peak_extra_bytes / row.span_bytes:.0f} % of the span extra"
    )


if __name__ == "__main__":
    sys.exit(main())
