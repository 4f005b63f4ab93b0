"""Exhibits that are no sweep of runs: the memory estimate, effective ranks, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.ladder import SHARED_TOKENS, ladder
from harness.report.drawing import Drawing
from harness.report.grid import Cell, Grid
from harness.report.ranks import Ranks
from harness.report.style import LINES, PALETTE, SMALL, logarithmic
from harness.report.value import Value
from harness.report.verdict import Verdict, said
from harness.reported import Reported

VERDICTS = {"reproduced": (PALETTE[2], "good"), "differs": (PALETTE[1], "bad"),
            "not comparable": (PALETTE[4], "warn"), "calculated": (PALETTE[0], ""),
            "no run": (PALETTE[7], "")}  # fmt: skip
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
BOARD_GIB = 48 * 1e9 / 2**30  # of an A6000
KINDS = {"delta_k": ("delta, keys", 0), "delta_v": ("delta, values", 1), "base_k": ("cache, keys", 2),
         "base_v": ("cache, values", 3)}  # fmt: skip
FRAMES = {"derotated": "before rotation", "rotated": "after rotation", "none": ""}


def memory_grid(reported: dict[str, Reported]) -> Grid:
    """The paper's ratios beside the estimate at unequal and equal pools."""
    names = dict(zip(SHARED_TOKENS, ("mem_ratio_2k", "mem_ratio_8k", "mem_ratio_32k"), strict=True))
    rows = []
    for step in ladder():
        ratios = [Cell.of(Value(step.ratio(*pools))) for pools in ((20, 10), (10, 10), (20, 20))]
        sizes = [Cell.of(Value(x)) for x in (step.full_gib[20], step.full_gib[10], step.low_rank_gib[10])]
        paper = Cell.of(Value(reported[names[step.tokens]].value))
        rows.append((Cell(f"{step.tokens:,}", Value(step.tokens)), paper, *ratios, *sizes))
    heads = ("shared tokens", "paper: KVComm / KVCMAS", "full (20) / rank 32 (10)", "full (10) / rank 32 (10)",
             "full (20) / rank 32 (20)", "full (20), GiB", "full (10), GiB", "rank 32 (10), GiB")  # fmt: skip
    notes = (
        "An estimate, not a measurement: Llama-3.1-8B at 16 bit, 15 GiB of weights, 1 GiB of overhead, one live cache; "
        "an anchor is one base and four deltas of the shared span. In brackets: anchors in the pool. The paper states "
        "no pool sizes; 20 and 10 are the defaults of the two public programs.",
    )
    return Grid("memory_estimate", heads, tuple(rows), frozenset(range(8)), notes)


def memory_drawing() -> Drawing:
    def draw(axes: Any) -> None:
        steps = ladder(lengths=LENGTHS)
        for colour, kind, name in ((PALETTE[1], "full_gib", "full tensors"), (PALETTE[0], "low_rank_gib", "rank 32")):
            for pool, line in ((20, "-"), (10, "--")):
                sizes = [getattr(s, kind)[pool] for s in steps]
                axes.plot(LENGTHS, sizes, color=colour, linestyle=line, label=f"{name}, {pool} anchors")
        axes.axhline(BOARD_GIB, color=PALETTE[7], linestyle=":", linewidth=1.2, label="A6000, 48 GB")
        axes.set(xlabel="shared tokens", ylabel="estimated memory, GiB", xscale="log")
        axes.set_xticks([512, 2048, 8192, 32768], ["512", "2K", "8K", "32K"])
        axes.minorticks_off()
        logarithmic(axes, "y")

    return Drawing("estimated memory against shared tokens", draw)


def rank_grid(found: Ranks) -> Grid:
    rows = []
    for kind, frame in found.kinds:
        layers = found.of(kind, frame)
        most = [max(r.energy_rank[e] for r in layers) for e in layers[0].energy_rank]
        mean = [sum(r.energy_rank[e] for r in layers) / len(layers) for e in layers[0].energy_rank]
        name = ", ".join(filter(None, (KINDS.get(kind, (kind, 0))[0], FRAMES.get(frame, frame))))
        cells = [Cell.of(Value(v)) for pair in zip(mean, most, strict=True) for v in pair]
        entropy = [r.entropy_rank for r in layers]
        rows.append((Cell(name), *cells, Cell.of(Value(sum(entropy) / len(entropy))), Cell.of(Value(max(entropy)))))
    energies = list(found.found.layers[0].energy_rank)
    heads = ("matrix", *(f"{100 * float(e):g} % energy, {what}" for e in energies for what in ("mean", "most")),
             "entropy, mean", "entropy, most")  # fmt: skip
    note = (
        f"Of {found.requests} requests of {found.task} on {found.model}: components of a layer's matrix that hold a "
        "share of its energy (squared Frobenius norm), and exp(entropy) of the shares; mean over spans, then over "
        "layers, and the layer that needs most."
    )
    return Grid(f"effective_rank-{found.task}-{found.model}", heads, tuple(rows),
                frozenset(range(1, len(heads))), (note,))  # fmt: skip


def rank_drawings(found: Ranks) -> list[Drawing]:
    def panel(frame: str) -> Drawing:
        def draw(axes: Any) -> None:
            for kind, (name, at) in KINDS.items():
                layers = found.of(kind, frame) or found.of(kind, "none")
                if layers:
                    xs, ys = [r.layer for r in layers], [r.energy_rank["0.95"] for r in layers]
                    axes.plot(xs, ys, color=PALETTE[at], linestyle=LINES[at % 2], marker="osD^"[at], label=name)
            axes.axhline(32, color=PALETTE[7], linestyle=":", linewidth=1.2, label="rank 32")
            axes.set(xlabel="layer", ylabel="rank at 95 % of the energy", title=FRAMES[frame])

        return Drawing(f"effective rank by layer, {FRAMES[frame]}", draw)

    return [panel("derotated"), panel("rotated")]


def verdict_grid(found: Sequence[Verdict]) -> Grid:
    heads = ("quantity", "setting", "verdict", "why", "paper", "ours", "ours / paper", "of", "command")
    rows = []
    for v in sorted(found, key=lambda v: list(VERDICTS).index(v.verdict)):
        r = v.reported
        of = f"{r.method}, against {r.versus}" if r.versus else r.method
        ratio = Cell.of(None if v.ratio is None else Value(v.ratio))
        ours = Cell("") if v.ours is None else Cell(said(v.ours.value, r.unit), title=v.ours.source)
        paper = Cell(f"{r.value:g} {r.unit}", title=r.kind)
        why = v.why if v.ours is None or not v.ours.reasons or not v.ours.remark else f"{v.why}; {v.ours.remark}"
        verdict = Cell(v.verdict, mark=VERDICTS[v.verdict][1])
        rows.append((Cell(r.quantity, title=r.id), Cell(r.setting), verdict, Cell(why), paper, ours, ratio, Cell(of),
                     Cell(v.command)))  # fmt: skip
    notes = (
        "reproduced: under the paper's conditions, inside our 95 % interval or within a tenth; differs: under its "
        "conditions, neither; not comparable: another model, length, machine or sample, as said; calculated: a "
        "formula or a setting, tested by no run; no run: nothing here measures it yet. Brackets are 95 % intervals.",
    )
    return Grid("paper", heads, tuple(rows), frozenset({6}), notes)


def verdict_drawing(found: Sequence[Verdict]) -> Drawing | None:
    """Ours over the paper's, where there are both and neither is a setting."""
    shown = [v for v in found if v.ratio is not None and v.ratio > 0 and v.reported.kind != "setting"]
    if not shown:
        return None

    def draw(axes: Any) -> None:
        for at, v in enumerate(shown):
            assert v.ours is not None
            value, paper = v.ours.value, v.reported.value
            ratio = value.value / paper
            low, high = (ratio if end is None else max(end / paper, 1e-3) for end in (value.low, value.high))
            axes.errorbar([ratio], [at], xerr=[[max(0.0, ratio - low)], [max(0.0, high - ratio)]],
                          color=VERDICTS[v.verdict][0], marker="o", linestyle="none", label=v.verdict)  # fmt: skip
        axes.axvline(1.0, color=PALETTE[6], linewidth=1)
        axes.axvspan(0.9, 1.1, color=PALETTE[2], alpha=0.12, linewidth=0)
        axes.set_yticks(range(len(shown)), [v.reported.id.replace("_", " ") for v in shown], fontsize=SMALL)
        axes.invert_yaxis()
        axes.set(xlabel="ours / paper's")
        ratios = [1.0, *(v.ratio for v in shown if v.ratio is not None)]
        if max(ratios) > 3 * min(ratios):
            logarithmic(axes, "x", narrow=True)

    return Drawing("our numbers over the paper's", draw, 0.47, (3.7, 0.9 + 0.26 * len(shown)))
