"""Pictures and clips of a question, and how their rows enter a prompt.

A prompt is token ids, and a media row is a token of its own: its id lies outside every vocabulary and names content
(which picture or clip, shown how) and row. So two pictures never share an id, one picture has the same ids in every
request and on every machine, and methods, prompts and caches treat media rows as they treat text; only the engine,
which turns ids into rows, knows the difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

MARK = "\ue001"
"""Private use area: stands in a question's text where a medium goes."""

FIRST = 1 << 61
"""Ids from here on are media rows: ``FIRST + (first 40 bits of the key) * 2**20 + row``, all within int64."""

ROW_BITS = 20
_KEY_DIGITS = 10
_WHOLE = 16 << 20  # files up to this many bytes are hashed whole
_BLOCK, _BLOCKS = 64 << 10, 64


@dataclass(frozen=True)
class Media:
    """A picture or a clip as the data names it; nothing is opened before it is needed.

    Attributes:
        name: what the data calls it, for records and messages.
        where: the row it belongs to (``test.jsonl:3``), for messages.
        path: its file, which may be absent.
        data: its bytes, where the data embeds them; draw: makes them, for samples that are drawn by code.
        frames: of a clip, how many are shown.
        alone: whether it is the only picture of its question: such a picture is shown in tiles too.
    """

    kind: Literal["image", "video"]
    name: str
    where: str
    path: Path | None = None
    data: bytes | None = field(default=None, repr=False)
    draw: Callable[[], bytes] | None = field(default=None, repr=False)
    frames: int = 0
    alone: bool = True

    @property
    def missing(self) -> bool:
        return self.data is None and self.draw is None and not (self.path is not None and self.path.is_file())

    @cached_property
    def embedded(self) -> bytes | None:
        """The bytes of a medium that has no file."""
        return self.draw() if self.data is None and self.draw is not None else self.data

    @cached_property
    def sha256(self) -> str:
        """Of the content; of a file above 16 MiB, of its size and 64 evenly spaced blocks of 64 KiB."""
        if self.embedded is not None:
            return hashlib.sha256(self.embedded).hexdigest()
        assert self.path is not None
        size, found = self.path.stat().st_size, hashlib.sha256()
        with self.path.open("rb") as stream:
            if size <= _WHOLE:
                return hashlib.file_digest(stream, "sha256").hexdigest()
            found.update(str(size).encode())
            for index in range(_BLOCKS):
                stream.seek(index * (size - _BLOCK) // (_BLOCKS - 1))
                found.update(stream.read(_BLOCK))
        return found.hexdigest()

    @cached_property
    def key(self) -> int:
        """40 bits that stand for content and presentation; ids of its rows share them."""
        text = f"{self.kind} {self.frames} {self.alone} {self.sha256}"
        return int(hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS], 16)

    def ids(self, rows: int) -> tuple[int, ...]:
        """The ids of its ``rows`` rows. Raises ValueError if there are more than ids."""
        if not 0 < rows <= 1 << ROW_BITS:
            raise ValueError(f"{self.name} has {rows} rows, expected 1 to {1 << ROW_BITS}")
        first = FIRST + (self.key << ROW_BITS)
        return tuple(range(first, first + rows))
