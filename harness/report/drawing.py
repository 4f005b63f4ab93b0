"""From something that draws into axes to an SVG that is part of a page, and to a PDF and a PNG with one legend below.

Equal input gives equal bytes: no dates, no program names, ids from a fixed salt.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from harness.report.style import canvas, ink


@dataclass(frozen=True)
class Drawing:
    """One panel: what it shows, for those who cannot see it, and how it is drawn; ``size`` in inches, ``left`` the
    share of the width that labels take. Margins are fixed: matplotlib's layout engines take longer than the drawing.
    """

    title: str
    draw: Callable[[Any], None]
    left: float = 0.17
    size: tuple[float, float] = (3.7, 2.9)


def as_svg(drawing: Drawing, salt: str) -> str:
    """An SVG for the inside of a page; its ink is the text colour there. ``salt`` keeps its ids apart from others'."""
    pyplot = canvas()
    with pyplot.rc_context({"svg.hashsalt": f"{salt}/{drawing.title}"}):
        figure, axes = pyplot.subplots(figsize=drawing.size)
        drawing.draw(axes)
        height = drawing.size[1]
        figure.subplots_adjust(left=drawing.left, right=0.97, bottom=0.48 / height, top=1 - 0.24 / height)
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
    width, panel = sum(widths), max(d.size[1] for d in drawings)
    with pyplot.rc_context({"svg.hashsalt": name}):
        handles: dict[str, Any] = {}
        figure = pyplot.figure(figsize=(width, panel))
        frames = []
        for drawing, begin in zip(drawings, accumulate(widths, initial=0.0), strict=False):
            axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
            drawing.draw(axes)
            frames.append((axes, begin + drawing.left * drawing.size[0], (0.97 - drawing.left) * drawing.size[0]))
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        longest = max((len(label) for label in handles), default=0)
        columns = max(1, min(len(handles), int(width * 13 / (longest + 7))))
        below = 0.1 + 0.19 * -(-len(handles) // columns) if handles else 0.0
        figure.set_size_inches(width, panel + below)
        for axes, begin, wide in frames:
            box = (begin / width, (below + 0.48) / (panel + below), wide / width, (panel - 0.72) / (panel + below))
            axes.set_position(box)
        if handles:
            figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=columns, frameon=False,
                          fontsize="small")  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        pdf, png = folder / f"{name}.pdf", folder / f"{name}.png"
        dates = {"CreationDate": None, "Creator": None, "Producer": None}
        figure.savefig(pdf, facecolor="white", metadata=dates)
        figure.savefig(png, facecolor="white", dpi=150, metadata={"Software": None})
        pyplot.close(figure)
    return [pdf, png]
