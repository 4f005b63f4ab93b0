"""All invariants that a checkpoint can show, and where the others are tested."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from harness.invariants import bookkeeping, caches, rows
from harness.invariants.base import Invariant

INVARIANTS: tuple[Invariant, ...] = tuple(
    sorted(
        (*caches.INVARIANTS, *rows.INVARIANTS, *bookkeeping.INVARIANTS),
        key=lambda invariant: (invariant.id[0], int(invariant.id[1:])),
    )
)

ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "I7": "the engine prefills from position 0, so that a prompt cannot be shifted as a whole",
        "I13, T6": "a theorem about factors, whatever they are factors of",
        "T5, T7, T8, T9": "weights, distances, gates and pools, which a method does not show",
        "T11, T14, T16": "prompts, metrics and traces, in which no model takes part",
    }
)
"""By ids, why ``python -m harness.verify`` leaves them to the unit tests."""
