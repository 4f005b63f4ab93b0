"""The choices of a delta method, and what one request keeps while it runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from methods.anchors import Anchor, Capacity, Pair
from methods.base import KV
from methods.frame import Frame
from methods.gate import Gate, Usage, Verdict
from methods.glue import Glue
from methods.lowrank import Codec, Joint
from methods.segment import Placed
from methods.weights import TokenWeights, Weighting

Reference = Literal["upstream", "first_hop", "context_free"]
GridReference = Literal["upstream", "first_hop", "context_free", "producer"]
Exact = Literal["", "edge", "reader", "set"]
Admission = Literal["novelty", "first_n"]
AnchorBase = Literal["per_edge", "last_writer"]
WeightMemo = Literal["none", "request"]


@dataclass(frozen=True)
class Grid:
    """A point of the grid codec x reference x weights x gate, with the rules of its pools.

    Attributes:
        base_key, base_value: how reference caches are stored; matching reads them.
        delta, glue_delta: how corrections of spans and of private segments are stored, keys and values apart or joint.
        reference: the cache a correction starts from: the source hop's, the first one of the trajectory, or a
            context-free encode; ``producer`` is the rows of an output as its own author cached them, and an encode of
            user text, which has no author.
        first_agent: spans that no earlier hop holds take part too where their reference is an encode.
        exact: corrections serve the very content they were learned on only, for the same source and reader (``edge``),
            the same ``reader``, or after the same ``set`` of segments in any order; anchors bear the content's name.
        min_frequency: an exact relation is stored from so many sightings on.
        hot: anchors that each layer mixes at most.
        min_anchors: with fewer usable anchors for any span the hop goes dense and learns.
        gate_question: whether the question passes the gate like other spans.
        Others: as :class:`methods.kvcmas.KVCMAS` documents them.
    """

    base_key: Codec
    base_value: Codec
    delta: Codec | Joint
    glue_delta: Codec | Joint
    weighting: Weighting
    gate: Gate
    frame: Frame
    reference: GridReference = "upstream"
    first_agent: bool = False
    exact: Exact = ""
    min_frequency: int = 1
    pool: int = 10
    hot: int = 10
    window: int = 5
    top_p: float = 0.9
    temperature: float = 1.0
    usage: Usage = "mass"
    capacity: Capacity = "strict"
    admission: Admission = "novelty"
    anchor_base: AnchorBase = "per_edge"
    weight_memo: WeightMemo = "none"
    glue: Glue = "recompute"
    partial: bool = True
    min_anchors: int = 1
    gate_question: bool = False
    role_cache: bool = True


@dataclass(frozen=True, eq=False)
class Edge:
    """A shared span on its way from the agent whose cache is the reference to the reader.

    Attributes:
        key: names the edge over requests; corrections are learned under it.
        pool: key of its pool: the edge, or the span alone.
        reference: rows that a correction starts from.
        origin: names the reference within the request.
        glue: the private segments between this span and the next.
        exact: the name that its anchor must have; "" for any.
    """

    key: str
    pool: str
    place: Placed
    reference: KV
    origin: str
    glue: tuple[Placed, ...]
    question: bool
    exact: str = ""


@dataclass(eq=False)
class Visit:
    """What one hop leaves between plan and observe, and what its record will say."""

    edges: tuple[Edge, ...]
    stale: Mapping[int, KV]
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    usable: list[int] = field(default_factory=list)
    effective_k: list[float] = field(default_factory=list)
    effective_v: list[float] = field(default_factory=list)
    covered: int = 0

    def notes(self) -> dict[str, float]:
        """``anchors``: fewest usable ones over the spans; ``gate``: the worst value a gate measured;
        ``effective_anchors_k``, ``_v``: exp(entropy) of the weights, mean over tokens and spans; ``coverage``: share of
        the reusable rows that got a correction."""
        notes = dict[str, float]()
        gated = [v.value for v in self.verdicts.values() if not math.isnan(v.value)]
        rows = sum(len(edge.place) for edge in self.edges)
        if self.usable:
            notes["anchors"] = float(min(self.usable))
        if gated:
            notes["gate"] = max(gated)
        if self.effective_k:
            notes["effective_anchors_k"] = sum(self.effective_k) / len(self.effective_k)
            notes["effective_anchors_v"] = sum(self.effective_v) / len(self.effective_v)
        if rows:
            notes["coverage"] = self.covered / rows
        return notes


@dataclass(eq=False)
class Request:
    """Scratch of one trajectory, dropped with it.

    Attributes:
        staged, touched: what the pools learn when the trajectory ends, in order: (pool, anchor), (pool, names).
        bases: stored references by name: consumers of one cache share its matrices.
        sighted: exact relations, once per sighting.
        encoded: context-free references; memo: weights, under the legacy memo only.
    """

    visits: dict[int, Visit] = field(default_factory=dict)
    staged: list[tuple[str, Anchor]] = field(default_factory=list)
    touched: list[tuple[str, list[str]]] = field(default_factory=list)
    sighted: list[str] = field(default_factory=list)
    bases: dict[str, Pair] = field(default_factory=dict)
    encoded: dict[str, KV] = field(default_factory=dict)
    memo: dict[tuple[str, ...], TokenWeights] = field(default_factory=dict)
