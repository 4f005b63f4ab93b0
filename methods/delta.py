"""The delta engine: reuse a reference cache of a span and add what readers like this one added to it before.

Methods of this family are points of one grid, codec x reference x weights x gate: KVCMAS (arXiv 2609.34060) is
(low-rank, upstream, softmax, entropy), KVComm (arXiv 2510.12872) is (full, context-free, softmax, entropy).

    reuse hop:  K = R_p (K_ref + sum_i w_i dK_i),  V = V_ref + sum_i w_i dV_i   at layers >= 1; private text runs fresh
    dense hop:  dK = K_exact - K_ref,  dV = V_exact - V_ref                     staged, committed when the request ends
"""

from __future__ import annotations

import torch
from torch import Tensor

from methods.anchors import Anchor, AnchorPool, Pair, Usable
from methods.base import KV, Dense, Engine, Executed, Hop, Plan, Reuse, Rows, Shape, StateBytes
from methods.corrected import Corrected
from methods.frame import Blend
from methods.gate import Verdict, activated
from methods.glue import Templates
from methods.grid import Edge, Grid, Request, Visit
from methods.learner import Learner
from methods.prefix import RolePrefixes, role
from methods.reference import candidates, content
from methods.reference import edges as references
from methods.weights import TokenWeights, base_keys, base_values, channel_weights, effective, hot_anchors


class DeltaSharing:
    """One point of the grid at work on one model."""

    def __init__(self, grid: Grid, shape: Shape, seed: int) -> None:
        self.grid = grid
        self.shape = shape
        self.learner = Learner(grid, seed)
        self.forget()

    def forget(self) -> None:
        """Back to the first moment: empty pools, no open request."""
        self.seen = 0
        self.pools: dict[str, AnchorPool] = {}
        self.sightings: dict[str, int] = {}
        self.prefixes = RolePrefixes(self.shape.device)
        self.templates = Templates(self.shape.device)
        self._requests: dict[str, Request] = {}
        self._notes: dict[str, float] = {}

    def plan(self, hop: Hop, engine: Engine, learning: bool = True) -> Plan:
        request = self._requests.setdefault(hop.trajectory, Request())
        if learning or hop.warmup or self._knows(hop):
            plan = self._plan(hop, engine, request)
        else:  # the hop goes dense and nothing will be measured, so no base is encoded
            plan, request.visits[hop.index] = Dense(refused=True), Visit((), {}, usable=[0])
        self._notes = request.visits[hop.index].notes()
        return plan

    def _plan(self, hop: Hop, engine: Engine, request: Request) -> Plan:
        grid = self.grid
        edges = tuple(references(hop, engine, request, grid, self._stored))
        stale = self.templates.fetch(hop, engine) if edges and grid.glue != "recompute" else {}
        visit = request.visits[hop.index] = Visit(edges, stale)
        if not edges or hop.warmup:
            return Dense()
        if grid.gate.closed or not all(self._judge(edge, visit, request).reliable for edge in edges):
            return Dense(refused=True)
        rows: dict[int, Rows] = {}
        for edge in edges:
            rows.update(self._correct(edge, visit, request))
        prefix = self.prefixes.rows(hop) if grid.role_cache else None
        place = role(hop)
        if place is not None and (prefix is not None or place.index in stale):
            rows[place.index] = prefix if prefix is not None else stale[place.index]
        return Reuse(rows)

    def observe(self, hop: Hop, executed: Executed, learning: bool = True) -> None:
        request = self._requests.get(hop.trajectory)
        visit = request.visits.pop(hop.index, None) if request else None
        if self.grid.role_cache:
            self.prefixes.learn(hop, executed)
        if request is None or visit is None or not executed.dense or not learning:
            return
        seen: set[str] = set()
        for edge in visit.edges:
            if edge.key not in seen and self._admits(edge, hop, visit, request) and self._frequent(edge, request):
                request.staged.append((edge.pool, self.learner.anchor(edge, hop, visit, executed, request, self.seen)))
            seen.add(edge.key)
        self._notes = visit.notes()

    def end(self, trajectory: str) -> None:
        self._notes = {}
        self.prefixes.end(trajectory)
        request = self._requests.pop(trajectory, None)
        if request is None:
            return
        self.seen += 1
        for relation in request.sighted:
            self.sightings[relation] = self.sightings.get(relation, 0) + 1
        for pool, names in request.touched:
            self.pools[pool].touch(names)
        for pool, anchor in request.staged:
            self.pools.setdefault(pool, self.empty_pool()).admit(anchor)

    def empty_pool(self) -> AnchorPool:
        return AnchorPool(self.grid.pool, self.grid.window, self.grid.capacity)

    def state_bytes(self) -> StateBytes:
        """Exact bytes of all stored tensors; a reference that several edges share counts once."""
        bases = {a.base.key: a.base for pool in self.pools.values() for a in pool}
        deltas = [pair for pool in self.pools.values() for a in pool for pair in a.corrections()]
        exact = self.prefixes.nbytes + self.templates.nbytes
        return StateBytes(exact + sum(p.nbytes for p in bases.values()), sum(p.nbytes for p in deltas))

    def notes(self) -> dict[str, float]:
        """Facts about the last hop, see :meth:`methods.grid.Visit.notes`."""
        return self._notes

    def _knows(self, hop: Hop) -> bool:
        """Whether no exact relation of the hop forces it to go dense."""
        if not self.grid.exact or not self.grid.min_anchors:
            return True
        return all(c.pool in self.pools and c.exact in self.pools[c.pool].anchors for c in candidates(hop, self.grid))

    def _stored(self, pool: str, exact: str) -> KV | None:
        """The reference that an exact anchor keeps."""
        anchor = self.pools[pool].anchors.get(exact) if pool in self.pools else None
        if anchor is None:
            return None
        length, heads, dim = anchor.length, self.shape.kv_heads, self.shape.head_dim
        keys, values = (
            (left if right is None else left.float() @ right.float()).view(-1, length, heads, dim).transpose(1, 2)
            for left, right in (anchor.base.k.operand(length), anchor.base.v.operand(length))
        )
        return KV(keys, values, None if self.grid.frame.kind == "derotated" else 0)

    def _usable(self, edge: Edge) -> Usable:
        if edge.pool not in self.pools:
            return Usable()
        glue = tuple(len(p) for p in edge.glue) if self.grid.glue == "delta" else None
        return self.pools[edge.pool].usable(edge.key, len(edge.place), self.grid.partial, glue, edge.exact)

    def _covering(self, edge: Edge) -> tuple[Anchor, ...]:
        return self.pools[edge.pool].covering(len(edge.place)) if edge.pool in self.pools else ()

    def _judge(self, edge: Edge, visit: Visit, request: Request) -> Verdict:
        """The verdict on a span; asked once per hop, whether by plan or, after an early refusal, by observe."""
        if edge.key not in visit.verdicts:
            found = len(self._usable(edge).anchors)
            visit.usable.append(found)
            if found < self.grid.min_anchors:
                verdict = Verdict(False)
            elif edge.question and not self.grid.gate_question:
                verdict = Verdict(True)
            else:
                verdict = self.grid.gate.judge(edge.reference.v, self._covering(edge))
            if verdict.reliable and verdict.mass:
                request.touched.append((edge.pool, activated(verdict.mass, self.grid.top_p, self.grid.usage)))
            visit.verdicts[edge.key] = verdict
        return visit.verdicts[edge.key]

    def _correct(self, edge: Edge, visit: Visit, request: Request) -> dict[int, Rows]:
        """Rows of the span and, unless they run fresh, of the private segments that follow it."""
        usable, frame = self._usable(edge), self.grid.frame
        stale: dict[int, Rows] = {p.index: visit.stale[p.index] for p in edge.glue if p.index in visit.stale}
        if not usable.anchors:
            return {edge.place.index: edge.reference, **stale}
        anchors, cover = usable.anchors, usable.cover
        keys, values = frame.keys(edge.reference), frame.values(edge.reference)
        weights = self._weights(edge, request, keys, values, usable)
        visit.covered += cover
        visit.effective_k.append(effective(weights.k))
        visit.effective_v.append(effective(weights.v))
        if not visit.verdicts[edge.key].mass:  # ungated: the weights themselves say what was used
            mass = [(a.name, float(w)) for a, w in zip(anchors, weights.v.mean(1).tolist(), strict=True)]
            request.touched.append((edge.pool, activated(mass, self.grid.top_p, self.grid.usage)))
        deltas = [a.deltas[edge.key] for a in anchors]
        blend = Blend(
            [d.k.operand(cover) for d in deltas],
            [d.v.operand(cover) for d in deltas],
            weights.k,
            weights.v,
            weights.hot,
        )
        rows: dict[int, Rows] = {edge.place.index: Corrected(frame, keys, values, blend), **stale}
        if self.grid.glue == "delta" and edge.glue:
            by_k = channel_weights(keys, base_keys(anchors, cover), cover, self.grid.temperature)
            by_v = channel_weights(values, base_values(anchors, cover), cover, self.grid.temperature)
            for nth, place in enumerate(edge.glue):
                pairs = [a.glue[edge.key][nth] for a in anchors]
                rows[place.index] = self._glue(visit.stale[place.index], pairs, by_k, by_v)
        return rows

    def _glue(self, stale: KV, pairs: list[Pair], by_k: Tensor, by_v: Tensor) -> Corrected:
        """A stale private segment plus its deltas, weighted per channel ``[A, L, C]``."""
        frame, n = self.grid.frame, len(stale)
        deltas_k = [p.k.scaled(w[1:]).operand(n) for p, w in zip(pairs, by_k, strict=True)]
        deltas_v = [p.v.scaled(w[1:]).operand(n) for p, w in zip(pairs, by_v, strict=True)]
        ones = torch.ones(len(pairs), n, device=by_k.device)
        return Corrected(frame, frame.keys(stale), frame.values(stale), Blend(deltas_k, deltas_v, ones, ones))

    def _weights(self, edge: Edge, request: Request, keys: Tensor, values: Tensor, usable: Usable) -> TokenWeights:
        ids = edge.place.segment.ids
        name = (edge.pool, content(ids), *(a.name for a in usable.anchors))
        if self.grid.weight_memo == "request" and name in request.memo:
            return request.memo[name]
        k, v = self.grid.weighting.match(keys, values, usable.anchors, usable.cover)
        weights = TokenWeights(k, v, hot_anchors(keys, usable.anchors, usable.cover, self.grid.hot))
        if self.grid.weight_memo == "request":
            request.memo[name] = weights
        return weights

    def _admits(self, edge: Edge, hop: Hop, visit: Visit, request: Request) -> bool:
        grid = self.grid
        if edge.exact and edge.pool in self.pools and edge.exact in self.pools[edge.pool].anchors:
            return False
        if grid.pool < 1 or hop.warmup or grid.gate.closed:
            return grid.pool > 0
        if not edge.question or grid.gate_question or edge.exact:
            return not self._judge(edge, visit, request).reliable
        held = set(self.pools[edge.pool].anchors) if edge.pool in self.pools else set()
        held |= {anchor.name for pool, anchor in request.staged if pool == edge.pool}
        if grid.admission == "first_n" or len(held) < grid.pool:
            return len(held) < grid.pool
        return not grid.gate.judge(edge.reference.v, self._covering(edge)).reliable

    def _frequent(self, edge: Edge, request: Request) -> bool:
        """Whether an exact relation has been seen often enough to be worth its bytes; counts this sighting."""
        if not edge.exact:
            return True
        name = f"{edge.pool}#{edge.exact}"
        request.sighted.append(name)
        return self.sightings.get(name, 0) + request.sighted.count(name) >= self.grid.min_frequency
