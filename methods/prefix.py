"""Exact cache of each agent's own role prompt.

Segment 0 of a prompt, when it is private, depends on nothing shared: its rows are the same in every request, and a
serving stack's prefix cache would have them. They are kept as the engine cached them at position 0, so that taking
them changes no bit. They stay staged until their request ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

import torch

from methods.base import KV, Executed, Hop, Snapshot
from methods.segment import Placed, Private, Prompt


@dataclass(eq=False)
class RolePrefixes:
    """By agent and token ids, the rows of the role prompt."""

    device: torch.device | str = "cpu"
    kept: dict[str, KV] = field(default_factory=dict)
    staged: dict[str, dict[str, KV]] = field(default_factory=dict)

    def rows(self, hop: Hop) -> KV | None:
        place = role(hop)
        if place is None:
            return None
        name = _name(hop, place)
        return self.kept[name] if name in self.kept else self.staged.get(hop.trajectory, {}).get(name)

    def learn(self, hop: Hop, executed: Executed) -> None:
        """Keep the role prompt of a hop that ran it fresh at every layer, as all do that found no copy here."""
        place = role(hop)
        if place is not None and self.rows(hop) is None:
            self.staged.setdefault(hop.trajectory, {})[_name(hop, place)] = executed.kv(place.start, place.stop)

    def end(self, trajectory: str) -> None:
        for name, kv in self.staged.pop(trajectory, {}).items():
            self.kept.setdefault(name, kv)

    @property
    def nbytes(self) -> int:
        return sum(kv.nbytes for kv in self.kept.values())

    def dump(self) -> Snapshot:
        names = {name: digest(name) for name in self.kept}
        return Snapshot({"roles": names}, {names[name]: {"k": kv.k, "v": kv.v} for name, kv in self.kept.items()})

    def load(self, snapshot: Snapshot) -> None:
        self.kept, self.staged = {}, {}
        for name, blob in snapshot.meta["roles"].items():
            k, v = snapshot.blobs[blob]["k"], snapshot.blobs[blob]["v"]
            self.kept[name] = KV(k.to(self.device), v.to(self.device), 0)


def role(hop: Hop) -> Placed | None:
    """The agent's role prompt: segment 0, if it is private text followed by something else."""
    first = hop.prompt.placed[0]
    return first if isinstance(first.segment, Private) and 0 < len(first) < len(hop.prompt) else None


def digest(text: str) -> str:
    """A short name for a text, fit for any file system."""
    return sha256(text.encode()).hexdigest()[:32]


def _name(hop: Hop, place: Placed) -> str:
    ids = ",".join(map(str, place.segment.ids))
    return f"role/{hop.agent}/{digest(ids)}"


def context(prompt: Prompt | None, span: str) -> str:
    """Digest of what stands before a span: private text, and the names of other spans; all of the prompt where the
    span is not in it, as where it was generated."""
    if prompt is None:
        return ""
    parts = []
    for place in prompt.placed:
        if place.span is not None and place.span.id == span:
            break
        parts.append(place.span.id if place.span is not None else ",".join(map(str, place.segment.ids)))
    return digest("|".join(parts))[:12]
