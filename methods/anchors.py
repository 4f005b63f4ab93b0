"""Anchors and the pools that hold them (KVCMAS, arXiv 2609.34060, section 5; KVComm, arXiv 2510.12872).

An anchor is what one request taught about one span: the reference cache the reader started from (base) and what the
reader's own context added to it (delta). Pools change only between requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from methods.lowrank import Matrix

Capacity = Literal["strict", "legacy"]


@dataclass(frozen=True, eq=False)
class Pair:
    """A key and a value matrix, which may share a tensor.

    Attributes:
        name: what they are of; seeds their factorisation.
        born: requests the method had seen when it made them, so that a request that comes again makes a new pair.
    """

    name: str
    k: Matrix
    v: Matrix
    born: int = 0

    @property
    def key(self) -> str:
        """Identity: never names other contents."""
        return f"{self.born}/{self.name}"

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """Every stored tensor once: ``k.`` and ``v.`` before the names of own ones, nothing before shared ones."""
        keys, values = self.k.tensors(), self.v.tensors()
        shared = {part: tensor for part, tensor in keys.items() if values.get(part) is tensor}
        return shared | {
            f"{kind}.{part}": tensor
            for kind, parts in (("k", keys), ("v", values))
            for part, tensor in parts.items()
            if part not in shared
        }


@dataclass(frozen=True, eq=False)
class Anchor:
    """One observed span.

    Attributes:
        name: unique in its pool.
        length: n, tokens of the span.
        base: reference rows over layers 0 .. L-1, in the frame of matching.
        deltas: by edge, the correction over layers 1 .. L-1 (layer 0 depends on token and position only).
        glue: by edge, corrections of the private segments between this span and the next shared one.
    """

    name: str
    length: int
    base: Pair
    deltas: Mapping[str, Pair]
    glue: Mapping[str, tuple[Pair, ...]] = field(default_factory=dict)

    def corrections(self) -> list[Pair]:
        return [*self.deltas.values(), *(pair for pairs in self.glue.values() for pair in pairs)]

    def updated(self, newer: Anchor) -> Anchor:
        """The newest base, every edge's newest delta."""
        return replace(newer, deltas={**self.deltas, **newer.deltas}, glue={**self.glue, **newer.glue})


@dataclass(frozen=True, eq=False)
class Usable:
    """Anchors fit for one span of one reader; they reach its first ``cover`` rows."""

    anchors: tuple[Anchor, ...] = ()
    cover: int = 0


@dataclass(eq=False)
class AnchorPool:
    """A bounded set of anchors in order of age.

    Attributes:
        capacity: most anchors held. ``legacy`` checks before inserting whether there are already *more*, so that it
            holds one more, and evicts on updates too.
        window: the least used of so many oldest anchors is evicted, the oldest among equals.
    """

    capacity: int
    window: int
    rule: Capacity = "strict"
    anchors: dict[str, Anchor] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.anchors)

    def __iter__(self) -> Iterator[Anchor]:
        return iter(self.anchors.values())

    def admit(self, anchor: Anchor) -> None:
        """Insert an anchor, or update the one of the same name (which keeps its age and its uses)."""
        if self.rule == "legacy":
            if len(self.anchors) > self.capacity:
                self._evict()
        elif self.capacity < 1:
            return
        elif anchor.name not in self.anchors:
            while len(self.anchors) >= self.capacity:
                self._evict()
        known = self.anchors.get(anchor.name)
        self.anchors[anchor.name] = anchor if known is None else known.updated(anchor)
        self.uses.setdefault(anchor.name, 0)

    def touch(self, names: Sequence[str]) -> None:
        """Count a use of each named anchor that is still here."""
        for name in names:
            if name in self.uses:
                self.uses[name] += 1

    def covering(self, length: int) -> tuple[Anchor, ...]:
        """Anchors at least as long as a span of ``length`` tokens, oldest first."""
        return tuple(a for a in self if a.length >= length)

    def usable(
        self, edge: str, length: int, partial: bool, glue: tuple[int, ...] | None = None, name: str = ""
    ) -> Usable:
        """Anchors that carry a delta of ``edge``.

        Those at least ``length`` long, aligned by row index. If there are none and ``partial`` is set, the longest
        ones, whose rows are all the rows that get corrected. ``glue`` asks for glue deltas of these lengths too,
        ``name`` for the anchor of that name alone.
        """
        mine = [
            a
            for a in (self._named(name) if name else self)
            if edge in a.deltas and (glue is None or _glue_lengths(a, edge) == glue)
        ]
        long = tuple(a for a in mine if a.length >= length)
        if long or not mine or not partial:
            return Usable(long, length if long else 0)
        cover = max(a.length for a in mine)
        return Usable(tuple(a for a in mine if a.length == cover), cover)

    def _named(self, name: str) -> tuple[Anchor, ...]:
        return (self.anchors[name],) if name in self.anchors else ()

    def _evict(self) -> None:
        oldest = list(self.anchors)[: self.window]
        victim = min(oldest, key=lambda name: self.uses[name])
        del self.anchors[victim], self.uses[victim]


def _glue_lengths(anchor: Anchor, edge: str) -> tuple[int, ...]:
    return tuple(len(pair.k) for pair in anchor.glue.get(edge, ()))
