"""From something that draws into axes to an SVG that is part of a page, and to a PDF and a PNG with one legend below.

Equal input gives equal bytes: no dates, no program names, ids from a fixed salt.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.report.style import canvas, ink


@dataclass(frozen=True)
class Drawing:
    """One panel: what it shows, for those who cannot see it, and how it is drawn; ``size`` in inches."""

    title: str
    draw: Callable[[Any], None]
    size: tuple[float, float] = (3.7, 2.9)


def as_svg(drawing: Drawing, salt: str) -> str:
    """An SVG for the inside of a page; its ink is the text colour there. ``salt`` keeps its ids apart from others'."""
    pyplot = canvas()
    with pyplot.rc_context({"svg.hashsalt": f"{salt}/{drawing.title}"}):
        figure, axes = pyplot.subplots(figsize=drawing.size, layout="constrained")
        drawing.draw(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    text = re.sub(r"<\?xml.*?\?>|<!DOCTYPE[^>]*>|<metadata>.*?</metadata>", "", out.getvalue(), flags=re.DOTALL).strip()
    label = re.sub(r"[<>&\"]", " ", drawing.title)
    return ink(re.sub(r"<svg ", f'<svg role="img" aria-label="{label}" ', text, count=1))


def save(drawings: Sequence[Drawing], folder: Path, name: str) -> list[Path]:
    """All panels side by side as ``name.pdf`` and ``name.png``; returns the files."""
    if not drawings:
        return []
    pyplot = canvas()
    widths = [d.size[0] for d in drawings]
    with pyplot.rc_context({"svg.hashsalt": name}):
        figure, grid = pyplot.subplots(
            1, len(drawings), figsize=(sum(widths), max(d.size[1] for d in drawings) + 0.5), layout="constrained",
            squeeze=False, width_ratios=widths,
        )  # fmt: skip
        handles: dict[str, Any] = {}
        for axes, drawing in zip(grid[0], drawings, strict=True):
            drawing.draw(axes)
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        if handles:
            longest = max(len(label) for label in handles)
            columns = max(1, min(len(handles), int(sum(widths) * 11 / (longest + 6))))
            figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False,
                          fontsize="small")  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        pdf, png = folder / f"{name}.pdf", folder / f"{name}.png"
        figure.savefig(pdf, facecolor="white", metadata={"CreationDate": None, "Creator": None, "Producer": None})
        figure.savefig(png, facecolor="white", dpi=150, metadata={"Software": None})
        pyplot.close(figure)
    return [pdf, png]
