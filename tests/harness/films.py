"""Pictures and clips made for tests."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import Any

import av
import numpy as np
from PIL import Image

from harness.media import Media


def picture(seed: int = 0, width: int = 100, height: int = 60, form: str = "PNG") -> bytes:
    noise = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, form)
    return out.getvalue()


def film(frames: int = 12, rate: int = 4, codec: str = "mpeg4", form: str = "mp4", size: int = 64) -> bytes:
    """Frame i is a plain gray of 10 + 10 i."""
    out = io.BytesIO()
    with av.open(out, "w", format=form) as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.width = stream.height = size
        stream.pix_fmt = {"ffv1": "bgr0", "mjpeg": "yuvj420p"}.get(codec, "yuv420p")
        container.start_encoding()
        for index in range(frames):
            pixels = np.full((size, size, 3), 10 + 10 * index, np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, rate)
            container.mux(stream.encode(frame))
        if frames:
            container.mux(stream.encode())
    return out.getvalue()


def sound() -> bytes:
    """A file with an audio stream alone."""
    out = io.BytesIO()
    with av.open(out, "w", format="wav") as container:
        stream: Any = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return out.getvalue()


def image(seed: int = 0, alone: bool = True, **more: Any) -> Media:
    return Media("image", f"picture-{seed}", "test:1", data=picture(seed, **more), alone=alone)


def clip(frames: int = 5, **more: Any) -> Media:
    return Media("video", "clip", "test:1", data=film(**more), frames=frames)
