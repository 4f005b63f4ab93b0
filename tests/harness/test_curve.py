"""The curve figure: which runs become which points, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.report.curve import curves, main
from harness.report.style import METHODS, look
from tests.harness.test_table import folder, summary


def test_a_run_is_a_point(tmp_path: Path) -> None:
    found = curves([summary("epic"), summary("kvcmas"), summary("kvcmas", shadowed=False)])
    assert list(found) == ["epic", "kvcmas"]
    ((fresh, held, ttft, kl),) = found["kvcmas"]
    assert (fresh, held, ttft, kl) == (0.75, 6 * 2**20, 0.875, 0.0123)


def test_the_figure_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [folder(tmp_path / name, summary(name)) for name in ("epic", "mine")]
    (tmp_path / "torn").mkdir()
    target = tmp_path / "figures" / "curve.png"
    assert main([*map(str, runs), str(tmp_path / "torn"), "--out", str(target)]) == 0
    assert target.stat().st_size > 10_000
    assert "torn is no run folder" in capsys.readouterr().err


def test_damaged_folders_are_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, unknown, plain = (folder(tmp_path / name, summary(name)) for name in ("epic", "mine", "yours"))
    path = unknown / "summary.json"
    path.write_bytes(path.read_bytes().replace(b'"schema":1', b'"schema":99'))
    (plain / "summary.json").unlink()
    (plain / "config.yaml").write_text("{}")
    target = tmp_path / "curve.pdf"
    assert main([*map(str, (good, unknown, plain)), "--out", str(target)]) == 0
    said = capsys.readouterr().err
    assert f"left out: {path} has schema version 99" in said
    assert f"left out: the run in {plain} is not complete" in said
    assert main([str(unknown), "--out", str(target)]) == 2
    assert "none of the folders can be used" in capsys.readouterr().err


def test_runs_of_two_kinds_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [folder(tmp_path / str(forced), summary("epic", forced=forced)) for forced in (True, False)]
    assert main(list(map(str, runs))) == 2
    assert "several kinds" in capsys.readouterr().err
    assert main([str(tmp_path), "--out", "curve.xyz"]) == 2
    assert "a figure is one of .png" in capsys.readouterr().err
    assert main([str(tmp_path)]) == 2
    assert "none of the folders" in capsys.readouterr().err


def test_no_two_methods_look_alike() -> None:
    looks = [tuple(look(m, ("mine", "yours")).values()) for m in (*METHODS, "mine", "yours")]
    assert len(set(looks)) == len(looks)
