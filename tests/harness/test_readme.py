"""What the README shows as code runs as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec
import pytest

from harness import cli, verify
from harness.folder import read_rows, read_summary
from harness.records import Route

README = Path(__file__).resolve().parents[2] / "README.md"
SMALL = ["task=gsm8k", "limit=2", "model=tiny", "workflow.max_new_tokens=4", "tracking=none"]


@pytest.fixture
def method_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The two files that the README adds to a folder which is not ours."""
    text = README.read_text()
    for fence, file in (("python", "my_methods.py"), ("yaml", "my_conf/method/short_reuse.yaml")):
        (code,) = re.findall(rf"```{fence}\n(# {re.escape(file)}\n.*?)```", text, re.DOTALL)
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as python -m does
    monkeypatch.delitem(sys.modules, "my_methods", raising=False)
    return tmp_path


def test_a_method_from_another_folder_runs(method_of_ones_own: Path) -> None:
    words = ["--config-dir", "my_conf", "method=short_reuse", *SMALL, "shadow=true"]
    for most in (8, 5000):
        assert cli.main([*words, f"method.most={most}"]) == 0
    folders = sorted(Path("results/runs/gsm8k").glob("short_reuse-*"))
    routes = {frozenset(h.route for r in read_rows(f).rows for h in r.hops[1:]) for f in folders}
    assert routes == {frozenset({Route.fallback}), frozenset({Route.reuse})}
    assert {s.built_from for f in folders if (s := read_summary(f)) is not None} == {"code"}


def test_it_can_be_verified_and_its_runs_say_so(method_of_ones_own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main(["--config-dir", "my_conf", "model=tiny", "method=short_reuse"]) == 0
    assert "all 1 passed" in capsys.readouterr().out
    assert cli.main(["--config-dir", "my_conf", "method=short_reuse", *SMALL]) == 0
    assert "unverified" not in capsys.readouterr().out
    stored = Path("results/verified/tiny-short_reuse.json")
    assert msgspec.json.decode(stored.read_bytes())["target"] == "my_methods.ShortReuse"


def test_a_config_dir_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main(["model=tiny", "method=dense", "--config-dir", "nowhere"]) == 2
    assert "--config-dir nowhere: expected a folder" in capsys.readouterr().err
