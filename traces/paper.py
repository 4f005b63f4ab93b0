"""The serving trace of KVCMAS's released efficiency script, and its token accounting (arXiv 2609.34060).

Four hops of one trajectory read ever longer prefixes of one random stream and arrive independently of each other at
k / QPS; every request generates a single token. No correction runs there: methods differ by how many tokens of the
handed-over span they are charged to prefill again. Kept so that the published figures can be traced to their causes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from traces.schema import Piece, Request, Trace, TraceError

SYSTEM, PRIVATE, GLUE, GENERATED, TAIL = 1024, 512, 16, 128, 5
HOPS, REQUESTS = 4, 68
PAGE, LAYERS = 16, 32
RECOMPUTE = ("droidspeak", "cacheblend", "relaycaching")

FAMILIES = ("nonshared", "fullshared", *RECOMPUTE, "graphflow", "kvcomm", "kvcmas")


def prompt_tokens(hop: int, shared: int) -> int:
    """P_i = 1024 + UP + 512 + (16 + GEN) i + 5."""
    return SYSTEM + shared + PRIVATE + (GLUE + GENERATED) * hop + TAIL


def handed_over(hop: int, shared: int) -> int:
    """c_i: 0 on the first hop, UP + GEN i on later ones."""
    return shared + GENERATED * hop if hop else 0


@dataclass(frozen=True)
class Paper:
    """Options: ``shared`` (UP) and ``requests`` in tokens and calls, ``qps`` calls per second."""

    shared: int = 8192
    qps: float = 1.0
    requests: int = REQUESTS
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("shared", 1), ("requests", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise TraceError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 < self.qps < math.inf:
            raise TraceError(f"qps must be positive and finite, got {self.qps}")
        if math.isinf((self.requests - 1) / self.qps):
            raise TraceError(f"qps must be larger, got {self.qps}: calls would arrive at no finite time")

    def trace(self) -> Trace:
        requests = []
        for k in range(self.requests):
            stream, hop = divmod(k, HOPS)
            total, cached = prompt_tokens(hop, self.shared), handed_over(hop, self.shared)
            name = f"stream:{stream}"
            pieces = [Piece("shared", name, 0, cached)] if cached else []
            pieces.append(Piece("private", name, cached, total - cached))
            requests.append(Request(str(k), stream, hop, f"agent{hop}", k / self.qps, tuple(pieces), 1))
        return Trace(tuple(requests), self.seed, {"generator": "paper", **asdict(self)})


def runs_dense(k: int, share: float) -> bool:
    """Whether request ``k`` of a delta method is charged in full: 0, then wherever floor(k share) steps up."""
    if share <= 0:
        return False
    return k == 0 or math.floor(k * share) != math.floor((k - 1) * share)


def recomputed(family: str, share: float) -> float:
    """Share of the handed-over span that a recompute family is charged: a chosen token spoils its page of 16."""
    band = {"droidspeak": 0.0, "cacheblend": 1 / LAYERS, "relaycaching": 4 / LAYERS}[family]
    if family == "droidspeak":
        return (LAYERS - 1) / LAYERS
    return band + (1 - band) * (1 - (1 - share) ** PAGE)


def prefill_tokens(family: str, shared: int, requests: int = REQUESTS, share: float = 0.2) -> int:
    """Prompt tokens computed over all requests, context-free encodes included, under a prefix cache without limits.

    A hop finds what earlier hops of its stream left there: at most its own prompt, and of a recompute family only what
    lies before the tail that is replaced by new ids. A request that runs dense has ids of its own and leaves nothing.

    Args:
        share: p, the dense requests of delta families and the chosen tokens of recompute families.

    Raises:
        ValueError: for a family that the script does not know.
    """
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}")
    delta = family in ("graphflow", "kvcomm", "kvcmas")
    total, left = 0, dict[int, int]()
    for k in range(requests):
        stream, hop = divmod(k, HOPS)
        prompt, replaced = prompt_tokens(hop, shared), 0
        if family in RECOMPUTE:
            replaced = round(recomputed(family, share) * handed_over(hop, shared))
        if family == "nonshared" or (delta and runs_dense(k, share)):
            total += prompt
        else:
            clean = prompt - replaced
            found = min(clean, left.get(stream, 0)) // PAGE * PAGE
            total += prompt - found
            left[stream] = max(clean, left.get(stream, 0))
        if delta and family != "kvcmas" and hop == 0:
            total += shared
    return total
