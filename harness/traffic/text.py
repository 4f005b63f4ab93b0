"""The token ids behind the names of a trace; a name's ids are the same wherever it stands."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.tasks.single_stream import real_text
from traces.content import HIGH, LOW, ids
from traces.schema import Piece

RANDOM, SAMPLE = "random", "sample"

Text = Callable[[Piece], tuple[int, ...]]
"""The ids of a piece."""


def text(source: str, tokenizer: Any, vocab: int, seed: int) -> Text:
    """Text for a trace of ``seed``.

    Args:
        source: as in :class:`harness.tasks.trace.TraceTask`.
        vocab: ids below it exist.

    Raises:
        UserError: if the file cannot be read or holds no text.
    """
    if source == RANDOM:
        low = LOW if vocab > 2 * LOW else vocab // 2
        return lambda piece: tuple(ids(piece, seed, low, min(HIGH, vocab)).tolist())
    lines = real_text(tokenizer) if source == SAMPLE else _lines(Path(source).expanduser(), tokenizer)
    whole: dict[str, list[int]] = {}

    def cut(piece: Piece) -> tuple[int, ...]:
        known = whole.setdefault(piece.name, [])
        if len(known) < piece.offset + piece.tokens:
            known[:] = _joined(lines, f"{seed} {piece.name}", piece.offset + piece.tokens)
        return tuple(known[piece.offset : piece.offset + piece.tokens])

    return cut


def _joined(lines: list[list[int]], name: str, count: int) -> list[int]:
    """At least ``count`` tokens: lines in an order that depends on the name alone."""
    draw, out = random.Random(name), list[int]()
    while len(out) < count:
        out.extend(draw.choice(lines))
    return out


def _lines(path: Path, tokenizer: Any) -> list[list[int]]:
    try:
        found = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"task.source={path}: cannot be read as text ({error}); name a text file, sample or random"
        ) from error
    encoded: list[list[int]] = tokenizer(found, add_special_tokens=False, verbose=False)["input_ids"] if found else []
    if not any(encoded):
        raise UserError(f"task.source={path}: there is no text in it; name another file, sample or random")
    return encoded
