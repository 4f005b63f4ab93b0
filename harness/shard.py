"""``shard=3/8``: one of several processes, each with a part of a run's samples; the report merges their folders.

Shard k of n takes every n-th measured sample, from the k-th on, in the order of the run; warm-up samples run in each. A
method that learns has a pool of its own in each shard, so that the parts together are another run than the whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import UserError
from harness.script import Case


@dataclass(frozen=True)
class Shard:
    """Part ``number`` (from 1) of ``count``."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Raises UserError unless ``text`` is such as 3/8."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise UserError(f"shard={text}: expected a part and how many there are, such as 3/8, or null")
        return cls(int(found[1]), int(found[2]))

    def of(self, cases: Sequence[Case]) -> list[Case]:
        """Warm-up cases, and this shard's part of the others.

        Raises:
            UserError: if there are fewer cases than shards.
        """
        measured = [case for case in cases if not case.warmup]
        if len(measured) < self.count:
            raise UserError(f"shard={self.number}/{self.count}: there are {len(measured)} samples; take fewer shards")
        mine = {case.sample_id for case in measured[self.number - 1 :: self.count]}
        return [case for case in cases if case.warmup or case.sample_id in mine]
