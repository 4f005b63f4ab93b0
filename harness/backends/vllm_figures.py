"""Running totals of one engine: what was reused, what was computed, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Figures:
    """Totals since the engine started.

    Attributes:
        hops, reuse_hops: agent calls answered, and those of them that reused rows.
        corrections: reuse hops whose method says that rows got a learned correction.
        fallbacks: hops that a gate, a missing cache, a failed load or a malformed request sent dense.
        failures: those of them that were not the gate's choice.
        reused_tokens, corrected_tokens, computed_tokens: prompt rows that were loaded, that got a learned correction
            before, and that ran.
        match_s, load_s, learn_s: seconds of planning, of reconstruction and writing, of learning.
        base_bytes, correction_bytes: what the method holds.
    """

    hops: int = 0
    reuse_hops: int = 0
    corrections: int = 0
    fallbacks: int = 0
    failures: int = 0
    reused_tokens: int = 0
    corrected_tokens: int = 0
    computed_tokens: int = 0
    match_s: float = 0.0
    load_s: float = 0.0
    learn_s: float = 0.0
    base_bytes: int = 0
    correction_bytes: int = 0

    def count(self, facts: Mapping[str, Any], failure: str) -> None:
        """Add a hop by what its client hears."""
        self.hops += 1
        self.reused_tokens += facts["reused"]
        self.computed_tokens += facts["computed"]
        self.failures += bool(failure)
        self.fallbacks += bool(failure) or facts["route"] == "fallback"
        if facts["route"] == "reuse":
            self.reuse_hops += 1
            covered = round(float(facts["notes"].get("coverage", 0.0)) * facts["shared"])
            self.corrections += covered > 0
            self.corrected_tokens += covered
