"""A sweep leaves this process without a line of code: joblib, submitit's local executor, a local Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PLUGINS = {
    "processes": "hydra_plugins.hydra_joblib_launcher",
    "slurm_local": "hydra_plugins.hydra_submitit_launcher",
    "ray": "hydra_plugins.hydra_ray_launcher",
}


def installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("launch", PLUGINS)
def test_an_experiment_runs_elsewhere(tmp_path: Path, launch: str) -> None:
    if not installed(PLUGINS[launch]):
        pytest.skip(f"{PLUGINS[launch]} is not installed")
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "two.yaml").write_text("# @package _global_\npoints:\n  - method=dense,full_reuse\n")
    words = [f"+launch={launch}", "+experiment=two", "--config-dir", str(tmp_path / "conf"), "model=tiny", "limit=1",
             "workflow=chain", "workflow.max_new_tokens=2", "tracking=none"]  # fmt: skip
    here = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(here), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "harness", "-m", *words], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=540,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = sorted(p.parent.name.partition("-")[0] for p in tmp_path.glob("results/runs/gsm8k/*/summary.json"))
    assert found == ["dense", "full_reuse"], done.stderr[-2000:]
