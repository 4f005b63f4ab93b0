"""Traces: the paper's numbers, prompts that share what they should, arrivals, files that come back, broken ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.errors import UserError
from harness.sim.__main__ import write as write_costs
from harness.sim.costs import CostFile
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


MOONCAKE = {"timestamp": 2000, "input_length": 1025, "output_length": 3, "hash_ids": [7, 8, 10]}


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("timestamp", "x", "expected `float`, got `str`"),
        ("timestamp", None, "expected `float`, got `null`"),
        ("timestamp", True, "expected `float`, got `bool`"),
        ("timestamp", -1, "expected a finite number >= 0, got -1.0"),
        ("timestamp", float("nan"), "expected a finite number >= 0, got nan"),
        ("timestamp", float("inf"), "expected a finite number >= 0, got inf"),
        ("timestamp", 10**400, "number out of range"),
        ("input_length", 2.5, "expected `int`, got `float`"),
        ("input_length", True, "expected `int`, got `bool`"),
        ("input_length", 0, "expected `int` >= 1"),
        ("output_length", "q", "expected `int`, got `str`"),
        ("output_length", 2.5, "expected `int`, got `float`"),
        ("output_length", -1, "expected `int` >= 0"),
        ("hash_ids", 7, "expected `array`, got `int`"),
        ("hash_ids", [1], "1025 tokens is 3 blocks of 512, got 1 ids"),
        ("hash_ids", [7, [8], 9], "expected `int`, got `array`"),
        ("hash_ids", [7, 8.5, 9], "expected `int`, got `float`"),
    ],
)
def test_damaged_mooncake_fields_are_named(
    field: str, value: object, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "m.jsonl", tmp_path / "t.jsonl"
    path.write_text(f"{json.dumps(MOONCAKE)}\n\n{json.dumps({**MOONCAKE, field: value})}\n")
    assert main(["mooncake", str(path), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert f"{path}:3: no request (field {field}" in said  # the blank line counts
    assert says in said
    assert said.count("\n") == 1
    assert not out.exists()


def test_a_missing_mooncake_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"timestamp": 1}')
    with pytest.raises(TraceError, match=r"m\.jsonl:1: no request .*missing required field `input_length`"):
        mooncake.read(path)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f"{json.dumps(MOONCAKE)}\n" * 2)
    assert main(["mooncake", str(path), "--limit", str(limit), "--out", str(tmp_path / "t.jsonl")]) == 2
    assert f"limit must be at least 1, got {limit}" in capsys.readouterr().err
    assert len(mooncake.read(path, 1).requests) == 1


@pytest.mark.parametrize("name", ["m.jsonl", "link.jsonl"])
def test_the_source_is_not_overwritten(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps(MOONCAKE))
    (tmp_path / "link.jsonl").symlink_to(path)
    assert main(["mooncake", str(path), "--out", str(tmp_path / name)]) == 2
    assert "--out" in (said := capsys.readouterr().err)
    assert "name another file" in said
    assert json.loads(path.read_text()) == MOONCAKE


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "t.jsonl", tmp_path / "link.jsonl"
    first, second = Paper(requests=3).trace(), Paper(requests=4).trace()
    first.write(path)

    def full(self: Path, text: str) -> int:
        self.write_bytes(text[:10].encode())
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space"):
            second.write(path)
    assert Trace.read(path) == first
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]
    link.symlink_to(path)
    second.write(link)
    assert link.is_symlink()
    assert Trace.read(path) == second


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "empty"),
        ("{}", ":1: expected the header of schema 1"),
        ('{"schema": 1, "seed": 0}\n{"id": 3', ":2: no JSON"),
        ('{"schema": 1, "seed": 0}\n{"id": "a"}', ":2: no request"),
        ('{"schema": 1, "seed": 0}\n[1]', ":2: expected an object"),
        ("[" * 100_000, ":1: no JSON that can be read (nested too deeply)"),
        ('{"schema": ' + "1" * 5000 + "}", ":1: no JSON"),
        ('{"schema": true, "seed": 0}', ":1: no header (field schema: expected `int`, got `bool`)"),
        ('{"schema": 1}', ":1: no header (object missing required field `seed`)"),
        ('{"schema": 1, "seed": "abc"}', ":1: no header (field seed: expected `int`, got `str`)"),
        ('{"schema": 1, "seed": -1}', ":1: no header (field seed: expected `int` >= 0)"),
        ('{"schema": 1, "seed": 0, "made_by": 7}', ":1: no header (field made_by: expected `object`, got `int`)"),
        ('{"schema": 1, "seed": 0}', "at least one request"),
        ('{"schema": 1, "seed": 0}\n{"id": "\\ud800"}', ":2: \\ud800 is half of a surrogate pair"),
        ('{"schema": 1, "seed": 0}\n{"pieces": [["private", "x\\uDC00", 0, 4]]}', ":2: \\udc00 is half of a surrogate"),
        ('{"schema": 1, "seed": 0, "made_by": {"\\ud83d": 1}}', ":1: \\ud83d is half of a surrogate pair"),
    ],
)
def test_broken_files_are_named(line: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(line)
    assert main(["show", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"error: {path}" in said
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"id": 7}, "field id: expected `str`, got `int`"),
        ({"agent": None}, "field agent: expected `str`, got `null`"),
        ({"trajectory": "0"}, "field trajectory: expected `int`, got `str`"),
        ({"hop": -1}, "field hop: expected `int` >= 0"),
        ({"output_tokens": 2.5}, "field output_tokens: expected `int`, got `float`"),
        ({"output_tokens": True}, "field output_tokens: expected `int`, got `bool`"),
        ({"output_tokens": 0}, "field output_tokens: expected `int` >= 1"),
        ({"arrival_s": "1"}, "field arrival_s: expected `float`, got `str`"),
        ({"arrival_s": float("nan")}, "arrival_s must be finite"),
        ({"arrival_s": 0.5}, "arrival_s of request b is 0.5, before the 1.0"),
        ({"after": 7}, "field after: expected `array`, got `int`"),
        ({"after": [1]}, "field after[0]: expected `str`, got `int`"),
        ({"after": ["c"]}, "waits for c"),
        ({"id": "a"}, "request a is there twice"),
        ({"pieces": 3}, "field pieces: expected `array`, got `int`"),
        ({"pieces": []}, "field pieces: expected `array` of length >= 1"),
        ({"pieces": [["private", "x", 0]]}, "field pieces[0]: expected `array` of at least length 4, got 3"),
        ({"pieces": [["private", "x", 0, "4"]]}, "field pieces[0][3]: expected `int`, got `str`"),
        ({"pieces": [["public", "x", 0, 4]]}, "field pieces[0][0]: invalid enum value 'public'"),
        ({"foo": 1}, "unknown field `foo`"),
    ],
)
def test_damaged_requests_are_named(
    changed: dict[str, object], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    piece, path = Piece("private", "x", 0, 4), tmp_path / "t.jsonl"
    Trace((Request("a", 0, 0, "x", 1.0, (piece,), 1), Request("b", 0, 1, "x", 1.0, (piece,), 1))).write(path)
    header, first, second = path.read_text().splitlines()
    path.write_text("\n".join([header, "", first, json.dumps({**json.loads(second), **changed})]))
    assert main(["show", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"error: {path}:4: " in said
    assert says in said
    assert "; mend the line" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("agents --agents 1", "agents must be at least 2"),
        ("agents --rounds 2", "needs graph=loop"),
        ("agents --graph star", "graph must be one of"),
        ("agents --qps 0", "qps must be positive"),
        ("agents --qps inf", "qps must be positive and finite, got inf\n"),
        ("agents --qps 1e-320", "error: qps must be larger, got 1e-320: calls would arrive at no finite time\n"),
        ("agents --arrivals deterministic --qps 1e-308", "qps must be larger, got 1e-308"),
        ("agents --arrivals gamma --burstiness 1e-320", "got 1.0 (burstiness=1e-320): calls would"),
        ("paper --qps 1e-320", "error: qps must be larger, got 1e-320"),
        ("agents --arrivals never", "arrivals must be one of"),
        ("agents --shared-tokens 0", "shared_tokens must be at least 1"),
        ("agents --seed -1", "seed must be at least 0, got -1"),
        ("paper --qps -1", "qps must be positive and finite, got -1.0\n"),
        ("paper --qps nan", "qps must be positive and finite, got nan\n"),
        ("paper --seed -1", "seed must be at least 0, got -1\n"),
        ("paper --requests 0", "requests must be at least 1, got 0\n"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_bad_options_are_one_sentence(
    words: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--out", str(tmp_path / "t.jsonl")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "t.jsonl").exists()


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("adir", "folder or a device; name a file"),
        ("afile/x", "name a file in a folder you may write to"),
        ("x" * 300, "name a file in a folder you may write to"),
    ],
)
def test_out_that_cannot_be_written_is_named(
    place: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "adir").mkdir()
    (tmp_path / "afile").write_text("kept")
    out = tmp_path / place
    assert main(["agents", "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert f"error: --out {out}: " in said
    assert says in said
    assert "Errno" not in said
    with pytest.raises(UserError, match=r"--out .*; name a file"):
        write_costs(CostFile(about="x", methods={}), out)
    assert (tmp_path / "afile").read_text() == "kept"


def test_a_whole_surrogate_pair_is_a_character(tmp_path: Path) -> None:
    piece = Piece("private", "\N{GRINNING FACE}", 0, 4)
    trace = Trace((Request("\\ud800", 0, 0, "a", 0.0, (piece,), 1),))  # the id is a backslash and letters
    trace.write(tmp_path / "t.jsonl")
    assert Trace.read(tmp_path / "t.jsonl") == trace


def test_a_reader_comes_after_its_sources() -> None:
    piece = Piece("private", "x", 0, 1)
    with pytest.raises(TraceError, match="waits for b"):
        Trace((Request("a", 0, 0, "x", 0.0, (piece,), 1, after=("b",)),))
    with pytest.raises(TraceError, match=r"before the 2\.0 of the request above"):
        Trace((Request("a", 0, 0, "x", 2.0, (piece,), 1), Request("b", 0, 1, "x", 1.0, (piece,), 1)))
    with pytest.raises(TraceError, match="at least one request"):
        Trace(())
    with pytest.raises(TraceError, match="there twice"):
        Trace((Request("a", 0, 0, "x", 0.0, (piece,), 1), Request("a", 0, 1, "x", 0.0, (piece,), 1)))
