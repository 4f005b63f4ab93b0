"""The program in an answer to a completion task: a pure function, run again on stored answers.

The program is the task's own preamble (imports and helper functions in front of the function asked for), then what the
answer has. Nothing else is added: a module that neither the prompt nor the answer imports stays missing.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from harness.tasks.fences import blocks

_START = re.compile(r"(?:async\s+def|def|class|import|from|@)\b|@\w")
_SPELLINGS = str.maketrans({"\u00a0": " ", "\u2003": " ", "\ufeff": None, "\u200b": None, "\r": None})
_LINES = 600  # of an answer without a fence that are searched for code


def program_of(raw: str, prompt: str, entry_point: str) -> str | None:
    """The program that ``raw`` gives as completion of ``prompt``, None if it holds no code (an ``invalid`` answer).

    1. Code is what stands in fences (Python or unnamed; a missing closing fence is the answer's end), else in
       ``<code>``, else the longest run of lines that parses.
    2. The last block that defines ``entry_point`` counts, so that a corrected answer is read as corrected. Definitions
       that it uses and that other blocks hold come before it.
    3. Without one, the last block that is a body of the function completes the prompt, whatever its indentation.
    4. Without that, the last block counts as it is, and will fail: a program that is wrong, not an invalid answer.

    An end that does not parse, cut off behind the complete function, is dropped.
    """
    text = raw.translate(_SPELLINGS)
    found = [b for b in blocks(text) if b.code.strip() and not b.code.lstrip().startswith(">>>")]
    if any(b.python for b in found) and any(_defines(b.code, entry_point) for b in found if b.python):
        found = [b for b in found if b.python]
    codes = [b.code for b in found]
    named = [c for c in codes if _defines(c, entry_point)]
    if named:
        code = _whole(named[-1], entry_point)
        return _assembled(prompt, _with_needed(code, [c for c in codes if c is not named[-1]]), entry_point)
    for code in reversed(codes):
        if (completed := _completed(code, prompt, entry_point)) is not None:
            return completed
    if codes:
        return _assembled(prompt, codes[-1], entry_point)
    return _unfenced(text, prompt, entry_point)


def script_of(raw: str, variable: str) -> str | None:
    """The last block of ``raw`` that gives ``variable`` a value, with what it needs of the other blocks; without a
    fence, the first run of lines that does. None if there is none."""
    text = raw.translate(_SPELLINGS)
    codes = [b.code for b in blocks(text) if b.code.strip()]
    fitting = [c for c in codes if variable in _bound(c)]
    if fitting:
        return _with_needed(fitting[-1], [c for c in codes if c is not fitting[-1]]) + "\n"
    runs = () if codes else _runs(text.split("\n")[:_LINES])
    return next((code for code in runs if variable in _bound(code)), None)


def _unfenced(text: str, prompt: str, entry_point: str) -> str | None:
    lines = text.split("\n")[:_LINES]
    continues = text.lstrip("\n")[:1] in (" ", "\t")  # goes on where the prompt ends
    if continues and (completed := _completed(text, prompt, entry_point)) is not None:
        return completed
    for code in _runs(lines):
        if _defines(code, entry_point) and _parses(code):
            return _assembled(prompt, code, entry_point)
    for start, line in enumerate(lines):  # defined, but the rest does not parse
        if re.match(rf"\s*(?:async\s+)?def\s+{re.escape(entry_point)}\s*\(", line):
            return _assembled(prompt, textwrap.dedent("\n".join(lines[start:])), entry_point)
    if (completed := _completed(text, prompt, entry_point)) is not None:
        return completed
    return next((_assembled(prompt, c, entry_point) for c in _runs(lines) if re.search(r"\bdef\s+\w+\s*\(", c)), None)


def _runs(lines: Sequence[str]) -> Iterator[str]:
    """Runs of lines that begin like code and parse, the earliest start and the longest first."""
    starts = [n for n, line in enumerate(lines) if _START.match(line.lstrip())]
    ends = [n for n, line in enumerate(lines) if line.strip() and not line[0].isspace()]
    for start in starts:
        for end in (len(lines), *(e for e in reversed(ends) if e > start)):
            code = textwrap.dedent("\n".join(lines[start:end]))
            if _parses(code):
                yield code
                break


def _completed(body: str, prompt: str, entry_point: str) -> str | None:
    """``prompt`` with ``body`` as the body of its function, None if that is no body."""
    flat = textwrap.dedent(body.replace("\t", "    ")).strip("\n")
    for text in (body.strip("\n"), textwrap.indent(flat, "    "), _hanging(flat)):
        for whole in _shorter(f"{prompt.rstrip()}\n{text}\n"):
            if _has_body(whole, entry_point, len(prompt.rstrip().split("\n"))):
                return whole
    return None


def _hanging(flat: str) -> str:
    """A body whose first line has lost its indentation."""
    first, _, rest = flat.partition("\n")
    return f"    {first.strip()}\n{rest}"


def _has_body(program: str, entry_point: str, prompt_lines: int) -> bool:
    """Whether the function itself does something in lines that the prompt did not have."""
    doing = (ast.Return, ast.Assign, ast.AugAssign, ast.Raise, ast.For, ast.While, ast.If, ast.Yield, ast.With, ast.Try)
    return any(
        statement.lineno > prompt_lines and any(isinstance(node, doing) for node in ast.walk(statement))
        for function in _functions(program)
        if function.name == entry_point
        for statement in function.body
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    )


def _whole(code: str, entry_point: str) -> str:
    """``code``, without an end that does not parse if the function is complete before it."""
    return next((c for c in _shorter(code) if _parses(c) and _defines(c, entry_point)), code)


def _shorter(code: str) -> Iterator[str]:
    """``code``, then what is left of it when it ends before one of its last lines without indentation."""
    yield code
    lines = code.split("\n")
    for n in range(len(lines) - 1, max(0, len(lines) - _LINES), -1):
        if lines[n].strip() and not lines[n][0].isspace():
            yield "\n".join(lines[:n]).rstrip() + "\n"


def _assembled(prompt: str, code: str, entry_point: str) -> str:
    """The prompt's preamble, then the code; what must come first in a file comes first."""
    lines = f"{_preamble(prompt, entry_point)}\n{code}".strip("\n").split("\n")
    future = [line for line in lines if re.match(r"from\s+__future__\s+import\b", line)]
    return "\n".join([*future, *(line for line in lines if line not in future)]) + "\n"


def _preamble(prompt: str, entry_point: str) -> str:
    match = list(re.finditer(rf"^(?:@.*\n)*(?:async\s+)?def\s+{re.escape(entry_point)}\b", prompt, re.MULTILINE))
    return prompt[: match[-1].start()].strip("\n") + "\n" if match else ""


def _with_needed(code: str, others: Iterable[str]) -> str:
    """``code`` behind the definitions of other blocks that it uses and lacks."""
    pool = [definition for other in others for definition in _definitions(other)]
    before = list[str]()
    while lacking := _used("\n".join([*before, code])) - _bound("\n".join([*before, code])):
        found = [text for names, text in pool if names & lacking and text not in before]
        if not found:
            break
        before = [*found, *before]
    return "\n".join([*before, code])


def _definitions(code: str) -> list[tuple[set[str], str]]:
    """By the names they bind, the top-level statements of ``code`` that bind any, as text."""
    lines = code.split("\n")
    return [
        (
            names,
            "\n".join(lines[min([n.lineno, *(d.lineno for d in getattr(n, "decorator_list", ()))]) - 1 : n.end_lineno]),
        )
        for n in (_tree(code) or ast.Module([], [])).body
        if (names := _names(n))
    ]


def _names(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Import() | ast.ImportFrom():
            return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        case ast.Assign() | ast.AnnAssign():
            return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return set()


def _bound(code: str) -> set[str]:
    return set().union(*(names for names, _ in _definitions(code)))


def _used(code: str) -> set[str]:
    tree = _tree(code)
    return set() if tree is None else {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _functions(code: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    body = (_tree(code) or ast.Module([], [])).body
    return [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _defines(code: str, entry_point: str) -> bool:
    """Whether the function is defined, or bound to a lambda or another function, without indentation."""
    name = re.escape(entry_point)
    return bool(re.search(rf"^(?:(?:async\s+)?def\s+{name}\s*[(\[]|{name}\s*(?::[^=\n]+)?=(?!=))", code, re.MULTILINE))


def _parses(code: str) -> bool:
    return _tree(code) is not None


def _tree(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
