"""What goes wrong ends in the dense answer or in a clear sentence, and nothing hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hops import ROLES, dense, hop, play, words
from hydra.utils import instantiate

from harness.backends.vllm_call import KEY, Call, Keep, Piece

if TYPE_CHECKING:
    from harness.backends.vllm_engine import Engine, Flight

pytest.importorskip("vllm", reason="vLLM is not installed here; make setup-vllm")

QUESTION = words("question", 300)


@pytest.fixture
def reusing(engine: Engine) -> Engine:
    engine.ask("renew", instantiate({"_target_": "methods.full_reuse.FullReuse", "role_cache": False}), 0)
    engine.directory.forget()
    return engine


@contextmanager
def broken(owner: Any, name: str, by: Callable[..., Any]) -> Iterator[None]:
    kept = getattr(owner, name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def worker_of(engine: Engine) -> Any:
    """The only rank's worker, which lives in this process."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group().worker


def fails(*_: Any) -> Any:
    raise RuntimeError("broken on purpose")


def is_dense(engine: Engine, flight: Flight, agent: str = "critic", question: list[int] = QUESTION) -> bool:
    """Whether the answer is what a cold, plain run gives, with every row computed."""
    ids = [*words(agent, ROLES[agent]), *question, *words("tail", 9)]
    plain = dense(engine, ids, len(flight.output_ids))
    return flight.output_ids == plain.output_ids and flight.facts["computed"] == len(ids)


def second(engine: Engine, name: str = "t", **more: Any) -> Flight:
    engine.run(hop(engine, name, 0, "solver", QUESTION))
    return hop(engine, name, 1, "critic", QUESTION, **{"last": True, **more})


def test_without_a_fault_it_reuses(reusing: Engine) -> None:
    flight = second(reusing)
    reusing.run(flight)
    assert flight.facts["reused"] == len(QUESTION)
    assert flight.facts["failure"] == ""


@pytest.mark.parametrize("gaps", [True, False])
def test_a_load_that_fails_is_computed(reusing: Engine, gaps: bool) -> None:
    """The rows are there when the hop is matched, and cannot be written when it runs."""
    engine = reusing
    engine.directory.gaps = gaps
    if not gaps:  # the role prompt must come from a cache for anything to be declared
        engine.ask("renew", instantiate({"_target_": "methods.full_reuse.FullReuse"}), 0)
        play(engine, "warm", QUESTION, ["solver", "critic"])
    worker = worker_of(engine)
    with broken(worker, "_place", fails):
        flight = second(engine)
        engine.run(flight)
    assert "a load failed" in flight.facts["failure"]
    plain = dense(engine, [*words("critic", ROLES["critic"]), *QUESTION, *words("tail", 9)])
    assert flight.output_ids == plain.output_ids
    assert flight.facts["route"] == "dense"
    assert not engine.directory.entries


@pytest.mark.parametrize("hook", ["plan", "observe"])
def test_a_method_that_raises_costs_its_hop_the_reuse(reusing: Engine, hook: str) -> None:
    method = reusing.ask("method")[0]
    with broken(method, hook, fails):
        flight = second(reusing)
        reusing.run(flight)
    if hook == "plan":
        assert is_dense(reusing, flight)
        assert "broken on purpose" in flight.facts["failure"]
    else:
        assert flight.facts["route"] == "reuse"
    assert not reusing.directory.entries


def test_rows_evicted_before_the_plan_run_fresh(reusing: Engine) -> None:
    reusing.run(hop(reusing, "t", 0, "solver", QUESTION))
    reusing.ask("end", "t")
    flight = hop(reusing, "t", 1, "critic", QUESTION, last=True)
    reusing.run(flight)
    assert is_dense(reusing, flight)


def test_a_store_that_is_full_ends_the_trajectory_idle_longest(reusing: Engine) -> None:
    worker = worker_of(reusing)
    before, worker.limit_open = worker.limit_open, 2
    try:
        for name in ("a", "b", "c"):
            reusing.run(hop(reusing, name, 0, "solver", QUESTION))
        assert set(worker.open) == {"b", "c"}
        flights = [hop(reusing, name, 1, "critic", QUESTION, last=True) for name in ("c", "a")]
        reusing.run(*flights)
    finally:
        worker.limit_open = before
    assert [f.facts["route"] for f in flights] == ["reuse", "dense"]


def test_other_tokens_than_the_source_holds_run_fresh(reusing: Engine) -> None:
    other = words("another question", 300)
    reusing.run(hop(reusing, "t", 0, "solver", QUESTION))
    flight = hop(reusing, "t", 1, "critic", other, last=True)
    reusing.run(flight)
    assert is_dense(reusing, flight, question=other)


def test_a_role_prompt_never_seen_before_is_computed(reusing: Engine) -> None:
    reusing.directory.gaps = False
    flight = second(reusing)
    reusing.run(flight)
    assert is_dense(reusing, flight)


def test_a_span_longer_than_the_context_is_refused_at_once(reusing: Engine) -> None:
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError, match="2048"):
        hop(reusing, "t", 0, "solver", words("long", 3000))
    flight = second(reusing)
    reusing.run(flight)
    assert flight.facts["route"] == "reuse"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: replace_(c, pieces=(Piece(5),)), "pieces hold 5 tokens"),
        (lambda c: replace_(c, keeps=(Keep("x", 100000),)), "do not begin in the prompt"),
        (lambda c: replace_(c, hop=0, pieces=tuple(sourced(p) for p in c.pieces)), "earlier hop"),
    ],
)
def test_a_malformed_call_runs_dense_and_says_why(reusing: Engine, change: Any, says: str) -> None:
    ids = [*words("critic", ROLES["critic"]), *QUESTION, *words("tail", 9)]
    pieces = (Piece(ROLES["critic"]), Piece(len(QUESTION), "question", "user"), Piece(9))
    flight = reusing.send(ids, 8, request=change(Call("t", 0, "critic", pieces)), salt="x")
    reusing.run(flight)
    assert says in flight.facts["failure"]
    assert flight.output_ids == dense(reusing, ids).output_ids
    assert not reusing.directory.entries


def replace_(call: Call, **fields: Any) -> Call:
    return msgspec.structs.replace(call, **fields)


def sourced(piece: Piece) -> Piece:
    return msgspec.structs.replace(piece, source=3) if piece.span else piece


def test_fields_that_do_not_exist_are_no_reuse(reusing: Engine) -> None:
    from vllm import SamplingParams

    ids = [*words("critic", ROLES["critic"]), *QUESTION, *words("tail", 9)]
    found = {"kv_transfer_params": {KEY: {"kind": "hop", "trajectroy": "t"}}}
    reusing.directory.arrive("direct", found["kv_transfer_params"], ids, True)
    assert reusing.directory.match("direct", 0) == 0
    assert "not understood" in reusing.directory.entries["direct"].failure
    reusing.directory.abort("direct")
    sampling = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False, extra_args=found)
    reusing.vllm.add_request("mistyped", {"prompt_token_ids": ids}, sampling)
    out: tuple[int, ...] = ()
    while reusing.busy:
        for output in reusing.vllm.step():
            out = tuple(output.outputs[0].token_ids)
    assert out == dense(reusing, ids).output_ids


def test_a_hop_called_twice_runs_dense_the_second_time(reusing: Engine) -> None:
    first = second(reusing, last=False)
    again = hop(reusing, "t", 1, "critic", QUESTION, salt="again")
    reusing.run(first, again)
    assert first.facts["route"] == "reuse"
    assert is_dense(reusing, again)
    assert "called before" in again.facts["failure"]
    reusing.ask("end", "t")


def test_an_aborted_hop_can_be_called_again(reusing: Engine) -> None:
    """Aborted while it is planned, then while it decodes; nothing of it stays."""
    reusing.run(hop(reusing, "t", 0, "solver", QUESTION))
    reusing.abort(hop(reusing, "t", 1, "critic", QUESTION))
    reusing.drain()
    decoding = hop(reusing, "t", 1, "critic", QUESTION, tokens=200)
    while decoding.first_token_s is None:
        reusing.step()
    reusing.abort(decoding)
    reusing.drain()
    assert not reusing.directory.entries
    flight = hop(reusing, "t", 1, "critic", QUESTION, salt="third", last=True)
    reusing.run(flight)
    assert flight.facts["route"] == "reuse"
    assert reusing.ask("kept_bytes") == [0]


def test_an_aborted_source_does_not_hold_up_its_reader(reusing: Engine) -> None:
    source = hop(reusing, "t", 0, "solver", QUESTION, tokens=400)
    reader = hop(reusing, "t", 1, "critic", QUESTION, last=True)
    for _ in range(4):
        reusing.step()
    assert reader.first_token_s is None
    reusing.abort(source)
    reusing.run(reader)
    assert is_dense(reusing, reader)


def test_too_little_room_preempts_and_loads_again(reusing: Engine) -> None:
    """More rows than blocks: hops lose their cache while they decode, and their reused rows are written again."""
    expected = {}
    for name in ("a", "b", "c"):
        reusing.run(hop(reusing, name, 0, "solver", QUESTION))
        flight = hop(reusing, name, 1, "critic", QUESTION, tokens=150, salt=f"alone {name}")
        reusing.run(flight)
        expected[name] = flight.output_ids
        reusing.ask("end", name)
    reusing.vllm.reset_prefix_cache()
    reusing.directory.forget()
    manager = reusing._core.scheduler.kv_cache_manager
    taken = manager.block_pool.get_new_blocks(manager.block_pool.get_num_free_blocks() - 10)
    try:
        for name in expected:
            reusing.run(hop(reusing, name, 0, "solver", QUESTION))
        flights = {
            name: hop(reusing, name, 1, "critic", QUESTION, tokens=150, salt=f"beside {name}", last=True)
            for name in expected
        }
        reusing.run(*flights.values())
    finally:
        manager.block_pool.free_blocks(taken)
    assert {name: f.output_ids for name, f in flights.items()} == expected
    assert all(f.facts["route"] == "reuse" for f in flights.values())


def test_prompt_logprobs_bypass_reuse(reusing: Engine) -> None:
    """vLLM computes every row of such a request, whatever the connector has."""
    from vllm import SamplingParams

    flight = second(reusing)
    reusing.run(flight)
    assert flight.facts["route"] == "reuse"
    reusing.run(hop(reusing, "p", 0, "solver", QUESTION))
    ids = [*words("critic", ROLES["critic"]), *QUESTION, *words("tail", 9)]
    pieces = (Piece(ROLES["critic"]), Piece(len(QUESTION), "question", "user", 0, 0), Piece(9))
    from harness.backends.vllm_call import params

    sampling = SamplingParams(
        temperature=0.0,
        max_tokens=1,
        prompt_logprobs=1,
        detokenize=False,
        extra_args={"kv_transfer_params": params(Call("p", 1, "critic", pieces, last=True))},
    )
    reusing.vllm.add_request("judged", {"prompt_token_ids": ids, "cache_salt": "judged"}, sampling)
    facts: Any = None
    while reusing.busy:
        for output in reusing.vllm.step():
            facts = (output.kv_transfer_params or {}).get(KEY) or facts
    assert facts["computed"] == len(ids)
    assert facts["route"] == "dense"
