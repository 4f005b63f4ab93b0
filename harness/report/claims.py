"""The paper's numbers beside ours, with a verdict on each.

``reproduced``: measured under the paper's conditions, and its number lies in our 95 % interval or within a tenth of our
value. ``differs``: measured under its conditions, and it does not. ``not comparable``: we have a number, but of another
model, length, machine or sample; which is said. ``calculated``: a formula or a setting of ours, which no run has put
to the test, whatever its distance. ``no run``: the command that would make one is given. Nobody types a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.ladder import Estimate, ladder
from harness.report.collect import Run
from harness.report.exhibit import Block, Placed
from harness.report.quantity import Value, number, quantity_of
from harness.report.ranks import Ranks
from harness.report.relative import left
from harness.report.versus import repeats
from harness.reported import Reported

NEAR = 0.10
LLAMA, LLAVA = "llama31_8b", "llava_ov_7b"
GPUS = {"A100": "A100 80 GB", "A6000": "A6000 48 GB"}


@dataclass(frozen=True)
class Ours:
    """What we have for a reported number: a value, where it comes from, and why it may not be compared; ``measured`` in
    a run, or calculated."""

    value: Value
    source: str
    reasons: tuple[str, ...] = ()
    remark: str = ""
    measured: bool = True


@dataclass(frozen=True)
class Verdict:
    reported: Reported
    verdict: str
    ours: Ours | None
    why: str
    command: str

    @property
    def ratio(self) -> float | None:
        return None if self.ours is None or not self.reported.value else self.ours.value.value / self.reported.value


@dataclass(frozen=True)
class Evidence:
    """All that claims may look at: blocks by the exhibit's name, analyses of ranks."""

    blocks: Mapping[str, Sequence[Block]] = field(default_factory=dict)
    ranks: Sequence[Ranks] = ()

    def placed(self, exhibit: str) -> Iterator[Placed]:
        for block in self.blocks.get(exhibit, ()):
            yield from block.each


def verdicts(reported: Mapping[str, Reported], evidence: Evidence) -> list[Verdict]:
    """One for every reported number, in its order."""
    return [_verdict(number_, evidence) for number_ in reported.values()]


def _verdict(reported: Reported, evidence: Evidence) -> Verdict:
    command, find = CLAIMS.get(reported.id, ("", None))
    if find is None:
        why = "measured on no machine yet, only simulated" if command else "no experiment measures this yet"
        return Verdict(reported, "no run", None, why, command)
    ours = find(evidence, reported)
    if ours is None:
        return Verdict(reported, "no run", None, "no run of this experiment is in the folders", command)
    if ours.reasons:
        return Verdict(reported, "not comparable", ours, "; ".join(ours.reasons), command)
    why = f"{ours.remark}; " if ours.remark else ""
    value, paper = ours.value, reported.value
    inside = value.low is not None and value.high is not None and value.low <= paper <= value.high
    if inside and ours.measured:
        return Verdict(reported, "reproduced", ours, f"{why}inside our interval", command)
    off = abs(value.value - paper) / max(abs(paper), 1e-12)
    verdict = "calculated" if not ours.measured else "reproduced" if off <= NEAR else "differs"
    return Verdict(reported, verdict, ours, f"{why}{100 * off:.0f} % from the paper's number", command)


def _experiment(name: str) -> str:
    return f"python -m harness -m +experiment={name} size=full"


def _conditions(run: Run, model: str = LLAMA, n: int = 0, gpu: str = "", shared: int = 0) -> tuple[str, ...]:
    found = []
    if run.conflict:
        found.append(f"in conflict with {' and '.join(run.conflict)}, which has the same options and other results")
    if run.summary.model != model:
        found.append(f"model {run.summary.model}, the paper's is {model}")
    rows = sum(r.scored for r in run.rows) or run.summary.n
    if n and rows < n:
        found.append(f"{rows} samples of {n}")
    if gpu:
        devices = {g.name for s in run.sessions for g in s.gpus}
        if not any(gpu in device for device in devices):
            found.append(f"on {', '.join(sorted(devices)) or 'a CPU'}, the paper's is an {GPUS[gpu]}")
    if shared and run.option("task.shared_tokens") != shared:
        found.append(f"{run.option('task.shared_tokens')} shared tokens of {shared:,}")
    return tuple(found)


def _best(found: Sequence[tuple[Placed, tuple[str, ...]]]) -> tuple[Placed, tuple[str, ...]] | None:
    """The run with the fewest reasons against it, then the most samples."""
    return min(found, key=lambda f: (len(f[1]), -f[0].run.summary.n, f[0].run.folder), default=None)


def _of(placed: Placed, quantity: str, reasons: tuple[str, ...]) -> Ours | None:
    value = quantity_of(placed.run, quantity)
    return None if value is None else Ours(value, placed.run.folder, reasons)


def _accuracy(task: str, reference: str, model: str, n: int) -> Callable[[Evidence, Reported], Ours | None]:
    def find(evidence: Evidence, _: Reported) -> Ours | None:
        here = [
            (p, _conditions(p.run, model, n)) for p in evidence.placed("reference")
            if p.run.summary.task == task and p.run.option("method.reference") == reference
            and p.run.option("method.gate") != "always"
        ]  # fmt: skip
        best = _best(here)
        return None if best is None else _of(best[0], "accuracy", best[1])

    return find


def _single(method: str, quantity: str, factor: float) -> Callable[[Evidence, Reported], Ours | None]:
    def find(evidence: Evidence, _: Reported) -> Ours | None:
        here = [
            (p, _conditions(p.run, gpu="A6000", shared=32768))
            for p in evidence.placed("shared_length")
            if p.run.method == method and (p.run.option("task.shared_tokens") or 0) >= 1
        ]
        longest = max((p.run.option("task.shared_tokens") for p, _ in here), default=0)
        best = _best([f for f in here if f[0].run.option("task.shared_tokens") == longest])
        found = None if best is None else _of(best[0], quantity, best[1])
        return None if found is None else Ours(found.value.scaled(factor), found.source, found.reasons)

    return find


def _memory_ratio(tokens: int) -> Callable[[Evidence, Reported], Ours | None]:
    def find(_: Evidence, __: Reported) -> Ours | None:
        (step,) = ladder(lengths=(tokens,))
        remark = (
            f"calculated, with pools of 20 and 10 anchors, which the paper does not state; at equal pools "
            f"{step.ratio(10, 10):.2f} (10) and {step.ratio(20, 20):.2f} (20)"
        )
        return Ours(Value(step.ratio(20, 10)), "python -m harness.memory", (), remark, measured=False)

    return find


def _anchor_example(_: Evidence, __: Reported) -> Ours | None:
    size = 20 * Estimate().anchor_bytes(4096, 0) / 2**30
    return Ours(Value(size), "python -m harness.memory", (), "20 anchors of a base and four deltas", measured=False)


def _effective_rank(evidence: Evidence, _: Reported) -> Ours | None:
    best = min(evidence.ranks, key=lambda r: (r.model != LLAMA, -r.requests, r.file), default=None)
    if best is None:
        return None
    reasons = () if best.model == LLAMA else (f"model {best.model}, the paper's are of 7 and 8 billion weights",)
    remark = "components that hold 95 % of the energy, in the layer that needs most"
    return Ours(Value(best.most(0.95)), best.file, (*reasons, "the paper states no definition"), remark)


def _left_outside(evidence: Evidence, _: Reported) -> Ours | None:
    methods = ("cacheblend", "droidspeak", "relaycaching")
    found = [
        (value.value, placed, value)
        for block in evidence.blocks.get("outside", ())
        for placed in block.each
        if placed.run.method in methods and (value := left("kv")(block, placed.run)) is not None
    ]
    if not found:
        return None
    least = min(found, key=lambda f: f[0])
    reasons = _conditions(least[1].run)
    return Ours(least[2], least[1].run.folder, (*reasons, "error left on all span rows, recomputed ones included"))


def _video_reuse(evidence: Evidence, _: Reported) -> Ours | None:
    here = [
        (p, _conditions(p.run, LLAVA, 1296)) for p in evidence.placed("accuracy")
        if p.run.summary.task == "videomme" and p.run.method == "kvcmas"
    ]  # fmt: skip
    best = _best(here)
    found = None if best is None else _of(best[0], "reuse", best[1])
    return None if found is None else Ours(found.value.scaled(0.01), found.source, found.reasons)


def _spread(pick: Callable[[Sequence[float]], float]) -> Callable[[Evidence, Reported], Ours | None]:
    def find(evidence: Evidence, _: Reported) -> Ours | None:
        found = {p.run.folder: (p.run, r) for p in evidence.placed("accuracy")
                 if p.run.method == "kvcmas" and (r := repeats(p.run)) is not None}  # fmt: skip
        if not found:
            return None
        value = pick([r.sd for _, r in found.values()])
        run, spread = next((run, r) for run, r in found.values() if r.sd == value)
        tasks = {run.summary.task for run, _ in found.values()}
        reasons = [*_conditions(run)[:1], *([f"{len(tasks)} benchmarks of 5"] if len(tasks) < 5 else [])]
        return Ours(Value(value), run.folder, tuple(reasons), f"{spread.n} repeats")

    return find


def _samples(task: str) -> Callable[[Evidence, Reported], Ours | None]:
    def find(evidence: Evidence, reported: Reported) -> Ours | None:
        counts = {
            p.run.folder: len({r.sample_id for r in p.run.rows if r.scored})
            for name in evidence.blocks for p in evidence.placed(name) if p.run.summary.task == task
        }  # fmt: skip
        if not counts:
            return None
        folder = max(counts, key=lambda f: (counts[f], f))
        few = (f"a part of the benchmark: {counts[folder]} samples",) if counts[folder] < reported.value else ()
        return Ours(Value(counts[folder]), folder, few)

    return find


def _default(option: str) -> Callable[[Evidence, Reported], Ours | None]:
    def find(evidence: Evidence, _: Reported) -> Ours | None:
        from harness.report.exhibit import _defaults

        value = Value(float(_defaults("method", "kvcmas")[option]))
        return Ours(value, "conf/method/kvcmas.yaml", (), "our default", measured=False)

    return find


CLAIMS: dict[str, tuple[str, Callable[[Evidence, Reported], Ours | None] | None]] = {
    **dict.fromkeys(
        ("serve32k_speedup", "serve32k_vs_graphflow", "chain_ttft_p50", "chain_ttft_p90"),
        ("python -m harness -m +experiment=paper_serving", None)),
    "mem_ratio_2k": ("python -m harness.memory", _memory_ratio(2048)),
    "mem_ratio_8k": ("python -m harness.memory", _memory_ratio(8192)),
    "mem_ratio_32k": ("python -m harness.memory", _memory_ratio(32768)),
    "full_anchor_example": ("python -m harness.memory", _anchor_example),
    "chain_mmlu_on": (f"{_experiment('reference')} task=mmlu", _accuracy("mmlu", "upstream", LLAMA, 1531)),
    "chain_mmlu_off": (f"{_experiment('reference')} task=mmlu", _accuracy("mmlu", "context_free", LLAMA, 1531)),
    "chain_videomme_on": (
        f"{_experiment('reference')} task=videomme model=llava_ov_7b", _accuracy("videomme", "upstream", LLAVA, 1296)),
    "chain_videomme_off": (
        f"{_experiment('reference')} task=videomme model=llava_ov_7b",
        _accuracy("videomme", "context_free", LLAVA, 1296)),
    "single32k_ttft_kvcmas": (_experiment("shared_length"), _single("kvcmas", "ttft", 1e-3)),
    "single32k_tput_kvcmas": (_experiment("shared_length"), _single("kvcmas", "throughput", 1.0)),
    "single32k_ttft_graphflow": (_experiment("shared_length"), _single("graphflow", "ttft", 1e-3)),
    "single32k_tput_graphflow": (_experiment("shared_length"), _single("graphflow", "throughput", 1.0)),
    "acc_std_low": (_experiment("accuracy"), _spread(min)),
    "acc_std_high": (_experiment("accuracy"), _spread(max)),
    "effective_rank": ("python -m harness.analyse rank model=llama31_8b task=gsm8k", _effective_rank),
    "recompute_error_outside": (_experiment("outside"), _left_outside),
    "videomme_reuse_ratio": (_experiment("accuracy"), _video_reuse),
    **{f"n_{task}": (_experiment("accuracy"), _samples(task))
       for task in ("mmlu", "gsm8k", "humaneval", "mathvista", "videomme")},
    "rank_default": ("", _default("rank")),
    "anchors_default": ("", _default("pool")),
}  # fmt: skip


def said(value: Value, unit: str) -> str:
    """Our number in the paper's unit."""
    setting = value.low is None and value.value == int(value.value)  # measured numbers are not whole
    text = f"{value.value:,.0f}" if setting else number(value.value)
    if value.low is not None and value.high is not None:
        text += f" ({number(value.low)}–{number(value.high)})"
    return f"{text} {unit}"
