"""Tables of the report: a block's runs, all runs, problems, and where the numbers come from."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records import Status
from harness.report.block import Block, Placed
from harness.report.figure import value
from harness.report.grid import Cell, Grid
from harness.report.quantity import QUANTITIES, quantity_of
from harness.report.relative import HEADS
from harness.report.run import Problem, Run
from harness.report.value import Value, over_seeds
from harness.report.versus import paired, repeats

OVER, REPEATS = "over_dense", "repeats"


def block_grid(block: Block) -> Grid:
    """A row per point, in the order of the experiment."""
    cells = {c: [_cell(block, p, c) for p in block.runs] for c in block.exhibit.columns}
    columns = [c for c in block.exhibit.columns if any(cell.text for cell in cells[c])]
    heads = ("run", *(_head(c, block) for c in columns), "samples", "marks")
    rows = tuple(
        (Cell(p.point.label or p.run.method, title=", ".join(run.folder for run in p.runs)),
         *(cells[c][at] for c in columns), _samples(p), placed_marks(p))
        for at, p in enumerate(block.runs)
    )  # fmt: skip
    numeric = frozenset(at for at, c in enumerate(("run", *columns, "samples")) if at and c not in (OVER, REPEATS))
    return Grid(block.name, heads, rows, numeric, tuple(_notes(block, columns)))


def _samples(placed: Placed) -> Cell:
    counts = [run.summary.n for run in placed.runs]
    text = f"{len(counts)} × {counts[0]}" if len(counts) > 1 and len(set(counts)) == 1 else " + ".join(map(str, counts))
    return Cell(text, Value(sum(counts)))


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
        found = [r for run in placed.runs if (r := repeats(run)) is not None]
        text = "; ".join(f"{r.mean:.2f} ± {r.sd:.2f} ({r.n})" for r in found)
        return Cell(text, Value(sum(r.mean for r in found) / len(found))) if found else Cell("")
    found_value = value(block, placed, column)
    return Cell.of(found_value, 3 if column in HEADS else QUANTITIES[column].digits)


def _over(block: Block, placed: Placed) -> Cell:
    """Beside the baseline of the same seed; of several seeds, mean and standard deviation of the difference."""
    pairs = [(run, block.baseline(run)) for run in placed.runs]
    found = [paired(run, base) for run, base in pairs if base is not None and base is not run]
    known = [f for f in found if f is not None]
    if not known or len(known) < len(pairs):
        return Cell("")
    if len(known) > 1:
        over = over_seeds([Value(f.points) for f in known])
        assert over is not None
        assert over.low is not None
        text = f"{over.value:+.1f} ± {over.value - over.low:.1f}"
        return Cell(text, over, title="; ".join(f"{f.points:+.1f}, p = {f.p:.2g}" for f in known))
    (only,) = known
    text = f"{only.points:+.1f} ({only.low:+.1f} to {only.high:+.1f}), p = {only.p:.2g}"
    said = f"right alone on {only.better}, wrong alone on {only.worse} of {only.n}"
    mark = "" if only.p > 0.05 else "good" if only.points > 0 else "bad"
    return Cell(text, Value(only.points, only.low, only.high), mark, said)


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
    seeds = sorted({len(p.runs) for p in block.runs if len(p.runs) > 1})
    if seeds:
        notes.append(
            f"a ± b: mean and standard deviation over {' or '.join(map(str, seeds))} seeds; the error bars of figures "
            "are one standard deviation there."
        )
    if any(p.run.shards > 1 for p in block.each):
        notes.append("Runs in shards: each shard of a method that learns filled a pool of its own.")
    return [*notes, *block.notes]


def placed_marks(placed: Placed) -> Cell:
    """What a reader must know of the runs at a point before their numbers."""
    cells = [marks(run) for run in placed.runs]
    if len(cells) == 1:
        return cells[0]
    texts = dict.fromkeys(c.text for c in cells if c.text)
    mark = next((m for m in ("bad", "warn") if any(c.mark == m for c in cells)), "")
    return Cell(", ".join([f"over {len(cells)} seeds", *texts]), mark=mark)


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
    if run.conflict:
        found.append(f"in conflict with {' and '.join(run.conflict)}")
    found += [*run.doubts, *run.notes]
    bad = run.summary.verified is False or run.failed or run.notes or run.conflict or run.doubts
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
