"""What a finished run says about itself. ``harness.metrics`` computes it; None stands for "no such value here"."""

from __future__ import annotations

import msgspec

from harness.provenance import Git
from harness.records import Phases, StateSize, Status
from harness.serving import Serving


class Latency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mean and linearly interpolated percentiles of ``n`` durations, seconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    n: int


class HopTtft(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TTFT of the hops at one position of the execution order, by the route they took."""

    index: int
    all: Latency
    dense: Latency | None
    reuse: Latency | None
    fallback: Latency | None


class RouteTtft(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TTFT by route. ``source`` hops, which have nothing to reuse, are kept apart from the other ``dense`` ones;
    ``downstream`` is everything but them; ``shadow`` is the dense prefill of the prompts of ``reuse``."""

    source: Latency | None
    dense: Latency | None
    reuse: Latency | None
    fallback: Latency | None
    downstream: Latency | None
    shadow: Latency | None


class Throughput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens per second of hop end-to-end time: generated, prefilled by computation, prefilled by reuse."""

    output: float
    computed: float
    reused: float


class HopCounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hops by route, warm-up apart. ``source`` hops are among the dense ones."""

    dense: int
    reuse: int
    fallback: int
    source: int
    warmup: int


class Fidelity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Means over the ``n`` shadowed reuse hops, against a dense run of the very same prompt. ``answer_agrees`` is a
    share of the hops whose task extracts an answer, ``prefix_match`` a number of tokens."""

    n: int
    kv_error_k: float | None
    kv_error_v: float | None
    kv_error_k_by_layer: list[float]
    kv_error_v_by_layer: list[float]
    first_token_kl: float
    prefix_match: float
    prefix_share: float
    answer_agrees: float | None


class Speedup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ``n`` shadowed reuse hops save: dense TTFT / reuse TTFT, and what the method adds (matching,
    assembly, encodes) as a share of the dense TTFT."""

    ttft_ratio: float
    correction_share: float
    n: int


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Some of a run's samples by themselves; each field as in :class:`Summary`, TTFT that of downstream hops."""

    n: int
    accuracy: float | None
    reuse_ratio: float | None
    fresh_share: float | None
    ttft_s: Latency | None
    fidelity: Fidelity | None


class Early(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A method that learns, while its pools fill (the first ``limit`` samples of every repeat) and after that."""

    limit: int
    first: Part
    later: Part


class Rescored(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """That the verdicts were made again from the raw answers (``python -m harness.rescore``), the last time.

    Attributes:
        utc, git, command: when, by which code (None outside a repository), and as typed.
        changed: rows whose verdict changed.
        accuracy_before: the accuracy as of then.
    """

    utc: str
    git: Git | None
    command: str
    changed: int
    accuracy_before: float | None


class Summary(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``summary.json``. Its existence means that the run is complete. The formulas are in ``harness.metrics``.

    Attributes:
        n: rows. ``statuses`` says how they ended.
        built_from: what the method was implemented from (code, paper, abstract, control); "" if its YAML does not say.
        glue: what happens to private text after the first shared span (recompute, rotate, delta).
        teacher_forcing: every hop saw what dense would have written, see :class:`harness.config.Config`.
        layers: L of the model.
        early: for a method that reuses, the first samples and the others apart; None if there are no others.
        learn_s: seconds spent learning, warm-up included; never part of a TTFT.
        phases_s: seconds by phase, summed over the hops that are not warm-up.
        peak_bytes: largest memory in use of any sample; state_bytes: what the method held after the last one.
        programs: answers are programs; pass_at_k: by k, for them only.
        verified: whether the method had passed ``python -m harness.verify`` on these weights when the run ended; None
            if nobody had checked.
        rescored: None if the verdicts are those of the run itself.
        serving: of a replayed trace, see :class:`harness.serving.Serving`.
        warnings: what a reader of the numbers has to know, such as that two codes wrote them; a sentence each.
    """

    schema: int
    task: str
    method: str
    model: str
    backend: str
    built_from: str = ""
    glue: str = "recompute"
    teacher_forcing: bool = False
    layers: int
    n: int
    accuracy: float | None
    accuracy_ci95: tuple[float, float] | None
    reuse_ratio: float | None
    fresh_share: float | None
    ttft_s: Latency | None
    ttft_by_hop_s: list[HopTtft]
    ttft_by_route_s: RouteTtft
    e2e_s: Latency | None
    throughput_tokens_s: Throughput | None
    hops: HopCounts
    state_bytes: StateSize | None
    peak_bytes: int | None
    fidelity: Fidelity | None
    speedup: Speedup | None
    statuses: dict[Status, int]
    phases_s: Phases
    learn_s: float
    command: str
    early: Early | None = None
    verified: bool | None = None
    programs: bool = False
    pass_at_k: dict[str, float] | None = None
    rescored: Rescored | None = None
    serving: Serving | None = None
    warnings: list[str] = []
