"""Ids of media rows, decoding, frame sampling, and everything that can be wrong with a picture or a clip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import decode
from harness.errors import UserError
from harness.media import FIRST, ROW_BITS, Media
from tests.harness.films import clip, film, image, picture, sound


def test_ids_name_content_and_presentation() -> None:
    first, same, other = image(1), image(1), image(2)
    assert first.ids(37) == same.ids(37)
    ids = [first.ids(37), other.ids(37), image(1, alone=False).ids(37), clip(4).ids(37), clip(5).ids(37)]
    assert len({i for row in ids for i in row}) == 5 * 37
    assert all(FIRST <= i < 1 << 62 for row in ids for i in row)
    with pytest.raises(ValueError, match="rows"):
        first.ids((1 << ROW_BITS) + 1)


def test_a_file_counts_by_its_contents(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture(1))
    (tmp_path / "b.png").write_bytes(picture(1))
    one, two = (Media("image", n, "x:1", path=tmp_path / n) for n in ("a.png", "b.png"))
    assert one.key == two.key == image(1).key
    large = bytearray(17 << 20)
    (tmp_path / "large").write_bytes(large)
    before = Media("video", "v", "x:1", path=tmp_path / "large").sha256
    large[-1] = 1
    (tmp_path / "large").write_bytes(large)
    assert Media("video", "v", "x:1", path=tmp_path / "large").sha256 != before


@pytest.mark.parametrize(
    ("codec", "form"), [("mpeg4", "mp4"), ("ffv1", "matroska"), ("libx264", "mp4"), ("mjpeg", "avi")]
)
@settings(max_examples=8, deadline=None)
@given(frames=st.integers(1, 24), shown=st.integers(1, 40))
def test_frames_are_those_on_display_at_the_middle_of_equal_parts(
    codec: str, form: str, frames: int, shown: int
) -> None:
    found = decode.clip(Media("video", "v", "x:1", data=film(frames, codec=codec, form=form), frames=shown))
    assert list(found.indices) == [int((i + 0.5) / shown * frames) for i in range(shown)]
    for index, pixels in zip(found.indices, found.pixels, strict=True):
        assert abs(float(pixels.mean()) - (10 + 10 * index)) < 5  # it is that very frame


def test_a_picture_is_read_as_colour_whatever_its_mode() -> None:
    import io

    from PIL import Image

    for mode in ("L", "P", "RGBA", "1", "CMYK", "I;16"):
        out = io.BytesIO()
        Image.new(mode, (7, 5)).save(out, "TIFF" if mode == "CMYK" else "PNG")
        found = decode.picture(Media("image", mode, "x:1", data=out.getvalue()))
        assert (found.mode, found.size) == ("RGB", (7, 5))
        assert np.asarray(found).shape == (5, 7, 3)


BROKEN = {
    "no picture": (Media("image", "a.png", "test.jsonl:3", data=b"this is text"), "a.png cannot be decoded"),
    "cut picture": (Media("image", "a.png", "test.jsonl:3", data=picture()[:900]), "a.png cannot be decoded"),
    "empty picture": (Media("image", "a.png", "test.jsonl:3", data=b""), "a.png cannot be decoded"),
    "no clip": (Media("video", "a.mp4", "test.jsonl:3", data=b"this is text", frames=4), "a.mp4 cannot be decoded"),
    "cut clip": (Media("video", "a.mp4", "test.jsonl:3", data=film()[:300], frames=4), "a.mp4 cannot be decoded"),
    "sound": (Media("video", "a.wav", "test.jsonl:3", data=sound(), frames=4), "no video stream"),
    "no frame": (
        Media("video", "a.avi", "test.jsonl:3", data=film(0, codec="ffv1", form="avi"), frames=4),
        "has no frame",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_medium_is_one_sentence_with_its_place(case: str) -> None:
    medium, says = BROKEN[case]
    with pytest.raises(UserError, match=says) as raised:
        decode.check(medium)
    assert str(raised.value).startswith("test.jsonl:3: ")
    assert "counted as missing" in str(raised.value)
