"""Inside a fresh interpreter: shuts itself in, then becomes the solver or the tester.

``python -I -S launch.py <plan as JSON>`` in an empty environment. Standard library only. A process that leaves the
namespaces' first process (or, where there are none, a child subreaper) behind dies with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
DETACH = 2
PDEATHSIG, DUMPABLE, CAPBSET_DROP, SUBREAPER, NO_NEW_PRIVS = 1, 4, 24, 36, 38
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
MOUNT_SETATTR = 442
INNER_ID = 1000
FAILED = 97  # exit code: could not shut itself in


def main() -> None:
    plan: dict[str, Any] = json.loads(sys.argv[1])
    linux = sys.platform == "linux"
    if linux:
        _prctl(PDEATHSIG, signal.SIGKILL)
        if os.getppid() != plan["parent"]:
            os._exit(FAILED)
    try:
        if plan["level"] != "limited":
            _unshare()
    except OSError as error:
        print(f"{error.strerror}: namespaces", file=sys.stderr)
        os._exit(FAILED)
    if plan["level"] != "limited":
        first = os.fork()
        if first:
            _close_all()
            os._exit(_code(os.waitpid(first, 0)[1]))
        _prctl(PDEATHSIG, signal.SIGKILL)
    try:
        if plan["level"] == "isolated":
            _own_tree(plan)
        else:
            os.chdir(plan["folder"])
    except OSError as error:
        print(f"{error.strerror}: an own file tree", file=sys.stderr)
        os._exit(FAILED)
    if linux:
        _prctl(SUBREAPER, 1)
        _prctl(DUMPABLE, 0)
    program = os.fork()
    if not program:
        _become(plan)
    _close_all()
    os._exit(_supervise(program, plan))


def _supervise(program: int, plan: dict[str, Any]) -> int:
    """Wait for the program, then end whatever it has left behind."""
    while True:
        done, status = os.wait()
        if done == program:
            break
    if plan["level"] == "limited":  # elsewhere the kernel ends all processes of the namespace with this one
        while _end_children(plan):
            pass
    return _code(status)


def _end_children(plan: dict[str, Any]) -> bool:
    """Kill children, which orphans become as well; whether there were any."""
    if plan["uid"] is not None:  # everything of that user, at one blow
        killer = os.fork()
        if not killer:
            os.setresuid(plan["uid"], plan["uid"], plan["uid"])
            with suppress(OSError):
                os.kill(-1, signal.SIGKILL)
            os._exit(0)
        os.waitpid(killer, 0)
    else:
        for pid in _children():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    try:
        os.wait()
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{int(name)}/stat") as file:
            if int(file.read().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(name))
    return found


def _become(plan: dict[str, Any]) -> None:
    """The process of the program: without privileges, within limits."""
    try:
        os.setpgid(0, 0)
        if plan["uid"] is not None:
            os.setgroups([])
            os.setresgid(plan["uid"], plan["uid"], plan["uid"])
            os.setresuid(plan["uid"], plan["uid"], plan["uid"])
        if sys.platform == "linux":
            _drop_capabilities()
            _prctl(NO_NEW_PRIVS, 1)
            _prctl(DUMPABLE, 0)
        for name, value in plan["limits"].items():
            _limit(getattr(resource, name, None), value)
        sys.path.insert(0, plan["code"])
        if plan["role"] == "solver":
            from solver import main as run  # type: ignore[import-not-found]
        else:
            from tester import main as run  # type: ignore[import-not-found]
        sys.path.remove(plan["code"])
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(FAILED)
    code = 1
    try:
        run(*plan["fds"])
        code = 0
    finally:
        os._exit(code)


def _limit(kind: int | None, value: int) -> None:
    if kind is None:
        return
    least = resource.getrlimit(kind)[1]
    hard = value + 1 if kind == resource.RLIMIT_CPU else value  # the first limit says why, the second kills
    if least != resource.RLIM_INFINITY:
        value, hard = min(value, least), min(hard, least)
    with suppress(ValueError, OSError):  # macOS takes no limit of the address space
        resource.setrlimit(kind, (value, hard))


def _close_all() -> None:
    """A supervisor holds no end of any pipe, so that the others see when the program is gone."""
    os.closerange(0, 256)


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _unshare() -> None:
    """Own PID, network, mount, IPC and host-name namespaces; as nobody special, in an own user namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    spaces = NEWPID | NEWNET | NEWNS | NEWIPC | NEWUTS
    if os.geteuid() == 0 and libc.unshare(spaces) == 0:
        return
    uid, gid = os.geteuid(), os.getegid()
    _check(libc.unshare(spaces | NEWUSER))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{INNER_ID} {uid} 1"),
        ("gid_map", f"{INNER_ID} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _own_tree(plan: dict[str, Any]) -> None:
    """A file tree of the standard library and shared libraries, read-only, and one small writable folder."""
    root = plan["folder"]
    _mount(None, "/", None, REC | PRIVATE)
    _mount("tmpfs", root, "tmpfs", NOSUID | NODEV, "size=1m,mode=755")
    for path in plan["visible"]:
        _show(root, path)
    for name in ("null", "zero", "random", "urandom"):
        _show(root, f"/dev/{name}", device=True)
    owner = "" if plan["uid"] is None else f",uid={plan['uid']},gid={plan['uid']}"
    os.mkdir(root + "/proc")
    os.makedirs(root + plan["code"], exist_ok=True)
    _bind(plan["code_from"], root + plan["code"])
    for name in ("/work", "/old"):
        os.mkdir(root + name)
    room = f"size={plan['room']},nr_inodes=10000,mode=700{owner}"
    _mount("tmpfs", root + "/work", "tmpfs", NOSUID | NODEV, room)
    os.symlink("work", root + "/tmp")
    _mount(None, root, None, REMOUNT | BIND | RDONLY | NOSUID | NODEV)
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.syscall(PIVOT_ROOT[os.uname().machine], root.encode(), (root + "/old").encode()))
    os.chdir("/")
    _check(libc.umount2(b"/old", DETACH))
    os.chdir("/work")


def _show(root: str, path: str, device: bool = False) -> None:
    """Make ``path`` of the old tree visible, read-only, in the new one."""
    place = root + path
    if not os.path.exists(path) or os.path.lexists(place):
        return
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), place)
        return
    if os.path.isdir(path):
        os.mkdir(place)
    else:
        open(place, "x").close()
    _bind(path, place, device)


def _bind(path: str, place: str, device: bool = False) -> None:
    _mount(path, place, None, BIND | REC)
    attributes = (ctypes.c_uint64 * 4)(RDONLY | NOSUID | (0 if device else NODEV), 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    at_fdcwd, recursive = -100, 0x8000
    size = ctypes.sizeof(attributes)
    if libc.syscall(MOUNT_SETATTR, at_fdcwd, place.encode(), recursive, attributes, size):  # before Linux 5.12
        _mount(None, place, None, REMOUNT | BIND | RDONLY | NOSUID | (0 if device else NODEV))


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _check(libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]))


def _drop_capabilities() -> None:
    for capability in range(64):
        with suppress(OSError):
            _prctl(CAPBSET_DROP, capability)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    _check(ctypes.CDLL(None, use_errno=True).capset(header, data))


def _prctl(option: int, value: int) -> None:
    prctl: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl
    _check(prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    main()
