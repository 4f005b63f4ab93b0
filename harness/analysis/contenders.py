"""Which methods an analysis of the ridge compares, as words of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.command import composed
from harness.explain import CommandLine
from harness.validate import build
from methods.base import Method, Shape

ROTATED, RIDGE = "rotate only", "ridge"
GATE = "kvcmas, entropy gate"
OPEN = "method.tau=inf method.min_requests=0"


@dataclass(frozen=True)
class Contender:
    """A method under one setting.

    Attributes:
        curve: evaluated at every count of observed requests, otherwise at the last one.
        kl: every held-out hop runs under it.
    """

    name: str
    words: str
    curve: bool = False
    kl: bool = False

    def method(self, asked: CommandLine, shape: Shape, seed: int) -> Method:
        """Constructed and bound, beside the words of the run ``asked`` for."""
        cfg, _ = composed(CommandLine((*asked.overrides, *self.words.split())))
        method: Method = build(cfg).method
        method.bind(shape, seed)
        return method


def contenders(most: int) -> Iterator[Contender]:
    """All of them, for at most ``most`` observed requests. Gates are open: every hop is corrected by everybody."""
    yield Contender(ROTATED, "method=full_reuse", kl=True)
    yield Contender(RIDGE, f"method=ridge {OPEN}", curve=True, kl=True)
    always = "method.gate=always"
    yield Contender("kvcmas, 10 anchors", f"method=kvcmas {always}", curve=True, kl=True)
    yield Contender("kvcmas as published", f"+experiment=paper {always}", kl=True)
    yield Contender("kvcomm, 10 anchors", f"method=kvcomm {always} method.pool=10", kl=True)
    for name in ("mean_delta", "nearest_anchor"):
        for pool in sorted({10, most}):
            words = f"method={name} {always} method.pool={pool} method.hot={pool}"
            yield Contender(f"{name}, {pool} anchors", words, kl=pool == most)
    for rank in (16, 32, 64):
        yield Contender(f"oracle_delta, rank {rank}", f"method=oracle_delta method.rank={rank}", kl=rank == 64)
    for option, values in {
        "features": (16, 32, 128), "landmarks": (1, 64, 128, 512), "rank": (16, 32, 128, 512), "caution": (0,),
        "shrink": ("false",), "penalty": (10, 1000), "recompute": (0.05, 0.1),
    }.items():  # fmt: skip
        for value in values:
            words = f"method=ridge {OPEN} method.{option}={value}"
            yield Contender(f"ridge, {option} {value}", words, kl=option == "recompute")
