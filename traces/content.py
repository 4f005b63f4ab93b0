"""The token ids behind a name: uniform, and the same for the same name, whatever else is in the trace."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from traces.schema import Piece, Request

LOW, HIGH = 1000, 30_000  # ids of KVCMAS's script; below are special tokens in most vocabularies


def ids(piece: Piece, seed: int, low: int = LOW, high: int = HIGH) -> NDArray[np.int64]:
    """int64 ``[piece.tokens]`` in ``[low, high)``: a slice of the text that ``piece.name`` and ``seed`` give."""
    key = hashlib.sha256(f"{seed}\0{piece.name}".encode()).digest()
    random = np.random.default_rng(np.frombuffer(key, dtype=np.uint32))
    return random.integers(low, high, piece.offset + piece.tokens)[piece.offset :]


def prompt(request: Request, seed: int, low: int = LOW, high: int = HIGH) -> NDArray[np.int64]:
    """All ids of a request's prompt, int64 ``[prompt_tokens]``. Outputs are stood in for by text of their own."""
    return np.concatenate([ids(piece, seed, low, high) for piece in request.pieces])
