"""When things arrive: times in seconds at a mean rate per second."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from traces.schema import TraceError

Process = Literal["deterministic", "poisson", "gamma"]
PROCESSES: tuple[str, ...] = get_args(Process)


def arrivals(
    process: str, count: int, rate: float, burstiness: float, random: np.random.Generator
) -> NDArray[np.float64]:
    """``count`` arrival times, the first at 0.

    ``deterministic``: k / rate. ``poisson``: exponential gaps. ``gamma``: gaps of shape ``burstiness``, mean 1 / rate
    (1 is Poisson, smaller is burstier, as in vLLM's benchmark, whose rescaling to the exact mean is left out).

    Raises:
        TraceError: for another process, or a rate or burstiness that is not positive.

    Times of a rate so small that they overflow are infinite or NaN.
    """
    if not rate > 0 or not burstiness > 0:
        raise TraceError(f"rate and burstiness must be positive, got {rate} and {burstiness}")
    with np.errstate(all="ignore"):
        match process:
            case "deterministic":
                return np.arange(count) / rate
            case "poisson":
                gaps = random.exponential(np.float64(1) / rate, count)
            case "gamma":
                gaps = random.gamma(burstiness, np.float64(1) / (rate * burstiness), count)
            case _:
                raise TraceError(f"arrivals must be one of {', '.join(PROCESSES)}, got {process!r}")
        times: NDArray[np.float64] = np.cumsum(gaps) - gaps[:1].sum()
        return times
