"""DroidSpeak and RelayCaching over whole trajectories: every graph, labels inside spans, state, resumption."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.backends.hf import HF
from harness.backends.hf_tiny import Tiny
from harness.records import Route
from harness.trajectory import Runner
from harness.workflow import Workflow
from methods.base import Executed, Hop
from methods.dense import DenseMethod
from methods.droidspeak import DroidSpeak
from methods.full_reuse import FullReuse
from methods.relaycaching import RelayCaching
from tests.harness.trajectories import QUESTIONS, ids, run_all, script

FAMILIES = [{"family": "llama", "rope": "llama3"}, {"family": "qwen2", "rope": "yarn"}]
FULL = Workflow("full", "full", max_new_tokens=6)
LOOP = Workflow("loop", "loop", rounds=2, max_new_tokens=6, layout="contiguous")
CHAIN = Workflow("chain", "chain", final_reads="sinks", max_new_tokens=6)


@pytest.fixture(params=FAMILIES, ids=lambda r: f"{r['family']}-{r['rope']}")
def engine(request: pytest.FixtureRequest, tiny_engine: Any) -> HF:
    made: HF = tiny_engine(**request.param)
    return made


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return Tiny().tokenizer()


@pytest.mark.parametrize("workflow", [FULL, LOOP], ids=lambda w: w.name)
@pytest.mark.parametrize("method", [DroidSpeak([0, 3]), RelayCaching(0, 1, 3, tau_inf=0.0)], ids=["group", "relay"])
def test_everything_recomputed_is_dense_token_for_token(
    engine: HF, tokenizer: Any, workflow: Workflow, method: Any
) -> None:
    chat = script(tokenizer, workflow, QUESTIONS[:2])
    truth, found = run_all(DenseMethod(), engine, chat), run_all(method, engine, chat, shadow=True)
    assert ids(found) == ids(truth)
    for hop in (hop for f in found for hop in f.hops[1:]):
        assert hop.route is Route.reuse
        assert max(hop.kv_error_k or [1.0]) < 1e-3
        assert hop.first_token_kl is not None
        assert hop.first_token_kl < 1e-5


@pytest.mark.parametrize("workflow", [FULL, CHAIN, LOOP], ids=lambda w: w.name)
@pytest.mark.parametrize("chained", [True, False])
def test_nothing_recomputed_is_full_reuse(engine: HF, tokenizer: Any, workflow: Workflow, chained: bool) -> None:
    chat = script(tokenizer, workflow, QUESTIONS[:2])
    truth = run_all(FullReuse("rotated"), engine, chat)
    found = run_all(DroidSpeak([], chained=chained), engine, chat)
    relay = run_all(RelayCaching(1, 1, 2, tau_dev=1e9, suffix=0), engine, chat)
    assert ids(relay) == ids(truth)
    assert chained is False or ids(found) == ids(truth)


@pytest.mark.parametrize("workflow", [FULL, LOOP], ids=lambda w: w.name)
def test_span_rows_never_enter_without_a_state(engine: HF, tokenizer: Any, workflow: Workflow) -> None:
    """Labels inside spans, decoded rows and relayed questions all bring one; a missing one would be NaN."""
    chat = script(tokenizer, workflow, QUESTIONS[:2])
    for method in (DroidSpeak([1, 2]), DroidSpeak([2, 3], chained=False), RelayCaching(1, 2, 3), RelayCaching(2, 2, 3)):
        found = run_all(method, engine, chat, shadow=True)
        hops = [hop for f in found for hop in f.hops[1:]]
        assert all(hop.route is Route.reuse for hop in hops)
        assert all(hop.notes["shipped_bytes"] > 0 for hop in hops)
        assert all(hop.first_token_kl is not None and hop.first_token_kl < 10 for hop in hops)
        errors = [hop.kv_error_v or [] for hop in hops]
        assert all(len(e) == 4 and all(x == x for x in e) for e in errors)


def test_chained_and_unchained_give_the_same(engine: HF, tokenizer: Any) -> None:
    """What a reader patches is what the next one recomputes: only the rounding of repeated rotation is left."""
    chat = script(tokenizer, CHAIN, QUESTIONS[:1])
    runs = [run_all(DroidSpeak([1, 2], chained=c), engine, chat, shadow=True)[0].hops for c in (True, False)]
    for chained, unchained in zip(*runs, strict=True):
        assert chained.output_ids == unchained.output_ids
        assert chained.kv_error_v == pytest.approx(unchained.kv_error_v, rel=1e-4, abs=1e-6)
        assert chained.kv_error_k == pytest.approx(unchained.kv_error_k, rel=1e-4, abs=1e-6)
    assert any(a.first_token_kl != b.first_token_kl for a, b in zip(*runs, strict=True))


def test_an_own_state_at_the_entry_layer_is_the_one_that_entered(engine: HF, tokenizer: Any) -> None:
    """Why chained and unchained ship the same states: a reader never computes its own at that layer."""
    seen: list[bool] = []

    class Watching(DroidSpeak):
        def observe(self, hop: Hop, executed: Executed) -> None:
            super().observe(hop, executed)
            for place in hop.prompt.shared():
                if place.span is not None and place.span.id in hop.sources:
                    entered = hop.sources[place.span.id].hidden[1]
                    seen.append(torch.equal(executed.hidden(1, place.start, place.stop), entered))

    run_all(Watching([1, 2]), engine, script(tokenizer, FULL, QUESTIONS[:1]))
    assert seen
    assert all(seen)


@pytest.mark.parametrize("method", [DroidSpeak([1, 2]), RelayCaching(1, 2, 3)], ids=["group", "relay"])
def test_nothing_of_a_request_outlives_it(engine: HF, tokenizer: Any, method: Any) -> None:
    chat = script(tokenizer, FULL)
    run_all(method, engine, chat)
    roles = DenseMethod(prefix_cache=True)
    run_all(roles, engine, chat)
    assert method.state_bytes() == roles.state_bytes()
    assert not getattr(method, "_influence", {})
    snapshot = method.snapshot()
    assert snapshot is not None
    again = type(method)(**{k: v for k, v in vars(method).items() if not k.startswith("_")})
    again.bind(engine.shape, 0)
    again.restore(snapshot)
    case = chat.cases()[0]
    first, second = (Runner(m, engine, chat, frozenset()).run(case) for m in (method, again))
    assert ids([first]) == ids([second])
    assert [h.fresh_token_layers for h in first.hops] == [h.fresh_token_layers for h in second.hops]


def test_more_selected_tokens_cost_more(engine: HF, tokenizer: Any) -> None:
    chat = script(tokenizer, FULL, QUESTIONS[:2])
    shares = []
    for tau in (0.5, 1.5, 3.0):
        found = run_all(RelayCaching(1, 2, 3, tau_dev=tau, suffix=0), engine, chat)
        shares.append(sum(hop.notes["selected_share"] for f in found for hop in f.hops[1:]))
    assert shares[0] > shares[1] > shares[2] > 0
