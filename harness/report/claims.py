"""What there is for each of the paper's numbers, where it comes from, and why it may not be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from harness.ladder import Estimate, ladder
from harness.report.belonging import defaults
from harness.report.block import Placed
from harness.report.evidence import Evidence, Ours
from harness.report.quantity import quantity_of
from harness.report.relative import left
from harness.report.run import Run
from harness.report.value import Value
from harness.report.versus import repeats
from harness.reported import Reported

LLAMA, LLAVA = "llama31_8b", "llava_ov_7b"

GPUS = {"A100": "A100 80 GB", "A6000": "A6000 48 GB"}


def _experiment(name: str) -> str:
    return f"python -m harness -m +experiment={name} size=full"


def _conditions(run: Run, model: str = LLAMA, n: int = 0, gpu: str = "", shared: int = 0) -> tuple[str, ...]:
    found = list(_distrust(run))
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


def _distrust(run: Run) -> Iterator[str]:
    """Why nothing can be concluded from its numbers, whatever they are of."""
    if run.conflict:
        yield f"in conflict with {' and '.join(run.conflict)}, which has the same options and other results"
    yield from run.doubts


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
            for name in evidence.blocks for p in evidence.placed(name)
            if p.run.summary.task == task and not p.run.doubts
        }  # fmt: skip
        if not counts:
            return None
        folder = max(counts, key=lambda f: (counts[f], f))
        few = (f"a part of the benchmark: {counts[folder]} samples",) if counts[folder] < reported.value else ()
        return Ours(Value(counts[folder]), folder, few)

    return find


def _default(option: str) -> Callable[[Evidence, Reported], Ours | None]:
    def find(evidence: Evidence, _: Reported) -> Ours | None:
        value = Value(float(defaults("method", "kvcmas")[option]))
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
