"""``python -m harness.sim calibrate FOLDERS --out costs.yaml``: costs for ``backend.costs`` from measured runs.

``python -m harness.sim validate FOLDERS [--costs costs.yaml]``: the same traces simulated, beside what was measured.
With costs calibrated on the same folders it says how much of the queueing follows from the costs of calls; with others
it says how well those carry over. FOLDERS are run folders, or hold some, such as results/runs/trace.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from omegaconf import OmegaConf
from rich.console import Console
from rich.text import Text

from harness import atomic
from harness.errors import UserError
from harness.folder import read_rows
from harness.hint import nearest
from harness.records import Route, Row
from harness.sim.calibrate import Measured, calibrate, measured
from harness.sim.cost_file import read
from harness.sim.costs import CostFile, route_cost
from harness.sim.runs import usable
from harness.sim.service import VOCAB, Machine, SimService
from harness.table import columns, seconds
from harness.traffic.measure import downstream, grouped, spread
from harness.traffic.replay import Replay
from harness.traffic.rows import row
from harness.traffic.text import RANDOM, text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what ``arguments`` ask for; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        folders, left_out = usable(options.folders)
        for why in left_out:
            print(f"left out: {why}", file=sys.stderr)
        runs = measured(folders)
        if options.what == "calibrate":
            write(calibrate(runs), options.out)
            print(f"costs: {options.out} (python -m harness task=trace backend=sim backend.costs={options.out} ...)")
        else:
            print_validation(runs, calibrate(runs) if options.costs is None else read(options.costs, "--costs"))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def write(file: CostFile, path: Path) -> None:
    """Replace the file as a whole; its folder is made. Raises UserError if it cannot be written."""
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"--out {path}: this is a folder or a device; name a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.replace(path, OmegaConf.to_yaml(OmegaConf.create(msgspec.to_builtins(file))).encode())
    except OSError as error:
        what = f"cannot be written ({error.strerror}); name a file in a folder you may write to"
        raise UserError(f"--out {path}: {what}") from error


def simulated(run: Measured, costs: CostFile) -> list[Row]:
    """The rows that a run would have had: its trace and its repeats on simulated calls.

    Raises:
        UserError: if the cost file does not describe the method as measured, on a model of as many layers.
    """
    if run.name not in costs.methods:
        raise UserError(f"--costs: it does not describe {run.name}, {nearest(run.name, costs.methods)}")
    if not costs.methods[run.name].phases or costs.layers is None:
        what = f"it describes {run.name} by its work, without measured phases"
        raise UserError(f"--costs: {what}; give a file that python -m harness.sim calibrate wrote")
    if costs.layers != run.layers:
        raise UserError(
            f"--costs: its layers is {costs.layers}, but {run.folder} ran a model of {run.layers}; give others"
        )
    recipe = costs.methods[run.name]
    routes = {route: route_cost(recipe, route, None, None) for route in Route}
    machine = Machine("simulation", "as measured", costs.layers, costs.slots, costs.budget, routes)
    service, rows = SimService(machine, recipe, None), list[Row]()
    words = text(RANDOM, None, VOCAB, run.planned.trace.seed)
    for repeat in range(int(run.config["repeats"])):
        service.reset(repeat)
        replay = Replay(run.planned, words, service)
        for _ in replay.warm_up():
            pass
        rows += [row(outcome, repeat, service, lambda ids: "") for outcome in replay.measured()]
    return rows


def print_validation(runs: Sequence[Measured], costs: CostFile) -> None:
    """Measured and simulated TTFT, runs of one method pooled, with their ratios to the first method."""
    table = columns(
        "method", "later median\nmeasured", "simulated", "x\nmeasured", "x\nsimulated",
        "trajectory mean\nmeasured", "simulated", "x\nmeasured", "x\nsimulated",
    )  # fmt: skip
    base: tuple[float, ...] | None = None
    for name in dict.fromkeys(run.name for run in runs):
        mine = [run for run in runs if run.name == name]
        real = _pooled([list(read_rows(run.folder).rows) for run in mine])
        made = _pooled([simulated(run, costs) for run in mine])
        found = (real[0], made[0], real[1], made[1])
        base = base or found
        ratios = [f"{b / f:.2f}" if f else "-" for b, f in zip(base, found, strict=True)]
        shown = [seconds(f) for f in found]
        table.add_row(name, *shown[:2], *ratios[:2], *shown[2:], *ratios[2:])
    console = Console()
    console.print(
        Text("\nTTFT of hops with a source, and mean over trajectories; x: the first method's / this one's\n")
    )
    Console(width=max(console.width, 120)).print(table)


def _pooled(runs: Sequence[list[Row]]) -> tuple[float, float]:
    """Median TTFT of hops with a source, and mean over trajectories of their hops' mean."""
    rows = [
        msgspec.structs.replace(r, sample_id=f"{n}/{r.sample_id}")
        for n, found in enumerate(runs)
        for r in found
        if r.completed
    ]
    later = spread(grouped(rows), lambda r: [h.ttft_s for h in r.hops if downstream(h)])
    whole = spread(grouped(rows), lambda r: [sum(h.ttft_s for h in r.hops) / len(r.hops)])
    return later.p50 if later else 0.0, whole.mean if whole else 0.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness.sim", description=__doc__)
    kinds = parser.add_subparsers(dest="what", required=True)
    one = kinds.add_parser("calibrate", help="costs from measured runs")
    one.add_argument("folders", type=Path, nargs="+")
    one.add_argument("--out", type=Path, default=Path("results", "sim", "costs.yaml"))
    two = kinds.add_parser("validate", help="simulate the traces of measured runs")
    two.add_argument("folders", type=Path, nargs="+")
    two.add_argument("--costs", help="a cost file; by default calibrated on the same folders")
    return parser


if __name__ == "__main__":
    sys.exit(main())
