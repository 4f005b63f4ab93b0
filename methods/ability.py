"""What a method asks of an engine beyond placing rows and encoding ids, so that an engine can refuse it early.

A method says so in ``requires -> frozenset[Ability]``, an ordinary property that looks at its own options. A method
that says nothing is taken to need everything.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class Ability(StrEnum):
    """``row_schedule``: plans choose, inside the forward, which rows run at which layer. ``hidden_states``: plans enter
    at a layer with hidden states, which engines capture. ``attention``: learning looks at attention. ``oracle``: plans
    look at the true keys and values of their own prompt."""

    row_schedule = "row_schedule"
    hidden_states = "hidden_states"
    attention = "attention"
    oracle = "oracle"


NOTHING: frozenset[Ability] = frozenset()


def required(method: Any) -> frozenset[Ability]:
    """What ``method`` requires; bind it first, since a profile may decide."""
    found: frozenset[Ability] = getattr(method, "requires", frozenset(Ability))
    return found
