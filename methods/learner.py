"""What a dense hop teaches: the delta between the exact rows of a span and the reference a reader started from."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import torch
from torch import Tensor

from methods.anchors import Anchor, Pair
from methods.base import KV, Executed, Hop
from methods.grid import Edge, Grid, Request, Visit
from methods.lowrank import Codec, Joint
from methods.segment import Placed

# Relative error of layer 0 between two caches of the same tokens: rounding of the caches and of two rotations.
LAYER0 = {torch.float16: 2e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class Learner:
    """Makes anchors; ``seed`` is the run's."""

    grid: Grid
    seed: int

    def anchor(self, edge: Edge, hop: Hop, visit: Visit, executed: Executed, request: Request, born: int) -> Anchor:
        """The anchor of one span of a dense hop; the stored reference is shared within the request."""
        grid, place = self.grid, edge.place
        suffix = "" if grid.anchor_base == "last_writer" else f"@{hop.index}"
        name = f"{hop.trajectory}/{edge.key}@{hop.index}"
        origin = f"{hop.trajectory}/{place.span.id if place.span else ''}/{edge.origin}/base"
        if origin not in request.bases:
            keys, values = grid.frame.keys(edge.reference), grid.frame.values(edge.reference)
            request.bases[origin] = self._store(origin, born, keys, values, grid.base_key, grid.base_value)
        delta = self._delta(f"{name}/delta", born, executed, place, edge.reference, grid.delta)
        glue = [
            self._delta(f"{name}/glue{nth}", born, executed, p, visit.stale[p.index], grid.glue_delta)
            for nth, p in enumerate(edge.glue)
            if grid.glue == "delta"
        ]
        return Anchor(
            name=edge.exact or f"{hop.trajectory}/{edge.pool}{suffix}",
            length=len(place),
            base=request.bases[origin],
            deltas={edge.key: delta},
            glue={edge.key: tuple(glue)},
        )

    def _delta(self, name: str, born: int, executed: Executed, place: Placed, base: KV, codec: Codec | Joint) -> Pair:
        """Exact minus reference rows, without layer 0: it depends on token and position only.

        Raises:
            ValueError: if layer 0 does differ, so that the reference cannot be a cache of the same tokens.
        """
        exact = executed.kv(place.start, place.stop)
        dk, dv = self.grid.frame.delta(exact, base)
        if not exact.k.is_meta:
            self._check_layer_0(name, exact, dk, dv)
        if isinstance(codec, Joint):
            return Pair(name, *codec.encode(dk[1:], dv[1:], self._seed(name, "kv")), born)
        return self._store(name, born, dk[1:], dv[1:], codec, codec)

    def _check_layer_0(self, name: str, exact: KV, dk: Tensor, dv: Tensor) -> None:
        for part, delta, whole in (("keys", dk, exact.k), ("values", dv, exact.v)):
            error = float(torch.linalg.vector_norm(delta[0].float()))
            norm = float(torch.linalg.vector_norm(whole[0].float()))
            if not error <= LAYER0.get(whole.dtype, 1e-2) * norm:
                raise ValueError(
                    f"layer 0 {part} of {name} differ from their reference by {error / max(norm, 1e-30):.2g} of their "
                    "norm, so the reference holds other tokens"
                )

    def _store(self, name: str, born: int, keys: Tensor, values: Tensor, codec_k: Codec, codec_v: Codec) -> Pair:
        k, v = codec_k.encode(keys, self._seed(name, "k")), codec_v.encode(values, self._seed(name, "v"))
        return Pair(name, k, v, born)

    def _seed(self, name: str, kind: str) -> int:
        """Seed of the sketch: a function of run seed, name and kind, never of the order of events."""
        return int.from_bytes(sha256(f"{self.seed}|{name}|{kind}".encode()).digest()[:7], "big")
