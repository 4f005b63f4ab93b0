"""Private text after the first shared span: recomputed, reused stale, or reused and corrected.

The authors' code encodes each agent's template once, with literals in place of the shared spans, and moves the
private pieces to where they stand in a request (their context stays that of the literals). ``delta`` adds corrections
learned at dense hops, weighted per channel by the span before each piece (KVComm 2510.12872, KVCMAS 2609.34060).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from methods.base import KV, Engine, Hop, Snapshot
from methods.prefix import digest
from methods.segment import Placed, Prompt, Shared

Glue = Literal["recompute", "rotate", "delta"]


@dataclass(eq=False)
class Templates:
    """By agent and template ids, the rows of each private segment as cached in the template."""

    device: torch.device | str = "cpu"
    kept: dict[str, tuple[KV, ...]] = field(default_factory=dict)

    def fetch(self, hop: Hop, engine: Engine) -> Mapping[int, KV]:
        """By segment index, the stale rows of the non-empty private segments; encodes a template on first sight."""
        pieces = tuple(s.span.placeholder if isinstance(s, Shared) else s.ids for s in hop.prompt.segments)
        text = "|".join(",".join(map(str, ids)) for ids in pieces)
        name = f"template/{hop.agent}/{digest(text)}"
        if name not in self.kept:
            encoded = engine.encode([i for ids in pieces for i in ids])
            starts = [0]
            for ids in pieces:
                starts.append(starts[-1] + len(ids))
            cut = [encoded.rows(starts[p.index], starts[p.index + 1]) for p in hop.prompt.private()]
            self.kept[name] = tuple(KV(kv.k.clone(), kv.v.clone(), kv.start) for kv in cut)
        return {p.index: kv for p, kv in zip(hop.prompt.private(), self.kept[name], strict=True)}

    @property
    def nbytes(self) -> int:
        return sum(kv.nbytes for pieces in self.kept.values() for kv in pieces)

    def dump(self) -> Snapshot:
        facts, blobs = {}, dict[str, dict[str, Tensor]]()
        for name, pieces in self.kept.items():
            facts[name] = [[digest(f"{name}/{i}"), kv.start] for i, kv in enumerate(pieces)]
            blobs |= {digest(f"{name}/{i}"): {"k": kv.k, "v": kv.v} for i, kv in enumerate(pieces)}
        return Snapshot({"templates": facts}, blobs)

    def load(self, snapshot: Snapshot) -> None:
        def piece(blob: str, start: int) -> KV:
            k, v = snapshot.blobs[blob]["k"], snapshot.blobs[blob]["v"]
            return KV(k.to(self.device), v.to(self.device), start)

        facts = snapshot.meta["templates"]
        self.kept = {name: tuple(piece(blob, start) for blob, start in pieces) for name, pieces in facts.items()}


def followers(prompt: Prompt, place: Placed) -> tuple[Placed, ...]:
    """The non-empty private segments between a shared span and the next one."""
    out = []
    for later in prompt.placed[place.index + 1 :]:
        if later.span is not None and len(later):
            break
        if later.span is None and len(later):
            out.append(later)
    return tuple(out)
