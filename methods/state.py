"""State of a delta method between two requests, as immutable named blobs and JSON facts, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from methods.anchors import Anchor, Pair
from methods.base import Snapshot
from methods.delta import DeltaSharing
from methods.prefix import digest
from methods.sparse import matrix


def dump(sharing: DeltaSharing) -> Snapshot:
    """Pools (anchors in order of age, with uses), role prompts and templates. Scratch of open requests is not in it."""
    blobs: dict[str, Mapping[str, Tensor]] = {}
    pools: dict[str, list[dict[str, Any]]] = {}
    for key, pool in sharing.pools.items():
        pools[key] = []
        for anchor in pool:
            for pair in (anchor.base, *anchor.corrections()):
                blobs[digest(pair.key)] = pair.tensors()
            pools[key].append(
                {
                    "name": anchor.name,
                    "length": anchor.length,
                    "uses": pool.uses[anchor.name],
                    "base": _fact(anchor.base),
                    "deltas": {edge: _fact(pair) for edge, pair in anchor.deltas.items()},
                    "glue": {edge: [_fact(pair) for pair in pairs] for edge, pairs in anchor.glue.items()},
                }
            )
    roles, templates = sharing.prefixes.dump(), sharing.templates.dump()
    return Snapshot(
        {"requests": sharing.seen, "sightings": dict(sharing.sightings), "pools": pools} | roles.meta | templates.meta,
        blobs | {**roles.blobs, **templates.blobs},
    )


def load(sharing: DeltaSharing, snapshot: Snapshot) -> None:
    """Continue from a dump: decisions and rows from here on are bit-identical."""

    def pair(fact: Mapping[str, Any]) -> Pair:
        found = snapshot.blobs[digest(f"{fact['born']}/{fact['name']}")]
        blob = {part: tensor.to(sharing.shape.device) for part, tensor in found.items()}
        lost_k, lost_v = fact["lost"]
        return Pair(fact["name"], matrix(_part(blob, "k."), lost_k), matrix(_part(blob, "v."), lost_v), fact["born"])

    sharing.forget()
    sharing.seen = snapshot.meta["requests"]
    sharing.sightings = dict(snapshot.meta["sightings"])
    for key, entries in snapshot.meta["pools"].items():
        pool = sharing.pools[key] = sharing.empty_pool()
        for entry in entries:
            pool.anchors[entry["name"]] = Anchor(
                name=entry["name"],
                length=entry["length"],
                base=pair(entry["base"]),
                deltas={edge: pair(fact) for edge, fact in entry["deltas"].items()},
                glue={edge: tuple(pair(fact) for fact in facts) for edge, facts in entry["glue"].items()},
            )
            pool.uses[entry["name"]] = entry["uses"]
    sharing.prefixes.load(snapshot)
    sharing.templates.load(snapshot)


def _fact(pair: Pair) -> dict[str, Any]:
    return {"name": pair.name, "born": pair.born, "lost": [pair.k.residual, pair.v.residual]}


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Tensors of one matrix of a pair, shared ones (which bear no prefix) included."""
    names = (name for name in tensors if name.startswith(prefix) or "." not in name)
    return {name.removeprefix(prefix): tensors[name] for name in names}
