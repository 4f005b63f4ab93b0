"""CacheBlend (arXiv 2405.16444): reuse the cached spans, recompute the rows that deviate most.

Faithful: the first layers run in full, rows are ranked by how far their fresh values (or keys) are from the reused
ones, the top 15 % go on. Ours: the mask is ``kv_pos <= q_pos`` (the authors' aligns scattered rows bottom-right, so
that they see later keys), all private text is forced and not only the last token, the upstream agent's cache is the
default source, and the attention scores of two later papers are options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from methods.base import KV, Engine, Hop
from methods.checked import Checked
from methods.options import one_of
from methods.scores import Deviation, QueryAttention, Score, WeightedDeviation

ScoreName = Literal["v", "k", "kv", "query_attn", "weighted"]


@dataclass
class CacheBlend(Checked):
    """Further hyperparameters are those of :class:`methods.checked.Checked`.

    Attributes:
        score: squared deviation of values (the authors' code), keys (LMCache) or both; attention from the reader's
            suffix (ProphetKV 2602.02579); or that attention times the deviation (KVShare 2503.16525).
        fidelity: what the implementation was written from.
    """

    score: ScoreName = "v"
    fidelity: str = "code"

    def __post_init__(self) -> None:
        """Raises ValueError for a value outside its range or its list of names."""
        super().__post_init__()
        one_of("score", self.score, get_args(ScoreName))

    def scored(self, hop: Hop, reused: Mapping[int, KV], engine: Engine) -> Score:
        if self.score == "query_attn":
            return QueryAttention()
        return WeightedDeviation() if self.score == "weighted" else Deviation(self.score)
