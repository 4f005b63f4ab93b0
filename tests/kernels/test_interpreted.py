from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_kernels_match_their_references_in_the_interpreter() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-m", "interpreter", "tests/kernels", "-p", "no:cacheprovider"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    out = subprocess.run(
        [*command, "-W", "ignore::RuntimeWarning"],
        cwd=root,
        env={**environment, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert out.returncode == 0, out.stdout[-6000:] + out.stderr[-2000:]
    assert " passed" in out.stdout
