"""Kamera (arXiv 2606.23581): a context-free base of every content, plus a low-rank patch compiled for each relation.

Written from the abstract and secondary descriptions. A patch is compiled at the first sight of a relation, from the
dense run it costs; layer 0 needs none, and de-rotated patches serve at any position.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from methods.base import Shape
from methods.glue import Glue
from methods.grid import Exact
from methods.limits import Limits
from methods.lowrank import Codec, Truncated
from methods.options import at_least, one_of
from methods.relation import RelationMethod, check
from methods.sparse import Thresholded

Key = Literal["seq", "set"]
Miss = Literal["compile", "blind"]
FactorDtype = Literal["bfloat16", "float16", "float32", "model"]


@dataclass
class Kamera(RelationMethod):
    """Further hyperparameters are those of :class:`methods.relation.RelationMethod`.

    Attributes:
        rank: of a patch; raw where factors would be larger, 0 serves the base everywhere.
        factor_dtype: of a patch.
        key: a patch serves the same content for the same reader (``seq``), or after the same ``set`` of segments
            in whatever order.
        miss: a hop with an unseen relation goes dense and its patch is compiled, or takes the base ``blind``, which
            compiles nothing: then patches come from warm-up and build requests alone.
        fidelity: what the implementation was written from.
    """

    rank: int = 32
    factor_dtype: FactorDtype = "bfloat16"
    key: Key = "seq"
    miss: Miss = "compile"
    build_requests: int = 0
    online: bool = True
    pool: int = 1000
    glue: Glue = "recompute"
    first_agent: bool = True
    role_cache: bool = True
    fidelity: str = "abstract"

    def __post_init__(self) -> None:
        """Raises ValueError for a value outside its range or its list of names."""
        check(self)
        at_least("rank", self.rank, 0)
        for option, names in (("key", Key), ("miss", Miss), ("glue", Glue), ("factor_dtype", FactorDtype)):
            one_of(option, getattr(self, option), get_args(names))

    def limits(self, layers: int) -> Limits:
        """See :class:`methods.limits.Limits`."""
        soon = {"build_requests": 1}
        return Limits(
            reusing=soon,
            dense={"build_requests": 0, "miss": "compile"},
            reuse={"build_requests": 0, "online": False, "miss": "blind"},
            exact={**soon, "rank": sys.maxsize, "factor_dtype": "model"},
        )

    @property
    def dense_on_miss(self) -> bool:
        return self.miss == "compile"

    def codec(self, shape: Shape) -> Codec:
        dtype = shape.dtype if self.factor_dtype == "model" else getattr(torch, self.factor_dtype)
        return Truncated(self.rank, dtype) if self.rank else Thresholded(0.0, dtype)

    def relation(self) -> tuple[Exact, int]:
        return "set" if self.key == "set" else "reader", 1
