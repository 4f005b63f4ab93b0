"""``method.profile=auto``: profile a method the first time a run needs it, on a few requests, and keep the file.

A small profile for comparisons that should run from one command; ``python -m harness.profile`` makes a careful one.
"""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from harness.config import Choices
from harness.identity import identify

AUTO = "auto"
REQUESTS = 4
EDGES = 8  # of layer groups; a step of L / 8 layers between them


def profiled(cfg: DictConfig, names: Choices, layers: int) -> DictConfig:
    """``cfg`` with ``method.profile=auto`` replaced by a file below ``results/profiles``, which is made if it is not
    there: of the last items of the task's data, like any profile, so that a run that takes the first is disjoint.

    Args:
        layers: L of the model.

    Raises:
        UserError: as :func:`harness.calibration.profile`.
    """
    if cfg.method.get("profile") != AUTO:
        return cfg
    from harness.calibration import profile
    from harness.profile import Options

    path = Path("results", "profiles", f"{names.method}-{names.model}-{names.task}-auto-{_inputs(cfg)}.json")
    if not path.exists():
        print(f"method.profile=auto: profiling {names.method} on {REQUESTS} requests, once, into {path}")
        wanted = copy.deepcopy(cfg)
        wanted.method.profile, wanted.limit = None, REQUESTS
        profile(wanted, names, Options(step=max(1, layers // EDGES), out=str(path)))
    found = copy.deepcopy(cfg)
    found.method.profile = str(path)
    return found


def _inputs(cfg: DictConfig) -> str:
    """Hash of what a profile depends on: model, task with its data, workflow, engine, seed."""
    kept = OmegaConf.masked_copy(cfg, ["model", "task", "workflow", "backend", "seed", "sizes"])
    return hashlib.sha256(json.dumps(identify(kept, {}).id).encode()).hexdigest()[:10]
