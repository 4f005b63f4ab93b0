"""Under teacher forcing every method sees the prompts of the dense run, and measures on them what is its own."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest

from harness.backends.hf import HF
from harness.backends.hf_run import Decoding
from harness.backends.hf_tiny import Tiny
from harness.records import HopRecord, Route
from harness.trajectory import Finished, Runner
from harness.workflow import Workflow
from methods.base import Dense
from methods.dense import DenseMethod
from methods.epic import Epic
from methods.full_reuse import FullReuse
from methods.kvcmas import KVCMAS
from methods.segment import Private, Prompt
from tests.harness.trajectories import run_all, script

FULL = Workflow("full", "full", max_new_tokens=6)
METHODS = [FullReuse("naive"), Epic(k=2), KVCMAS(gate="always", min_anchors=1), DenseMethod(prefix_cache=True)]


@pytest.fixture(scope="module")
def engine(tiny_engine: Any) -> HF:
    made: HF = tiny_engine(family="llama", rope="llama3")
    return made


@pytest.fixture(scope="module")
def chat() -> Any:
    return script(Tiny().tokenizer(), FULL)


def forced(method: Any, engine: HF, chat: Any, **more: Any) -> list[Finished]:
    method = copy.deepcopy(method)
    method.bind(engine.shape, 0)
    runner = Runner(method, engine, chat, frozenset(), teacher_forcing=True, **more)
    return [runner.run(case) for case in chat.cases()]


def handed_on(finished: list[Finished]) -> list[list[list[int]]]:
    return [[hop.output_ids for hop in f.hops[:-1]] for f in finished]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_agents_read_what_dense_would_have_written(engine: HF, chat: Any, method: Any) -> None:
    truth = run_all(DenseMethod(), engine, chat)
    found = forced(method, engine, chat)
    assert handed_on(found) == handed_on(truth)
    for mine, dense in zip(found, truth, strict=True):
        assert [h.prompt_tokens for h in mine.hops] == [h.prompt_tokens for h in dense.hops]
        assert not mine.hops[-1].forced  # the answer is the method's own
        assert mine.hops[-1].answer_agrees is not None
        for hop in mine.hops:
            assert hop.shadowed
            assert hop.forced == (hop.route is Route.reuse and hop is not mine.hops[-1]) or not hop.kv_error_k
            assert hop.answer_agrees is None or not hop.forced


def test_a_closed_loop_would_have_gone_elsewhere(engine: HF, chat: Any) -> None:
    """Otherwise the test above shows nothing."""
    free = run_all(FullReuse("naive"), engine, chat)
    assert handed_on(free) != handed_on(run_all(DenseMethod(), engine, chat))


def test_a_forced_hop_counts_the_tokens_it_would_have_chosen(engine: HF, chat: Any) -> None:
    """On the first hop that reuses, both modes see the same prompt, so that they part from dense at the same token."""
    closed = run_all(FullReuse("naive"), engine, chat, shadow=True)
    found = forced(FullReuse("naive"), engine, chat)
    mine = [f.hops[1] for f in found]
    assert [h.prefix_match for h in mine] == [f.hops[1].prefix_match for f in closed]
    assert [h.first_token_kl for h in mine] == [f.hops[1].first_token_kl for f in closed]
    assert any((h.prefix_match or 0) < h.output_tokens for h in mine)


@dataclass
class Ticks:
    """A clock that moves by one whenever it is read."""

    time: float = 0.0

    def now(self) -> float:
        self.time += 1.0
        return self.time


def test_the_dense_run_stays_outside_the_clock(engine: HF, chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def hops(teacher_forcing: bool) -> list[HopRecord]:
        method = FullReuse("rotated")
        method.bind(engine.shape, 0)
        runner = Runner(method, engine, chat, frozenset(), shadow=True, teacher_forcing=teacher_forcing)
        return [hop for case in chat.cases() for hop in runner.run(case).hops]

    monkeypatch.setattr(engine, "clock", Ticks())
    for free, tied in zip(hops(False), hops(True), strict=True):
        assert tied.ttft_s == free.ttft_s
        assert tied.e2e_s == free.e2e_s
        assert tied.shadow_ttft_s == free.shadow_ttft_s


def test_choices_are_the_models_own(engine: HF) -> None:
    prompt = Prompt((Private((5, 9, 2, 7)),))
    free = engine.run(prompt, Dense(), Decoding(5))
    assert free.choices == free.output_ids
    other = tuple((i + 1) % 40 for i in free.output_ids)
    tied = engine.run(prompt, Dense(), Decoding(5, forced=other))
    assert tied.output_ids == other
    assert tied.choices[0] == free.output_ids[0]
    with pytest.raises(ValueError, match="forced must hold 1 to 5 ids"):
        Decoding(5, forced=())
