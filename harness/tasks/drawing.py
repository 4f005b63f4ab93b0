"""The pictures of the embedded sample, drawn from what its rows say: charts, tables, geometry, puzzles.

A scene is a mapping with ``kind`` and what that kind draws; all lengths are pixels of a 336 x 252 picture.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from typing import Any

from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT, MARGIN = 336, 252, 36
INK, PAPER = "black", "white"
COLOURS = ("royalblue", "darkorange", "seagreen", "firebrick", "purple", "goldenrod", "teal", "gray")

Scene = Mapping[str, Any]
Pen = ImageDraw.ImageDraw


def draw(scene: Scene) -> bytes:
    """A scene as a PNG file. Raises KeyError for an unknown kind or a field that is missing."""
    image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    KINDS[scene["kind"]](ImageDraw.Draw(image), scene)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def write(pen: Pen, x: float, y: float, text: object, size: int = 13) -> None:
    """Text centred at a point."""
    pen.text((x, y), str(text), fill=INK, font=ImageFont.load_default(size), anchor="mm")


def shape(pen: Pen, name: str, x: float, y: float, r: float, colour: str) -> None:
    """A filled figure of radius ``r`` around a point."""
    corners = {"triangle": 3, "diamond": 4, "pentagon": 5, "hexagon": 6}
    if name == "circle":
        pen.ellipse((x - r, y - r, x + r, y + r), fill=colour, outline=INK)
    elif name == "square":
        pen.rectangle((x - r, y - r, x + r, y + r), fill=colour, outline=INK)
    else:
        n = corners[name]
        turns = [2 * math.pi * i / n - math.pi / 2 for i in range(n)]
        pen.polygon([(x + r * math.cos(t), y + r * math.sin(t)) for t in turns], fill=colour, outline=INK)


def _axes(pen: Pen, scene: Scene) -> tuple[list[float], list[float]]:
    """Frame, title and scale of a chart; returns the points (x, y) of its values."""
    values, labels = scene["values"], scene["labels"]
    top, step = scene["top"], scene["step"]
    write(pen, WIDTH / 2, 14, scene["title"])
    pen.line((MARGIN, MARGIN - 6, MARGIN, HEIGHT - MARGIN, WIDTH - 8, HEIGHT - MARGIN), fill=INK)
    span = HEIGHT - 2 * MARGIN
    for mark in range(0, top + 1, step):
        y = HEIGHT - MARGIN - span * mark / top
        pen.line((MARGIN, y, WIDTH - 8, y), fill="lightgray" if mark else INK)
        write(pen, MARGIN / 2, y, mark, 11)
    xs = [MARGIN + (WIDTH - MARGIN - 8) * (i + 0.5) / len(values) for i in range(len(values))]
    for x, label in zip(xs, labels, strict=True):
        write(pen, x, HEIGHT - MARGIN / 2, label, 11)
    return xs, [HEIGHT - MARGIN - span * value / top for value in values]


def _bars(pen: Pen, scene: Scene) -> None:
    half = (WIDTH - MARGIN) / len(scene["values"]) / 3.2
    for i, (x, y) in enumerate(zip(*_axes(pen, scene), strict=True)):
        pen.rectangle((x - half, y, x + half, HEIGHT - MARGIN), fill=COLOURS[i % len(COLOURS)], outline=INK)


def _line(pen: Pen, scene: Scene) -> None:
    points = list(zip(*_axes(pen, scene), strict=True))
    pen.line(points, fill=COLOURS[0], width=2)
    for x, y in points:
        shape(pen, "circle", x, y, 4, COLOURS[0])


def _pie(pen: Pen, scene: Scene) -> None:
    write(pen, WIDTH / 2, 14, scene["title"])
    begin, total = -90.0, sum(scene["values"])
    for i, (label, value) in enumerate(zip(scene["labels"], scene["values"], strict=True)):
        end = begin + 360 * value / total
        pen.pieslice((20, 40, 216, 236), begin, end, fill=COLOURS[i], outline=INK)
        pen.rectangle((230, 60 + 26 * i, 242, 72 + 26 * i), fill=COLOURS[i], outline=INK)
        write(pen, 288, 66 + 26 * i, f"{label} {value}%", 11)
        begin = end


def _table(pen: Pen, scene: Scene) -> None:
    rows = [scene["header"], *scene["rows"]]
    wide, high = (WIDTH - 24) / len(rows[0]), min(32, (HEIGHT - 24) / len(rows))
    for r, row in enumerate(rows):
        for c, cell in enumerate(row):
            box = (12 + c * wide, 12 + r * high, 12 + (c + 1) * wide, 12 + (r + 1) * high)
            pen.rectangle(box, fill="lightgray" if r == 0 else PAPER, outline=INK)
            write(pen, (box[0] + box[2]) / 2, (box[1] + box[3]) / 2, cell, 12)


def _figure(pen: Pen, scene: Scene) -> None:
    """Geometry: a polygon ``points``, a circle ``circle`` [x, y, r], further ``lines``, and ``texts`` [x, y, text]."""
    if "points" in scene:
        pen.polygon([tuple(point) for point in scene["points"]], outline=INK, width=2)
    if "circle" in scene:
        x, y, r = scene["circle"]
        pen.ellipse((x - r, y - r, x + r, y + r), outline=INK, width=2)
    for line in scene.get("lines", ()):
        pen.line(tuple(line), fill=INK, width=2)
    for x, y, text in scene["texts"]:
        write(pen, x, y, text, 15)


def _clock(pen: Pen, scene: Scene) -> None:
    x, y, r, hour, minute = WIDTH / 2, HEIGHT / 2, 110, scene["hour"], scene["minute"]
    shape(pen, "circle", x, y, r, PAPER)
    for n in range(1, 13):
        write(pen, x + 92 * math.sin(n * math.pi / 6), y - 92 * math.cos(n * math.pi / 6), n, 15)
    for turn, length, width in ((hour / 12 + minute / 720, 52, 5), (minute / 60, 80, 3)):
        angle = 2 * math.pi * turn
        pen.line((x, y, x + length * math.sin(angle), y - length * math.cos(angle)), fill=INK, width=width)


def _shapes(pen: Pen, scene: Scene) -> None:
    """Figures on a grid: ``grid`` is rows of cells, each ``[name, colour]`` or null."""
    rows = scene["grid"]
    wide, high = WIDTH / max(len(row) for row in rows), HEIGHT / len(rows)
    for r, row in enumerate(rows):
        for c, cell in enumerate(row):
            if cell is not None:
                shape(pen, cell[0], (c + 0.5) * wide, (r + 0.5) * high, min(wide, high) * 0.32, cell[1])


def _numbers(pen: Pen, scene: Scene) -> None:
    """A square of numbers with a question mark, ``grid`` row by row."""
    rows = scene["grid"]
    side = (HEIGHT - 40) / len(rows)
    for r, row in enumerate(rows):
        for c, cell in enumerate(row):
            x, y = (WIDTH - side * len(row)) / 2 + c * side, 20 + r * side
            pen.rectangle((x, y, x + side, y + side), outline=INK)
            write(pen, x + side / 2, y + side / 2, cell, 20)


KINDS: Mapping[str, Callable[[Pen, Scene], None]] = {
    "bars": _bars,
    "line": _line,
    "pie": _pie,
    "table": _table,
    "figure": _figure,
    "clock": _clock,
    "shapes": _shapes,
    "numbers": _numbers,
}
