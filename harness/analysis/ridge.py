"""The expensive part of ``python -m harness.analyse ridge``: hops are recorded once, every method is judged on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from rich.console import Console
from rich.progress import track

from harness import atomic
from harness.analysis.contenders import GATE, RIDGE, ROTATED, Contender, contenders
from harness.analysis.measure import Energies, Interval, at_reuse, rank_correlation, span_rows
from harness.analysis.replay import Recorded, Recorder, ask, teach
from harness.analysis.show import show
from harness.backends.hf import HF, Decoding
from harness.backends.hf_rope import shape_of
from harness.chat import ChatScript
from harness.errors import UserError
from harness.explain import CommandLine
from harness.fidelity import kl_divergence
from harness.profile import Options as Composed
from harness.profile import composed
from harness.script import Case
from harness.tasks.single_stream import SingleStream
from harness.trajectory import Runner
from harness.validate import Parts, build
from harness.workload import check_context
from methods.base import Method, Reuse

if TYPE_CHECKING:
    from harness.analysis.ridge_options import Options

T = TypeVar("T")

ANALYSIS_SCHEMA = 1
EXACT = 1e-6  # nats: a mean KL that is rounding, of which no ratio is worth giving
SHIFTED = 16  # requests of the other task that a fitted method learns at last


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

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.replace(path, msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def analyse(asked: CommandLine, options: Options) -> Analysis:
    """Record, judge, write, show.

    Raises:
        UserError: for anything the user can mend, before weights are loaded.
    """
    from harness.analysis.ridge_options import place

    cfg, names = composed(CommandLine((*asked.overrides, "method=dense")), Composed())
    parts = build(cfg)
    cases, shifted = _cases(parts, asked, options)
    field = list(contenders(options.observed[-1]))
    engine, facts = parts.backend, parts.model.facts()
    check_context(_script(parts, parts.model.tokenizer()), cases, facts.context, names.task)
    loaded = parts.model.load()
    engine.attach(loaded.model, shape_of(loaded.model))
    script = _script(parts, loaded.tokenizer, frozenset(loaded.stop_ids))
    script.steps = script.steps[: options.hops]
    recorder = Recorder()
    recorder.bind(engine.shape, int(cfg.seed))
    runner = Runner(recorder, engine, script, frozenset(loaded.stop_ids))
    by_case: list[list[Recorded]] = []
    for case in _tracked([*cases, *shifted], "running dense"):
        begin = len(recorder.hops)
        runner.run(case)
        by_case.append(recorder.hops[begin:])
    most = options.observed[-1]
    bench = Bench(engine, by_case[:most], by_case[most : len(cases)], by_case[len(cases) :], options)
    for contender in _tracked(field, "judging"):
        bench.judge(contender, contender.method(asked, engine.shape, int(cfg.seed)))
    entropy = Contender(GATE, "method=kvcmas method.gate=entropy method.gate_question=true").method(
        asked, engine.shape, 0
    )
    found = Analysis(
        model=facts.name,
        revision=facts.revision,
        dtype=str(loaded.dtype).removeprefix("torch."),
        task=str(parts.task.name),
        shift=options.shift,
        observed=list(options.observed),
        held_out=options.held_out,
        remaining=bench.remaining,
        downstream=bench.downstream(),
        foreseen=bench.foreseen(entropy),
        gates=bench.gates(entropy),
    )
    path = place(names, options)
    found.write(path)
    show(found, str(path))
    return found


class Bench:
    """Recorded requests, lists of hops each: to learn from, held out, and of another task."""

    def __init__(
        self,
        engine: HF,
        train: list[list[Recorded]],
        held_out: list[list[Recorded]],
        shifted: list[list[Recorded]],
        options: Options,
    ) -> None:
        self.engine, self.train, self.held_out, self.shifted, self.options = engine, train, held_out, shifted, options
        self.remaining: list[Remaining] = []
        self.kl: dict[str, list[float]] = {}
        self.same: dict[str, list[bool]] = {}
        self.expected: list[float] = []
        self.errors: list[float] = []
        self._entropy: list[float] | None = None

    def judge(self, contender: Contender, method: Method) -> None:
        """Teach it request by request; measure at the counts it is asked for."""
        last = self.options.observed[-1]
        for count, hops in enumerate(self.train, 1):
            for hop in hops:
                teach(method, hop, self.engine)
            if count == last or (contender.curve and count in self.options.observed):
                self._measure(contender, method, count, "held_out", 0, self.held_out, final=count == last)
        if self.shifted and contender.curve:
            learn, test = self.shifted[:SHIFTED], self.shifted[SHIFTED:]
            self._measure(contender, method, last, "shift", 0, test)
            for hops in learn:
                for hop in hops:
                    teach(method, hop, self.engine)
            self._measure(contender, method, last, "shift", len(learn), test)

    def _measure(
        self,
        contender: Contender,
        method: Method,
        observed: int,
        data: str,
        learned: int,
        requests: list[list[Recorded]],
        final: bool = False,
    ) -> None:
        before, bytes_ = method.snapshot(), method.state_bytes().total
        totals: dict[str, Energies] = {}
        for recorded in (hop for hops in requests for hop in hops):
            plan, notes = ask(method, recorded, self.engine)
            if not isinstance(plan, Reuse):  # its anchors do not reach: as some methods have it, the hop runs dense
                if final and contender.kl and self.options.kl:
                    self.kl.setdefault(contender.name, []).append(math.nan)
                    self.same.setdefault(contender.name, []).append(True)
                continue
            own: Energies | None = None
            for index, rows in span_rows(plan, recorded).items():
                span = recorded.hop.prompt.placed[index].span
                energies = Energies.of(recorded, index, rows, self.engine.shape.rope)
                kind = "question" if span is not None and span.producer == "user" else "output"
                totals[kind] = totals[kind] + energies if kind in totals else energies
                own = own + energies if own is not None else energies
            if final and contender.name == RIDGE and own is not None:
                self.expected.append(notes.get("gate", math.inf))
                self.errors.append(own.error)
            if final and contender.kl and self.options.kl:
                run = self.engine.run(recorded.hop.prompt, plan, Decoding(1))
                self.kl.setdefault(contender.name, []).append(kl_divergence(recorded.logits, run.logits))
                same = run.output_ids[0] == int(recorded.logits.argmax())
                self.same.setdefault(contender.name, []).append(same)
        for kind, total in totals.items():
            keys, values = total.remaining
            self.remaining.append(
                Remaining(contender.name, observed, data, learned, kind, keys, values, total.error, bytes_)
            )
        if before is not None:  # planning counts as use in some pools
            method.restore(before)

    def downstream(self) -> list[Downstream]:
        found = []
        for name, every in self.kl.items():
            at = [i for i, kl in enumerate(every) if not math.isnan(kl)]
            if not at:
                continue
            kl, rotated, ridge = ([self.kl[n][i] for i in at] for n in (name, ROTATED, RIDGE))
            mean, same = sum(kl) / len(kl), sum(self.same[name][i] for i in at) / len(at)
            over = Interval.of(ridge, kl) if name != RIDGE and mean > EXACT else None
            found.append(Downstream(name, len(at), mean, same, Interval.of(kl, rotated), over))
        return found

    def foreseen(self, entropy: Method) -> list[Foreseen]:
        kl = self.kl.get(RIDGE, [math.nan] * len(self.errors))
        values = self._entropies(entropy)
        return [
            Foreseen(_finite(a), b, _finite(c), _finite(d))
            for a, b, c, d in zip(self.expected, self.errors, kl, values, strict=True)
        ]

    def gates(self, entropy: Method) -> list[Gate]:
        """The ridge's own, the entropy gate's, and the true error, all ordering the same corrected hops."""
        orders = {"ridge": self.expected, "entropy": self._entropies(entropy), "true error": self.errors}
        kl = self.kl.get(RIDGE, [])
        return [
            Gate(
                name,
                rank_correlation(order, self.errors),
                {f"{s:g}": at_reuse(kl, order, s) for s in (0.25, 0.5, 0.75, 1.0)} if kl else {},
            )
            for name, order in orders.items()
        ]

    def _entropies(self, method: Method) -> list[float]:
        """Values of the entropy gate, with the pool that the training requests leave."""
        if self._entropy is None:
            for hops in self.train:
                for hop in hops:
                    teach(method, hop, self.engine)
            held = [hop for hops in self.held_out for hop in hops]
            self._entropy = [ask(method, hop, self.engine)[1].get("gate", math.nan) for hop in held]
        return self._entropy


def _cases(parts: Parts, asked: CommandLine, options: Options) -> tuple[list[Case], list[Case]]:
    """Cases to learn from and held out; questions of the other task.

    Raises:
        UserError: for a task without agents, another backend, or data that is too short.
    """
    if not isinstance(parts.backend, HF):
        raise UserError("backend: an analysis runs in the transformers engine; backend=hf")
    if isinstance(parts.task, SingleStream):
        raise UserError(f"task={parts.task.name}: an analysis needs roles and questions; choose a benchmark")
    needed = options.observed[-1] + options.held_out
    tokenizer = parts.model.tokenizer()
    cases = _script(parts, tokenizer).cases()
    if len(cases) < needed:
        raise UserError(
            f"observed={options.observed[-1]} held_out={options.held_out}: {needed} samples are needed, task="
            f"{parts.task.name} has {len(cases)}; lower them, or give task.source=<path>"
        )
    if options.shift is None:
        return cases[:needed], []
    source = () if options.shift_source is None else (f"task.source={options.shift_source}",)
    kept = [w for w in asked.overrides if w.partition("=")[0] != "task" and not w.startswith("task.")]
    other = build(composed(CommandLine((*kept, f"task={options.shift}", *source, "method=dense")), Composed())[0])
    wanted = SHIFTED + min(options.held_out, 64)
    found = _script(other, tokenizer).cases()[:wanted]
    if len(found) <= SHIFTED:
        raise UserError(f"shift={options.shift}: more than {SHIFTED} samples are needed, its data has {len(found)}")
    # Their answers are nobody's concern: they are judged as if they answered the first sample.
    return cases[:needed], [Case(f"shift-{c.sample_id}", c.question, None, repeat_of=cases[0].sample_id) for c in found]


def _script(parts: Parts, tokenizer: object, stops: frozenset[int] = frozenset()) -> ChatScript:
    return ChatScript(parts.task, parts.task.load().items, parts.workflow, tokenizer, stops)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _tracked(items: Sequence[T], what: str) -> Iterable[T]:
    console = Console(stderr=True)
    return track(items, what, console=console, disable=not console.is_terminal)
