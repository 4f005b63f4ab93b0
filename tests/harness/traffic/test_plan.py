"""A trace made ready: where caches come from, which rows they are, what prompts hold, what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.errors import UserError
from harness.traffic.plan import Plan, plan
from methods.segment import Prompt
from tests.harness.served import agents_plan, words
from traces.agents import Agents
from traces.paper import HOPS, Paper
from traces.schema import Piece, Request, Trace


def played(planned: Plan) -> dict[str, tuple[Prompt, tuple[int, ...]]]:
    """By request, its prompt and a made-up output, hops in order."""
    outputs: dict[str, Sequence[int]] = {}
    prompts = {}
    for trajectory in planned.trajectories:
        for c in trajectory.calls:
            call = c.call(words(), outputs, 0.0, False)
            outputs[call.id] = tuple(range(1000, 1000 + call.output_tokens))
            prompts[call.id] = call.prompt, tuple(outputs[call.id])
    return prompts


@pytest.mark.parametrize("graph", ["full", "chain", "fan_in", "fan_out", "loop"])
def test_kept_rows_hold_the_tokens_that_readers_want(graph: str) -> None:
    """Every span that a call has a source for is, token for token, in the rows that the source keeps."""
    planned = agents_plan(graph=graph, agents=4, rounds=2 if graph == "loop" else 1)
    prompts, checked = played(planned), 0
    for trajectory in planned.trajectories:
        by_hop = {c.request.hop: c for c in trajectory.calls}
        for c in trajectory.calls:
            call = c.call(words(), {name: output for name, (_, output) in prompts.items()}, 0.0, False)
            for placed in call.prompt.shared():
                assert placed.span is not None
                for sources in (call.upstream, call.first):
                    if (hop := sources.get(placed.span.id)) is None:
                        assert call.index == 0
                        continue
                    prompt, output = prompts[by_hop[hop].request.id]
                    keep = next(k for k in by_hop[hop].keeps if k.span == placed.span.id)
                    assert (*prompt.ids, *output[:-1])[keep.start : keep.stop] == placed.span.ids
                    assert keep.until >= call.index > hop
                    checked += 1
    assert checked > len(prompts)


def test_spans_are_called_by_their_part_in_every_trajectory() -> None:
    planned = agents_plan()
    names = [[[p.span.id for p in prompts.shared() if p.span] for prompts in group] for group in _prompts(planned)]
    assert names[0] == names[1] == names[2]
    assert names[0] == [
        ["question"],
        ["question", "output:agent0:0"],
        ["question", "output:agent0:0", "output:agent1:0"],
    ]


def _prompts(planned: Plan) -> list[list[Prompt]]:
    found = played(planned)
    return [[found[c.request.id][0] for c in t.calls] for t in planned.trajectories]


def test_the_question_comes_from_the_call_before_and_outputs_from_their_producer() -> None:
    last = agents_plan().trajectories[0].calls[2].call(words(), {"0/0": [1] * 5, "0/1": [2] * 5}, 0.0, False)
    assert last.upstream == {"question": 1, "output:agent0:0": 0, "output:agent1:0": 1}
    assert last.first == {"question": 0, "output:agent0:0": 0, "output:agent1:0": 1}
    assert len(last.prompt) == 8 + 20 + 4 + 2 * (2 + 4) + 3  # outputs without their last token


def test_the_papers_trace_hands_over_what_it_says() -> None:
    planned = plan(Paper(shared=64, requests=2 * HOPS).trace(), 0, None)
    for trajectory in planned.trajectories:
        for c in trajectory.calls:
            call = c.call(words(vocab=30_000), {}, 0.0, False)
            assert len(call.prompt) == c.request.prompt_tokens
            assert sum(len(p) for p in call.prompt.shared()) == c.request.shared_tokens
            assert set(call.upstream.values()) == ({call.index - 1} if call.index else set())


def test_warm_up_and_limit() -> None:
    trace = Agents(trajectories=6).trace()
    assert [t.id for t in plan(trace, 2, None).measured] == [2, 3, 4, 5]
    assert [t.id for t in plan(trace, 2, 1).measured] == [2]
    with pytest.raises(UserError, match=r"task\.warmup=6: the trace has 6 trajectories"):
        plan(trace, 6, None)


def _request(name: str, after: tuple[str, ...], piece: Piece, hop: int = 1) -> Request:
    return Request(name, 0, hop, "b", 0.0, (piece,), 3, after)


@pytest.mark.parametrize(
    ("piece", "after", "hop", "says"),
    [
        (Piece("shared", "output:a", 0, 3), (), 1, "reads the output of a without waiting for it"),
        (Piece("shared", "output:a", 1, 3), ("a",), 1, "reads 4 tokens of the output of a, which has 3"),
        (Piece("private", "x", 0, 3), (), 0, "two requests of one hop"),
    ],
)
def test_what_is_not_there_is_not_read(piece: Piece, after: tuple[str, ...], hop: int, says: str) -> None:
    first = Request("a", 0, 0, "a", 0.0, (Piece("private", "x", 0, 4),), 3)
    with pytest.raises(UserError, match=says):
        plan(Trace((first, _request("b", after, piece, hop))), 0, None)
