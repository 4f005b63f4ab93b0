"""The command line as a process of its own: how fast help comes, what is imported for it, foreign packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.config import COMPONENTS, CONF

HEAVY = ("torch", "transformers", "datasets", "wandb", "numpy", "pandas", "scipy", "matplotlib")


def python(*words: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "HYDRA_FULL_ERROR"}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    return subprocess.run([sys.executable, *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def cpu_seconds() -> float:
    """Of all children that have ended: wall time belongs to whoever else uses the machine."""
    spent = os.times()
    return spent.children_user + spent.children_system


def test_help_is_quick_and_complete(tmp_path: Path) -> None:
    before = cpu_seconds()
    done = python("-m", "harness", "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert cpu_seconds() - before < 3
    for group in COMPONENTS:
        line = next(line for line in done.stdout.splitlines() if line.startswith(f"{group}: "))
        assert {p.stem for p in (CONF / group).glob("*.yaml")} == set(line.partition(": ")[2].split(", "))
    assert "schema" not in done.stdout
    assert done.stdout.count("python -m harness") >= 6
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flags", ["'--help'", "'--cfg', 'job'", "'--hydra-help'"])
def test_nothing_heavy_is_imported_for_help(tmp_path: Path, flags: str) -> None:
    program = f"""
import sys
from harness.cli import main
try:
    main([{flags}])
except SystemExit as end:
    assert not end.code, end.code
found = [m for m in {HEAVY} if m in sys.modules]
print("imported:", *found)
"""
    done = python("-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].strip() == "imported:"


def test_refuses_the_foreign_kernels_distribution(tmp_path: Path) -> None:
    info = tmp_path / "lib" / "kernels-0.17.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.17.2\n")
    done = python("-m", "harness", "method=dense", cwd=tmp_path, path=tmp_path / "lib")
    assert done.returncode == 2
    assert done.stderr.startswith("error: the distribution kernels 0.17.2 is installed")
    assert "pip uninstall kernels" in done.stderr
    assert done.stderr.count("\n") == 1


def test_process_exit_code_and_stderr(tmp_path: Path) -> None:
    done = python("-m", "harness", "method.rnk=8", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: method.rnk=8: there is no option method.rnk, did you mean rank?\n"
    assert not done.stdout
