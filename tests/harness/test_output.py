"""Places that cannot be written to are told before the work begins, in one sentence that names the option."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from harness import atomic
from harness.claim import held
from harness.cli import main
from harness.errors import UserError
from harness.output import of_disk, writable, writable_folder
from harness.store import RunFolder


def test_a_file_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "new" / "table.csv"
    assert writable("out", path) == path
    assert not path.exists()
    assert not list(path.parent.iterdir())
    path.write_text("kept")
    writable("out", path)
    assert path.read_text() == "kept"


@pytest.mark.parametrize("where", ["file/x.csv", "folder"])
def test_a_place_that_cannot_be(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"^out .*: cannot write there \(.+\); choose another file"):
        writable("out", tmp_path / where)


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"--out .*file: cannot write there .*choose another folder"):
        writable_folder("--out", tmp_path / "file")


def test_only_what_a_disk_says_is_the_disks() -> None:
    full = of_disk(OSError(errno.ENOSPC, "No space left on device"))
    assert full is not None
    assert "No space left on device" in str(full)
    assert of_disk(FileNotFoundError(errno.ENOENT, "No such file", "x")) is None
    assert of_disk(ValueError("x")) is None


@pytest.mark.parametrize(
    ("module", "words", "option"),
    [
        ("memory", ["out=file/x.csv"], "out"),
        ("profile", ["method=droidspeak", "model=tiny", "out=file/x.json"], "out"),
        ("analyse", ["rank", "model=tiny", "requests=1", "out=file/x.json"], "out"),
        ("report.__main__", [".", "--out", "file"], "--out"),
        ("report.curve", [".", "--out", "file/x.png"], "--out"),
    ],
)
def test_programs_say_so_before_they_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    module: str,
    words: list[str],
    option: str,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert import_module(f"harness.{module}").main(words) == 2
    out, err = capsys.readouterr()
    (said,) = err.splitlines()
    assert said.startswith(f"error: {option} file")
    assert not out


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """From the second row on the disk is full."""
    append = RunFolder.append

    def appended(self: RunFolder, row: object) -> None:
        if len(self.rows) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, row)  # type: ignore[arg-type]

    monkeypatch.setattr(RunFolder, "append", appended)
    yield
    monkeypatch.setattr(RunFolder, "append", append)


def test_a_full_disk_ends_a_run_with_a_sentence_and_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], full: None
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["model=tiny", "method=dense", "limit=2", "workflow.max_new_tokens=1", "tracking=none"]
    assert main(words) == 2
    said = capsys.readouterr().err
    (folder,) = Path("results/runs/gsm8k").resolve().iterdir()
    assert f"error: cannot write in {folder} (No space left on device)" in said
    assert "Traceback" not in said
    (rows,) = Path("results/runs/gsm8k").glob("*/rows.jsonl")
    assert len(rows.read_text().splitlines()) == 1


def test_a_full_disk_is_named_where_a_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic, "write", full)
    with pytest.raises(OSError, match="No space") as raised:
        atomic.replace(tmp_path / "summary.json", b"{}")
    said = of_disk(raised.value)
    assert said is not None
    assert f"cannot write {tmp_path / 'summary.json'} (No space left on device)" in str(said)


def test_a_run_folder_that_cannot_be_locked(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(UserError, match=r"cannot write into"), held(tmp_path):
        pass
