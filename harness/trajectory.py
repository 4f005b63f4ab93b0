"""Runs one request through its workflow: plan, execute, measure, learn, hand caches on."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec

from harness.backends.hf import HF
from harness.backends.hf_run import Decoding, Run
from harness.clock import Clock
from harness.fidelity import Fidelity, compare
from harness.hop import HopRun, SpanCaches
from harness.lineage import Lineage
from harness.records import HopRecord, MediaRecord, Route, StateSize
from harness.script import Case, Script, Verdict
from harness.workflow import QUESTION, Step
from methods.base import Dense, Hop, Method, Reuse
from methods.segment import Span

EXTRACTION_TOKENS = 128  # as in KVCMAS (7.4)


@dataclass(frozen=True)
class Finished:
    """A request that ran to its end: its hops, the final ids, what they are worth and what was shown; ``seconds`` is
    the time of the hops, without shadow runs, tools and scoring."""

    hops: list[HopRecord]
    final_ids: tuple[int, ...]
    verdict: Verdict
    seconds: float
    media: list[MediaRecord] = field(default_factory=list)


@dataclass(frozen=True)
class Shadow:
    """The dense run of a hop's very prompt, and its TTFT."""

    run: Run
    ttft_s: float


@dataclass
class Runner:
    """Executes requests under one method on one engine.

    Attributes:
        shadow: also run every hop dense on the very same prompt, outside the clock, and compare.
        teacher_forcing: what a hop hands on is what dense would have written there, whatever the method does, so that
            every method sees the same prompts and an error cannot grow through the text. The last answer stays free.
    """

    method: Method
    backend: HF
    script: Script
    stop_ids: frozenset[int]
    shadow: bool = False
    teacher_forcing: bool = False

    @property
    def clock(self) -> Clock:
        return self.backend.clock

    @cached_property
    def lineage(self) -> Lineage:
        return Lineage(self.script.steps, self.script.names)

    def run(self, case: Case) -> Finished:
        """All hops of a request in execution order.

        When a hop raises, the method is left in the middle of the request: go back to a snapshot from before it.
        """
        with self.backend.showing(case.media) as media:  # pixels are the input: they are ready when the clock starts
            return replace(self._run(case), media=media)

    def _run(self, case: Case) -> Finished:
        begin, aside_s = self.clock.now(), 0.0
        spans: dict[str, Span] = {QUESTION: case.question}
        caches, hops, final = SpanCaches(), list[HopRecord](), tuple[int, ...]()
        for step in self.script.steps:
            record, run, spent = self._hop(case, step, spans, caches)
            ended = self.clock.now()
            result = self.script.tool(case, step, run.output_ids)
            if result is not None:
                spans[result.span.id] = result.span
                record = msgspec.structs.replace(record, tool=result.text)
            aside_s += spent + self.clock.now() - ended
            hops.append(record)
            final = run.output_ids
        ended = self.clock.now()
        if (asked := self.script.extraction(final)) is not None:  # serves the score, so that no clock counts it
            said = self.backend.run(asked, Dense(), Decoding(EXTRACTION_TOKENS, self.stop_ids))
            final = self.script.extracted(final, said.output_ids)
        aside_s += self.clock.now() - ended
        self.method.end(case.sample_id)
        seconds = self.clock.now() - begin - aside_s
        return Finished(hops, final, self.script.judge(case, final), seconds)

    def _hop(self, case: Case, step: Step, spans: dict[str, Span], caches: SpanCaches) -> tuple[HopRecord, Run, float]:
        agent, prompt = self.script.names[step.agent], self.script.prompt(step, spans)
        sources, first = (caches.sources(of(step)) for of in (self.lineage.upstream, self.lineage.first))
        hop = Hop(case.sample_id, step.index, agent, prompt, sources, first, case.warmup)
        decoding = Decoding(
            self.script.max_new_tokens(step), frozenset() if self.script.fixed_length() else self.stop_ids
        )
        due = self.clock.now()  # a hop is due when its last source has ended, which is now: hops run in order
        going, before = HopRun(self.method, self.backend, hop), self._seen()
        plan = going.decide()
        paused = self.clock.now()
        shadow = self._shadow(hop, decoding) if self.teacher_forcing and isinstance(plan, Reuse) else None
        if shadow is not None and step.consumed:
            decoding = replace(decoding, forced=shadow.run.output_ids)
        due += (aside := self.clock.now() - paused)
        run = going.execute(decoding)
        seen = {n: v - before[n] for n, v in self._seen().items()} if case.media else {}
        going.learn(run, lambda: self._hand_on(step, hop, run, spans, caches))
        ended = self.clock.now()
        fidelity = None
        if self.shadow or self.teacher_forcing:
            fidelity = self._compare(case, hop, plan, run, decoding, shadow)
        spent = aside + self.clock.now() - ended
        state = self.method.state_bytes()
        record = HopRecord(
            agent=agent,
            index=step.index,
            route=going.route,
            warmup=case.warmup,
            forced=decoding.forced is not None,
            source_hop=not sources and going.route is Route.dense,
            prompt_tokens=len(prompt),
            shared_tokens=sum(len(p) for p in prompt.shared()),
            fresh_token_layers=sum(run.fresh_rows),
            output_tokens=len(run.output_ids),
            output_ids=list(run.output_ids),
            output=self.script.text(run.output_ids),
            ttft_s=run.first_token_at - due,
            e2e_s=ended - due,
            phases=going.phases(run),
            state_bytes=StateSize.of(state.base, state.correction),
            notes={**going.notes(), **seen},
        )
        if fidelity is not None:
            record = msgspec.structs.replace(
                record,
                kv_error_k=fidelity.error_k,
                kv_error_v=fidelity.error_v,
                first_token_kl=fidelity.first_token_kl,
                prefix_match=fidelity.prefix_match,
                answer_agrees=fidelity.answer_agrees,
                shadow_ttft_s=fidelity.ttft_s,
            )
        caches.drop_used(step.index)
        return record, run, spent

    def _seen(self) -> dict[str, float]:
        """Pictures and clips that went through the vision tower so far, and the seconds it took."""
        eye = self.backend.eye
        return {} if eye is None else {"media_encoded": float(eye.encoded), "vision_s": eye.seconds}

    def _hand_on(self, step: Step, hop: Hop, run: Run, spans: dict[str, Span], caches: SpanCaches) -> None:
        """Keep what later hops read: the question's rows as held here, and the output as a new span."""
        held = [(p.span, p.start) for p in hop.prompt.shared() if p.span is not None and p.span.id == QUESTION]
        if step.consumed:
            span = self.script.output(step, run.output_ids)
            spans[span.id] = span
            held.append((span, run.prompt_tokens - self.script.lead(step)))
        for span, start in held:
            if len(span) and (until := self.lineage.read_after(step, span.id)) is not None:
                caches.keep(hop, run, span.id, start, start + len(span), until)

    def _shadow(self, hop: Hop, decoding: Decoding) -> Shadow:
        due = self.clock.now()
        with self.backend.eye.aside() if self.backend.eye else nullcontext():
            run = self.backend.run(hop.prompt, Dense(), decoding)
        return Shadow(run, run.first_token_at - due)

    def _compare(
        self, case: Case, hop: Hop, plan: Dense | Reuse, run: Run, decoding: Decoding, shadow: Shadow | None
    ) -> Fidelity:
        if isinstance(plan, Dense):  # its own shadow: running it again would give the same bits
            shadow = Shadow(run, run.seconds.get("assemble") + run.seconds.get("prefill"))
            return compare(run, shadow.run, [], run.choices, True, shadow.ttft_s)
        dense = shadow or self._shadow(hop, decoding)
        agrees = None  # forced ids are no answer of the method's
        if decoding.forced is None:
            mine, theirs = self.script.predict(case, run.output_ids), self.script.predict(case, dense.run.output_ids)
            agrees = mine == theirs
        # Shared rows only: a role prompt from an exact cache would dilute the error.
        ranges = [(p.start, p.stop) for p in hop.prompt.shared() if p.index in plan.rows]
        return compare(run, dense.run, ranges, run.choices, agrees, dense.ttft_s)
