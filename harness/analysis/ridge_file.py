"""The file of ``python -m harness.analyse ridge``; loads neither torch nor transformers."""

from __future__ import annotations

import msgspec

from harness.analysis.interval import Interval

ANALYSIS_SCHEMA = 1


class Remaining(msgspec.Struct, frozen=True):
    """A method after ``observed`` requests: delta energy that remains on held-out hops, 1 is rotation alone.

    Attributes:
        data: ``held_out``, or ``shift``: the other task, of which ``learned`` requests have been observed too.
        span: kind of span: ``question`` or ``output``.
        state_bytes: all that the method keeps, exact caches of role prompts included.
    """

    method: str
    observed: int
    data: str
    learned: int
    span: str
    keys: float
    values: float
    error: float
    state_bytes: int


class Downstream(msgspec.Struct, frozen=True):
    """KL of the first token against dense (nats), and ratios of means, over the held-out ``hops`` that it reused."""

    method: str
    hops: int
    first_token_kl: float
    same_token: float
    over_rotated: Interval
    ridge_over: Interval | None


class Foreseen(msgspec.Struct, frozen=True):
    """One held-out hop under the ridge: the error its gate expects (None while nothing is known), the true one, KL
    (None if not measured), the entropy gate's value (None if it had nothing to compare)."""

    expected: float | None
    error: float
    first_token_kl: float | None
    entropy: float | None


class Gate(msgspec.Struct, frozen=True):
    """How well a gate orders hops: rank correlation with the true error, mean KL where a share of the hops reuses."""

    gate: str
    rank_correlation: float
    kl_at: dict[str, float]


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    schema: int = ANALYSIS_SCHEMA
    model: str
    revision: str
    dtype: str
    task: str
    shift: str | None
    observed: list[int]
    held_out: int
    remaining: list[Remaining]
    downstream: list[Downstream]
    gates: list[Gate]
    foreseen: list[Foreseen]
