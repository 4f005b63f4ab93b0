"""Methods judged on hops that were recorded: taught request by request, then asked about hops they have not seen."""

from __future__ import annotations

import math

from harness.analysis.contenders import RIDGE, ROTATED, Contender
from harness.analysis.interval import Interval
from harness.analysis.measure import Energies, at_reuse, rank_correlation, span_rows
from harness.analysis.replay import Recorded, ask, teach
from harness.analysis.ridge_file import Downstream, Foreseen, Gate, Remaining
from harness.analysis.ridge_options import Options
from harness.backends.hf import HF
from harness.backends.hf_run import Decoding
from harness.fidelity import kl_divergence
from methods.base import Method, Reuse

EXACT = 1e-6  # nats: a mean KL that is rounding, of which no ratio is worth giving
SHIFTED = 16  # requests of the other task that a fitted method learns at last


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


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
