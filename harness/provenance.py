"""Where a run comes from: code, versions, hardware, model, data, command. One session per process that worked on it.

Nothing here names this machine: the host's name is hashed, and absolute paths of the command line are written
relative to the folder it was typed in, where they mean the same. What cannot be found out is None, never an error.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from harness.records import SCHEMA

PACKAGES = (
    *("kvcmas", "torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy", "datasets"),
    *("hydra-core", "msgspec", "triton", "vllm", "wandb"),
)
CPU_FLAGS = ("avx", "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "asimd", "sve", "bf16")


class Git(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The commit, whether tracked files differ from it, and the hash of that difference."""

    sha: str
    dirty: bool
    diff_sha256: str | None


class Cpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Processor, the vector extensions that decide which dtype is fast, and the cores this process may use."""

    name: str
    flags: list[str]
    cores: int


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device as ``nvidia-smi`` tells it; texts, since drivers answer "[N/A]" where they do not know."""

    name: str
    driver: str
    cuda: str | None
    sm_clock_mhz: str
    power_limit_w: str
    ecc: str
    memory_mib: str


class TorchFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Switches of torch that move numbers or times."""

    threads: int
    deterministic: bool
    matmul_tf32: bool
    cudnn_tf32: bool


class RanModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What ran: ``id`` is a public name, not a path; ``weights_sha256`` hashes the weights or their index."""

    id: str
    revision: str | None = None
    dtype: str
    device: str
    weights_sha256: str | None = None
    attention: str
    kernels: str


class DataFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The data set's manifest: ``source`` is ``sample``, a hub id or a file name; ``sha256`` hashes its ids and
    contents; ``subset`` is ``all`` or ``paper``; ``extractor`` names the rule that reads answers."""

    source: str
    split: str | None = None
    revision: str | None = None
    rows: int
    sha256: str
    subset: str = "all"
    extractor: str | None = None


class Session(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One process that worked on a run folder. ``end_utc`` stays None if it was killed; ``rows`` were finished when it
    began, None where nobody counted them."""

    command: str
    start_utc: str
    end_utc: str | None = None
    git: Git | None
    packages: dict[str, str]
    python: str
    os: str
    host_sha256: str
    cpu: Cpu
    gpus: list[Gpu]
    torch: TorchFacts | None
    model: RanModel | None
    data: DataFacts | None
    prompt_sha256: str | None
    rows: int | None = None


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``provenance.json``.

    Attributes:
        identity_sha256: hash of what the run id is made of.
        config_sha256: hash of ``config.yaml`` as written, so that an edited one is noticed.
        sessions: in the order they began; a resumed run has several.
    """

    schema: int = SCHEMA
    identity_sha256: str
    config_sha256: str
    sessions: list[Session]


def collect(
    model: RanModel | None = None,
    data: DataFacts | None = None,
    prompt_sha256: str | None = None,
    argv: Sequence[str] | None = None,
    module: str = "harness",
) -> Session:
    """The session of this process, as of now. Facts about torch are included if the process has loaded it."""
    return Session(
        command=command_line(_typed() if argv is None else argv, Path.cwd(), module),
        start_utc=utc_now(),
        git=git(Path(__file__).resolve().parent),
        packages=dict(_versions(PACKAGES)),
        python=platform.python_version(),
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
        host_sha256=hashlib.sha256(socket.gethostname().encode()).hexdigest(),
        cpu=cpu(Path("/proc/cpuinfo")),
        gpus=_gpus(),
        torch=_torch(),
        model=model,
        data=data,
        prompt_sha256=prompt_sha256,
    )


def _typed() -> list[str]:
    """The arguments of this process, without what :mod:`harness.points` adds to them."""
    return [word for word in sys.argv[1:] if not word.startswith("+point=")]


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def command_line(arguments: Sequence[str], folder: Path, module: str = "harness") -> str:
    """The command as it can be typed in ``folder``: ``python -m``, the module and the quoted arguments, absolute
    paths (bare, or as the value of ``key=``) made relative to it."""
    return shlex.join(["python", "-m", module, *(_relative(argument, folder) for argument in arguments)])


def _relative(argument: str, folder: Path) -> str:
    key, equals, value = argument.rpartition("=")
    if not os.path.isabs(value):
        return argument
    return f"{key}{equals}{os.path.relpath(value, folder)}"


def git(folder: Path) -> Git | None:
    """The state of the work tree around ``folder``; None without git or outside a repository."""
    sha = _output(["git", "rev-parse", "HEAD"], folder)
    diff = _output(["git", "diff", "HEAD"], folder)
    if not sha or diff is None:
        return None
    return Git(sha.strip(), bool(diff), hashlib.sha256(diff.encode()).hexdigest() if diff else None)


def cpu(info: Path) -> Cpu:
    """Read off Linux's ``/proc/cpuinfo``; elsewhere the name that the platform gives, and no flags."""
    name, flags = platform.processor() or platform.machine(), set[str]()
    try:
        for line in info.read_text().splitlines():
            key, _, value = (part.strip() for part in line.partition(":"))
            if key == "model name":
                name = value
            elif key in ("flags", "Features"):
                flags = set(value.split())
    except OSError:
        pass
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return Cpu(name, [flag for flag in CPU_FLAGS if flag in flags], cores)


def _versions(names: Iterable[str]) -> Iterable[tuple[str, str]]:
    for name in names:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def _gpus() -> list[Gpu]:
    query = "name,driver_version,clocks.max.sm,power.limit,ecc.mode.current,memory.total"
    found = _output(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"], Path.cwd())
    torch = sys.modules.get("torch")
    cuda = None if torch is None else torch.version.cuda
    rows = [[field.strip() for field in row] for row in csv.reader(io.StringIO(found or ""))]
    return [Gpu(row[0], row[1], cuda, *row[2:]) for row in rows if len(row) == query.count(",") + 1]


def _torch() -> TorchFacts | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return TorchFacts(
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
    )


def _output(command: list[str], folder: Path) -> str | None:
    """What a program says, or None if it is absent, fails or hangs."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
