"""The report from beginning to end: collect, place, judge, draw, write."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.report.block import Block, blocks
from harness.report.collect import Collected, collect
from harness.report.drawing import Drawing, Sheet
from harness.report.evidence import Evidence
from harness.report.exhibit import Exhibit, exhibits
from harness.report.figure import block_panels, legend
from harness.report.page import Page, Part, Section, Swatch
from harness.report.ranks import Ranks, read_ranks
from harness.report.run import Problem
from harness.report.shards import merged
from harness.report.shares import collected_once, shares
from harness.report.special import (
    memory_drawing,
    memory_grid,
    rank_drawings,
    rank_grid,
    verdict_drawing,
    verdict_grid,
)
from harness.report.staging import PAGE, staged
from harness.report.tables import all_runs, block_grid, problem_grid, provenance_grid
from harness.report.verdict import Verdict, verdicts
from harness.reported import Reported, read_reported

FEW = 4  # figures that are not worth a process
SHAPES = {
    "o": '<circle cx="15" cy="6" r="4" {0}/>',
    "s": '<rect x="11" y="2" width="8" height="8" {0}/>',
    "^": '<path d="M15 1.5 19.5 10h-9z" {0}/>',
    "v": '<path d="M15 10.5 10.5 2h9z" {0}/>',
    "D": '<path d="M15 1 20 6l-5 5-5-5z" {0}/>',
    "P": '<path d="M13.5 2h3v2.5H19v3h-2.5V10h-3V7.5H11v-3h2.5z" {0}/>',
    "X": '<path d="M11 4l2-2 2 2 2-2 2 2-2 2 2 2-2 2-2-2-2 2-2-2 2-2z" {0}/>',
    "*": '<path d="M15 1l1.5 3.4 3.7.4-2.8 2.5.8 3.7-3.2-2-3.2 2 .8-3.7-2.8-2.5 3.7-.4z" {0}/>',
}


@dataclass(frozen=True)
class Made:
    runs: int
    tables: int
    figures: int
    problems: tuple[Problem, ...]


def make(places: Sequence[Path], analyses: Path, out: Path) -> Made:
    """Write tables, figures and the page of the runs in ``places`` below ``out``, and remove those of an earlier
    report that are not among them; see :mod:`harness.report.staging` for what a killed one leaves.

    Raises:
        UserError: for a place that is not there, an experiment whose YAML cannot be read, or an ``out`` that another
            process writes to.
    """
    with staged(out) as new:
        return _made(places, analyses, new)


def _made(places: Sequence[Path], analyses: Path, new: Path) -> Made:
    reported, found = read_reported(), collect(places)
    runs, parted = merged(found.runs)
    found = replace(found, runs=tuple(runs))
    ranks, bad = read_ranks(analyses)
    problems = (*found.problems, *parted, *bad)
    shown = exhibits()
    placed = {e.name: blocks(e, [r for r in runs if not r.option("shard")]) for e in shown}
    judged = verdicts(reported, Evidence(placed, ranks))
    sections = list(_sections(found, problems, shown, placed, judged, ranks, reported))
    grids = [part.grid for section in sections for part in section.parts]
    drawn = [(part.grid.name, part.drawings) for s in sections for part in s.parts if part.drawings]
    for grid in grids:
        grid.save(new / "tables")
    svgs = _draw_all(drawn, new / "figures")
    page = Page(sections, len(found.runs), found.folders, len(problems), Counter(v.verdict for v in judged), svgs)
    page.save(new / PAGE)
    return Made(len(found.runs), len(grids), len(drawn), problems)


def _draw_all(drawn: Sequence[tuple[str, Sequence[Drawing]]], folder: Path) -> dict[str, list[str]]:
    """Save every figure, on all cores where there is much to draw; SVGs by the name of their grid."""
    workers = max(1, min(cores(), len(drawn) // FEW))

    def share(at: int) -> list[tuple[str, list[str]]]:
        return [(name, _drawn(name, drawings, folder)) for name, drawings in drawn[at::workers]]

    return dict(item for part in shares(share, workers) for item in part)


def cores() -> int:
    """How many this process may use; 1 where forks are not to be had."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _drawn(name: str, drawings: Sequence[Drawing], folder: Path) -> list[str]:
    with collected_once(), Sheet(drawings, name) as sheet:
        svgs = sheet.svgs()
        sheet.save(folder)
        return svgs


def _sections(
    found: Collected, problems: Sequence[Problem], shown: Sequence[Exhibit], placed: dict[str, list[Block]],
    judged: Sequence[Verdict], ranks: Sequence[Ranks], reported: dict[str, Reported],
) -> list[Section]:  # fmt: skip
    ratio = verdict_drawing(judged)
    paper = Part(verdict_grid(judged), drawings=[ratio] if ratio else [])
    estimate = Part(memory_grid(reported), drawings=[memory_drawing()], legend=_memory_legend())
    made = [
        Section("paper", "The paper's numbers and ours", "KVCMAS (arXiv 2609.34060) as it reports itself.", [paper]),
        *(_exhibit(e, placed[e.name]) for e in sorted(shown, key=lambda e: (not placed[e.name], e.title))),
        Section(
            "memory-estimate",
            "Where 2.5, 6.2 and 14.9 come from",
            "The paper's memory ratios follow from pools of unequal size; at equal pools about half of each is left.",
            [estimate],
            "python -m harness.memory",
        ),
        _ranks(ranks),
    ]
    used = frozenset(p.run.folder for found_ in placed.values() for block in found_ for p in block.each)
    made.append(Section("runs", "All runs", "Every complete run, whether or not an exhibit shows it.",
                        [Part(all_runs(found.runs, used))] if found.runs else [],
                        empty="There are none yet. python -m harness makes one.", folded=True))  # fmt: skip
    made.append(Section("problems", "Problems", "Folders that are not simply a complete run.",
                        [Part(problem_grid(problems))] if problems else [], empty="None."))  # fmt: skip
    made.append(Section("provenance", "Provenance", "Code, machines and libraries that made the runs.",
                        [Part(provenance_grid(found.runs))] if found.runs else []))  # fmt: skip
    return made


def _exhibit(exhibit: Exhibit, found: Sequence[Block]) -> Section:
    parts = []
    for block in found:
        sources = [(p.point.label or p.run.method, p.run.folder, p.run.summary.command) for p in block.each]
        command = exhibit.command + (f" size={block.size}" if block.size != "laptop" else "")
        parts.append(
            Part(
                block_grid(block),
                ", ".join(block.facts.values()),
                block_panels(block),
                [_swatch(label, style) for label, style in legend(block)],
                command,
                [p.label for p in block.missing],
                sources,
            )
        )
    empty = f"No runs yet. This makes them, on a laptop (size=full for the paper's lengths): {exhibit.command}"
    return Section(exhibit.name, exhibit.title, exhibit.about, parts, exhibit.command if parts else "", empty)


def _ranks(ranks: Sequence[Ranks]) -> Section:
    command = "python -m harness.analyse rank model=smollm2 task=gsm8k"
    parts = [
        Part(rank_grid(r), f"{r.task}, {r.model}", rank_drawings(r), _rank_legend(rank_drawings(r)), command)
        for r in ranks
    ]
    about = (
        "How many components a layer's correction has, and the cache it corrects; keys as they are stored and as a "
        "model rotates them."
    )
    return Section("effective_rank", "Effective rank by layer", about, parts, command if parts else "",
                   f"No analysis yet. This makes one: {command}")  # fmt: skip


def _memory_legend() -> list[Swatch]:
    from harness.report.style import PALETTE

    return [
        _swatch(f"{name}, {pool} anchors", {"color": PALETTE[at], "marker": "", "linestyle": line})
        for name, at in (("full tensors", 1), ("rank 32", 0))
        for pool, line in ((20, "-"), (10, "--"))
    ]


def _rank_legend(drawings: Sequence[Drawing]) -> list[Swatch]:
    from harness.report.special import KINDS
    from harness.report.style import LINES, PALETTE

    return [_swatch(name, {"color": PALETTE[at], "marker": "osD^"[at], "linestyle": LINES[at % 2]})
            for name, at in KINDS.values()]  # fmt: skip


def _swatch(label: str, style: dict[str, Any]) -> Swatch:
    from harness.report.style import ink

    hollow = style.get("markerfacecolor") == "none"
    colour = ink(str(style["color"]))
    fill = f'fill="var(--paper)" stroke="{colour}" stroke-width="1.5"' if hollow else f'fill="{colour}"'
    return Swatch(label, colour, SHAPES.get(str(style["marker"]), "").format(fill), hollow,
                  str(style["linestyle"]))  # fmt: skip
