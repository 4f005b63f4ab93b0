"""The examples that a function's own description gives: calls and the values they promise."""

from __future__ import annotations

import ast
import doctest
import re

_ARROW = r"(?:==?=?>?|-+>|➞|→|⇒|returns?|should return|should be|gives|is)"
_LONGEST = 20


def examples_of(prompt: str, entry_point: str) -> list[tuple[str, str]]:
    """Pairs of a call and the literal it should equal, both as source, in order and each once.

    Interactive ones (``>>>``) and lines such as ``f(2) == 4`` or ``f(2) -> 4``. Only literals count as values.
    """
    found = list[tuple[str, str]]()
    try:
        parsed = doctest.DocTestParser().get_examples(prompt.replace('"""', "   ").replace("'''", "   "))
    except ValueError:
        parsed = []
    found += [(e.source.strip(), e.want.strip()) for e in parsed]
    name = re.escape(entry_point)
    found += re.findall(rf"^[^\n]*?\b({name}\(.*\))[ \t]*#?[ \t]*{_ARROW}[ \t]*(.+?)[ \t.;]*$", prompt, re.MULTILINE)
    kept = [(call, want) for call, want in found if _is_call(call, entry_point) and _is_literal(want)]
    return list(dict.fromkeys(kept))[:_LONGEST]


def _is_call(source: str, entry_point: str) -> bool:
    try:
        node = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == entry_point


def _is_literal(source: str) -> bool:
    try:
        ast.literal_eval(source)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return False
    return True
