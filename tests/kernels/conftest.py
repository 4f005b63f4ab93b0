"""Interpreter tests live in a process of their own: Triton decides at import whether kernels are interpreted."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    interpreted = [item for item in items if item.get_closest_marker("interpreter")]
    if interpreted:
        config.hook.pytest_deselected(items=interpreted)
        items[:] = [item for item in items if item not in interpreted]
