"""Pictures and frames out of files and bytes; the only module that opens them.

Pictures are read by Pillow, clips by PyAV. Frames are those on display at (i + 0.5) / n of the duration, i < n (KVCMAS
2609.34060): of a clip with fewer frames some are shown more than once.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.errors import UserError
from harness.media import Media

if TYPE_CHECKING:
    from PIL.Image import Image

REMEDY = "replace the file, or remove it to have the sample counted as missing"


@dataclass(frozen=True, eq=False)
class Frames:
    """Frames of a clip in the order they are shown: uint8 ``[height, width, 3]`` each, and their index in the clip."""

    pixels: tuple[NDArray[np.uint8], ...]
    indices: tuple[int, ...]


def check(media: Media) -> None:
    """Open a medium that is there as far as is cheap: a picture whole, of a clip one frame.

    Raises:
        UserError: naming the row, the medium and what is wrong with it.
    """
    if media.kind == "image":
        picture(media)
    else:
        with _opened(media) as (container, stream):
            if next(_decoded(container, stream), None) is None:
                raise _no_frame(media)


def size(media: Media) -> tuple[int, int]:
    """Width and height of a picture, from its header."""
    from PIL import Image

    with _faults(media), Image.open(_source(media)) as found:
        width, height = found.size
    return width, height


def picture(media: Media) -> Image:
    """A picture, decoded to RGB. Raises UserError as :func:`check`."""
    from PIL import Image

    with _faults(media), Image.open(_source(media)) as found:
        return found.convert("RGB")


def clip(media: Media) -> Frames:
    """The frames of a clip that are shown. Raises UserError as :func:`check`."""
    with _opened(media) as (container, stream):
        begin, duration = _extent(container, stream)
        times = [begin + (i + 0.5) / media.frames * duration for i in range(media.frames)]
        rate = float(stream.average_rate or 0) or 1.0
        shown = [frame for time in times if (frame := _at(container, stream, time)) is not None]
        if len(shown) < media.frames:
            raise _no_frame(media)
        pixels = tuple(frame.to_ndarray(format="rgb24") for frame in shown)
        return Frames(pixels, tuple(max(0, round((float(frame.time or 0) - begin) * rate)) for frame in shown))


def _source(media: Media) -> Any:
    return media.path if media.embedded is None else io.BytesIO(media.embedded)


@contextmanager
def _faults(media: Media) -> Iterator[None]:
    """Whatever a decoder raises, as one sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # decoders raise many types on broken input; the remedy is the same
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{media.where}: the {media.kind} {media.name} cannot be decoded ({said}); {REMEDY}") from error


@contextmanager
def _opened(media: Media) -> Iterator[tuple[Any, Any]]:
    """A clip's container and its video stream."""
    try:
        import av
    except ImportError as error:
        raise UserError("videos are decoded by PyAV, which is missing; run `pip install av`") from error
    with _faults(media):
        source = _source(media)
        with av.open(source if isinstance(source, io.BytesIO) else str(source)) as container:
            if not container.streams.video:
                raise UserError(f"{media.where}: {media.name} has no video stream; {REMEDY}")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            yield container, stream


def _no_frame(media: Media) -> UserError:
    return UserError(f"{media.where}: the video {media.name} has no frame; {REMEDY}")


def _decoded(container: Any, stream: Any) -> Iterator[Any]:
    return (frame for frame in container.decode(stream) if frame.time is not None)


def _extent(container: Any, stream: Any) -> tuple[float, float]:
    """Begin and duration in seconds, as the headers say, or else as the frames do."""
    begin = float((stream.start_time or 0) * stream.time_base)
    if stream.duration:
        return begin, float(stream.duration * stream.time_base)
    if container.duration:
        return begin, container.duration / 1e6
    times = [frame.time for frame in _decoded(container, stream)] or [begin]
    return times[0], (times[-1] - times[0]) * len(times) / max(len(times) - 1, 1)


def _at(container: Any, stream: Any, time: float) -> Any:
    """The frame on display at ``time``: the last that begins by then, decoded from the key frame before it; None if
    there is none at all."""
    container.seek(max(0, int(time / stream.time_base)), stream=stream, backward=True)
    shown = None
    for frame in _decoded(container, stream):
        if shown is not None and frame.time > time:
            break
        shown = frame
    return shown
