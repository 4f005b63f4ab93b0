"""One shut-in process, seen from outside: started, watched, ended without a trace."""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

import psutil

from harness.sandbox.base import Level, Limits

CODE = Path(__file__).parent
INSIDE = "/sandbox"
FAILED = 97  # see launch.py
_HIGH = 1_000_000_000


class Confined:
    """A solver or a tester in its sandbox. Use as a context manager: leaving it ends every process and the folder.

    Args:
        fds: descriptors that it keeps, in the order in which its ``main`` takes them.
        stdin: what it reads; nothing by default.
    """

    def __init__(
        self,
        role: Literal["solver", "tester"],
        level: Level,
        limits: Limits,
        fds: Sequence[int],
        stdin: IO[bytes] | int = subprocess.DEVNULL,
    ) -> None:
        self.token, self.level, self.limits = secrets.token_hex(16), level, limits
        self.output = b""
        self.uid = spare_uid()
        self.folder = Path(tempfile.mkdtemp(prefix="kvcmas-"))
        if self.uid is not None and level is not Level.isolated:
            os.chown(self.folder, self.uid, self.uid)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(CODE / "launch.py"), json.dumps(self._plan(role, fds))],
            env={},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            pass_fds=list(fds),
            start_new_session=True,
            bufsize=0,
        )
        assert self.process.stdout is not None
        self.pipe: IO[bytes] = self.process.stdout
        os.set_blocking(self.pipe.fileno(), False)

    def _plan(self, role: str, fds: Sequence[int]) -> dict[str, Any]:
        limits, own = self.limits, self.level is Level.isolated
        return {
            "token": self.token,
            "parent": os.getpid(),
            "role": role,
            "level": self.level,
            "folder": str(self.folder),
            "code": INSIDE if own else str(CODE),
            "code_from": str(CODE),
            "visible": visible(),
            "uid": self.uid,
            "fds": list(fds),
            "room": limits.file_bytes,
            "limits": {
                "RLIMIT_AS": limits.memory_bytes,
                "RLIMIT_CPU": math.ceil(limits.seconds),
                "RLIMIT_NPROC": limits.processes + (0 if self.uid is not None else _threads_of_user()),
                "RLIMIT_FSIZE": limits.file_bytes,
                "RLIMIT_CORE": 0,
                "RLIMIT_NOFILE": 256,
            },
        }

    def __enter__(self) -> Confined:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def drain(self) -> bool:
        """Take what it has written; whether that is within the limit. What is beyond is dropped."""
        with suppress(BlockingIOError):
            while block := os.read(self.pipe.fileno(), 1 << 16):
                self.output += block
                if len(self.output) > self.limits.output_bytes:
                    self.output = self.output[: self.limits.output_bytes]
                    return False
        return True

    def usage(self) -> tuple[int, int]:
        """Resident bytes and number of all its processes."""
        resident = count = 0
        for process in self._tree():
            with suppress(psutil.Error):
                resident += process.memory_info().rss
                count += 1
        return resident, count

    def end(self) -> None:
        """Kill whatever still runs, and remove the folder."""
        deadline = time.monotonic() + 10.0
        while (tree := self._tree()) and time.monotonic() < deadline:
            for process in tree:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(0.002)
            if self.process.poll() is not None:
                break
        self.process.kill()
        self.process.wait()
        self.pipe.close()
        if self.level is not Level.isolated:
            self._end_strays(deadline)
        _remove(self.folder)

    def _tree(self) -> list[psutil.Process]:
        """All processes below the launcher; in namespaces, the first of them takes all others with it."""
        try:
            return list(psutil.Process(self.process.pid).children(recursive=True))
        except psutil.Error:
            return []

    def _end_strays(self, deadline: float) -> None:
        """Without namespaces, whoever killed its supervisor is known by its user or by its inherited command line."""
        while time.monotonic() < deadline:
            strays = [p for p in psutil.process_iter(["uids", "cmdline", "status"]) if self._is_ours(p.info)]
            if not strays:
                return
            for process in strays:
                with suppress(psutil.Error):
                    process.kill()

    def _is_ours(self, info: dict[str, Any]) -> bool:
        if info["status"] == psutil.STATUS_ZOMBIE:
            return False
        own_user = self.uid is not None and info["uids"] is not None and info["uids"].real == self.uid
        return own_user or any(self.token in word for word in info["cmdline"] or ())


def visible() -> list[str]:
    """Files of this machine that an interpreter needs to start and to import its standard library."""
    library = str(Path(os.__file__).resolve().parent)
    shared = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo"]
    return [*shared, f"{sys.base_prefix}/lib", library, "/etc/localtime"]


def spare_uid() -> int | None:
    """A user id that nobody else has, for programs that root starts; None for everybody else."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return None
    try:
        spans = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except OSError:
        return None
    inner, _, count = max(spans, key=lambda span: span[2])
    if count < 2:
        return None
    first = _HIGH if inner + count > 2 * _HIGH else inner + count // 2
    return first + secrets.randbelow(min(_HIGH, inner + count - first))


def _threads_of_user() -> int:
    """The limit of processes counts a user's, all of them, so that theirs come on top."""
    user, count = os.getuid(), 0
    for process in psutil.process_iter(["uids", "num_threads"]):
        if process.info["uids"] is not None and process.info["uids"].real == user:
            count += process.info["num_threads"] or 1
    return count


def _remove(folder: Path) -> None:
    def open_up(function: Any, path: str, _: object) -> None:
        with suppress(OSError):
            os.chmod(os.path.dirname(path), 0o700)
            os.chmod(path, 0o700)
            function(path)

    shutil.rmtree(folder, onerror=open_up)
