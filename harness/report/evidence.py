"""What claims are judged by: runs in their blocks, analyses of ranks, and what was found in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.report.block import Block, Placed
from harness.report.ranks import Ranks
from harness.report.value import Value


@dataclass(frozen=True)
class Ours:
    """What we have for a reported number: a value, where it comes from, and why it may not be compared; ``measured`` in
    a run, or calculated."""

    value: Value
    source: str
    reasons: tuple[str, ...] = ()
    remark: str = ""
    measured: bool = True


@dataclass(frozen=True)
class Evidence:
    """All that claims may look at: blocks by the exhibit's name, analyses of ranks."""

    blocks: Mapping[str, Sequence[Block]] = field(default_factory=dict)
    ranks: Sequence[Ranks] = ()

    def placed(self, exhibit: str) -> Iterator[Placed]:
        for block in self.blocks.get(exhibit, ()):
            yield from block.each
