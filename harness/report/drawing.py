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
    width, height = sum(d.size[0] for d in drawings), max(d.size[1] for d in drawings)
    with pyplot.rc_context({"svg.hashsalt": name}):
        handles: dict[str, Any] = {}
        figure = pyplot.figure(figsize=(width, height))
        begin = 0.0
        for drawing in drawings:
            own = drawing.size[0]
            box = (begin + drawing.left * own, 0.48, (0.97 - drawing.left) * own, height - 0.72)
            axes = figure.add_axes((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
            drawing.draw(axes)
            begin += own
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        if handles:
            longest = max(len(label) for label in handles)
            columns = max(1, min(len(handles), int(width * 13 / (longest + 7))))
            figure.legend(handles.values(), handles.keys(), loc="upper center", bbox_to_anchor=(0.5, 0.0),
                          ncols=columns, frameon=False, fontsize="small")  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        pdf, png = folder / f"{name}.pdf", folder / f"{name}.png"
        dates = {"CreationDate": None, "Creator": None, "Producer": None}
        figure.savefig(pdf, facecolor="white", bbox_inches="tight", metadata=dates)
        figure.savefig(png, facecolor="white", bbox_inches="tight", dpi=150, metadata={"Software": None})
        pyplot.close(figure)
    return [pdf, png]
