"""The clips of the embedded sample, drawn from what its rows say and encoded without loss, so that they are decoded as
any video is.

A scene has ``seconds`` and ``things``. A thing is a figure (``shape``, ``colour``, ``size``) or a ``text`` that moves
in straight lines through ``path``, a list of ``[second, x, y]`` on a picture of 160 x 120, and is seen from the first
of these seconds until the last.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from harness.errors import UserError
from harness.tasks.drawing import shape, write

WIDTH, HEIGHT, RATE = 160, 120, 8
BACKGROUND = "whitesmoke"


def draw(scene: Mapping[str, Any]) -> bytes:
    """A scene as a Matroska file (FFV1, 8 frames a second). Raises UserError if PyAV is missing."""
    try:
        import av
    except ImportError as error:
        raise UserError("videos are decoded by PyAV, which is missing; run `pip install av`") from error
    out = io.BytesIO()
    with av.open(out, "w", format="matroska", options={"fflags": "+bitexact"}) as container:
        stream: Any = container.add_stream("ffv1", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "bgr0"
        stream.time_base = Fraction(1, RATE)
        for index in range(round(scene["seconds"] * RATE)):
            frame = av.VideoFrame.from_ndarray(np.asarray(picture(scene, index / RATE)), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, RATE)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return out.getvalue()


def picture(scene: Mapping[str, Any], second: float) -> Image.Image:
    """What is seen at a moment."""
    image = Image.new("RGB", (WIDTH, HEIGHT), scene.get("background", BACKGROUND))
    pen = ImageDraw.Draw(image)
    for thing in scene["things"]:
        times, xs, ys = zip(*thing["path"], strict=True)
        if times[0] <= second <= times[-1]:
            x, y = float(np.interp(second, times, xs)), float(np.interp(second, times, ys))
            if "text" in thing:
                write(pen, x, y, thing["text"], thing.get("size", 20))
            else:
                shape(pen, thing["shape"], x, y, thing.get("size", 10), thing["colour"])
    return image
