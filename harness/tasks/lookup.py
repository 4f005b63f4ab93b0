"""The lookup agent's encyclopedia: extracts for the terms that an agent has marked with @.

Frozen by default, so that a run can be repeated: a table of extracts, or the rows of an earlier run, whose hops hold
what was answered. The live encyclopedia changes under a run, and failing quietly it would change prompts; so a failure
there is an error of the sample.
"""

from __future__ import annotations

import json
import re
import unicodedata
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from harness.errors import UserError
from harness.tasks.table import json_lines

FROZEN, LIVE, EXTRACTS = "frozen", "live", "mmlu_extracts.jsonl"
TERMS = 6  # an agent may mark so many
API = "https://en.wikipedia.org/w/api.php"
TIMEOUT_S = 20.0

_MARK = re.compile(r"(?<!\w)@(?:\"([^\"\n]+)\"|\[([^\]\n]+)\]|\{([^}\n]+)\}|\*+([^*\n]+)\*|([^\s@][^\n@]*))")
_END = re.compile(r"[:;,.!?()\[\]*\"]| - |\s[-–—]\s|\s(?:is|are|was|were|and|or|which|that|refers|means)\b")
_WORDS = 6

Find = Callable[[str], str | None]


def answer(output: str, find: Find) -> str:
    """What the reader is shown: a paragraph ``term: extract`` for each marked term that was found, in order.

    Of the words behind a mark the longest beginning that is an entry counts.
    """
    found, missing = dict[str, str](), list[str]()
    for words in marked(output):
        for length in range(len(words), 0, -1):
            term = " ".join(words[:length])
            extract = find(term)
            if extract is not None:
                found.setdefault(term, extract)
                break
        else:
            missing.append(" ".join(words))
    if not found and not missing:
        return "no term was marked"
    nothing = [f"no entry for {', '.join(missing)}"] if missing else []
    return "\n\n".join([*(f"{term}: {extract}" for term, extract in found.items()), *nothing])


def marked(output: str) -> list[list[str]]:
    """The words behind each of the first :data:`TERMS` distinct marks, up to what must end a term."""
    out = list[list[str]]()
    for match in _MARK.finditer(output):
        *quoted, plain = match.groups()
        text = next((q for q in quoted if q), None) or _END.split(plain, maxsplit=1)[0]
        words = text.split()[:_WORDS]
        if words and words not in out:
            out.append(words)
    return out[:TERMS]


def read_extracts(lookup: str) -> Find:
    """The table that the option ``lookup`` names.

    Raises:
        UserError: if it is no JSONL file of ``term`` and ``extract``, nor the rows of a run.
    """
    table = _table(lookup)
    return lambda term: table.get(_key(term))


@cache
def _table(lookup: str) -> Mapping[str, str]:
    if lookup == FROZEN:
        content, name = (resources.files("harness") / "data" / EXTRACTS).read_bytes(), EXTRACTS
    else:
        try:
            content, name = Path(lookup).expanduser().read_bytes(), lookup
        except OSError as error:
            raise UserError(
                f"task.lookup={lookup} cannot be read ({error.strerror or error}); give frozen, live or a JSONL file"
            ) from error
    first = json_lines(content, name, ())[0].values
    if "hops" in first:
        return _answers(content, name)
    records = json_lines(content, name, ("term", "extract"))
    return {_key(record.text("term")): record.text("extract") for record in records}


def _answers(content: bytes, name: str) -> Mapping[str, str]:
    """What the hops of a run's rows were answered."""
    table = dict[str, str]()
    for record in json_lines(content, name, ("hops",)):
        hops = record.values["hops"]
        for hop in hops if isinstance(hops, list) else ():
            text = hop.get("tool", "") if isinstance(hop, dict) else ""
            for paragraph in str(text).split("\n\n"):
                term, colon, extract = paragraph.partition(": ")
                if colon:
                    table.setdefault(_key(term), extract)
    return table


def live(term: str) -> str | None:
    """The opening paragraph of the encyclopedia's article on ``term``, on one line; None if there is none.

    Raises:
        OSError: if the encyclopedia cannot be reached.
    """
    query = {"action": "query", "format": "json", "prop": "extracts", "exintro": 1, "explaintext": 1, "redirects": 1}
    address = f"{API}?{urllib.parse.urlencode({**query, 'titles': term})}"
    request = urllib.request.Request(address, headers={"User-Agent": "kvcmas (research harness)"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        pages = json.load(response).get("query", {}).get("pages", {})
    extracts = [" ".join(str(page.get("extract", "")).split()) for page in pages.values()]
    return next((extract for extract in extracts if extract), None)


def _key(term: str) -> str:
    text = unicodedata.normalize("NFKC", term).casefold()
    text = re.sub(r"^(?:the|an?)\s+", "", re.sub(r"[^\w\s+-]|_", " ", text).strip())
    return " ".join(text.split())
