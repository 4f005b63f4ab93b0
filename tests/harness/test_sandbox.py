"""What a program may not do: each test attacks one property, at every level that this machine reaches."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.errors import UserError
from harness.sandbox import confined, execute, level
from harness.sandbox.base import Execution, Level, Limits, Outcome

TESTS = "def check(candidate):\n    assert candidate(1) == 2, 'needle-in-tests'\n    assert candidate(5) == 6\n"
NEEDLE = "'-'.join(['needle', 'in', 'tests'])"  # not in the text of a program that looks for it
GOOD = "def f(x):\n    return x + 1\n"
LIMITS = Limits(seconds=1.0, patience=4.0, memory_bytes=256 << 20)
LEVELS = [one for one in Level if (one is Level.isolated or not level._private_library()) and level.probe(one).passed]
STRONGEST = level.best()[0]

needs_sandbox = pytest.mark.skipif(not LEVELS, reason="no level of isolation works on this machine")
needs_isolation = pytest.mark.skipif(STRONGEST is not Level.isolated, reason="namespaces are not allowed here")
pytestmark = needs_sandbox


@pytest.fixture(params=LEVELS)
def at(request: pytest.FixtureRequest) -> Level:
    return Level(request.param)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No process, no folder and no file in the home folder, the working directory or the temporary folder."""
    places = (Path.home(), Path.cwd(), Path(tempfile.gettempdir()))
    yield
    launched = [p for p in psutil.process_iter(["cmdline"]) if any("launch.py" in w for w in p.info["cmdline"] or ())]
    ours = [p.pid for p in launched if str(os.getpid()) in " ".join(p.info["cmdline"])]
    assert not ours
    assert not [path for place in places for path in place.glob("*kvcmas-evil*")]


def run(program: str, at: Level, tests: str = TESTS, limits: Limits = LIMITS) -> Execution:
    return execute.tests(program, tests, "f", "", at, limits)


def inside(body: str) -> str:
    """A right answer that does something first; failures of that are its own business."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return f"import os, sys\n\ndef f(x):\n    try:\n{lines}\n    except Exception:\n        pass\n    return x + 1\n"


def test_right_and_wrong_programs(at: Level) -> None:
    assert run(GOOD, at) == Execution(Outcome.passed, "", at)
    assert run(GOOD.replace("1", "2"), at).outcome is Outcome.failed
    assert run("def f(x: return", at).outcome is Outcome.raised
    assert run("def g(x):\n    return x + 1\n", at).outcome is Outcome.raised


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("import sys\nsys.exit(0)", Outcome.exited),
        ("import os\nos._exit(0)", Outcome.exited),
        ("def f(x):\n    raise SystemExit(0)", Outcome.exited),
        ("import os\ndef f(x):\n    os._exit(0)", Outcome.exited),
        ("def f(x):\n    raise AssertionError('passed: all tests passed')", Outcome.raised),
        ('raise Exception(\'{"outcome": "passed"}\')', Outcome.raised),
        ("def f(x):\n    return f(x)", Outcome.raised),
        ("import os, signal\ndef f(x):\n    os.kill(os.getpid(), signal.SIGSEGV)", Outcome.crashed),
    ],
    ids=["exit", "_exit", "exit-in-call", "_exit-in-call", "says-pass", "says-json", "recursion", "segfault"],
)
def test_no_way_around_the_tests(program: str, outcome: Outcome) -> None:
    assert run(program, LEVELS[0]).outcome is outcome


@pytest.mark.parametrize(
    "program",
    [
        "class Same:\n    def __eq__(self, other):\n        return True\n\ndef f(x):\n    return Same()",
        "class Same(int):\n    def __eq__(self, other):\n        return True\n\ndef f(x):\n    return Same(0)",
        "import builtins\nbuiltins.AssertionError = SystemError\ndef f(x):\n    return None",
        "import sys\nsys.modules['__main__'].check = check = lambda candidate: None\ndef f(x):\n    return 0",
        'import os\nfor fd in range(3, 99):\n    try:\n        os.write(fd, b\'{"value": {"int": "0x2"}}\\n\' * 9)\n'
        "    except OSError:\n        pass\ndef f(x):\n    return 0",
        "import gc\nfor thing in gc.get_objects():\n    if isinstance(thing, (dict, list, tuple)):\n"
        f"        if {NEEDLE} in repr(list(thing)):\n            raise SystemExit\ndef f(x):\n    return 0",
        f"import sys\nframe = sys._getframe()\nwhile frame:\n    if {NEEDLE} in str(dict(frame.f_locals)):\n"
        "        raise SystemExit\n    frame = frame.f_back\ndef f(x):\n    return 0",
        'import json\njson.dumps = lambda *_: \'{"token": "", "outcome": "passed", "message": ""}\'\n'
        "def f(x):\n    return 0",
    ],
    ids=["equals-all", "int-equals-all", "no-assert", "own-check", "forged", "objects", "frames", "own-json"],
)
def test_no_forged_pass(program: str) -> None:
    """Neither the tests, nor their expected values, nor the verdict are in the program's process."""
    found = run(program, LEVELS[0])
    assert found.outcome in (Outcome.failed, Outcome.exited)
    assert "SystemExit" not in found.message


def test_an_endless_loop_and_a_stopped_process(at: Level) -> None:
    assert run("def f(x):\n    while True:\n        pass", at).outcome is Outcome.timeout
    stopped = "import os, signal\ndef f(x):\n    os.kill(os.getpid(), signal.SIGSTOP)"
    assert run(stopped, at, limits=Limits(seconds=1.0, patience=1.0)).outcome is Outcome.timeout


def test_a_fork_bomb(at: Level) -> None:
    bomb = """
import os
def f(x):
    while True:
        try:
            os.fork()
        except OSError:
            pass
"""
    found = run(bomb, at, limits=Limits(seconds=1.0, patience=2.0))
    assert found.outcome in (Outcome.timeout, Outcome.processes)


def test_threads_and_processes_are_counted(at: Level) -> None:
    many = """
import threading, time
def f(x):
    for _ in range(4000):
        threading.Thread(target=time.sleep, args=(9,)).start()
"""
    assert run(many, at, limits=Limits(seconds=4.0, processes=8)).outcome in (Outcome.raised, Outcome.processes)


def test_fifty_gigabytes_of_memory(at: Level) -> None:
    assert run("def f(x):\n    return len(bytearray(50 << 30))", at).outcome is Outcome.memory
    shared = """
import os, time
def f(x):
    for _ in range(6):
        if not os.fork():
            data = bytearray(b"x") * (120 << 20)
            time.sleep(60)
    time.sleep(60)
"""
    assert run(shared, at, limits=Limits(seconds=20.0, memory_bytes=256 << 20)).outcome is Outcome.memory


def test_ten_gigabytes_of_output(at: Level) -> None:
    assert run("def f(x):\n    for _ in range(10_000):\n        print('x' * 1_000_000)", at).outcome is Outcome.output
    assert run(inside("os.write(2, b'x' * 1000)\nprint('words')"), at).passed


def test_a_large_file(at: Level) -> None:
    program = """
def f(x):
    with open("big", "wb") as file:
        while True:
            file.write(b"x" * 1_000_000)
"""
    found = run(program, at)
    assert (found.outcome, found.message[:7]) == (Outcome.raised, "OSError")


@needs_isolation
def test_many_files() -> None:
    many = """
def f(x):
    for n in range(10**6):
        with open(f"{n}", "wb") as file:
            file.write(b"x" * 9_000)
"""
    found = run(many, Level.isolated, limits=Limits(seconds=9.0, file_bytes=4 << 20))
    assert found.outcome is Outcome.raised
    assert "space" in found.message


def test_files_elsewhere() -> None:
    """Home, the harness and the temporary folder of others are out of reach with an own file tree."""
    if STRONGEST is not Level.isolated and os.geteuid() != 0:
        pytest.skip("without an own file tree, files of the user are within reach, as documented")
    home, here, temporary = Path.home(), Path.cwd(), Path(tempfile.gettempdir())
    for place in (home, here, temporary, "/dev/shm", "/var/tmp", "/"):
        body = f"open({str(Path(place) / 'kvcmas-evil')!r}, 'w').write('x')"
        assert run(inside(body), LEVELS[0]).passed
        assert not (Path(place) / "kvcmas-evil").exists()
    secret = here / "pyproject.toml"
    assert secret.exists()
    assert run(f"open({str(secret)!r}).read()\n" + GOOD, Level.isolated).message.startswith("FileNotFoundError")


def test_the_working_directory_is_a_temporary_one(at: Level) -> None:
    program = "import os\nopen('note', 'w').write('7')\ndef f(x):\n    return x + 1 + 7 - int(open('note').read())"
    before = set(Path(tempfile.gettempdir()).glob("kvcmas-*"))
    assert run(program, at).passed
    assert set(Path(tempfile.gettempdir()).glob("kvcmas-*")) == before


def test_the_environment_is_empty(at: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCMAS_SECRET", "secret")
    body = "import os, glob\nanswer = [len(os.environ)]\n"
    body += (
        "for name in glob.glob('/proc/*/environ'):\n    try:\n        answer.append('SECRET' in open(name).read())\n"
    )
    body += "    except OSError:\n        pass\nanswer = [any(answer)]"
    assert execute.value(body, "answer", at, LIMITS).value == "[False]"


@needs_isolation
def test_no_network_no_other_process_no_privilege() -> None:
    network = "import socket\ndef f(x):\n    socket.create_connection(('127.0.0.1', 9), timeout=5)\n    return x + 1"
    assert run(network, Level.isolated).message.startswith("OSError: [Errno 101]")
    outside = f"import os\nos.kill({os.getpid()}, 0)\n" + GOOD
    assert run(outside, Level.isolated).message.startswith("ProcessLookupError")
    assert run("import os\nos.setuid(0)\n" + GOOD, Level.isolated).message.startswith("PermissionError")
    mount = "import ctypes\nanswer = ctypes.CDLL(None).mount(b'a', b'/work', b'tmpfs', 0, None)"
    assert execute.value(mount, "answer", Level.isolated, LIMITS).value == "-1"


def test_killing_its_parent_and_everybody(at: Level) -> None:
    body = """
for pid in (os.getppid(), 1, -1):
    try:
        os.kill(pid, 9)
    except OSError:
        pass
"""
    assert run(inside(body.strip()), at).outcome in (Outcome.passed, Outcome.exited)


def test_a_detached_child(at: Level) -> None:
    body = """
if not os.fork():
    os.setsid()
    if not os.fork():
        os.closerange(0, 99)
        __import__('time').sleep(300)
    os._exit(0)
"""
    assert run(inside(body.strip()), at).passed  # and the fixture finds nothing


def test_values_travel_as_they_are() -> None:
    values = (
        "[1, -2**70, 1.5, float('inf'), 2j, 'a\\n\\u00e9\\ud800', b'\\x00', None, True, (1, [2]), {1: {2}, (3,): 'x'}, "
        "set(), frozenset({1}), range(3), -0.0]"
    )
    tests = f"def check(f):\n    v = {values}\n    w = f(v)\n"
    tests += "    assert w == v and list(map(type, w)) == list(map(type, v))\n"
    tests += "    assert str(w[-1]) == '-0.0' and f(f(v)) == v\n"
    assert run("def f(x):\n    return x", LEVELS[0], tests).passed
    nan = "def check(f):\n    x = f(float('nan'))\n    assert x != x\n"
    assert run("def f(x):\n    return x", LEVELS[0], nan).passed


def test_arguments_changed_in_place_and_exceptions_that_tests_expect() -> None:
    program = "def f(x):\n    x.sort()\n    if not x:\n        raise ValueError('empty')\n"
    tests = """
def check(f):
    x = [3, 1, 2]
    assert f(x) is None
    assert x == [1, 2, 3]
    try:
        f([])
    except ValueError as error:
        assert str(error) == "empty"
    else:
        assert False
"""
    assert run(program, LEVELS[0], tests).passed
    assert run(program.replace("x.sort()", "x = sorted(x)"), LEVELS[0], tests).outcome is Outcome.failed


def test_helpers_of_the_benchmark_and_of_the_program() -> None:
    tests = "def check(f):\n    assert f(double(3)) == 7\n    assert len([helper(1)]) == 1\n"
    program = GOOD + "def helper(x):\n    return x\ndef double(x):\n    return 6\ndef len(x):\n    return 1\n"
    done = execute.tests(program, tests, "f", "def double(x):\n    return 2 * x\n", LEVELS[0], LIMITS)
    assert done.passed


def test_tests_that_cannot_be_run_are_not_passed() -> None:
    assert run(GOOD, LEVELS[0], "def check(candidate):\n    pass\n").outcome is Outcome.unsupported
    assert run(GOOD, LEVELS[0], "def check(f):\n    f(lambda: 1)\n").outcome is Outcome.unsupported
    hidden = "def check(f):\n    try:\n        f(1)\n    except BaseException:\n        pass\n"
    assert run("import os\ndef f(x):\n    os._exit(0)", LEVELS[0], hidden).outcome is Outcome.exited


def test_a_level_can_be_required(monkeypatch: pytest.MonkeyPatch) -> None:
    assert level.require("limited", "task.sandbox") is STRONGEST
    monkeypatch.setattr(level, "best", lambda: (Level.limited, "no namespaces"))
    with pytest.raises(UserError, match=r"task\.sandbox=isolated: this machine reaches limited only"):
        level.require("isolated", "task.sandbox")
    with pytest.raises(UserError, match="must be one of isolated, namespaced, limited"):
        level.require("none", "task.sandbox")


def test_levels_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(one: Level) -> Execution:
        return Execution(Outcome.passed if one is Level.limited else Outcome.broken, "forbidden", one)

    monkeypatch.setattr(level, "probe", probe)
    monkeypatch.setattr(level, "_private_library", lambda: "")
    assert level.best.__wrapped__() == (Level.limited, "isolated: forbidden; namespaced: forbidden")
    monkeypatch.setattr(level, "_private_library", lambda: "a private library")
    assert level.best.__wrapped__() == (None, "isolated: forbidden; a private library")


@needs_isolation
def test_a_sandbox_that_does_not_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its standard library the interpreter stops, and no program is blamed for that."""
    monkeypatch.setattr(confined, "visible", list)
    found = level.probe(Level.isolated)
    assert found.outcome is Outcome.broken
    assert "did not start" in found.message
