"""How a method's options reach its limits, so that a correctness check needs no knowledge of any method.

A method may say so in ``limits(layers) -> Limits``, an ordinary method that looks at its own options and is asked
before :meth:`methods.base.Method.bind`. One that says nothing is checked as it is configured, and what needs a limit
does not apply to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Limits:
    """Values of a method's own fields, by name; None where it has no such limit.

    Attributes:
        reusing: under these it reuses, at the latest, when a request comes for the second time, whatever its gate would
            say; an option that waits for a profile gets a value here.
        dense: under these every row is recomputed in a first request.
        reuse: under these nothing is recomputed nor corrected in a first request: rotation only.
        exact: under these a request that comes for the second time is corrected exactly.
    """

    reusing: Options = field(default_factory=dict)
    dense: Options | None = None
    reuse: Options | None = None
    exact: Options | None = None
