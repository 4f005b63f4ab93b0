"""Figures of a kernel bench: ``python -m harness.report.kernels kernels.csv --out kernels.png``.

Left, time over tokens, one line per operation and storage; right, how close each comes to the measured ceiling.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from harness.errors import UserError

COLUMNS = ("operation", "implementation", "dtype", "factor_dtype", "tokens", "anchors", "rank", "time_s")


def series(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """One frame per line of the plot, sorted by tokens; the widest pool and rank of the file."""
    table = table[(table["anchors"] == table["anchors"].max()) & (table["rank"] == table["rank"].max())]
    keys = ["operation", "implementation", "dtype", "factor_dtype"]
    return {
        f"{operation} ({implementation}, {dtype}/{factors})": group.sort_values("tokens")
        for (operation, implementation, dtype, factors), group in table.groupby(keys)
    }


def plot(source: Path, target: Path) -> None:
    """Draw the CSV of ``python -m kernels.bench``.

    Raises:
        UserError: if the file is missing or is not such a CSV.
    """
    if not source.is_file():
        raise UserError(f"{source} does not exist: write it with python -m kernels.bench --out {source}")
    table = pd.read_csv(source)
    missing = [column for column in COLUMNS if column not in table]
    if missing or table.empty:
        raise UserError(f"{source} has no {', '.join(missing) or 'rows'}: write it with python -m kernels.bench")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5), layout="constrained")
    for label, group in series(table).items():
        left.loglog(group["tokens"], 1e3 * group["time_s"], marker="o", label=label)
        right.semilogx(group["tokens"], 100 * group["fraction_of_ceiling"], marker="o", label=label)
    left.set(xlabel="tokens", ylabel="median time, ms")
    right.set(xlabel="tokens", ylabel="% of the ceiling measured in the same run", ylim=(0, None))
    right.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=150)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.report.kernels", description=__doc__)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/figures/kernels.png"))
    options = parser.parse_args(arguments)
    try:
        plot(options.csv, options.out)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
