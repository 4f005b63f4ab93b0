"""Ridge: every later agent starts from its source's cache and adds what a regression says this reader will add to it.

KVCMAS (arXiv 2609.34060) stores the deltas of whole requests and mixes them by row index. But a token's delta is told
by the token's own source cache, not by the row of another request that happens to have the same index. So each edge
keeps sums of squares and products instead, from which a map from source rows to deltas follows in closed form: its
size depends on the model only, one matrix product a layer applies it, and on every dense hop it is tested before it
learns, which tells what error to expect. Keys are de-rotated; layer 0 is never corrected; the first agent is exact.

Bytes of an edge, G = 2 (L - 1) kinds and layers of width C, S = tapped layers times C, R directions, m landmarks,
p = 6 + 3 R + m features (2 min(R, 16) instead of 2 R), r the smaller of rank and p:
4 (p + r) G C + 20 p^2 + 4 (p r + S R + S + m R + m^2) and a few vectors; before the basis is chosen, at most
4 * 512 (S + G C) for rows that wait.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.ability import NOTHING, Ability
from methods.base import (
    Dense,
    Engine,
    Executed,
    FreshRows,
    Hop,
    Plan,
    Reuse,
    Rows,
    Shape,
    Snapshot,
    Source,
    StateBytes,
)
from methods.basis import FLAT, tapped, taps
from methods.checked import rounded
from methods.chosen import ChosenRows
from methods.edge_map import Correction, EdgeMap
from methods.frame import Frame
from methods.lesson import Lesson, Settings
from methods.limits import Limits
from methods.options import at_least
from methods.predicted import Predicted
from methods.prefix import RolePrefixes, context, digest
from methods.recompute import share, top
from methods.segment import Placed, Prompt


@dataclass
class Ridge:
    """Attributes:
    tau: largest expected relative KV error of a span (root mean square over keys, values and layers) at which its hop
        may reuse; above it, or while nothing is known, the hop runs dense and teaches. 0 is always dense, inf never.
    features, landmarks: principal directions of a token's values, and rows whose likeness to it counts.
    rank: of the correction that is applied.
    warmup: dense requests whose rows choose directions and landmarks.
    min_requests: dense requests that an edge has seen, at least, before it may reuse.
    refresh: share of requests that run dense all the same, so that drift is noticed.
    memory: requests after which what was learned has faded to 1 / e.
    caution: how fast the correction of a row fades with its leverage, its distance from everything seen.
    penalty: of the regression; null compares a few on every request before learning it.
    shrink: apply to each layer of keys and values only the share of its correction that held up on unseen requests.
    recompute: share of each span's rows, those with the largest expected error, that run fresh at every layer.
    role_cache: reuse hops take the agent's role prompt from an exact cache.
    fidelity: what the implementation was written from.
    """

    tau: float = 0.2
    features: int = 64
    landmarks: int = 256
    rank: int = 64
    warmup: int = 4
    min_requests: int = 8
    refresh: float = 0.0
    memory: int = 256
    caution: float = 4.0
    penalty: float | None = None
    shrink: bool = True
    recompute: float = 0.0
    role_cache: bool = True
    fidelity: str = "ours"

    def __post_init__(self) -> None:
        """Raises ValueError for a value outside its range."""
        for option, least in (
            ("features", 1), ("landmarks", 1), ("rank", 1), ("warmup", 1), ("min_requests", 0), ("memory", 1),
            ("caution", 0),
        ):  # fmt: skip
            at_least(option, getattr(self, option), least)
        if self.penalty is not None and not self.penalty > 0:
            raise ValueError(f"penalty must be positive or null, got {self.penalty}")
        if isinstance(self.refresh, bool) or not 0 <= self.refresh <= 1:
            raise ValueError(f"refresh must be a share of the requests in [0, 1], got {self.refresh}")
        share("recompute", self.recompute)
        self._edges: dict[str, EdgeMap] = {}
        self._prompts: dict[str, dict[int, Prompt]] = {}
        self._notes: dict[str, float] = {}

    def limits(self, layers: int) -> Limits:
        """See :class:`methods.limits.Limits`."""
        open_ = {"tau": math.inf, "min_requests": 0, "refresh": 0.0}
        soon = {**open_, "min_requests": 1, "warmup": 1, "shrink": False}
        every = {"features": 512, "landmarks": 512, "rank": sys.maxsize, "penalty": 1e-3, "caution": 0.0}
        return Limits(
            reusing=soon,
            dense={"tau": 0.0},
            reuse={**open_, "recompute": 0.0},
            exact={**soon, **every, "recompute": 0.0},
        )

    def bind(self, shape: Shape, seed: int) -> None:
        """Meet the model; forget everything."""
        self._shape, self._seed = shape, seed
        self._frame, self._taps = Frame("derotated", "fp32", shape.rope), taps(shape)
        self._settings = Settings(
            self.features, self.landmarks, self.rank, self.warmup, self.memory, self.caution, self.penalty, self.shrink,
            groups=2 * (shape.layers - 1), width=shape.width, taps=len(self._taps), floor=FLAT,
        )  # fmt: skip
        self._prefixes = RolePrefixes(device=shape.device)
        self._edges, self._prompts, self._notes = {}, {}, {}

    def plan(self, hop: Hop, engine: Engine) -> Plan:
        self._prompts.setdefault(hop.trajectory, {})[hop.index] = hop.prompt
        self._notes = {}
        edges = self._sources(hop)
        if not edges or hop.warmup:
            return Dense()
        if self._refreshing(hop.trajectory):
            return Dense(refused=True)
        rows, chosen, errors = dict[int, Rows](), dict[int, Tensor](), list[float]()
        for place, source in edges:
            known = self._edges.get(self._key(hop, place, source), EdgeMap(self._settings))
            found = self._correction(known, source) if known.seen >= self.min_requests else None
            errors.append(found.error if found is not None else math.inf)
            self._note(known, found)
            if known.seen < self.min_requests or not (errors[-1] < self.tau or self.tau == math.inf):
                return Dense(refused=True)
            rows[place.index] = self._corrected(source, found)
            if self.recompute and found is not None:
                chosen[place.index] = top(found.risk, rounded(self.recompute * len(place))).sort().values
        prefix = self._prefixes.rows(hop) if self.role_cache else None
        rows = rows if prefix is None else {0: prefix, **rows}
        return Reuse(rows, ChosenRows(chosen) if chosen else FreshRows())

    def observe(self, hop: Hop, executed: Executed) -> None:
        if self.role_cache:
            self._prefixes.learn(hop, executed)
        if not executed.dense or self._shape.layers < 2:
            return
        for place, source in self._sources(hop):
            key = self._key(hop, place, source)
            known = self._edges.get(key, EdgeMap(self._settings))
            self._edges[key] = known.after(self._rows(place, source, executed), hop.trajectory)

    def end(self, trajectory: str) -> None:
        self._notes = {}
        self._prefixes.end(trajectory)
        self._prompts.pop(trajectory, None)

    def state_bytes(self) -> StateBytes:
        """Exact bytes of all tensors kept; see the module for the formula."""
        return StateBytes(self._prefixes.nbytes, sum(edge.nbytes for edge in self._edges.values()))

    def snapshot(self) -> Snapshot | None:
        roles, facts, blobs = self._prefixes.dump(), dict[str, object](), dict[str, Mapping[str, Tensor]]()
        for key, edge in self._edges.items():
            blob = digest(f"{key}/{edge.seen}/{edge.last}")
            facts[key] = {**edge.facts(), "blob": blob}
            blobs[blob] = edge.tensors()
        return Snapshot({"edges": facts} | roles.meta, blobs | {**roles.blobs})

    def restore(self, snapshot: Snapshot) -> None:
        self._prompts, self._notes = {}, {}
        self._prefixes.load(snapshot)
        self._edges = {}
        for key, facts in snapshot.meta["edges"].items():
            blob = {name: tensor.to(self._shape.device) for name, tensor in snapshot.blobs[facts["blob"]].items()}
            self._edges[key] = EdgeMap.load(self._settings, facts, blob)

    def notes(self) -> Mapping[str, float]:
        """``requests``: fewest that an edge of the hop has seen; ``gate``: the largest expected error; ``applied``:
        share of the corrections that evidence lets through, mean over keys, values, layers and spans."""
        return self._notes

    @property
    def requires(self) -> frozenset[Ability]:
        return frozenset({Ability.row_schedule}) if self.recompute else NOTHING

    @property
    def captures(self) -> frozenset[int]:
        return frozenset()

    def _sources(self, hop: Hop) -> list[tuple[Placed, Source]]:
        """The shared spans that an earlier hop holds. Raises ValueError if one holds another number of rows."""
        found = [(p, hop.sources[p.span.id]) for p in hop.prompt.shared() if p.span and p.span.id in hop.sources]
        for place, source in found:
            if len(source.kv) != len(place):
                name = place.span.id if place.span else ""
                raise ValueError(f"the source of span {name!r} holds {len(source.kv)} rows for {len(place)} tokens")
        return found

    def _key(self, hop: Hop, place: Placed, source: Source) -> str:
        """Names the edge: the span, both agents and what either reads before it; another prompt is another edge."""
        span = place.span.id if place.span else ""
        origin = self._prompts.get(hop.trajectory, {}).get(source.hop)
        return f"{span}:{source.agent}/{context(origin, span)}>{hop.agent}/{context(hop.prompt, span)}"

    def _correction(self, known: EdgeMap, source: Source) -> Correction | None:
        distance = torch.arange(len(source.kv), device=source.kv.v.device)
        return known.correction(tapped(source.kv.v, self._taps), distance)

    def _corrected(self, source: Source, found: Correction | None) -> Rows:
        """Rows to place: the source's own where nothing is added."""
        if found is None or not bool(found.shares.any()):
            return source.kv
        layers, rank = self._shape.layers - 1, found.right.shape[0]
        right = found.right.view(rank, 2, layers, -1).permute(1, 2, 0, 3).contiguous()
        return Predicted(source.kv, found.left, right[0], right[1])

    def _rows(self, place: Placed, source: Source, executed: Executed) -> Lesson:
        exact = executed.kv(place.start, place.stop)
        parts = [x[1:].transpose(1, 2).flatten(2) for x in self._frame.delta(exact, source.kv)]  # [L - 1, T, C] each
        delta = torch.cat(parts).transpose(0, 1).flatten(1)
        energy = torch.cat([x[1:].double().square().sum((1, 2, 3)) for x in (exact.k, exact.v)])
        distance = torch.arange(len(place), device=delta.device)
        return Lesson(tapped(source.kv.v, self._taps), delta, energy, distance)

    def _refreshing(self, trajectory: str) -> bool:
        return int(digest(f"{self._seed}|{trajectory}")[:8], 16) < self.refresh * 2**32

    def _note(self, known: EdgeMap, found: Correction | None) -> None:
        notes = self._notes
        notes["requests"] = min(float(known.seen), notes.get("requests", math.inf))
        if found is not None and math.isfinite(found.error):
            notes["gate"] = max(found.error, notes.get("gate", 0.0))
            notes["applied"] = float(found.shares.mean())
