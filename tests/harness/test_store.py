"""Run folders: nothing finished is lost, nothing is doubled, one process at a time."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from harness import atomic, provenance
from harness.errors import UserError
from harness.folder import read_provenance, read_rows, read_summary
from harness.records import Row, Status
from harness.state import StateFolder, StateUnreadable
from harness.store import RunFolder
from harness.summarise import Heading, summarise
from methods.base import Snapshot

CONFIG = "method: dense\nseed: 0\n"
HEADING = Heading("gsm8k", "dense", "tiny", "hf", 2, "python -m harness")
SCRIPT = Path(__file__).with_name("killed_run.py")


def row(number: int, **more: int) -> Row:
    return Row(sample_id=f"s{number}", status=Status.ok, prediction=str(number), **more)


@contextmanager
def opened(path: Path, config: str = CONFIG, identity: str | None = None) -> Iterator[RunFolder]:
    with RunFolder.open(path, config, identity=identity) as folder:
        yield folder


def filled(path: Path, count: int = 3) -> Path:
    with opened(path) as folder:
        for number in range(count):
            folder.append(row(number))
    return path / "rows.jsonl"


def script(mode: str, path: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), mode, str(path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What an uninterrupted run leaves: the hash of its results, and its files."""
    (line,) = script("whole", tmp_path_factory.mktemp("whole"))
    assert line.split()[1:] == [".lock", "config.yaml", "provenance.json", "rows.jsonl", "summary.json"]
    return line


@pytest.mark.slow
def test_a_run_killed_before_any_change_on_disk_resumes_to_the_same_result(tmp_path: Path, whole: str) -> None:
    lines = script("points", tmp_path / "run")
    assert len(lines) > 40  # as many points of death, the last of them after the end
    assert {*lines} == {whole}


def test_a_run_killed_at_random_moments_equals_an_uninterrupted_one(tmp_path: Path, whole: str) -> None:
    assert {*script("moments", tmp_path / "run")} == {whole}


def test_rows_are_on_disk_before_the_next_sample(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        folder.append(row(0))
        assert read_rows(tmp_path).rows == (row(0),)
        folder.append(row(0, repeat=1))
        assert [r.key for r in read_rows(tmp_path).rows] == [("s0", 0), ("s0", 1)]
        assert ("s0", 1) in folder
        with pytest.raises(ValueError, match="already"):
            folder.append(row(0))


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_torn_last_line_is_dropped_and_its_sample_runs_again(tmp_path: Path, cut: int) -> None:
    path = filled(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert read_rows(tmp_path).torn > 0
    with opened(tmp_path) as folder:
        assert [r.sample_id for r in folder.rows] == ["s0", "s1"]
        folder.append(row(2))
    assert path.read_bytes() == whole


def test_a_last_line_of_zeros_is_torn_too(tmp_path: Path) -> None:
    path = filled(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 20 + b"\n")
    with opened(tmp_path) as folder:
        assert len(folder.rows) == 3
    assert path.read_bytes() == whole


@pytest.mark.parametrize("bad", [b'{"sample_id": "s1", ', b'{"sample_id":"s1","status":"great"}', b""])
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, bad: bytes) -> None:
    path = filled(tmp_path)
    lines = path.read_bytes().split(b"\n")
    lines[1] = bad
    path.write_bytes(b"\n".join(lines))
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"rows\.jsonl:2 .*delete that line"), opened(tmp_path):
        pass
    assert path.read_bytes() == before


def test_a_doubled_row_is_named(tmp_path: Path) -> None:
    path = filled(tmp_path)
    path.write_bytes(path.read_bytes() + path.read_bytes().split(b"\n")[0] + b"\n")
    with pytest.raises(UserError, match=r"rows\.jsonl:4 .*line 1 has s0"), opened(tmp_path):
        pass


def test_half_a_line_on_a_full_disk_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path, 1)

    def full(handle: int, data: bytes) -> None:
        os.write(handle, data[:7])
        raise OSError(28, "No space left on device")

    with opened(tmp_path) as folder:
        with monkeypatch.context() as patch:
            patch.setattr(atomic, "write", full)
            with pytest.raises(OSError, match="No space"):
                folder.append(row(1))
        folder.append(row(2))
    assert [r.sample_id for r in read_rows(tmp_path).rows] == ["s0", "s2"]
    assert path.read_bytes().count(b"\n") == 2


def test_a_failed_replacement_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "f"
    atomic.replace(target, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no")))
        with pytest.raises(OSError, match="no"):
            atomic.replace(target, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert target.read_bytes() == b"old"


def test_the_summary_completes_a_run(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    with opened(tmp_path) as folder:
        assert not folder.complete
        assert read_summary(tmp_path) is None
        with pytest.raises(ValueError, match="counts 1 rows"):
            folder.finish(summarise(folder.rows[:1], HEADING))
        folder.save_state(Snapshot({}))
        folder.finish(summarise(folder.rows, HEADING))
        with pytest.raises(ValueError, match="complete"):
            folder.append(row(2))
    assert read_summary(tmp_path) == summarise(read_rows(tmp_path).rows, HEADING)
    with opened(tmp_path) as folder:
        assert folder.complete
        assert not (tmp_path / "state").exists()
        with pytest.raises(ValueError, match="complete"):
            folder.resume_state()


def test_a_summary_of_other_rows_is_refused(tmp_path: Path) -> None:
    path = filled(tmp_path, 2)
    with opened(tmp_path) as folder:
        folder.finish(summarise(folder.rows, HEADING))
    path.write_bytes(path.read_bytes()[:-1])
    with (
        pytest.raises(UserError, match=r"1 whole rows but the summary counts 2.*delete summary\.json"),
        opened(tmp_path),
    ):
        pass


def test_a_folder_belongs_to_one_configuration(tmp_path: Path) -> None:
    filled(tmp_path)
    with pytest.raises(UserError, match="another configuration"), opened(tmp_path, CONFIG.replace("dense", "kvcmas")):
        pass
    (tmp_path / "config.yaml").write_text(CONFIG.replace("seed: 0", "seed: 1"))
    with pytest.raises(UserError, match=r"config\.yaml was edited"), opened(tmp_path):
        pass
    (tmp_path / "config.yaml").unlink()
    with pytest.raises(UserError, match=r"no config\.yaml"), opened(tmp_path):
        pass


def test_what_is_outside_the_identity_may_change(tmp_path: Path) -> None:
    with opened(tmp_path, "tracking: none\n", identity="abc"):
        pass
    with opened(tmp_path, "tracking: offline\n", identity="abc"):
        pass
    assert (tmp_path / "config.yaml").read_text() == "tracking: none\n"


@pytest.mark.parametrize("name", ["provenance.json", "summary.json"])
def test_another_schema_version_is_refused(tmp_path: Path, name: str) -> None:
    filled(tmp_path)
    (tmp_path / name).write_text('{"schema": 999, "what": "ever"}')
    with pytest.raises(UserError, match="schema version 999, this version reads"), opened(tmp_path):
        pass
    (tmp_path / name).write_text('{"schema": 1, "what"')
    with pytest.raises(UserError, match="damaged"), opened(tmp_path):
        pass


def test_sessions_add_up_and_end(tmp_path: Path) -> None:
    for command in ("one", "two"):
        with opened(tmp_path) as folder:
            folder.begin(provenance.collect(argv=[command]))
            found = read_provenance(tmp_path)
            assert found is not None
            assert found.sessions[-1].end_utc is None
    found = read_provenance(tmp_path)
    assert found is not None
    assert [s.command.split()[-1] for s in found.sessions] == ["one", "two"]
    assert all(s.end_utc is not None and s.end_utc >= s.start_utc for s in found.sessions)


def session(sha: str, dirty: str | None = None) -> provenance.Session:
    found = provenance.collect(argv=["x"])
    return msgspec.structs.replace(found, git=provenance.Git(sha, dirty is not None, dirty))


def test_rows_of_two_codes_are_told_until_the_end(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        folder.begin(session("a" * 40))
        folder.append(row(0))
        assert folder.warnings == []
    with opened(tmp_path) as folder:  # the same code
        folder.begin(session("a" * 40))
        assert folder.warnings == []
    with opened(tmp_path) as folder:  # changed, but it wrote nothing
        folder.begin(session("a" * 40, "c0ffee" * 10))
        (said,) = folder.warnings
        assert "by other code (aaaaaaaaaaaa) than those that follow (aaaaaaaaaaaa with changes c0ffee)" in said
    with opened(tmp_path) as folder:
        folder.begin(session("a" * 40))
        assert folder.warnings == []
    for number in (1, 2):  # changed, and stays so
        with opened(tmp_path) as folder:
            folder.begin(session("b" * 40))
            folder.append(row(number))
            (said,) = folder.warnings
    with opened(tmp_path) as folder:
        folder.begin(session("b" * 40))
        folder.finish(summarise(folder.rows, HEADING))
    summary = read_summary(tmp_path)
    assert summary is not None
    assert summary.warnings == [said]


def test_what_was_started_over_mixes_nothing(tmp_path: Path) -> None:
    for sha in "ab":
        with opened(tmp_path) as folder:
            folder.begin(session(sha * 40))
            assert bool(folder.warnings) == (sha == "b")
            if sha == "b":
                assert folder.resume_state().snapshot is None
                assert folder.warnings == []
            for number in range(2):
                folder.append(row(number))
    with opened(tmp_path) as folder:
        folder.begin(session("b" * 40))
        assert folder.warnings == []


def test_provenance_and_summaries_from_before_can_be_read(tmp_path: Path) -> None:
    with opened(tmp_path) as folder:
        folder.begin(session("a" * 40))
        folder.append(row(0))
        folder.finish(summarise(folder.rows, HEADING))
    for name, drop in (("provenance.json", "rows"), ("summary.json", "warnings")):
        whole = json.loads((tmp_path / name).read_text())
        del (whole["sessions"][0] if "sessions" in whole else whole)[drop]
        (tmp_path / name).write_text(json.dumps(whole))
    before, summary = read_provenance(tmp_path), read_summary(tmp_path)
    assert before is not None
    assert before.sessions[0].rows is None
    assert summary is not None
    assert summary.warnings == []
    (tmp_path / "summary.json").unlink()
    with opened(tmp_path) as folder:
        folder.begin(session("b" * 40))
        assert len(folder.warnings) == 1  # who wrote the row is not known, so the session there was


HOLD = """
import sys, time
from pathlib import Path
from harness.store import RunFolder
with RunFolder.open(Path(sys.argv[1]), sys.argv[2]):
    assert "torch" not in sys.modules, "a look into a folder should not load torch"
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_held_folder_names_its_holder_and_a_killed_one_frees_it(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run"), CONFIG], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        expected = rf"is held by process {holder.pid} on {socket.gethostname()} since 20\d\d-"
        with pytest.raises(UserError, match=expected), opened(tmp_path / "run"):
            pass
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with opened(tmp_path / "run") as folder:
        assert folder.rows == ()


def blob(seed: int) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**15), 2**15, (3, 7), generator=made, dtype=torch.int16)
    return {
        "bf16": bits.view(torch.bfloat16),  # any bit pattern, NaNs with payload included
        "fp16": bits.view(torch.float16),
        "fp32": torch.randn(2, 3, generator=made),
        "fp64": torch.randn(2, generator=made, dtype=torch.float64),
        "int64": torch.randint(0, 2**60, (4,), generator=made),
        "bool": torch.tensor([True, False]),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(1.5, dtype=torch.bfloat16),
        "view": torch.arange(12.0).reshape(3, 4).T,
    }


def same(a: Tensor, b: Tensor) -> bool:
    raw = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*raw)


def test_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    shared = torch.arange(6, dtype=torch.bfloat16)
    pair = {"k": shared[:3], "v": shared[3:], "again": shared[:3]}
    meta = {"counts": [1, 2], "ratio": 0.1 + 0.2, "limit": float("inf"), "nested": {"x": None, "y": "ü"}}
    StateFolder(tmp_path / "state").save(7, Snapshot(meta, {"a/b: ü": blob(0), "pair": pair}))
    state = StateFolder(tmp_path / "state").load()
    assert state is not None
    assert (state.rows_done, state.snapshot.meta) == (7, meta)
    for name, tensors in (("a/b: ü", blob(0)), ("pair", pair)):
        assert state.snapshot.blobs[name].keys() == tensors.keys()
        for key, tensor in tensors.items():
            assert same(state.snapshot.blobs[name][key], tensor), key


def test_blobs_are_written_once_and_deleted_when_forgotten(tmp_path: Path) -> None:
    states = StateFolder(tmp_path)
    states.save(1, Snapshot({}, {"a": blob(1), "b": blob(2)}))
    stamps = {p: p.stat().st_ino for p in (tmp_path / "blobs").iterdir()}
    states.save(2, Snapshot({}, {"a": blob(1), "b": blob(2)}))
    assert {p: p.stat().st_ino for p in (tmp_path / "blobs").iterdir()} == stamps
    resumed = StateFolder(tmp_path)
    assert resumed.load() is not None
    resumed.save(3, Snapshot({}, {"b": blob(2), "c": blob(3)}))
    after = {p: p.stat().st_ino for p in (tmp_path / "blobs").iterdir()}
    assert len(after) == 2
    assert len(after.items() & stamps.items()) == 1
    state = StateFolder(tmp_path).load()
    assert state is not None
    assert state.rows_done == 3
    assert [*state.snapshot.blobs] == ["b", "c"]


def test_blobs_that_no_meta_names_are_not_trusted(tmp_path: Path) -> None:
    states = StateFolder(tmp_path)
    states.save(1, Snapshot({}, {"a": blob(1)}))
    (tmp_path / "meta.json").unlink()  # as after a kill before the first meta
    again = StateFolder(tmp_path)
    assert again.load() is None
    again.save(1, Snapshot({}, {"a": blob(9)}))
    state = StateFolder(tmp_path).load()
    assert state is not None
    assert same(state.snapshot.blobs["a"]["fp32"], blob(9)["fp32"])


def damage(state: Path, how: str) -> None:
    meta, file = state / "meta.json", next((state / "blobs").iterdir())
    if how == "no blob":
        file.unlink()
    elif how == "flipped blob":
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    elif how == "torn meta":
        meta.write_bytes(meta.read_bytes()[:-9])
    elif how == "edited meta":
        meta.write_text(json.dumps({**json.loads(meta.read_text()), "rows_done": 1}))
    elif how == "other schema":
        meta.write_text(json.dumps({**json.loads(meta.read_text()), "schema": 99}))


DAMAGES = ["no blob", "flipped blob", "torn meta", "edited meta", "other schema"]


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_state_is_noticed(tmp_path: Path, how: str) -> None:
    StateFolder(tmp_path).save(2, Snapshot({}, {"a": blob(1)}))
    damage(tmp_path, how)
    with pytest.raises(StateUnreadable):
        StateFolder(tmp_path).load()


def with_state(path: Path, rows: int) -> None:
    with opened(path) as folder:
        for number in range(rows):
            folder.append(row(number))
            folder.save_state(Snapshot({"after": number}, {f"{number}": blob(number)}))


@pytest.mark.parametrize("how", [*DAMAGES, "no state", "fewer rows"])
def test_without_a_usable_state_the_run_starts_over_and_keeps_its_rows(tmp_path: Path, how: str) -> None:
    rows = tmp_path / "rows.jsonl"
    for backup in (1, 2):
        with_state(tmp_path, 3)
        if how == "no state":
            StateFolder(tmp_path / "state").remove()
        elif how == "fewer rows":
            rows.write_bytes(b"".join(rows.read_bytes().splitlines(keepends=True)[:2]))
        else:
            damage(tmp_path / "state", how)
        before = rows.read_bytes()
        with opened(tmp_path) as folder:
            resumed = folder.resume_state()
            assert resumed.snapshot is None
            assert resumed.warning is not None
            assert f"rows.jsonl.bak-{backup}" in resumed.warning
            assert folder.rows == ()
        assert (tmp_path / f"rows.jsonl.bak-{backup}").read_bytes() == before
        assert not rows.exists()


def test_the_sample_in_flight_runs_again(tmp_path: Path) -> None:
    with_state(tmp_path, 2)
    with opened(tmp_path) as folder:
        folder.append(row(2))
    with opened(tmp_path) as folder:
        resumed = folder.resume_state()
        assert resumed.warning is None
        assert resumed.snapshot is not None
        assert resumed.snapshot.meta == {"after": 1}
        assert [r.sample_id for r in folder.rows] == ["s0", "s1"]
        assert ("s2", 0) not in folder
        folder.append(row(2))
    assert read_rows(tmp_path).rows == tuple(row(n) for n in range(3))


def test_a_kill_before_the_first_state_begins_afresh_without_a_word(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    with opened(tmp_path) as folder:
        resumed = folder.resume_state()
        assert (resumed.snapshot, resumed.warning, folder.rows) == (None, None, ())
    assert sorted(p.name for p in tmp_path.glob("rows*")) == ["rows.jsonl"]
