"""Tables of the report: a block's runs, all runs, problems, and where the numbers come from."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records import Status
from harness.report.collect import Problem, Run
from harness.report.exhibit import Block, Placed
from harness.report.figure import value
from harness.report.grid import Cell, Grid
from harness.report.quantity import QUANTITIES, Value, quantity_of
from harness.report.relative import HEADS
from harness.report.versus import paired, repeats

OVER, REPEATS = "over_dense", "repeats"


def block_grid(block: Block) -> Grid:
    """A row per run, in the order of the experiment."""
    columns = [c for c in block.exhibit.columns if any(_cell(block, p, c).text for p in block.runs)]
    heads = ("run", *(_head(c, block) for c in columns), "samples", "marks")
    rows = tuple(
        (Cell(p.point.label or p.run.method, title=p.run.folder), *(_cell(block, p, c) for c in columns),
         Cell(str(p.run.summary.n), Value(p.run.summary.n)), marks(p.run))
        for p in block.runs
    )  # fmt: skip
    numeric = frozenset(at for at, c in enumerate(("run", *columns, "samples")) if at and c not in (OVER, REPEATS))
    return Grid(block.name, heads, rows, numeric, tuple(_notes(block, columns)))


def _head(column: str, block: Block) -> str:
    if column == OVER:
        return f"against {block.exhibit.baseline}, points"
    if column == REPEATS:
        return "mean ± sd"
    return HEADS.get(column) or QUANTITIES[column].head


def _cell(block: Block, placed: Placed, column: str) -> Cell:
    if column == OVER:
        return _over(block, placed)
    if column == REPEATS:
        r = repeats(placed.run)
        return Cell("") if r is None else Cell(f"{r.mean:.2f} ± {r.sd:.2f} ({r.n})", Value(r.mean))
    found = value(block, placed, column)
    return Cell.of(found, 3 if column in HEADS else QUANTITIES[column].digits)


def _over(block: Block, placed: Placed) -> Cell:
    base = block.baseline()
    if base is None or base is placed.run:
        return Cell("")
    found = paired(placed.run, base)
    if found is None:
        return Cell("")
    text = f"{found.points:+.1f} ({found.low:+.1f} to {found.high:+.1f}), p = {found.p:.2g}"
    said = f"right alone on {found.better}, wrong alone on {found.worse} of {found.n}"
    mark = "" if found.p > 0.05 else "good" if found.points > 0 else "bad"
    return Cell(text, Value(found.points, found.low, found.high), mark, said)


def _notes(block: Block, columns: Sequence[str]) -> list[str]:
    notes = ["Brackets: 95 % intervals, exact for accuracy, a bootstrap over samples otherwise."]
    if OVER in columns:
        notes.append(
            f"Against {block.exhibit.baseline}: difference in accuracy on the same samples, with a paired bootstrap; p "
            "is McNemar's exact test, two-sided, not corrected for the number of methods."
        )
    if REPEATS in columns:
        notes.append(
            "Mean ± standard deviation over repeats: the order of the samples, hence what pools hold, and the seed of "
            "the sketch vary; decoding is greedy and the samples are the same."
        )
    shards = {p.run.shards for p in block.runs if p.run.shards > 1}
    if shards:
        notes.append("Runs in shards: each shard of a method that learns filled a pool of its own.")
    return [*notes, *block.notes]


def marks(run: Run) -> Cell:
    """What a reader must know of a run before its numbers."""
    found = []
    if run.summary.verified is not True:
        found.append("unverified" if run.summary.verified is None else "failed verification")
    if run.failed:
        found.append(f"{run.failed} of {run.summary.n} failed")
    if run.summary.serving is not None and run.summary.serving.simulated:
        found.append("simulation")
    if run.shards > 1:
        found.append(f"{run.shards} shards")
    found += run.notes
    bad = run.summary.verified is False or run.failed or run.notes
    return Cell(", ".join(found), mark="bad" if bad else "warn" if found else "")


def all_runs(runs: Sequence[Run], used: frozenset[str]) -> Grid:
    heads = (
        "folder", "task", "method", "model", "samples", "not ok", "accuracy, %", "reuse, %", "fresh, %", "KL, nats",
        "TTFT, ms", "state, MiB", "in an exhibit", "marks", "command",
    )  # fmt: skip
    rows = []
    for run in runs:
        s = run.summary
        bad = s.n - s.statuses.get(Status.ok, 0)
        numbers = [Cell.of(quantity_of(run, q)) for q in ("accuracy", "reuse", "fresh", "kl", "ttft", "state")]
        rows.append((Cell(run.folder), Cell(s.task), Cell(s.method), Cell(s.model), Cell(str(s.n), Value(s.n)),
                     Cell(str(bad), Value(bad)), *numbers, Cell("yes" if run.folder in used else "no"), marks(run),
                     Cell(s.command)))  # fmt: skip
    return Grid("runs", heads, tuple(rows), frozenset(range(4, 12)))


def problem_grid(problems: Sequence[Problem]) -> Grid:
    rows = tuple((Cell(p.folder), Cell(p.what, mark="bad"), Cell(p.remedy)) for p in problems)
    return Grid("problems", ("folder", "what is wrong", "what to do"), rows)


def provenance_grid(runs: Sequence[Run]) -> Grid:
    """A row for every combination of code, machine and libraries that made a run."""
    made: dict[tuple[str, ...], int] = {}
    for run in runs:
        for s in run.sessions:
            git = "no repository" if s.git is None else s.git.sha[:12] + (" and changes" if s.git.dirty else "")
            device = ", ".join(sorted({g.name for g in s.gpus})) or s.cpu.name
            model = "" if s.model is None else f"{s.model.id}, {s.model.dtype}, {s.model.kernels}"
            known = (n for n in ("torch", "transformers", "kvcmas") if n in s.packages)
            libraries = ", ".join(f"{n} {s.packages[n]}" for n in known)
            key = (git, device, f"{s.cpu.cores} cores", s.host_sha256[:8], model, f"{libraries}, Python {s.python}")
            made[key] = made.get(key, 0) + 1
    rows = tuple((*map(Cell, key), Cell(str(n), Value(n))) for key, n in sorted(made.items()))
    return Grid("provenance", ("code", "device", "cores", "host", "model", "libraries", "sessions"), rows,
                frozenset({6}))  # fmt: skip
