"""The paper's estimate of memory at growing context, as a formula with every assumption a field.

KVCMAS (arXiv 2609.34060) states how many times more memory full-tensor anchors (KVComm) take than its own: 2.5, 6.2 and
14.9 at 2K, 8K and 32K shared tokens. The sizes of the two pools are not stated. With the defaults of the two public
programs, 20 anchors and 10, and an anchor of one base and four deltas of the shared span alone, this arithmetic gives
its numbers; at equal pools it gives about half of them. It counts what an ideal implementation would hold, without an
allocator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from methods.lowrank import pair_bytes

GIB = 2**30
SHARED_TOKENS = (2048, 8192, 32768)


@dataclass(frozen=True)
class Estimate:
    """What stands beside the anchors.

    Attributes:
        layers, width, itemsize: L, C and bytes per element of the cache (Llama-3.1-8B at 16 bit).
        weight_gib, overhead_gib: weights; activations and workspace.
        bases, deltas: K/V pairs of one anchor.
        copies: of the live cache of the shared tokens.
    """

    layers: int = 32
    width: int = 1024
    itemsize: int = 2
    weight_gib: float = 15.0
    overhead_gib: float = 1.0
    bases: int = 1
    deltas: int = 4
    copies: int = 1

    def anchor_bytes(self, tokens: int, rank: int) -> int:
        """One anchor of a span of ``tokens`` tokens; rank 0 stores full tensors."""
        return (self.bases + self.deltas) * pair_bytes(self.layers, tokens, self.width, rank, rank, self.itemsize)

    def gib(self, tokens: int, pool: int, rank: int) -> float:
        live = self.copies * pair_bytes(self.layers, tokens, self.width, 0, 0, self.itemsize)
        return self.weight_gib + self.overhead_gib + (live + pool * self.anchor_bytes(tokens, rank)) / GIB


@dataclass(frozen=True)
class Step:
    """Memory at one length, GiB: full tensors and rank ``rank`` at the two pool sizes each."""

    tokens: int
    full_gib: dict[int, float]
    low_rank_gib: dict[int, float]

    def ratio(self, full_pool: int, low_rank_pool: int) -> float:
        return self.full_gib[full_pool] / self.low_rank_gib[low_rank_pool]


def ladder(
    estimate: Estimate | None = None,
    lengths: Sequence[int] = SHARED_TOKENS,
    pools: Sequence[int] = (10, 20),
    rank: int = 32,
) -> list[Step]:
    """One step per length, each with both kinds of anchors at every pool size."""
    e = estimate or Estimate()
    return [Step(n, {p: e.gib(n, p, 0) for p in pools}, {p: e.gib(n, p, rank) for p in pools}) for n in lengths]
