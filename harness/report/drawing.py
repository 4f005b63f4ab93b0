"""From something that draws into axes to an SVG that is part of a page, and to a PDF and a PNG with one legend below.

A panel is drawn once; the same axes are saved in every form, since making them takes as long as saving them. Equal
input gives equal bytes: no dates, no program names, ids from a fixed salt.
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


class Sheet:
    """Panels side by side with one legend below. To be closed: pyplot keeps figures."""

    def __init__(self, drawings: Sequence[Drawing], name: str) -> None:
        self.drawings, self.name, self.pyplot = drawings, name, canvas()
        widths = [d.size[0] for d in drawings]
        self.width, self.panel = sum(widths), max(d.size[1] for d in drawings)
        self.figure = self.pyplot.figure(figsize=(self.width, self.panel))
        self.begins = list(accumulate(widths, initial=0.0))[:-1]
        self.frames = [self.figure.add_axes((0.0, 0.0, 1.0, 1.0)) for _ in drawings]
        self.handles: dict[str, Any] = {}
        for drawing, axes in zip(drawings, self.frames, strict=True):
            drawing.draw(axes)
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                self.handles.setdefault(label, handle)

    def __enter__(self) -> Sheet:
        return self

    def __exit__(self, *_: object) -> None:
        self.pyplot.close(self.figure)

    def svgs(self) -> list[str]:
        """An SVG of each panel for the inside of a page; its ink is the text colour there. Ids are apart by name."""
        return [self._svg(d, axes) for d, axes in zip(self.drawings, self.frames, strict=True)]

    def _svg(self, drawing: Drawing, axes: Any) -> str:
        wide, high = drawing.size
        for other in self.frames:
            other.set_visible(other is axes)
        self.figure.set_size_inches(wide, high)
        axes.set_position((drawing.left, 0.48 / high, 0.97 - drawing.left, (high - 0.72) / high))
        out = io.StringIO()
        with self.pyplot.rc_context({"svg.hashsalt": f"{self.name}/{drawing.title}"}):
            self.figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        text = re.sub(r"<\?xml.*?\?>|<!DOCTYPE[^>]*>|<metadata>.*?</metadata>", "", out.getvalue(), flags=re.DOTALL)
        label = re.sub(r"[<>&\"]", " ", drawing.title)
        return ink(re.sub(r"<svg ", f'<svg role="img" aria-label="{label}" ', text.strip(), count=1))

    def save(self, folder: Path) -> list[Path]:
        """All panels as ``<name>.pdf`` and ``<name>.png``; returns the files."""
        longest = max((len(label) for label in self.handles), default=0)
        columns = max(1, min(len(self.handles), int(self.width * 13 / (longest + 7))))
        below = 0.1 + 0.19 * -(-len(self.handles) // columns) if self.handles else 0.0
        high = self.panel + below
        self.figure.set_size_inches(self.width, high)
        for drawing, axes, begin in zip(self.drawings, self.frames, self.begins, strict=True):
            axes.set_visible(True)
            wide = drawing.size[0]
            left = (begin + drawing.left * wide) / self.width
            axes.set_position((left, (below + 0.48) / high, (0.97 - drawing.left) * wide / self.width,
                               (self.panel - 0.72) / high))  # fmt: skip
        if self.handles:
            shown = self.figure.legend(self.handles.values(), self.handles.keys(), loc="lower center", ncols=columns,
                                       frameon=False, fontsize="small")  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        pdf, png = folder / f"{self.name}.pdf", folder / f"{self.name}.png"
        dates = {"CreationDate": None, "Creator": None, "Producer": None}
        self.figure.savefig(pdf, facecolor="white", metadata=dates)
        self.figure.savefig(png, facecolor="white", dpi=150, metadata={"Software": None})
        if self.handles:
            shown.remove()
        return [pdf, png]
