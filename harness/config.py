"""The schema of a run's options, and where the YAML files are.

Groups (method, task, model, ...) hold a constructor and its arguments each and are checked against that
constructor in :mod:`harness.validate`; everything else is typed here, so a misspelt option or a wrong type is
refused while the configuration is composed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import MISSING, DictConfig, OmegaConf

from harness.errors import UserError
from harness.identity import Run, identify

CONF = Path(__file__).resolve().parent.parent / "conf"

# Groups whose choice names a constructor; the order is that of messages.
COMPONENTS = ("method", "task", "model", "backend", "workflow")
# A group that only one choice of another brings along; its node is null elsewhere.
OPTIONAL = {"trace": "task=trace"}
# Groups that always have a choice.
GROUPS = (*COMPONENTS, "tracking", "size")
MODES = ("none", "offline", "online")


@dataclass
class Tracking:
    """Where metrics go besides the run folder; never part of a run's identity.

    Attributes:
        mode: ``none``, ``offline`` (files that ``wandb sync`` uploads later) or ``online``.
        project, entity, group, tags: as in Weights & Biases.
    """

    mode: str = MISSING
    project: str = "kvcmas"
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)


@dataclass
class Config:
    """Options of a run.

    Attributes:
        method, task, model, backend, workflow: a constructor (``_target_``) and its arguments each.
        trace: likewise, of ``task=trace`` alone.
        tracking: see :class:`Tracking`.
        limit: how many samples, None for all.
        seed: of sample order, sketches and random weights.
        repeats: how often the samples are gone through, each time in another order.
        duplicates: share of requests that repeat an earlier sample, beside all the samples themselves.
        shadow: run every hop dense as well and measure how far it is off.
        teacher_forcing: hand on what dense would have written, whatever the method does; implies shadow.
        warmup: so many samples run dense first, for methods to learn from; no metric counts them.
        early: the summary shows the first so many samples of a repeat apart, in which methods that learn still do.
        sizes: of experiments, by name: the choice of the group ``size``; see :mod:`harness.points`.
        shard: ``3/8`` runs the third of eight parts of the samples, null all; see :mod:`harness.shard`.
        points: runs of an experiment, a line of overrides each.
        exhibit: how the report shows an experiment; see :mod:`harness.report.exhibit`.
        results_dir: parent of all run folders, relative to the working directory; not part of a run's identity.
    """

    method: Any = MISSING
    task: Any = MISSING
    model: Any = MISSING
    backend: Any = MISSING
    workflow: Any = MISSING
    trace: Any = None
    tracking: Tracking = MISSING
    limit: int | None = None
    seed: int = 0
    repeats: int = 1
    duplicates: float = 0.0
    shadow: bool = False
    teacher_forcing: bool = False
    warmup: int = 0
    early: int = 50
    sizes: dict[str, Any] = field(default_factory=dict)
    points: list[str] = field(default_factory=list)
    exhibit: dict[str, Any] = field(default_factory=dict)
    shard: str | None = None
    results_dir: str = "results/runs"


@dataclass(frozen=True)
class Choices:
    """Names of the chosen YAML files, as records and tables call them."""

    method: str
    task: str
    model: str
    backend: str
    workflow: str

    @classmethod
    def current(cls) -> Choices:
        """Those of the job that Hydra is running.

        Raises:
            ValueError: outside a job.
        """
        chosen = HydraConfig.get().runtime.choices
        return cls(*(str(chosen[group]) for group in COMPONENTS))


def of_run(cfg: DictConfig) -> dict[str, Any]:
    """The resolved options of a run, without what belongs to Hydra or to the experiment that it is a part of."""
    kept = OmegaConf.masked_copy(cfg, [str(k) for k in cfg if k not in ("hydra", "points", "exhibit")])
    plain = OmegaConf.to_container(kept, resolve=True)
    return {str(k): v for k, v in plain.items() if k not in ("size", "sizes")}  # type: ignore[union-attr]


def register() -> None:
    """Make the schema and the resolvers known to Hydra; again and again is harmless.

    ``${kvcmas.run:}`` is the folder of the composed run below ``results_dir``, ``${kvcmas.place:<folder>}`` that folder
    unless it is empty.
    """
    ConfigStore.instance().store(name="schema", node=Config, provider="kvcmas")
    OmegaConf.register_new_resolver("kvcmas.run", lambda _root_: str(_run(_root_).folder), replace=True)
    OmegaConf.register_new_resolver("kvcmas.place", place, replace=True)


def place(results_dir: object) -> str:
    """The parent of all run folders. Raises UserError where it is empty: runs would lie in the file system's root."""
    if not str(results_dir).strip():
        raise UserError(f"results_dir={results_dir}: it is empty; name a folder, or leave the option out")
    return str(results_dir)


def _run(root: DictConfig) -> Run:
    return identify(root, root.hydra.runtime.choices)
