"""Tests of extras that are not installed are not collected."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("lm_eval") else ["test_lm_eval.py"]
