"""Provenance is complete where the facts exist, silent where they do not, and names no machine."""

from __future__ import annotations

import hashlib
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from harness import provenance
from harness.provenance import DataFacts, RanModel, Session, collect, command_line, cpu, git

MODEL = RanModel(id="smollm2", dtype="float32", device="cpu", attention="sdpa", kernels="torch")
DATA = DataFacts(source="sample", rows=60, sha256="ab")


def run(folder: Path, *command: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e@x")
    done = subprocess.run(["git", *identity, *command], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def test_a_session_survives_json_and_holds_what_it_was_given() -> None:
    session = collect(MODEL, DATA, "cd", argv=["method=kvcmas", "limit=2"])
    assert msgspec.json.decode(msgspec.json.encode(session), type=Session) == session
    assert (session.model, session.data, session.prompt_sha256) == (MODEL, DATA, "cd")
    assert session.command == "python -m harness method=kvcmas limit=2"
    assert session.python == ".".join(map(str, sys.version_info[:3]))
    assert {"kvcmas", "torch", "transformers", "numpy"} <= session.packages.keys()
    assert session.cpu.cores >= 1
    assert session.end_utc is None


def test_a_session_names_neither_the_host_nor_a_folder_of_this_machine() -> None:
    text = msgspec.json.encode(collect(MODEL, DATA, argv=[str(Path.home() / "data.jsonl")])).decode()
    for secret in (str(Path.cwd()), str(Path.home() / "data"), sys.prefix, socket.gethostname()):
        assert f'"{secret}' not in text
        assert f" {secret}" not in text
    assert hashlib.sha256(socket.gethostname().encode()).hexdigest() in text


def test_the_command_means_the_same_in_its_folder(tmp_path: Path) -> None:
    work = tmp_path / "work"
    arguments = ["limit=2", f"task.source={tmp_path}/data/x.jsonl", f"{work}/y", "a=b c", "task=/", "x='q'", "rate=1/2"]
    line = command_line(arguments, work)
    assert str(tmp_path) not in line
    assert shlex.split(line)[3:6] == ["limit=2", "task.source=../data/x.jsonl", "y"]
    assert shlex.split(line)[6:7] + shlex.split(line)[8:] == ["a=b c", "x='q'", "rate=1/2"]
    assert not shlex.split(line)[7].startswith("task=/")


def test_git_tells_commit_and_difference(tmp_path: Path) -> None:
    assert git(tmp_path) is None  # no repository
    run(tmp_path, "init", "-q")
    assert git(tmp_path) is None  # no commit
    (tmp_path / "f").write_text("one\n")
    run(tmp_path, "add", "f")
    run(tmp_path, "commit", "-q", "-m", "m")
    clean = git(tmp_path)
    assert clean is not None
    assert (clean.sha, clean.dirty, clean.diff_sha256) == (run(tmp_path, "rev-parse", "HEAD").strip(), False, None)
    (tmp_path / "f").write_text("two\n")
    dirty = git(tmp_path)
    assert dirty is not None
    assert dirty.dirty
    assert dirty.diff_sha256 == hashlib.sha256(run(tmp_path, "diff", "HEAD").encode()).hexdigest()


def test_without_git_there_is_no_commit_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git(Path.cwd()) is None
    assert collect(argv=[]).git is None


def test_cpu_flags_that_matter_are_read_off(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu avx2 amx_bf16 avx512_bf16\n\nprocessor\t: 1\n")
    found = cpu(info)
    assert (found.name, found.flags) == ("A CPU", ["avx2", "avx512_bf16", "amx_bf16"])
    assert cpu(tmp_path / "none").flags == []


def test_gpus_are_read_off_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 580.1, 1980, 700.00, [N/A], 143771'\necho broken\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    (gpu,) = provenance.collect(argv=[]).gpus
    assert (gpu.name, gpu.driver, gpu.sm_clock_mhz, gpu.power_limit_w) == ("NVIDIA H200", "580.1", "1980", "700.00")
    assert (gpu.ecc, gpu.memory_mib) == ("[N/A]", "143771")


def test_torch_is_told_of_only_where_it_is_loaded() -> None:
    code = (
        "import sys; from harness.provenance import collect\n"
        "assert collect(argv=[]).torch is None\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    import torch

    facts = collect(argv=[]).torch
    assert facts is not None
    assert facts.threads == torch.get_num_threads()
