"""What a worker holds of an open trajectory: caches that later hops read, and encodes that plans asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from methods.base import KV
from methods.segment import Prompt


@dataclass(frozen=True, eq=False)
class Kept:
    """Rows of a span that a hop held, with the ids they are of; ``until`` is the last hop that reads them."""

    agent: str
    hop: int
    until: int | None
    ids: tuple[int, ...]
    kv: KV


@dataclass(eq=False)
class Trajectory:
    """What an open trajectory holds: spans by (hop, id), context-free encodes by ids; ``ended`` are its hops so far."""

    kept: dict[tuple[int, str], Kept] = field(default_factory=dict)
    encoded: dict[tuple[int, ...], KV] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def close(self, hop: int) -> None:
        """A hop has ended: rows that nobody will read any more go."""
        self.ended.add(hop)
        upto = next(n for n in range(len(self.ended) + 1) if n not in self.ended)  # all hops below it have ended
        for key, kept in list(self.kept.items()):
            if kept.until is not None and kept.until < upto:
                del self.kept[key]

    @property
    def nbytes(self) -> int:
        return sum(k.kv.nbytes for k in self.kept.values()) + sum(kv.nbytes for kv in self.encoded.values())


class Unencoded(Exception):
    """A plan needs an encode that is not there yet."""

    def __init__(self, ids: tuple[int, ...]) -> None:
        super().__init__(f"{len(ids)} tokens are to be encoded")
        self.ids = ids


@dataclass(frozen=True, eq=False)
class Encoder:
    """The engine as a plan sees it: encodes that were made beforehand."""

    trajectory: Trajectory

    def encode(self, ids: Sequence[int]) -> KV:
        found = self.trajectory.encoded.get(tuple(ids))
        if found is None:
            raise Unencoded(tuple(ids))
        return found

    def oracle(self, prompt: Prompt) -> KV:
        raise ValueError("vLLM has no oracle")
