"""Figure of an analysis: ``python -m harness.report.ridge results/analysis/ridge-smollm2-gsm8k.json --out ridge.png``.

Left, delta energy that remains on held-out hops over requests observed (1 is rotation alone), keys solid and values
dashed; right, for every held-out hop, the error that the ridge's gate expected and the true one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from harness.analysis.ridge_file import Analysis
from harness.errors import UserError
from harness.report.standalone import drawable
from harness.report.style import canvas, look


def read(path: Path) -> Analysis:
    """Raises UserError if the file is missing or is no analysis."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Analysis)
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{path} is no analysis ({error}): write one with python -m harness.analyse ridge") from error


def lines(made: Analysis) -> dict[str, list[tuple[int, float, float]]]:
    """By method that has a curve, (requests observed, keys, values) on held-out questions."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    for row in made.remaining:
        if row.data == "held_out" and row.span == "question":
            found.setdefault(row.method, []).append((row.observed, row.keys, row.values))
    return {method: sorted(points) for method, points in found.items() if len(points) > 1}


def plot(source: Path, target: Path) -> None:
    """Draw the analysis in ``source``. Raises UserError as :func:`read`."""
    made = read(source)
    pyplot = canvas()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for method, points in lines(made).items():
        observed, keys, values = zip(*points, strict=True)
        style = look(method.partition(",")[0])
        left.plot(observed, keys, label=f"{method}: keys", **{**style, "linestyle": "-"})
        left.plot(observed, values, label=f"{method}: values", **{**style, "linestyle": "--"})
    left.axhline(1.0, color="grey", linewidth=1)
    left.set(xscale="log", xlabel="requests observed", ylabel="delta energy that remains (1: rotation alone)")
    left.set_xticks(made.observed, [str(count) for count in made.observed])
    left.set_xticks([], minor=True)
    left.legend(fontsize="small")
    known = [(hop.expected, hop.error) for hop in made.foreseen if hop.expected is not None]
    if known:
        right.scatter(*zip(*known, strict=True), s=10, color=look("ridge")["color"])
        ends = [f(f(pair) for pair in known) for f in (min, max)]
        right.plot(ends, ends, color="grey", linewidth=1)
    order = next((gate for gate in made.gates if gate.gate == "ridge"), None)
    title = "" if order is None else f"rank correlation {order.rank_correlation:.2f}"
    right.set(xlabel="expected relative KV error", ylabel="true relative KV error", title=title)
    figure.savefig(target, dpi=150)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.report.ridge", description=__doc__)
    parser.add_argument("json", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/figures/ridge.png"))
    options = parser.parse_args(arguments)
    try:
        plot(options.json, drawable(options.out))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"figure: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
