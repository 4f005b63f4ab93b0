"""Reuse inside vLLM: exactness of the mechanism, what is computed, chaining, and what plain requests see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from hops import ROLES, dense, hop, play, words
from hydra.utils import instantiate

if TYPE_CHECKING:
    from harness.backends.vllm_engine import Engine, Flight

pytest.importorskip("vllm", reason="vLLM is not installed here; make setup-vllm")

FULL_REUSE = {"_target_": "methods.full_reuse.FullReuse"}
LEARNING = {"_target_": "methods.kvcmas.KVCMAS", "gate": "always", "min_anchors": 1}
# What a second, equal request needs to be corrected exactly.
EXACT = {**LEARNING, "codec": "full", "factor_dtype": "model"}


def kl(reference: Flight, other: Flight) -> float:
    """KL of the first token's distribution over the 20 likeliest tokens, nats."""
    p, q = ({t: x.logprob for t, x in f.logprobs[0].items()} for f in (reference, other))
    return sum(math.exp(p[t]) * (p[t] - q.get(t, min(q.values()))) for t in p)


def prompt_of(flight: Flight, question: Sequence[int], agent: str, output: Sequence[int] = ()) -> list[int]:
    glue = [*words("glue", 11), *output] if output else []
    return [*words(agent, ROLES[agent]), *question, *glue, *words("tail", 9)]


def use(engine: Engine, method: dict[str, Any], seed: int = 0) -> None:
    engine.ask("renew", instantiate(method), seed)


@pytest.mark.parametrize("gaps", [True, False])
def test_an_exact_correction_gives_the_dense_answer(engine: Engine, gaps: bool) -> None:
    """The same request comes again: its own deltas, in full, restore what dense held."""
    engine.directory.gaps = gaps
    use(engine, EXACT)
    question = words("question", 300)
    first = play(engine, "one", question, ["solver", "critic"])
    again = play(engine, "two", question, ["solver", "critic"])
    assert [f.facts["route"] for f in first] == ["dense", "fallback"]
    assert [f.facts["route"] for f in again] == ["dense", "reuse"]
    role, length = ROLES["critic"], first[1].prompt_tokens
    covered = length - 9 - (11 if gaps else 11 + len(again[0].output_ids) - 1)
    assert again[1].facts["reused"] == covered
    assert again[1].facts["computed"] == length - covered
    assert again[1].facts["shared"] == covered - role
    reference = dense(engine, prompt_of(again[1], question, "critic", again[0].output_ids[:-1]))
    assert again[1].output_ids == reference.output_ids
    assert abs(kl(reference, again[1])) < 1e-5


def test_rotation_alone_is_worse_than_the_exact_correction_and_better_than_none(engine: Engine) -> None:
    question, found = words("question", 300), {}
    for mode in ("rotated", "naive"):
        use(engine, {**FULL_REUSE, "mode": mode})
        engine.vllm.reset_prefix_cache()
        chain = play(engine, mode, question, ["solver", "critic"])
        assert chain[1].facts["route"] == "reuse"
        found[mode] = kl(dense(engine, prompt_of(chain[1], question, "critic", chain[0].output_ids[:-1])), chain[1])
    assert 1e-5 < found["rotated"] < found["naive"]


def test_a_gap_computes_the_role_prompt_and_nothing_of_the_span(engine: Engine) -> None:
    use(engine, {**FULL_REUSE, "role_cache": False})
    question = words("question", 333)
    chain = play(engine, "gap", question, ["solver", "critic"])
    output = len(chain[0].output_ids) - 1
    assert chain[1].facts["computed"] == ROLES["critic"] + 11 + 9
    assert chain[1].facts["reused"] == len(question) + output
    engine.directory.gaps = False
    engine.vllm.reset_prefix_cache()
    chain = play(engine, "no gap", question, ["solver", "critic"])
    assert (chain[1].facts["route"], chain[1].facts["computed"]) == ("dense", chain[1].prompt_tokens)


def test_a_gap_is_what_a_declared_beginning_is(engine: Engine) -> None:
    """Contiguous coverage: both ways compute the same rows and give the same logits."""
    use(engine, FULL_REUSE)
    question, found = words("question", 300), []
    for name, gaps in (("warm", True), ("a", False), ("c", True)):
        engine.directory.gaps = gaps
        for index, agent in enumerate(("solver", "critic")):
            flight = hop(engine, name, index, agent, question, last=index == 1)
            engine.run(flight)
        found.append(flight)
    assert found[1].facts["computed"] == found[2].facts["computed"] == 9
    assert abs(kl(found[1], found[2])) < 1e-6
    assert found[1].output_ids == found[2].output_ids


def test_a_chain_of_agents_learns_and_reuses(engine: Engine) -> None:
    use(engine, LEARNING)
    question, agents = words("question", 200), ["solver", "critic", "judge"]
    routes = [[f.facts["route"] for f in play(engine, f"t{i}", question, agents)] for i in range(3)]
    assert routes == [["dense", "fallback", "fallback"], ["dense", "reuse", "reuse"], ["dense", "reuse", "reuse"]]
    assert engine.ask("kept_bytes") == [0], "what a trajectory kept goes with it"
    assert engine.directory.entries == {}
    size = engine.ask("state_bytes")[0]
    assert size.correction > 0


def test_hops_of_many_trajectories_run_in_one_batch(engine: Engine) -> None:
    """What each computes is what it would compute alone."""
    use(engine, {**FULL_REUSE, "role_cache": False})
    questions = [words(f"q{i}", 150 + 40 * i) for i in range(4)]
    alone = [play(engine, f"alone{i}", q, ["solver", "critic"]) for i, q in enumerate(questions)]
    engine.vllm.reset_prefix_cache()
    firsts = [hop(engine, f"t{i}", 0, "solver", q) for i, q in enumerate(questions)]
    plain = engine.send(words("plain", 321), 8)
    engine.run(*firsts, plain)
    seconds = [
        hop(engine, f"t{i}", 1, "critic", q, f.output_ids[:-1], last=True)
        for i, (q, f) in enumerate(zip(questions, firsts, strict=True))
    ]
    engine.run(*seconds)
    for (_, one), other in zip(alone, seconds, strict=True):
        assert one.facts["computed"] == other.facts["computed"]
        assert one.output_ids == other.output_ids
        assert abs(kl(one, other)) < 1e-4


def test_a_hop_waits_for_the_one_it_reads(engine: Engine) -> None:
    """A client that reads a streamed answer sends the next hop before the engine has kept it."""
    use(engine, {**FULL_REUSE, "role_cache": False})
    question = words("question", 200)
    first = hop(engine, "t", 0, "solver", question)
    second = hop(engine, "t", 1, "critic", question, last=True)
    engine.run(first, second)
    assert second.facts["route"] == "reuse"
    assert second.first_token_s > first.ended_s


def test_a_plain_request_finds_nothing_approximate(engine: Engine) -> None:
    use(engine, FULL_REUSE)
    question = words("question", 400)
    before = engine.send(prompt_of(None, question, "critic"), 8)  # type: ignore[arg-type]
    engine.run(before)
    engine.vllm.reset_prefix_cache()
    for name in ("one", "two"):
        for index, agent in enumerate(("solver", "critic")):
            flight = hop(engine, name, index, agent, question, last=index == 1)
            engine.run(flight)
    assert flight.facts["reused"] > 400
    after = engine.send(prompt_of(None, question, "critic"), 8)  # type: ignore[arg-type]
    engine.run(after)
    assert after.output_ids == before.output_ids


def test_reuse_without_a_salt_is_refused(engine: Engine) -> None:
    use(engine, {**FULL_REUSE, "role_cache": False})
    question = words("question", 200)
    engine.run(hop(engine, "t", 0, "solver", question, salt=None))
    second = hop(engine, "t", 1, "critic", question, salt=None, last=True)
    engine.run(second)
    assert (second.facts["route"], second.facts["computed"]) == ("dense", second.prompt_tokens)
    assert "cache_salt" in second.facts["failure"]
    assert second.output_ids == dense(engine, prompt_of(second, question, "critic")).output_ids


def test_an_encode_is_sent_when_a_plan_asks_for_it(engine: Engine) -> None:
    use(engine, {**FULL_REUSE, "mode": "isolated", "role_cache": False})
    chain = play(engine, "t", words("question", 200), ["solver", "critic"])
    assert chain[1].facts["route"] == "reuse"
    assert chain[1].facts["computed"] == ROLES["critic"] + 11 + 9


def test_an_encode_that_nobody_sends_costs_the_reuse(engine: Engine) -> None:
    use(engine, {**FULL_REUSE, "mode": "isolated"})
    engine.directory.encodes = False
    chain = play(engine, "t", words("question", 200), ["solver", "critic"])
    assert (chain[1].facts["route"], chain[1].facts["computed"]) == ("dense", chain[1].prompt_tokens)
    assert "encode" in chain[1].facts["failure"]
