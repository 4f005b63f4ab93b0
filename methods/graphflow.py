"""GraphFlow (arXiv 2605.22566), its state management: a context-free base of every content, plus the sparse residual
that an observed relation added to it.

Written from the abstract and secondary descriptions; workflow generation, the paper's other half, is not here. The
paper leaves threshold, index format and rotation open. Ours: the largest quarter of each layer's entries, a bitmap,
de-rotated keys. A relation is measured once and never generalised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from methods.base import Shape
from methods.glue import Glue
from methods.grid import Exact
from methods.limits import Limits
from methods.lowrank import Codec
from methods.options import at_least, one_of
from methods.relation import RelationMethod, check
from methods.sparse import Thresholded

Key = Literal["reader", "edge"]
Miss = Literal["dense", "base"]


@dataclass
class GraphFlow(RelationMethod):
    """Further hyperparameters are those of :class:`methods.relation.RelationMethod`.

    Attributes:
        density: share of a residual's entries that is kept, per layer, keys and values apart.
        key: a residual serves the same content for the same ``reader``, or for the same source too (``edge``).
        min_frequency: a relation is stored when it is seen for this time.
        miss: hops with an unseen relation go ``dense``, or take the ``base`` uncorrected.
        online: measure after the build requests too (at dense hops): our extension, the paper freezes.
        fidelity: what the implementation was written from.
    """

    density: float = 0.25
    key: Key = "reader"
    min_frequency: int = 2
    miss: Miss = "dense"
    build_requests: int = 10
    online: bool = False
    pool: int = 1000
    glue: Glue = "recompute"
    first_agent: bool = True
    role_cache: bool = True
    fidelity: str = "abstract"

    def __post_init__(self) -> None:
        """Raises ValueError for a value outside its range or its list of names."""
        check(self)
        at_least("min_frequency", self.min_frequency, 1)
        if not 0 <= self.density <= 1:
            raise ValueError(f"density must be in [0, 1], got {self.density}")
        for option, names in (("key", Key), ("miss", Miss), ("glue", Glue)):
            one_of(option, getattr(self, option), get_args(names))

    def limits(self, layers: int) -> Limits:
        """See :class:`methods.limits.Limits`."""
        soon = {"build_requests": 1, "min_frequency": 1}
        return Limits(
            reusing=soon,
            dense={"build_requests": 0, "miss": "dense"},
            reuse={"build_requests": 0, "online": False, "miss": "base"},
            exact={**soon, "density": 1.0},
        )

    @property
    def dense_on_miss(self) -> bool:
        return self.miss == "dense"

    def codec(self, shape: Shape) -> Codec:
        """Raises ValueError for a model whose width a bitmap does not fit."""
        if shape.width % 8:
            raise ValueError(f"sparse residuals need a key width that is a multiple of 8, this model has {shape.width}")
        return Thresholded(self.density, shape.dtype)

    def relation(self) -> tuple[Exact, int]:
        return self.key, self.min_frequency
