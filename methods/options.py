"""Checks of hyperparameters: each answers a wrong value in one sentence that names the option and the remedy."""

from __future__ import annotations

from collections.abc import Sequence


def one_of(option: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{option} must be one of {', '.join(allowed)}, got {value!r}")


def at_least(option: str, value: float, least: float, remedy: str = "") -> None:
    if isinstance(value, bool) or value < least:
        raise ValueError(f"{option} must be at least {least}, got {value}" + (f": {remedy}" if remedy else ""))
