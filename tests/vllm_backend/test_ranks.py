"""Three ranks over gloo, each with its own heads: the same answers as one rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here; make setup-vllm")

HERE = Path(__file__).parent
SCRIPT = """
import dataclasses, json, sys
from hydra.utils import instantiate
from hops import play, words
from harness.backends.hf_tiny import Tiny
from harness.backends.vllm_engine import Engine, Settings

class Wide(Tiny):
    # vLLM cuts the padded vocabulary into as many parts as there are ranks.
    def facts(self):
        found = super().facts()
        return dataclasses.replace(found, vocab=384, revision=found.revision + "-wide")

def main():
    ranks = int(sys.argv[1])
    model = Wide(head_dim=32, kv_heads=3, heads=3, layers=3, hidden=96, intermediate=192, context=1024)
    method = {"_target_": "methods.kvcmas.KVCMAS", "gate": "always", "codec": "full", "factor_dtype": "model"}
    options = {"tensor_parallel_size": ranks, "distributed_executor_backend": "mp"} if ranks > 1 else {}
    sizes = {"dtype": "float32", "cache_gib": 0.05, "context": 1024}
    engine = Engine(Settings(model.folder(), method, gaps=True, options=options, **sizes))
    found = []
    for name in ("one", "two"):
        chain = play(engine, name, words("question", 200), ["solver", "critic"])
        found += [[f.facts["route"], f.facts["computed"], list(f.output_ids)] for f in chain]
    size = engine.ask("state_bytes")
    print("FOUND " + json.dumps([found, sum(s.total for s in size), len(size), engine.ask("kept_bytes")]))
    engine.close()

if __name__ == "__main__":
    main()
"""


def run(ranks: int, folder: Path) -> list[Any]:
    file = folder / "ranks.py"
    file.write_text(SCRIPT)
    path = os.pathsep.join(map(str, (HERE, HERE.parents[1])))
    out = subprocess.run(
        [sys.executable, str(file), str(ranks)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    lines = [line for line in out.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, out.stdout[-2000:] + out.stderr[-4000:]
    return list(json.loads(lines[0].removeprefix("FOUND ")))


def test_three_ranks_are_one(tmp_path: Path) -> None:
    one, three = run(1, tmp_path), run(3, tmp_path)
    assert [f[0] for f in one[0]] == ["dense", "fallback", "dense", "reuse"]
    assert three[0] == one[0]
    assert three[1] == one[1], "each rank keeps its own heads, together as much as one"
    assert (one[2], three[2]) == (1, 3)
    assert three[3] == [0, 0, 0]
