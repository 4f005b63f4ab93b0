"""Run folders for tests of the report: their numbers are drawn, everything else is as a run writes it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml

from harness.config import CONF
from harness.provenance import Cpu, Git, Provenance, RanModel, Session
from harness.records import HopRecord, Phases, Route, Row, StateSize, Status
from harness.report.exhibit import Point, exhibits
from harness.report.run import OUTSIDE
from harness.summarise import Heading, summarise

LAYERS = 4
SESSION = Session(
    command="python -m harness", start_utc="2026-01-01T00:00:00+00:00", end_utc="2026-01-01T00:01:00+00:00",
    git=Git("0123456789abcdef", False, None), packages={"torch": "2.13.0", "kvcmas": "0.1.0"}, python="3.11.7",
    os="Linux", host_sha256="ab" * 32, cpu=Cpu("a processor", ["avx2"], 2), gpus=[], torch=None,
    model=RanModel(id="tiny", dtype="float32", device="cpu", attention="sdpa", kernels="torch"), data=None,
    prompt_sha256=None,
)  # fmt: skip


def config_of(point: Point, **options: Any) -> dict[str, Any]:
    """The options of a run at a point, as ``config.yaml`` has them."""
    groups = {"method": "kvcmas", "task": "gsm8k", "model": "smollm2", "workflow": "full", **point.choices}
    made: dict[str, Any] = {}
    for group, choice in groups.items():
        made[group] = yaml.safe_load((CONF / group / f"{choice}.yaml").read_text())
        made[group].setdefault("name", choice)
    for key, value in point.options.items():
        group, _, option = key.partition(".")
        made[group][option] = float(value) if value == "inf" else yaml.safe_load(value)
    plain = {"limit": 8, "seed": 0, "repeats": 1, "shadow": True, "teacher_forcing": False, "early": 50}
    return {**made, **plain, **options}


def write_run(root: Path, point: Point, command: str = "python -m harness", n: int = 8, **options: Any) -> Path:
    """A complete run folder of ``n`` samples."""
    config = config_of(point, **options)
    kept = {k: v for k, v in config.items() if k not in OUTSIDE}
    identity = hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()
    method = point.choices.get("method", "kvcmas")
    folder = root / str(config["task"]["name"]) / f"{method}-{identity[:10]}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    session = msgspec.structs.replace(SESSION, command=command)
    provenance = Provenance(identity_sha256=identity, config_sha256="0" * 64, sessions=[session])
    (folder / "provenance.json").write_bytes(msgspec.json.encode(provenance))
    rows = [row for repeat in range(config["repeats"]) for row in drawn(config, method, n, repeat)]
    (folder / "rows.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    heading = Heading(
        str(config["task"]["name"]), method, str(config["model"]["name"]), "hf", LAYERS, command, True, "code",
        teacher_forcing=bool(config["teacher_forcing"]),
    )  # fmt: skip
    (folder / "summary.json").write_bytes(msgspec.json.encode(summarise(rows, heading)))
    return folder


def drawn(config: dict[str, Any], method: str, n: int, repeat: int) -> list[Row]:
    """Rows whose errors fall with rank and pool, under noise that depends on method, its options and the seed."""
    options = json.dumps([config["method"], config["seed"]], sort_keys=True, default=str)
    noise = np.random.default_rng([int(hashlib.sha256(options.encode()).hexdigest()[:8], 16), repeat])
    rank = config["method"].get("rank") or 16
    scale = {"dense": 0.0, "full_reuse": 1.0}.get(method, 1.0 / (1 + 0.15 * rank))
    shared = int(config["task"].get("shared_tokens", 400))
    agents = int(config["task"]["agents"]) if isinstance(config["task"].get("agents"), int) else 3
    return [
        Row(
            sample_id=f"s{at}", repeat=repeat, status=Status.ok, prediction="1", target="1",
            correct=bool(noise.random() < 0.5 + 0.3 * (1 - scale)), e2e_s=float(agents * (0.5 + 0.1 * noise.random())),
            state_bytes=StateSize.of(2**20, int(2**16 * rank)), peak_bytes=2**30,
            hops=[_hop(index, method, shared, scale, noise) for index in range(agents)],
        )
        for at in range(n)
    ]  # fmt: skip


def _hop(index: int, method: str, shared: int, scale: float, noise: np.random.Generator) -> HopRecord:
    prompt, reuse = shared + 100, index > 0 and method != "dense"
    dense_s = 1e-3 * prompt
    ttft_s = float(dense_s * (0.2 if reuse else 1.0) * (1 + 0.1 * noise.random()))
    record = HopRecord(
        agent=f"a{index}", index=index, route=Route.reuse if reuse else Route.dense, source_hop=index == 0,
        prompt_tokens=prompt, shared_tokens=shared, fresh_token_layers=LAYERS * (100 if reuse else prompt),
        output_tokens=8, ttft_s=ttft_s, e2e_s=ttft_s + 0.2, phases=Phases(match_s=0.01 if reuse else 0.0),
    )  # fmt: skip
    if not reuse:
        return record
    return msgspec.structs.replace(
        record, kv_error_k=[float(scale * 0.2 * (1 + noise.random()))] * LAYERS,
        kv_error_v=[float(scale * 0.4 * (1 + noise.random()))] * LAYERS,
        first_token_kl=float(scale * noise.random()), prefix_match=int(8 * (1 - scale * noise.random())),
        answer_agrees=bool(noise.random() > 0.3 * scale), shadow_ttft_s=dense_s,
    )  # fmt: skip


def write_experiment(root: Path, name: str, size: str = "laptop", **options: Any) -> list[Path]:
    """Every run of an experiment."""
    (exhibit,) = (e for e in exhibits() if e.name == name)
    options = {**exhibit.fixed, **options}
    return [write_run(root, p, exhibit.command, **options) for p in exhibit.points(size)]
