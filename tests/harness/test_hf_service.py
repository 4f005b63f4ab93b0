"""The transformers engine as a service: the right caches, its own answers, faults that stay with their call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.backends.hf import HF
from harness.backends.hf_facts import LoadedModel, ModelFacts
from harness.backends.hf_run import Decoding
from harness.backends.hf_service import HFService
from harness.records import Route
from harness.service import Answer
from harness.traffic.replay import Outcome, Replay
from methods.base import Dense, Hop, Method, Plan
from methods.dense import DenseMethod
from methods.full_reuse import FullReuse
from methods.kvcmas import KVCMAS
from tests.harness.served import agents_plan, words


@pytest.fixture(scope="module")
def engine(tiny_engine: Callable[..., HF]) -> HF:
    return tiny_engine()


def service(engine: HF, method: Method) -> HFService:
    facts = ModelFacts("tiny", "0", "llama", 4096, 259, 2, 64, 4, 2, 16)
    loaded = LoadedModel(engine.forward.model, None, facts, torch.float32, torch.device("cpu"), ())
    return HFService(engine, loaded, method, 0)


def replayed(found: HFService, warmup: int = 0, **changes: Any) -> list[Outcome]:
    replay = Replay(agents_plan(warmup, qps=1000.0, **changes), words(), found)
    list(replay.warm_up())
    return list(replay.measured())


def answers(outcomes: list[Outcome]) -> dict[str, Answer]:
    return {d.call.id: d.result for o in outcomes for d in o.done if isinstance(d.result, Answer)}


class Watching(DenseMethod):
    """Dense, and looks at every source: layer 0 depends on nothing but the token, so that equal ids are equal rows."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Watching:
        return self

    def bind(self, shape: Any, seed: int) -> None:
        super().bind(shape, seed)
        self.shape, self.seen = shape, list[tuple[int, int]]()

    def plan(self, hop: Hop, engine: Any) -> Plan:
        for placed in hop.prompt.shared():
            for sources in (hop.sources, hop.first):
                if placed.span is not None and placed.span.id in sources:
                    source = sources[placed.span.id]
                    alone, held = (kv.derotated(self.shape.rope) for kv in (engine.encode(placed.span.ids), source.kv))
                    torch.testing.assert_close(held.k[0], alone.k[0], rtol=1e-4, atol=1e-4)
                    torch.testing.assert_close(held.v[0], alone.v[0], rtol=1e-4, atol=1e-4)
                    self.seen.append((source.hop, hop.index))
        return Dense()


def test_sources_are_the_rows_of_the_span(engine: HF) -> None:
    method = Watching()
    outcomes = replayed(service(engine, method), graph="full")
    assert len(answers(outcomes)) == 9
    # Per trajectory: hop 1 reads two spans, hop 2 three, each from upstream and as first held.
    assert len(method.seen) == 3 * 2 * (2 + 3)


def test_dense_answers_are_the_engines_own(engine: HF) -> None:
    outcomes = replayed(service(engine, DenseMethod()))
    for o in outcomes:
        for d in o.done:
            alone = engine.run(d.call.prompt, Dense(), Decoding(d.call.output_tokens))
            assert isinstance(d.result, Answer)
            assert tuple(d.result.output_ids) == alone.output_ids
            assert d.result.fresh_token_layers == sum(alone.fresh_rows)
            times = d.result
            assert d.call.due_s <= times.dispatched_s <= times.started_s < times.first_token_s <= times.ended_s
            assert times.ended_s <= times.learned_s


def test_reuse_computes_private_text_only_and_lets_go_of_caches(engine: HF) -> None:
    found = service(engine, FullReuse())
    outcomes = replayed(found, warmup=1)
    for o in outcomes:
        for d in o.done[1:]:
            assert isinstance(d.result, Answer)
            assert d.result.route is Route.reuse
            private = sum(len(p) for p in d.call.prompt.private())
            assert d.result.fresh_token_layers <= private * found.layers
    assert not found.caches
    assert found.log.held_bytes_peak > 0
    figures = found.figures()
    assert 0 < (figures.busy_share or 0) <= 1
    assert figures.running_max == 1


def test_learned_in_warm_up_and_cold_after_a_reset(engine: HF) -> None:
    found = service(engine, KVCMAS(gate="always"))
    warm = [a.route for a in answers(replayed(found, warmup=1)).values()]
    assert Route.reuse in warm
    assert found.state_bytes().total > 0
    found.reset(1)
    assert found.state_bytes().total == 0
    assert answers(replayed(found))["0/1"].route is Route.fallback  # nobody has taught it anything


def test_a_call_that_raises_is_an_answer_of_its_own(engine: HF) -> None:
    class Broken(DenseMethod):
        def plan(self, hop: Hop, engine: Any) -> Plan:
            if (hop.trajectory, hop.index) == ("1", 1):
                raise MemoryError("no room")
            return Dense()

    outcomes = {o.trajectory.id: o for o in replayed(service(engine, Broken()))}
    assert [f.message for f in outcomes[1].failures] == ["MemoryError: no room"]
    assert outcomes[1].failures[0].out_of_memory
    assert outcomes[1].skipped == (2,)
    assert len(outcomes[0].done) == len(outcomes[2].done) == 3
