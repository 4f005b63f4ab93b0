"""What a method may learn offline, once per model and workload: the contract between it and who runs the profile.

The harness runs calibration requests dense and shows every hop to the method's profiler, which may try plans on the
very same prompt. The findings hold options of the method by name, ready to be given to its constructor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from methods.base import Executed, Hop, Plan, Shape


@dataclass(frozen=True)
class Grain:
    """How fine a profile is.

    Attributes:
        step: layers between two edges of a layer group.
        within: relative loss of quality that the pick ``quality`` may have; dense has none.
    """

    step: int = 2
    within: float = 0.05

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ValueError(f"step must be at least 1, got {self.step}")
        if not 0 <= self.within < 1:
            raise ValueError(f"within must be at least 0 and below 1, got {self.within}")


@dataclass(frozen=True)
class Trial:
    """A plan tried on a prompt: KL of the first token from dense (nats), fresh token-layers over all of them."""

    first_token_kl: float
    fresh_share: float


@dataclass(frozen=True)
class Findings:
    """Result of a profile; everything in it can be written as JSON.

    Attributes:
        points: what was measured, one mapping a setting or a layer.
        front: indices of the points no other point beats in cost and quality; empty where there is no such choice.
        picks: by name of the pick, options of the method.
    """

    points: tuple[Mapping[str, Any], ...]
    front: tuple[int, ...]
    picks: Mapping[str, Mapping[str, Any]]


class Profiler(Protocol):
    """Looks at dense hops of calibration requests."""

    @property
    def captures(self) -> frozenset[int]:
        """Layers whose input hidden states the sources of a hop must carry."""

    def look(self, hop: Hop, dense: Executed, attempt: Callable[[Plan], Trial]) -> None:
        """Measure on one hop that has sources; ``attempt`` executes a plan on its prompt."""

    def findings(self) -> Findings:
        """What the hops so far say. Raises ValueError if there was none."""


class Profilable(Protocol):
    """A method with options that a profile can set."""

    profiled: ClassVar[tuple[str, ...]]

    def profiler(self, shape: Shape, grain: Grain) -> Profiler: ...
