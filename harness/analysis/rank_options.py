"""Options of ``python -m harness.analyse rank``; loads neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import UserError
from harness.explain import CommandLine

OWN = ("requests", "hops", "spans", "out")
COMPARES = False
SPANS = ("all", "question", "output")

HELP = """\
``python -m harness.analyse rank model=... task=...``: how many components a correction has, layer by layer.

Requests run dense. For every shared span that an agent reads after another, the delta is what its own context added to
the rows of the cache it could have reused (layers from 1 on; layer 0 adds nothing); the cache itself is the base. Keys
are looked at twice: before rotation, as they are stored here, and after it, as the model caches them at the reader's
positions. Of each matrix (tokens x width of all heads) with singular values s:

    rank at 95 %   the fewest leading components with 95 % of the energy, the sum of s^2; also at 90 and 99 %
    entropy        exp(-sum p log p), p = s^2 / sum of s^2: 1 for a single component, all of them if they are equal

No rank exceeds the number of tokens of a span, which is why that is given beside it. Options besides those of a run
(``method`` is not one):

    requests=16    requests that run
    hops=<n>       hops of a trajectory that run, from the first on; all by default
    spans=all      question, output, or all shared spans
    out=<path>     where to write (default: results/analysis/rank-<model>-<task>.json)

The report shows it (python -m harness.report).
"""


@dataclass(frozen=True)
class Options:
    """Options of an analysis that a run does not have; ``hops`` None is all, ``out`` None the default place."""

    requests: int = 16
    hops: int | None = None
    spans: str = "all"
    out: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Raises UserError for a value that does not fit."""
        try:
            requests = int(given.get("requests", cls.requests))
            hops = int(given["hops"]) if "hops" in given else None
        except ValueError as error:
            raise UserError(f"requests and hops must be integers ({error})") from error
        if requests < 1 or (hops is not None and hops < 2):
            raise UserError(f"requests={requests} hops={hops}: expected at least 1 request and 2 hops")
        spans = given.get("spans", cls.spans)
        if spans not in SPANS:
            raise UserError(f"spans={spans}: expected one of {', '.join(SPANS)}")
        return cls(requests, hops, spans, given.get("out"))


def analyse(asked: CommandLine, own: Mapping[str, str]) -> None:
    options = Options.parse(own)
    from harness.analysis.rank import analyse as run

    run(asked, options)
