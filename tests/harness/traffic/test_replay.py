"""When calls are due, what happens when one fails, and what the rows say of it."""

from __future__ import annotations

import math

import pytest

from harness.records import Route, Row, Status
from harness.serving import Repeat
from harness.traffic.measure import serving
from harness.traffic.plan import plan
from harness.traffic.replay import Outcome, Replay
from harness.traffic.rows import row, wrong_length
from tests.harness.served import Scripted, agents_plan, words
from traces.schema import Piece, Request, Trace


def ran(service: Scripted, warmup: int = 0, **changes: object) -> list[Outcome]:
    replay = Replay(agents_plan(warmup, **changes), words(), service)
    list(replay.warm_up())
    return list(replay.measured())


def rows(service: Scripted, **changes: object) -> list[Row]:
    return [row(outcome, 0, service, lambda ids: "text") for outcome in ran(service, **changes)]


def test_a_call_is_due_when_its_last_source_has_ended() -> None:
    service = Scripted(seconds=0.25)
    for outcome in ran(service):
        ends = {d.call.id: d.result.ended_s for d in outcome.done}
        for d, c in zip(outcome.done, outcome.trajectory.calls, strict=True):
            sources = [ends[name] for name in c.request.after]
            assert d.call.due_s == max([outcome.arrival_s, *sources])
    assert sorted(service.ended) == ["0", "1", "2"]


def test_load_is_open() -> None:
    """Trajectories arrive when they do, however far behind the service is; latency then counts the backlog."""
    slow = rows(Scripted(seconds=10.0))
    arrivals = sorted(r.hops[0].timing.due_s for r in slow if r.hops[0].timing)
    assert arrivals == pytest.approx([0.0, 1.0, 2.0])
    assert max(r.e2e_s for r in slow) == pytest.approx(9 * 10.0 - 2.0)
    assert all(h.ttft_s >= 5.0 for r in slow for h in r.hops)


def test_calls_due_at_once_go_by_due_time() -> None:
    service = Scripted(seconds=3.0)
    ran(service)
    order = [call.id for call in service.calls]
    assert order[0] == "0/0"
    assert order.index("1/0") < order.index("0/1")  # due at 1 s and at 3 s


def test_warm_up_comes_before_the_clock_and_one_after_another() -> None:
    service = Scripted(seconds=1.0)
    found = ran(service, warmup=1)
    assert [call.warmup for call in service.calls[:3]] == [True] * 3
    assert not any(call.warmup for call in service.calls[3:])
    assert min(d.call.due_s for o in found for d in o.done) == 0.0
    assert {o.trajectory.id for o in found} == {1, 2}


def test_warm_up_waits_for_no_arrival() -> None:
    requests = [Request(f"r{k}", 0, k, "a", 100.0 * k, (Piece("private", "x", 0, 3),), 1) for k in range(3)]
    last = Request("end", 1, 0, "a", 500.0, (Piece("private", "x", 0, 3),), 1)
    service = Scripted(seconds=1.0)
    replay = Replay(plan(Trace((*requests, last)), 1, None), words(), service)
    list(replay.warm_up())
    assert service.now() == 3.0


def test_a_failed_call_ends_its_trajectory_and_no_other() -> None:
    service = Scripted(broken=frozenset({"1/1"}))
    found = {r.sample_id: r for r in rows(service)}
    assert found["0"].status is found["2"].status is Status.ok
    assert found["1"].status is Status.error
    assert found["1"].message == "hop 1: ValueError: broken; hops 2 were not run"
    assert [h.index for h in found["1"].hops] == [0]
    assert sorted(service.ended) == ["0", "1", "2"]
    assert not [call for call in service.calls if call.id == "1/2"]


def test_whoever_waits_for_a_failed_call_of_another_trajectory_is_not_run() -> None:
    piece = (Piece("private", "x", 0, 3),)
    trace = Trace(
        (
            Request("a", 0, 0, "a", 0.0, piece, 1),
            Request("b", 1, 0, "a", 0.0, piece, 1, after=("a",)),
            Request("c", 2, 0, "a", 0.0, piece, 1),
        )
    )
    for warmup in (0, 1):
        service = Scripted(broken=frozenset({"a"}))
        replay = Replay(plan(trace, warmup, None), words(), service)
        list(replay.warm_up())
        found = {r.sample_id: r for r in (row(o, 0, service, lambda ids: "text") for o in replay.measured())}
        assert found["1"].status is Status.error
        assert "a call that it waits for failed" in found["1"].message
        assert found["2"].status is Status.ok


def test_another_length_is_no_result() -> None:
    service = Scripted(short=frozenset({"0/2"}))
    outcomes = ran(service)
    assert sum(wrong_length(d) for o in outcomes for d in o.done) == 1
    found = {r.sample_id: r for r in (row(o, 0, service, lambda ids: "text") for o in outcomes)}
    assert found["0"].message == "hop 2 generated 4 tokens, the trace fixes 5"
    assert not found["0"].completed


def test_a_service_that_works_on_nothing_is_found_out() -> None:
    class Stuck(Scripted):
        def advance(self, until_s: float) -> tuple[()]:
            self.clock_s = max(self.clock_s, until_s if until_s < math.inf else 0.0)
            return ()

    with pytest.raises(RuntimeError, match="works on none of the"):
        ran(Stuck())


def _summed(found: list[Row], slo: float = 1.0) -> object:
    engine = Scripted().figures()
    repeat = Repeat(
        repeat=0, rows=len(found), warmup_calls=0, warmup_failed=0, warmup_s=0.0, wrong_lengths=0, engine=engine
    )
    return serving(
        found, [repeat], layers=2, slo_ttft_s=slo, trace="agents", engine="scripted", warmup_trajectories=0,
        simulated=True,
    )  # fmt: skip


def test_metrics_of_a_trace() -> None:
    found = rows(Scripted(seconds=0.125))  # never busy: each hop takes 1/8 s, its first token 1/16 s
    s = _summed(found)
    assert s.ttft_s.n == 9
    assert s.ttft_s.p10 == s.ttft_s.p99 == s.ttft_trajectory_s.mean == pytest.approx(1 / 16)
    assert s.ttft_first_s.n == 3
    assert s.ttft_downstream_s.n == s.ttft_reuse_s.n == 6
    assert s.trajectory_s.p50 == pytest.approx(3 / 8)
    assert s.offered_calls_s == pytest.approx(3.0)
    assert s.queued_s.p99 == s.late_s.p99 == 0.0
    assert s.drain_s == pytest.approx(3 / 8)
    assert s.goodput.share == 1.0
    assert s.goodput.trajectories_s == pytest.approx(3 / (2 + 3 / 8))
    prompts = sum(h.prompt_tokens for r in found for h in r.hops)
    fresh = sum(h.prompt_tokens for r in found for h in r.hops if h.route is Route.dense) + 6 * 10
    assert s.tokens_s.computed == pytest.approx(fresh / (2 + 3 / 8))
    assert s.tokens_s.reused == pytest.approx((prompts - fresh) / (2 + 3 / 8))


def test_goodput_counts_failures_and_the_slowest_hop() -> None:
    found = rows(Scripted(seconds=0.125, broken=frozenset({"1/2"})))
    assert _summed(found, slo=1.0).goodput.share == pytest.approx(2 / 3)
    assert _summed(found, slo=0.05).goodput.share == 0.0
    assert _summed(found).failed == 1


def test_intervals_resample_trajectories() -> None:
    """Hops of one trajectory stay together: with all variance between trajectories the interval spans them."""
    found = rows(Scripted(seconds=5.0), agents=3)
    s = _summed(found)
    low, high = s.ttft_trajectory_s.mean_ci95
    means = sorted(sum(h.ttft_s for h in r.hops) / 3 for r in found)
    assert means[0] <= low < s.ttft_trajectory_s.mean < high <= means[-1]
    assert s == _summed(found)  # a fixed seed
