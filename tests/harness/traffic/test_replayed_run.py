"""Whole runs of task=trace through the command line: folders, resumption, tables, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.folder import read_rows, read_summary
from harness.records import Status
from harness.report.serving import main as draw
from harness.traffic import passes as module
from harness.traffic.duration import told
from harness.traffic.replay import Outcome
from harness.traffic.rows import row
from traces.agents import Agents

SMALL = [
    "model=tiny", "tracking=none", "task=trace", "task.warmup=2", "trace.trajectories=4", "trace.agents=2",
    "trace.system_tokens=8", "trace.shared_tokens=24", "trace.private_tokens=4", "trace.output_tokens=3",
    "trace.qps=200",
]  # fmt: skip


def only(folder: Path) -> Path:
    (found,) = folder.glob("*/*/config.yaml")
    return found.parent


def test_a_run_and_what_stays_of_one_that_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SMALL, "method=kvcmas", "repeats=2", f"results_dir={tmp_path}"]
    made = list[tuple[int, int]]()

    def interrupted(outcome: Outcome, repeat: int, *rest: Any) -> Any:
        made.append((repeat, outcome.trajectory.id))
        if len(made) == 4:
            raise KeyboardInterrupt
        return row(outcome, repeat, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(module, "row", interrupted)
        assert main(words) == 130
    folder = only(tmp_path)
    before = (folder / "rows.jsonl").read_bytes()
    assert before.count(b"\n") == 3  # repeat 0 as a whole, and one row of repeat 1
    capsys.readouterr()
    assert main(words) == 0
    err = capsys.readouterr().err
    assert "repeat 1 was interrupted and runs again from its start, where caches have to be cold; its 1 finished" in err
    assert " of real time, 1 x" in err
    after = read_rows(folder).rows
    assert [r.repeat for r in after] == [0, 0, 1, 1]
    assert (folder / "rows.jsonl").read_bytes().startswith(b"".join(before.splitlines(keepends=True)[:2]))
    summary = read_summary(folder)
    assert summary is not None
    serving = summary.serving
    assert serving is not None
    assert (serving.trajectories, serving.failed, serving.wrong_lengths, serving.simulated) == (4, 0, 0, False)
    assert [r.warmup_calls for r in serving.repeats] == [4, 4]
    assert summary.hops.reuse == 4
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "complete already" in out
    assert "mean of a trajectory" in out


def test_failures_are_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from methods.dense import DenseMethod

    whole = DenseMethod.plan

    def broken(self: DenseMethod, hop: Any, engine: Any) -> Any:
        if hop.index == 1 and hop.trajectory == "3":
            raise ValueError("it broke\nover two lines")
        return whole(self, hop, engine)

    monkeypatch.setattr(DenseMethod, "plan", broken)
    assert main([*SMALL, "method=dense", f"results_dir={tmp_path}"]) == 0
    found = {r.sample_id: r for r in read_rows(only(tmp_path)).rows}
    assert found["3"].status is Status.error
    assert found["3"].message == "hop 1: ValueError: it broke"
    assert found["2"].status is Status.ok
    assert "over two lines" in (only(tmp_path) / "errors.log").read_text()


def test_a_sweep_is_one_table_and_one_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated = ["backend=sim", "trace.trajectories=6", "trace.qps=20", "seed=0,1", "method=dense,kvcmas"]
    assert main(["-m", *SMALL, *simulated, f"results_dir={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert out.count("SIMULATION") >= 5  # every run, and the table over all
    assert "simulated" in out
    folders = [str(p.parent) for p in tmp_path.glob("*/*/summary.json")]
    assert len(folders) == 4
    assert draw([*folders, "--out", str(tmp_path / "f.png")]) == 0
    assert (tmp_path / "f.png").stat().st_size > 10_000
    assert draw([*folders, "--out", str(tmp_path / "f.bmp")]) == 2
    capsys.readouterr()
    torn, missing, other = (Path(f) for f in folders[1:])
    (torn / "rows.jsonl").write_bytes((torn / "rows.jsonl").read_bytes()[:-20])
    (missing / "summary.json").unlink()
    (other / "summary.json").write_text(json.dumps(json.loads((other / "summary.json").read_text()) | {"schema": 9}))
    assert draw([*folders, "--out", str(tmp_path / "f.png")]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("left out: ")]
    assert len(said) == 3
    for part, line in zip(("then a torn one", "no complete run", "schema version 9"), said, strict=True):
        assert part in line
    assert draw([*folders[1:], "--out", str(tmp_path / "f.png")]) == 2
    assert "none of the folders can be used" in capsys.readouterr().err
    assert all(json.loads(line)["hops"][0]["timing"]["simulated"] for line in _lines(folders[0]))


def _lines(folder: str) -> list[str]:
    return (Path(folder) / "rows.jsonl").read_text().splitlines()


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        (tmp_path / "t.jsonl").write_text(text)
        return tmp_path / "t.jsonl"

    return write


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("trace.qps=0", "trace.qps=0: qps must be positive"),
        ("trace=paper trace.qps=-1", "must be positive"),
        ("trace.graph=star", "graph must be one of"),
        ("trace.rounds=2", "needs graph=loop"),
        ("trace=agent", "trace=agent: there is no such trace"),
        ("trace=file", "trace.path has no value"),
        ("trace=file trace.path=nowhere.jsonl", "error: trace.path=nowhere.jsonl: there is no such file; name a file"),
        ("trace=mooncake trace.path=nowhere.jsonl", "trace.path=nowhere.jsonl: there is no such file; name a file"),
        ("trace=file trace.path=.", "error: trace.path=.: this is a folder; name a file that python -m traces wrote"),
        ("workflow=chain", "leave workflow alone"),
        ("shadow=true", "shadow=true: a dense run beside every call"),
        ("warmup=2", "set task.warmup instead"),
        ("task=gsm8k backend=sim", "backend=sim replays traces and nothing else"),
        ("duplicates=0.5", "leave duplicates at 0"),
        ("trace.trajectories=4", "task.warmup=4: the trace has 4 trajectories"),
        ("trace.shared_tokens=5000", "the model's context is 4096; shorten the trace"),
        ("trace.qps=1e-9", "trace.qps=1e-09: the last call arrives after "),
        ("trace=paper trace.qps=1e-300 trace.shared=64", "trace.qps=1e-300: the last call arrives after"),
        ("task.slo_ttft_s=0", "slo_ttft_s must be positive"),
        ("task.source=nowhere.txt", "task.source=nowhere.txt: cannot be read"),
        ("backend=sim method=epic", "backend.costs=ours does not describe it"),
        ("backend=sim backend.hardware=b200", "backend.hardware=b200"),
        ("backend=sim backend.costs=nothing", "there is no such cost file"),
        ("task=gsm8k trace=agents", "add task=trace"),
        ("task=gsm8k trace.qps=1", "add task=trace"),
    ],
)
def test_refused_before_anything_loads(
    words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.backends.hf_tiny import Tiny

    monkeypatch.setattr(Tiny, "load", lambda self: pytest.fail("the model was loaded"))
    task = [] if "task=" in words else ["task=trace"]
    assert main([*task, "model=tiny", "tracking=none", *words.split(), f"results_dir={tmp_path / 'r'}"]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.glob("r/*/*"))


def test_a_trace_that_never_ends_is_refused_with_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.backends.hf_tiny import Tiny

    monkeypatch.setattr(Tiny, "load", lambda self: pytest.fail("the model was loaded"))
    path = tmp_path / "t.jsonl"
    made = Agents(trajectories=3, agents=2, shared_tokens=24, system_tokens=8, output_tokens=3, qps=50).trace()
    last = made.requests[-2:]
    late = tuple(replace(r, arrival_s=1e300) for r in last)
    replace(made, requests=(*made.requests[:-2], *late)).write(path)
    words = ["task=trace", "model=tiny", "tracking=none", "task.warmup=1", "trace=file", f"trace.path={path}"]
    assert main([*words, f"results_dir={tmp_path}/r"]) == 2
    assert f"trace.path={path}: request {last[0].id} arrives 1.16e+295 days after" in capsys.readouterr().err
    assert main([*words, "method=dense", "backend=sim", f"results_dir={tmp_path}/s"]) == 0


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.0, "0 s"), (119.0, "119 s"), (120.0, "2 min"), (7200.0, "2 h"), (2592000.0, "30 days")]
)
def test_durations(seconds: float, said: str) -> None:
    assert told(seconds) == said


def test_a_broken_line_is_named(
    file: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file('{"schema": 1, "seed": 0}\n{"id": "a"}\n')
    assert main(["task=trace", "trace=file", f"trace.path={path}", "model=tiny", f"results_dir={tmp_path}/r"]) == 2
    assert "t.jsonl:2: no request" in capsys.readouterr().err


def test_a_file_replays_like_its_generator(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    Agents(trajectories=3, agents=2, shared_tokens=24, system_tokens=8, output_tokens=3, qps=50).trace().write(path)
    words = ["task=trace", "model=tiny", "tracking=none", "task.warmup=1", "backend=sim", "method=dense"]
    assert main([*words, "trace=file", f"trace.path={path}", f"results_dir={tmp_path}/a"]) == 0
    generated = ["trace.trajectories=3", "trace.agents=2", "trace.shared_tokens=24", "trace.system_tokens=8"]
    assert main([*words, *generated, "trace.output_tokens=3", "trace.qps=50", f"results_dir={tmp_path}/b"]) == 0
    a, b = (read_rows(only(tmp_path / name)).rows for name in ("a", "b"))
    assert a == b
