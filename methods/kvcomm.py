"""KVComm (arXiv 2510.12872): reference caches plus the weighted mean of what earlier requests' contexts added to them.

The first of the delta methods: full tensors, one pool per span and reader, private text corrected as well, so that a
hop whose spans all pass the gate prefills one token. The user's text starts from a context-free encode, so the first
agent reuses too and is not exact; an agent's output starts from the rows its author cached.

Faithful: V = 20 anchors, window 5, entropy gate at 0.3 on every span, L1 weights per token, per-channel weights of
private text, layer 0 left alone, all of it in full precision of the cache. Ours: keys are matched and corrected
de-rotated, and a pool holds V anchors where the authors' comparison lets V + 1 in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from methods.anchors import Capacity
from methods.base import Shape
from methods.family import DeltaMethod
from methods.frame import Frame, FrameKind
from methods.gate import Always, Entropy, Gate, Never
from methods.glue import Glue
from methods.grid import Grid
from methods.limits import Limits
from methods.lowrank import Full
from methods.options import at_least, one_of
from methods.weights import SoftmaxL1

FrameName = Literal["canonical", "legacy"]
GateName = Literal["entropy", "always"]
FRAMES: dict[str, FrameKind] = {"canonical": "derotated", "legacy": "absolute"}


@dataclass
class KVComm(DeltaMethod):
    """Attributes:
    pool, window: anchors per span and reader; oldest anchors among which the least used is evicted.
    tau: gamma of the entropy gate; larger reuses more, <= 0 is always dense.
    gate: ``always`` corrects whatever the pool holds.
    temperature: of all weights.
    frame: ``canonical`` learns and applies deltas de-rotated. ``legacy`` adds key deltas as they stood at the offset
        of the anchor's own request, the authors' defect. (Their matching of keys in two different frames is not
        reproduced: bases are compared with each span at position 0.)
    glue: private text after the first shared span is stale plus deltas, stale, or runs fresh.
    capacity: strict, or the authors' one too many.
    first_agent: whether spans that no earlier agent holds are reused too.
    role_cache: reuse hops take the agent's role prompt from an exact cache.
    fidelity: what the implementation was written from.
    """

    pool: int = 20
    window: int = 5
    tau: float = 0.3
    gate: GateName = "entropy"
    temperature: float = 1.0
    frame: FrameName = "canonical"
    glue: Glue = "delta"
    capacity: Capacity = "strict"
    first_agent: bool = True
    role_cache: bool = True
    fidelity: str = "code"

    def __post_init__(self) -> None:
        """Raises ValueError for a value outside its range or its list of names."""
        at_least("pool", self.pool, 0)
        at_least("window", self.window, 1)
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        for option, names in (("gate", GateName), ("frame", FrameName), ("glue", Glue), ("capacity", Capacity)):
            one_of(option, getattr(self, option), get_args(names))

    def limits(self, layers: int) -> Limits:
        """See :class:`methods.limits.Limits`."""
        return Limits(reusing={"gate": "always"}, dense={"tau": 0.0}, exact={"gate": "always"})

    def grid(self, shape: Shape) -> Grid:
        full = Full(shape.dtype)
        gate: Gate = Never() if self.tau <= 0 else Always() if self.gate == "always" else Entropy(self.tau)
        return Grid(
            base_key=full,
            base_value=full,
            delta=full,
            glue_delta=full,
            weighting=SoftmaxL1(self.temperature),
            gate=gate,
            frame=Frame(FRAMES[self.frame], "fp32", shape.rope),
            reference="producer",
            first_agent=self.first_agent,
            pool=self.pool,
            hot=self.pool + 1,
            window=self.window,
            temperature=self.temperature,
            capacity=self.capacity,
            glue=self.glue,
            partial=False,
            gate_question=True,
            role_cache=self.role_cache,
        )
