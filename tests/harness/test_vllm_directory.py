"""The scheduler side of the vLLM connector, which needs no vLLM: matches, gaps, orders, verdicts, ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.backends.vllm_call import KEY, Call, Encode, Keep, Piece, params, parse
from harness.backends.vllm_directory import Directory
from harness.backends.vllm_orders import Forget, Learned, Load, Observe, Plan, Report, Route, Verdict, merged

IDS = list(range(100))
PIECES = (Piece(20), Piece(50, "question", "user", 0, 0), Piece(10), Piece(15, "output:0", "a", 0, 0), Piece(5))
SPANS = ((20, 70), (80, 95))


def call(hop: int = 1, **more: Any) -> Call:
    return Call("t", hop, "critic", PIECES, (Keep("question", 20, 70),), **more)


def arrived(directory: Directory, name: str = "r", found: Any = None, salted: bool = True) -> None:
    directory.arrive(name, params(call()) if found is None else found, IDS, salted)


def step(directory: Directory, *scheduled: tuple[str, int, int]) -> list[Any]:
    return directory.orders(scheduled, lambda name: [7, 8, 9])


def decided(directory: Directory, verdict: Verdict, name: str = "r") -> None:
    """The request is planned, and the workers say what came of it."""
    assert directory.match(name, 0) is None
    assert [type(o) for o in step(directory)] == [Plan]
    directory.report(Report({name: verdict}))


@pytest.mark.parametrize(
    ("ranges", "local", "external"),
    [
        (((0, 95),), 0, 95),
        (((0, 95),), 64, 31),
        (SPANS, 0, 0),
        (SPANS, 32, 38),
        (SPANS, 70, 0),
        (SPANS, 96, 0),
        ((), 0, 0),
    ],
)
def test_what_follows_the_local_hit_is_external(ranges: Any, local: int, external: int) -> None:
    directory = Directory(gaps=False)
    arrived(directory)
    decided(directory, Verdict(Route.reuse, ranges))
    assert directory.match("r", local) == external
    directory.granted("r", external)
    orders = step(directory, ("r", local + external, 100 - local - external))
    assert orders == ([Load("r", (local, local + external), (7, 8, 9))] if external else [])
    assert directory.entries["r"].computed == 100 - local - external
    assert directory.entries["r"].reused == external


def test_a_gap_is_entered_at_its_beginning_and_left_at_its_end() -> None:
    directory = Directory(gaps=True)
    arrived(directory)
    decided(directory, Verdict(Route.reuse, SPANS))
    assert directory.match("r", 0) == 0
    directory.granted("r", 0)
    assert directory.room("r", 0) == 20
    assert step(directory, ("r", 0, 20)) == []
    assert directory.skip("r", 20) == 70
    assert directory.room("r", 70) == 10
    assert step(directory, ("r", 70, 10)) == [Load("r", (20, 70), (7, 8, 9))]
    assert directory.skip("r", 80) == 95
    assert directory.room("r", 95) is None
    assert step(directory, ("r", 95, 5)) == [Load("r", (80, 95), (7, 8, 9))]
    entry = directory.entries["r"]
    assert (entry.computed, entry.reused, entry.route) == (35, 65, "reuse")


def test_without_gaps_nothing_is_skipped() -> None:
    directory = Directory(gaps=False)
    arrived(directory)
    decided(directory, Verdict(Route.reuse, SPANS))
    assert directory.skip("r", 20) is None
    assert directory.room("r", 0) is None


def test_a_gap_that_is_not_scheduled_from_its_end_is_forgotten() -> None:
    """The request was preempted between the skip and its step."""
    directory = Directory(gaps=True)
    arrived(directory)
    decided(directory, Verdict(Route.reuse, SPANS))
    directory.granted("r", 0)
    step(directory, ("r", 0, 20))
    assert directory.skip("r", 20) == 70
    directory.granted("r", 0)
    assert step(directory, ("r", 0, 20)) == []


def test_a_load_that_failed_is_not_tried_again() -> None:
    directory = Directory(gaps=True)
    arrived(directory)
    decided(directory, Verdict(Route.reuse, SPANS))
    directory.granted("r", 0)
    step(directory, ("r", 0, 20))
    directory.skip("r", 20)
    step(directory, ("r", 70, 10))
    directory.report(Report(failed={"r": "gone"}))
    assert directory.skip("r", 20) is None
    step(directory, ("r", 16, 84))
    entry = directory.entries["r"]
    assert (entry.computed, entry.reused, entry.exact, entry.route) == (100, 0, True, "dense")


@pytest.mark.parametrize(
    ("route", "salted", "used"),
    [(Route.reuse, True, True), (Route.reuse, False, False), (Route.exact, False, True), (Route.dense, True, False)],
)
def test_approximate_rows_need_a_salt(route: Route, salted: bool, used: bool) -> None:
    directory = Directory(gaps=False)
    arrived(directory, salted=salted)
    decided(directory, Verdict(route, ((0, 95),) if route is not Route.dense else ()))
    assert directory.match("r", 0) == (95 if used else 0)
    assert bool(directory.entries["r"].failure) == (route is Route.reuse and not salted)


def test_a_reader_waits_for_its_source() -> None:
    directory = Directory(gaps=False)
    source = Call("t", 0, "solver", (Piece(100),))
    directory.arrive("s", params(source), IDS, True)
    arrived(directory)
    assert directory.match("r", 0) is None
    assert step(directory) == []
    directory.abort("s")
    assert directory.match("r", 0) is None
    assert [type(o) for o in step(directory)] == [Forget, Plan]


def test_an_end_orders_an_observation_and_a_second_call_is_refused() -> None:
    directory = Directory(gaps=False)
    arrived(directory)
    decided(directory, Verdict(Route.refused, notes={"gate": 0.5}))
    directory.granted("r", 0)
    step(directory, ("r", 0, 100))
    stay, facts = directory.finish("r", [*IDS, 1, 2, 3], 200, [4, 5])
    assert stay
    assert facts[KEY]["route"] == "fallback"
    assert facts[KEY]["notes"] == {"gate": 0.5}
    assert step(directory) == [Observe("r", call(), (*IDS, 1, 2, 3), 100, 102, (4, 5), 100, True)]
    arrived(directory, "again")
    assert "called before" in directory.entries["again"].failure
    directory.report(Report(learned={"r": Learned(0.5, 10, 20)}))
    assert directory.figures.base_bytes == 10
    assert "r" not in directory.entries
    directory.forget("t")
    arrived(directory, "third")
    assert directory.entries["third"].failure == ""


def test_a_plan_that_needs_an_encode_is_asked_again_when_it_is_there() -> None:
    directory = Directory(gaps=False, encodes=True)
    arrived(directory)
    decided(directory, Verdict(needs=(1, 2)))
    assert directory.match("r", 0) is None
    assert step(directory) == []
    assert directory.take_needs() == [("t", (1, 2))]
    assert directory.take_needs() == []
    directory.arrive("e", params(Encode("t")), [1, 2], True)
    assert directory.match("e", 0) == 0
    directory.finish("e", [1, 2, 3], 2, [4])
    assert isinstance(step(directory)[0], Observe)
    directory.report(Report(learned={"e": Learned(0.1)}))
    decided(directory, Verdict(Route.reuse, ((0, 95),)))
    assert directory.match("r", 0) == 95


@pytest.mark.parametrize("abort", [True, False])
def test_an_encode_that_does_not_come_costs_the_reuse(abort: bool) -> None:
    directory = Directory(gaps=False, encodes=abort)
    arrived(directory)
    decided(directory, Verdict(needs=(1, 2)))
    if abort:
        directory.arrive("e", params(Encode("t")), [1, 2], True)
        directory.abort("e")
    assert directory.match("r", 0) == 0
    assert "encode" in directory.entries["r"].failure


def test_ranks_that_disagree_go_dense() -> None:
    reuse, dense = Verdict(Route.reuse, SPANS, 0.1), Verdict(Route.refused, (), 0.3)
    both = Report({"r": reuse}).merge(Report({"r": reuse})).verdicts["r"]
    assert (both.route, both.ranges) == (Route.reuse, SPANS)
    mixed = Report({"r": reuse}).merge(Report({"r": dense})).verdicts["r"]
    assert (mixed.route, mixed.ranges, mixed.match_s) == (Route.dense, (), 0.3)
    assert "disagree" in mixed.failure


@pytest.mark.parametrize("found", [None, {}, {"do_remote_prefill": True}, {KEY: None}])
def test_a_request_that_asks_for_nothing_is_left_alone(found: Any) -> None:
    directory = Directory(gaps=True)
    directory.arrive("r", found, IDS, False)
    assert directory.entries == {}
    assert directory.match("r", 0) == 0
    assert step(directory, ("r", 0, 100)) == []


def test_a_call_survives_json() -> None:
    found = call(last=True, warmup=True)
    assert parse(msgspec.json.decode(msgspec.json.encode(params(found)))) == found


def test_touching_ranges_are_one() -> None:
    assert merged([(5, 5), (10, 20), (0, 4), (20, 30), (3, 6)]) == ((0, 6), (10, 30))
