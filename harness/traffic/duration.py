"""How long a trace lasts at real time, which an engine cannot hurry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.errors import UserError
from harness.traffic.plan import Plan

LONGEST_S = 30 * 24 * 3600.0


def lasts_s(planned: Plan) -> float:
    """Seconds from the first measured arrival to the last; a repeat takes at least as long."""
    return max(c.request.arrival_s for t in planned.measured for c in t.calls) - _begin_s(planned)


def check_duration(planned: Plan, trace: Mapping[str, Any]) -> None:
    """Refuse arrivals beyond ``LONGEST_S``: nobody would be there to see them.

    Args:
        trace: options of the group ``trace``.

    Raises:
        UserError: naming the option, or the request in the file.
    """
    begin_s = _begin_s(planned)
    calls = (c.request for t in planned.measured for c in t.calls)
    late = next((r for r in calls if r.arrival_s - begin_s > LONGEST_S), None)
    if late is None:
        return
    limit = f"a run at real time may last {told(LONGEST_S)}"
    if trace.get("path"):
        raise UserError(
            f"trace.path={trace['path']}: request {late.id} arrives {told(late.arrival_s - begin_s)} after the first "
            f"measured one, but {limit}; mend when it arrives, or simulate with backend=sim"
        )
    raise UserError(
        f"trace.qps={trace.get('qps')}: the last call arrives after {told(lasts_s(planned))}, but {limit}; raise it, "
        "or simulate with backend=sim"
    )


def told(seconds: float) -> str:
    """A duration in the largest unit of which there are two, three significant digits."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def _begin_s(planned: Plan) -> float:
    return min(t.arrival_s for t in planned.measured)
