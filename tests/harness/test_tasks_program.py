"""The program in an answer: every way in which models wrap, cut off, repeat or leave out code."""

from __future__ import annotations

import ast

import pytest

from harness.tasks.examples import examples_of
from harness.tasks.program import program_of, script_of

PROMPT = '''from typing import List


def double(x: int) -> int:
    """Twice x."""
    return 2 * x


def total(values: List[int]) -> int:
    """Return the sum of the doubled values.
    >>> total([1, 2])
    6
    >>> total([])
    0
    """
'''
SIGNATURE = "def total(values: List[int]) -> int:\n"
BODY = "    result = 0\n    for value in values:\n        result += double(value)\n    return result\n"
WHOLE = SIGNATURE + BODY
WRONG = SIGNATURE + "    return -1\n"
FLAT = "result = 0\nfor value in values:\n    result += double(value)\nreturn result\n"


def starting_with(value: str) -> str:
    return WHOLE.replace("result = 0", f"result = {value}")


def total(raw: str) -> object:
    """What the program in ``raw`` makes of [1, 2]; "invalid" without one, "broken" if it does not run."""
    program = program_of(raw, PROMPT, "total")
    if program is None:
        return "invalid"
    space: dict[str, object] = {}
    try:
        exec(compile(program, "<program>", "exec"), space)
        return space["total"]([1, 2])  # type: ignore[operator]
    except Exception:
        return "broken"


@pytest.mark.parametrize(
    "raw",
    [
        BODY,
        "\n" + BODY,
        FLAT,
        WHOLE,
        PROMPT + BODY,
        f"```python\n{WHOLE}```",
        f"```\n{WHOLE}\n```\n",
        f"```Python3\n{PROMPT}{BODY}```",
        f"```py title=\"a.py\"\n{WHOLE}```",
        f"``` python\n{WHOLE}```",
        f"```{{.python}}\n{WHOLE}```",
        f"~~~python\n{WHOLE}~~~",
        f"````python\n{WHOLE}````",
        f"'''python\n{WHOLE}'''",
        f"```python\n{BODY}```",
        f"```python\n{FLAT}```",
        f"```python\r\n{WHOLE}```".replace("\n", "\r\n"),
        f"```python\n{WHOLE}",  # cut off before the fence is closed
        f"Sure, here it is:\n\n```python\n{WHOLE}```\n\nIt adds the doubled values up.",
        f"## Solution\n\n**Idea**: a loop.\n\n1. The code:\n\n   ```python\n{_indented}   ```\n"
        if (_indented := "".join(f"   {line}\n" for line in WHOLE.splitlines()))
        else "",
        "> ```python\n" + "".join(f"> {line}\n" for line in WHOLE.splitlines()) + "> ```\n",
        f"First try:\n```python\n{WRONG}```\nThat is wrong, so:\n```python\n{WHOLE}```",
        f"```python\n{WHOLE}```\nUse it so:\n```python\nprint(total([1, 2]))\n```",
        f"```python\n{WHOLE}```\nOutput:\n```\n6\n```",
        f"```bash\npip install nothing\n```\n```python\n{WHOLE}```",
        f"```text\ndef total(values): return 0\n```\n```python\n{WHOLE}```",
        f"```python\n{WHOLE}```\nIn Java:\n```java\nint total(int[] values) {{ return 0; }}\n```",
        f"```\n{WHOLE}```\n```json\n{{\"total\": 6}}\n```",
        f"Here you go.\n\n{WHOLE}\nThis works because it doubles each value.",
        f"Voici la fonction demandée :\n\n{WHOLE}\nElle additionne les valeurs doublées.",
        f"这是代码：\n\n{WHOLE}\n以上。",
        f"{WHOLE}\n\nprint(total([1,",  # cut off behind the function
        f"```python\n{WHOLE}\n# Tests\nassert total([1, 2]) ==",
        f"{BODY}\n\ndef another(x):\n    return x *",
        f"```python\nimport math\n```\nand then\n```python\n{starting_with('math.floor(0.5)')}```",
        f"```python\ndef zero():\n    return 0\n```\n```python\n{starting_with('zero()')}```",
        f"```python\n{starting_with('zero()')}```\n```python\nZERO = 0\ndef zero():\n    return ZERO\n```",
        f"```python\nfrom __future__ import annotations\n{WHOLE}```",
        "```python def total(values): return sum(2 * v for v in values)```",
        "```def total(values): return sum(2 * v for v in values)```",
        "`````\ntotal = lambda values: sum(2 * v for v in values)\n`````",
        f"<pre><code class=\"language-python\">{WHOLE}</code></pre>",
        f"```python\n{WHOLE}```".replace("    ", "\u00a0\u00a0\u00a0\u00a0"),
        f"```python\nif __name__ == '__main__':\n    raise SystemExit\n{WHOLE}```",
        "    return sum(double(v) for v in values)",
        "return sum(double(v) for v in values)",
    ],
)  # fmt: skip
def test_the_program_is_found(raw: str) -> None:
    assert total(raw) == 6


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "   \n",
        "I cannot help with that.",
        "Sorry",
        "The function adds the doubled values and returns them.",
        "Die Funktion addiert alle Werte.",
        "```\n```",
        "```text\n6\n```",
        "```java\nint total(int[] values) { return 6; }\n```",
        "The answer is 6.",
        ">>> total([1, 2])\n6",
        "```\n>>> total([1, 2])\n6\n```",
    ],
)
def test_an_answer_without_code_is_invalid(raw: str) -> None:
    assert total(raw) == "invalid"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (f"```python\n{WRONG}```", -1),
        (f"```python\n{WHOLE}```\nNo, better:\n```python\n{WRONG}```", -1),  # the last one counts
        (f"```python\n{WHOLE[:70]}", "broken"),  # cut off inside the function
        (WHOLE[:70], "broken"),
        ("```python\ndef sum_all(values):\n    return 6\n```", "broken"),  # another name
        ("```python\n" + WHOLE.replace("0\n", "math.floor(0.5)\n") + "```", "broken"),  # a module that nobody imports
        ("```python\ndef total(values)\n    return 6\n```", "broken"),
    ],
)
def test_a_wrong_program_is_not_invalid(raw: str, expected: object) -> None:
    assert total(raw) == expected


def test_the_same_text_gives_the_same_program() -> None:
    raw = f"```python\nimport os, sys\n```\n```python\n{WHOLE}os.getcwd()\nsys.path\n```"
    assert program_of(raw, PROMPT, "total") == program_of(raw, PROMPT, "total")


@pytest.mark.parametrize("raw", ["(" * 5_000, "```python\n" + "-" * 50_000 + "1", "```\n" * 3_000, "def total(" * 800])
def test_strange_text_raises_nothing(raw: str) -> None:
    program_of(raw, PROMPT, "total")
    script_of(raw, "answer")


def test_a_script_that_sets_a_variable() -> None:
    assert script_of("```python\ndef f():\n    return 3\n\nanswer = f()\n```\nThe answer is 3", "answer") is not None
    assert script_of("```\nx = 1\n```", "answer") is None
    assert script_of("The answer = 3 is plain.", "answer") is None
    assert script_of("```python\ndef f(): return 3\n```\n```python\nanswer = f()\n```", "answer") == (
        "def f(): return 3\nanswer = f()\n"
    )
    bare = script_of("So:\n\nimport math\nanswer = math.floor(2.5)\n\nThe answer is 2", "answer")
    assert bare is not None
    ast.parse(bare)


def test_examples_of_a_description() -> None:
    assert examples_of(PROMPT, "total") == [("total([1, 2])", "6"), ("total([])", "0")]
    words = 'def f(x):\n    """Twice.\n    f(2) == 4\n    f(-1) ➞ -2\n    For example: f("a") returns "aa".\n'
    words += "    f(3) -> the number six\n    f(2) == 4\n    g(1) == 2\n    f(1) = 2\n    '''\n"
    assert examples_of(words, "f") == [("f(2)", "4"), ("f(-1)", "-2"), ('f("a")', '"aa"'), ("f(1)", "2")]
    assert examples_of("def f(x):\n    pass\n", "f") == []
