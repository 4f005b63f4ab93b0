"""Traces: the paper's numbers, prompts that share what they should, arrivals, files that come back, broken ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.workflow import Workflow
from traces import mooncake
from traces.__main__ import main
from traces.agents import Agents
from traces.arrivals import arrivals
from traces.content import HIGH, LOW, ids, prompt
from traces.graph import GRAPHS
from traces.paper import FAMILIES, HOPS, Paper, handed_over, prefill_tokens, prompt_tokens, runs_dense
from traces.schema import Piece, Request, Trace, TraceError


@pytest.mark.parametrize(
    ("shared", "sizes"), [(2048, (3589, 4021)), (8192, (9733, 10165)), (32768, (34309, 34741))], ids=["2K", "8K", "32K"]
)
def test_the_papers_prompts(shared: int, sizes: tuple[int, int]) -> None:
    requests = Paper(shared=shared, qps=4.0).trace().requests
    assert (requests[0].prompt_tokens, requests[3].prompt_tokens) == sizes
    assert len(requests) == 68
    assert [r.arrival_s for r in requests[:5]] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert all(r.output_tokens == 1 and not r.after for r in requests)
    for r in requests:
        assert r.prompt_tokens == prompt_tokens(r.hop, shared) == 1024 + shared + 512 + 144 * r.hop + 5
        assert r.shared_tokens == handed_over(r.hop, shared) == (shared + 128 * r.hop if r.hop else 0)


def test_the_papers_prompts_extend_each_other() -> None:
    trace = Paper(shared=64, requests=2 * HOPS).trace()
    prompts = [prompt(r, trace.seed) for r in trace.requests]
    for k in range(1, HOPS):
        assert np.array_equal(prompts[k][: len(prompts[k - 1])], prompts[k - 1])
    assert not np.array_equal(prompts[0], prompts[HOPS])
    assert all(((p >= LOW) & (p < HIGH)).all() for p in prompts)


def test_the_papers_token_accounting() -> None:
    """Prefill tokens at 32K over 68 requests, in millions, as derived from the released script."""
    found = {family: round(prefill_tokens(family, 32768) / 1e6, 2) for family in FAMILIES}
    assert found == {
        "nonshared": 2.35, "fullshared": 0.59, "droidspeak": 2.22, "cacheblend": 2.22, "relaycaching": 2.23,
        "graphflow": 1.63, "kvcomm": 1.63, "kvcmas": 1.07,
    }  # fmt: skip
    assert sum(runs_dense(k, 0.2) for k in range(68)) == 14
    assert prefill_tokens("kvcmas", 32768, share=0.0) == prefill_tokens("fullshared", 32768)


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_trace_has_the_steps_of_the_workflow(graph: str) -> None:
    rounds = 2 if graph == "loop" else 1
    calls = Agents(agents=4, graph=graph, rounds=rounds).calls()
    steps = Workflow(graph, graph, rounds).steps(3)  # type: ignore[arg-type]
    assert [(a, r, reads) for a, r, reads in calls] == [
        (s.agent, s.round, [(o.agent, o.round) for o in s.reads]) for s in steps
    ]


def test_shared_text_is_shared_and_private_text_is_not() -> None:
    trace = Agents(trajectories=2, shared_tokens=100, output_tokens=7, seed=3).trace()
    first, other = ([r for r in trace.requests if r.trajectory == t] for t in (0, 1))
    for r in first:
        assert r.shared_tokens == 100 + 7 * r.hop
        assert r.pieces[1] == Piece("shared", "question:0", 0, 100)
        assert set(r.after) == {s.id for s in first if f"output:{s.id}" in {p.name for p in r.pieces}}
    assert [p for p in first[1].pieces if p.kind == "private"] == [p for p in other[1].pieces if p.kind == "private"]
    assert not {p.name for p in first[1].pieces if p.kind == "shared"} & {p.name for p in other[1].pieces}
    a, b = ids(first[0].pieces[1], trace.seed), ids(first[2].pieces[1], trace.seed)
    assert np.array_equal(a, b)
    assert not np.array_equal(a, ids(other[0].pieces[1], trace.seed))
    assert not np.array_equal(a, ids(first[0].pieces[1], trace.seed + 1))


@pytest.mark.parametrize("process", ["deterministic", "poisson", "gamma"])
def test_arrivals_come_at_their_rate(process: str) -> None:
    times = arrivals(process, 20_000, 5.0, 0.5, np.random.default_rng(0))
    gaps = np.diff(times)
    assert times[0] == 0.0
    assert gaps.mean() == pytest.approx(0.2, rel=0.03)
    spread = {"deterministic": 0.0, "poisson": 1.0, "gamma": 2**0.5}[process]  # of a gamma: 1 / sqrt(shape)
    assert gaps.std() / gaps.mean() == pytest.approx(spread, abs=0.05)


def test_calls_come_at_qps() -> None:
    trace = Agents(trajectories=4000, shared_tokens=1, qps=8.0).trace()
    assert len(trace.requests) / trace.requests[-1].arrival_s == pytest.approx(8.0, rel=0.05)


@pytest.mark.parametrize("made", [Agents(trajectories=3, graph="loop", rounds=2), Paper(shared=10, requests=9)])
def test_files_come_back(made: Agents | Paper, tmp_path: Path) -> None:
    trace = made.trace()
    trace.write(tmp_path / "deep" / "t.jsonl")
    assert Trace.read(tmp_path / "deep" / "t.jsonl") == trace
    made.trace().write(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "deep" / "t.jsonl").read_bytes()


def test_mooncake(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 2000, "input_length": 1025, "output_length": 3, "hash_ids": [7, 8, 10]},
        {"timestamp": 500, "input_length": 600, "output_length": 9, "hash_ids": [7, 9]},
    ]
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    early, late = mooncake.read(path).requests
    assert (early.arrival_s, late.arrival_s) == (0.5, 2.0)
    assert early.pieces == (Piece("shared", "block:7", 0, 512), Piece("private", "block:9", 0, 88))
    assert (late.prompt_tokens, late.shared_tokens, late.output_tokens) == (1025, 512, 3)
    assert main(["mooncake", str(path), "--out", str(tmp_path / "t.jsonl")]) == 0
    assert Trace.read(tmp_path / "t.jsonl").requests == (early, late)
    for broken, says in (({"timestamp": 1}, "no input_length"), ({**rows[0], "hash_ids": [1]}, "3 blocks")):
        path.write_text(json.dumps(broken))
        with pytest.raises(TraceError, match=f"m.jsonl:1: .*{says}"):
            mooncake.read(path)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "empty"),
        ("{}", ":1: expected the header of schema 1"),
        ('{"schema": 1, "seed": 0}\n{"id": 3', ":2: no JSON"),
        ('{"schema": 1, "seed": 0}\n{"id": "a"}', ":2: no request"),
        ('{"schema": 1, "seed": 0}\n[1]', ":2: no request"),
    ],
)
def test_broken_files_are_named(line: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(line)
    assert main(["show", str(path)]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("agents --agents 1", "agents must be at least 2"),
        ("agents --rounds 2", "needs graph=loop"),
        ("agents --graph star", "graph must be one of"),
        ("agents --qps 0", "qps must be positive"),
        ("agents --arrivals never", "arrivals must be one of"),
        ("agents --shared-tokens 0", "shared_tokens must be at least 1"),
        ("paper --qps -1", "must be positive"),
    ],
)
def test_bad_options_are_one_sentence(
    words: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--out", str(tmp_path / "t.jsonl")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "t.jsonl").exists()


def test_a_reader_comes_after_its_sources() -> None:
    piece = Piece("private", "x", 0, 1)
    with pytest.raises(TraceError, match="waits for b"):
        Trace((Request("a", 0, 0, "x", 0.0, (piece,), 1, after=("b",)),))
    with pytest.raises(TraceError, match="there twice"):
        Trace((Request("a", 0, 0, "x", 0.0, (piece,), 1), Request("a", 0, 1, "x", 0.0, (piece,), 1)))
