"""KVCMAS (arXiv 2609.34060): every later agent starts from the cache of the agent before it and corrects it.

The first agent runs dense. A later one takes its source's cache of each shared span, moves it to its place and adds a
weighted sum of low-rank deltas that earlier requests left on the same edge; if a gate finds a span too far from what
the pool has seen, the whole call runs dense and its deltas are learned. Layer 0 is never corrected.

Faithful: factorisation, L1 softmax weights, entropy gate, dense fallback, pools of ten. Ours: de-rotated keys, fp32
arithmetic, private text recomputed over the corrected spans, a pool per edge, a relative gate once calibrated. Each
of the authors' behaviours that we changed is restored by one option, and all at once by ``+experiment=paper``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from methods.anchors import Capacity
from methods.base import Shape
from methods.family import DeltaMethod
from methods.frame import Arithmetic, Frame, FrameKind
from methods.gate import Always, Entropy, Gate, Never, Relative, Usage
from methods.glue import Glue
from methods.grid import Admission, AnchorBase, Grid, Reference, WeightMemo
from methods.limits import Limits
from methods.lowrank import Codec, Joint, codec, joint_codec
from methods.options import at_least, one_of
from methods.weights import Nearest, SoftmaxL1, SoftmaxL2, Uniform, Weighting

CodecName = Literal["low_rank", "full"]
WeightsName = Literal["softmax_l1", "softmax_l2", "uniform", "nearest"]
GateName = Literal["auto", "entropy", "relative", "always", "never"]
FactorDtype = Literal["bfloat16", "float16", "float32", "model"]
FULL = "0 stores full tensors"


@dataclass
class KVCMAS(DeltaMethod):
    """Hyperparameters; section numbers are the paper's method description, B* the authors' behaviours we changed.

    Attributes:
        rank: r of every stored matrix; matrices below break-even stay raw.
        rank_delta, rank_base_key, rank_base_value, rank_glue: r per kind instead; 0 stores full tensors.
        codec: ``full`` stores everything in full.
        joint: keys and values of a delta share one left factor, r (n + 2 C) elements a layer instead of 2 r (n + C);
            de-rotated keys only. References stay apart.
        oversampling, power_iterations, balanced: of the factorisation; unbalanced right factors carry the whole
            scale and may overflow float16 (B18).
        factor_dtype: of stored matrices.
        reference: ``upstream`` chains, ``first_hop`` is the star, ``context_free`` encodes each span alone, which is
            charged to the hop.
        pool, hot, window: anchors of a pool, anchors a layer mixes, oldest anchors among which eviction chooses.
        weights, temperature: of anchors per token.
        gate, tau, tau_distance: ``entropy`` compares with tau log2 of the anchors, ``relative`` the nearest relative
            distance with tau_distance; ``auto`` is relative once tau_distance is calibrated, until then entropy that
            also accepts a span at distance zero. tau <= 0 is always dense.
        gate_question: whether the question passes the gate too; the paper never gates it.
        top_p, usage: which anchors a reliable span counts as used (B6).
        question_admission: the question enters a full pool if the gate calls it novel, or never (B2).
        anchor_base: a pool per edge, or one per span whose reference the last dense reader overwrites (B4).
        weight_memo: weights anew for every hop, or per request and anchor set (B5).
        capacity: strict, or one too many and evicting on updates (B7).
        frame: rotation in which deltas live (B1). arithmetic: see :class:`methods.frame.Frame` (B19).
        glue: private text after the first shared span runs fresh, is reused stale, or stale plus deltas.
        partial: anchors shorter than the span correct its first rows.
        min_anchors: with fewer for any span the hop goes dense and learns; 0 reuses it uncorrected.
        role_cache: reuse hops take the agent's role prompt from an exact cache.
        fidelity: what the implementation was written from.
    """

    rank: int = 32
    rank_delta: int | None = None
    rank_base_key: int | None = None
    rank_base_value: int | None = None
    rank_glue: int | None = None
    codec: CodecName = "low_rank"
    joint: bool = False
    oversampling: int = 8
    power_iterations: int = 2
    balanced: bool = True
    factor_dtype: FactorDtype = "bfloat16"
    reference: Reference = "upstream"
    pool: int = 10
    hot: int = 10
    window: int = 5
    weights: WeightsName = "softmax_l1"
    temperature: float = 1.0
    gate: GateName = "auto"
    tau: float = 0.3
    tau_distance: float | None = None
    gate_question: bool = False
    top_p: float = 0.9
    usage: Usage = "mass"
    question_admission: Admission = "novelty"
    anchor_base: AnchorBase = "per_edge"
    weight_memo: WeightMemo = "none"
    capacity: Capacity = "strict"
    frame: FrameKind = "derotated"
    arithmetic: Arithmetic = "fp32"
    glue: Glue = "recompute"
    partial: bool = True
    min_anchors: int = 1
    role_cache: bool = True
    fidelity: str = "code"

    def __post_init__(self) -> None:
        """Raises ValueError for a value outside its range or its list of names."""
        at_least("rank", self.rank, 1, "use codec=full to store full tensors")
        for option in ("rank_delta", "rank_base_key", "rank_base_value", "rank_glue"):
            at_least(option, getattr(self, option) or 0, 0, FULL)
        for option, least in (("oversampling", 0), ("power_iterations", 0), ("pool", 0), ("hot", 1), ("window", 1)):
            at_least(option, getattr(self, option), least)
        at_least("min_anchors", self.min_anchors, 0)
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        for option, names in (
            ("codec", CodecName), ("factor_dtype", FactorDtype), ("reference", Reference), ("weights", WeightsName),
            ("gate", GateName), ("usage", Usage), ("question_admission", Admission), ("anchor_base", AnchorBase),
            ("weight_memo", WeightMemo), ("capacity", Capacity), ("frame", FrameKind), ("arithmetic", Arithmetic),
            ("glue", Glue),
        ):  # fmt: skip
            one_of(option, getattr(self, option), get_args(names))
        if self.joint and self.frame != "derotated":
            raise ValueError(
                f"joint=true needs frame=derotated, got frame={self.frame}: rotated keys share no left factor with the "
                "values; use joint=false"
            )
        if self.gate == "relative" and self.tau_distance is None:
            raise ValueError("gate=relative needs tau_distance: calibrate it for this model and task, or use gate=auto")

    def limits(self, layers: int) -> Limits:
        """See :class:`methods.limits.Limits`."""
        return Limits(
            reusing={"gate": "always"},
            dense={"gate": "never"},
            reuse={"gate": "always", "min_anchors": 0},
            exact={"gate": "always", "codec": "full", "factor_dtype": "model"},
        )

    def grid(self, shape: Shape) -> Grid:
        dtype = shape.dtype if self.factor_dtype == "model" else getattr(torch, self.factor_dtype)
        return Grid(
            base_key=self._codec(self.rank_base_key, dtype),
            base_value=self._codec(self.rank_base_value, dtype),
            delta=self._delta(self.rank_delta, dtype),
            glue_delta=self._delta(self.rank_glue, dtype),
            weighting=self._weighting(),
            gate=self._gate(),
            frame=Frame(self.frame, self.arithmetic, shape.rope),
            reference=self.reference,
            pool=self.pool,
            hot=self.hot,
            window=self.window,
            top_p=self.top_p,
            temperature=self.temperature,
            usage=self.usage,
            capacity=self.capacity,
            admission=self.question_admission,
            anchor_base=self.anchor_base,
            weight_memo=self.weight_memo,
            glue=self.glue,
            partial=self.partial,
            min_anchors=self.min_anchors,
            gate_question=self.gate_question,
            role_cache=self.role_cache,
        )

    def _codec(self, rank: int | None, dtype: torch.dtype) -> Codec:
        return codec(self._rank(rank), dtype, self.oversampling, self.power_iterations, self.balanced)

    def _delta(self, rank: int | None, dtype: torch.dtype) -> Codec | Joint:
        if not self.joint:
            return self._codec(rank, dtype)
        return joint_codec(self._rank(rank), dtype, self.oversampling, self.power_iterations, self.balanced)

    def _rank(self, rank: int | None) -> int:
        return 0 if self.codec == "full" else self.rank if rank is None else rank

    def _weighting(self) -> Weighting:
        named: dict[str, Weighting] = {
            "softmax_l1": SoftmaxL1(self.temperature),
            "softmax_l2": SoftmaxL2(self.temperature),
            "uniform": Uniform(),
            "nearest": Nearest(),
        }
        return named[self.weights]

    def _gate(self) -> Gate:
        if self.gate == "never" or self.tau <= 0:
            return Never()
        if self.gate == "always":
            return Always()
        if self.gate in ("auto", "relative") and self.tau_distance is not None:
            return Relative(self.tau_distance)
        return Entropy(self.tau, guard=self.gate == "auto")
