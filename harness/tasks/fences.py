"""Code blocks of an answer: fenced in Markdown, or in HTML."""

from __future__ import annotations

import html
import re
import textwrap
from dataclasses import dataclass

_FENCE = re.compile(r"^(?P<lead>[ \t>*+-]*(?:\d+[.)])?[ \t]*)(?P<fence>`{3,}|~{3,}|'{3}(?=python|py\b))(?P<info>.*)$")
_INLINE = re.compile(r"(`{3,})(?:[ \t]*(?:python3?|py3?)\b)?(.+?)\1", re.IGNORECASE)
_HTML = re.compile(r"<(pre|code)\b[^>]*>(.*?)(?:</\1>|\Z)", re.IGNORECASE | re.DOTALL)
_PYTHON = re.compile(r"[{.\s]*(?:python|py|pycon|ipython|sage)[\d.]*\b", re.IGNORECASE)
_OTHER = re.compile(
    r"[{.\s]*(?:ba|z|c|fi)?sh\b|[{.\s]*(?:shell|console|terminal|powershell|text|txt|plaintext|plain|output|out|result|"
    r"json|ya?ml|toml|xml|html|css|markdown|md|latex|tex|math|sql|diff|java|javascript|js|typescript|ts|c|cpp|c\+\+|cs|"
    r"csharp|go|rust|ruby|php|swift|kotlin|scala|haskell|r|julia|perl|lua|pseudocode|pseudo|mermaid|bat)(?![\w+#])",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        code: its lines, without the indentation of the fence.
        python: it says that it is Python; other languages are left out, an unnamed block may be anything.
        closed: it has its closing fence.
    """

    code: str
    python: bool
    closed: bool = True


def blocks(text: str) -> list[Block]:
    """All blocks that are Python or do not say what they are, in order."""
    found = _fenced(text)
    if found is not None:
        return found
    inline = [Block(code.strip(), True) for _, code in _INLINE.findall(text)]
    return inline or [
        Block(html.unescape(re.sub(r"</?(?:code|pre|span)\b[^>]*>", "", code)).strip("\n"), False)
        for _, code in _HTML.findall(text)
        if "\n" in code.strip() or "def " in code
    ]


def _fenced(text: str) -> list[Block] | None:
    """Blocks between fence lines; None if there is no fence line."""
    lines, found, fences, at = text.splitlines(), list[Block](), False, 0
    while at < len(lines):
        opening = _FENCE.match(lines[at])
        at += 1
        if not opening or "`" in opening["info"].strip() or (found and opening["fence"] == "'''"):
            continue
        fences, fence, info, body = True, opening["fence"], opening["info"], list[str]()
        closed = False
        while at < len(lines) and not closed:
            line = lines[at]
            at += 1
            closed = _closes(line, fence)
            if not closed and line.rstrip().endswith(fence) and fence[0] == "`":  # at the end of a line of code
                body.append(line.rstrip()[: -len(fence)])
                closed = True
            elif not closed:
                body.append(line)
        python = bool(_PYTHON.match(info))
        if python or not _OTHER.match(info):
            first = _PYTHON.sub("", info, count=1) if python else info
            if re.match(r"\s*(?:def|import|from|class|return)\b", first):  # code begins on the line of the fence
                body.insert(0, first.strip())
            found.append(Block(_dedent(body, opening["lead"]), python, closed))
    return found if fences else None


def _closes(line: str, fence: str) -> bool:
    bare = line.strip(" \t>")
    return len(bare) >= len(fence) and set(bare) == {fence[0]}


def _dedent(body: list[str], lead: str) -> str:
    """``body`` without what stands before its fence: a quotation's marks, or the indentation of a list."""
    if ">" in lead:
        body = [re.sub(r"^[ \t]*>[ \t]?", "", line) for line in body]
    elif lead:
        width = len(lead.expandtabs(4))
        if all(not line.strip() or line.expandtabs(4)[:width].isspace() for line in body):
            body = [line.expandtabs(4)[width:] for line in body]
    code = "\n".join(body).strip("\n")
    return textwrap.dedent(code) if re.match(r"\s+(?:def|class|import|from|@)\b", code) else code
