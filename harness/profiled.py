"""The file that an offline profile leaves, and what a run takes from it.

A method reads no file. It names the options that a profile sets (``profiled``); where they are null, the run fills
them from ``method.profile`` before the method is constructed, and refuses a profile of another method or model, or one
that has seen samples of the run.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import DictConfig, OmegaConf

from harness.atomic import replace_json
from harness.backends.hf_facts import ModelFacts
from harness.errors import UserError
from harness.hint import nearest
from harness.provenance import DataFacts
from harness.signature import locate

PROFILE_SCHEMA = 1
"""Version of the file. Another version is refused."""


class ProfiledModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which weights were profiled."""

    name: str
    revision: str
    layers: int


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``results/profiles/<method>-<model>-<task>.json``.

    Attributes:
        method: the constructor whose options ``picks`` sets.
        data: facts of the calibration data; None for text made on the spot.
        workflow: options of the workflow.
        calibration: ids of the requests.
        hops: hops with sources that were looked at.
        seconds: wall time of the profile, loading left out.
        step, within: see :class:`methods.profile.Grain`.
        points, front, picks: see :class:`methods.profile.Findings`.
    """

    schema: int = PROFILE_SCHEMA
    method: str
    model: ProfiledModel
    task: str
    data: DataFacts | None
    workflow: dict[str, Any]
    calibration: list[str]
    hops: int
    seconds: float
    step: int
    within: float
    points: list[dict[str, Any]]
    front: list[int]
    picks: dict[str, dict[str, Any]]

    def write(self, path: Path) -> None:
        """Replace ``path``, whose folders are made, as a whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_json(path, self)

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Raises UserError if there is no such file, it is no profile, or one of another version."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UserError(f"method.profile={path} cannot be read ({error.strerror}); {MAKE}") from error
        try:
            version = msgspec.json.decode(data, type=_Version).schema
            if version == PROFILE_SCHEMA:
                return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UserError(f"method.profile={path} is no profile ({error}); {MAKE}") from error
        raise UserError(f"method.profile={path} has version {version}, this one reads {PROFILE_SCHEMA}; {MAKE}")

    def check(self, path: str, model: ModelFacts, samples: Sequence[str]) -> None:
        """Refuse a profile that says nothing about ``model`` or has seen one of ``samples``.

        Raises:
            UserError: naming both models, or how many samples were seen.
        """
        if (self.model.name, self.model.revision) != (model.name, model.revision):
            raise UserError(
                f"method.profile={path} was made for model {self.model.name} ({self.model.revision}), but this run "
                f"uses {model.name} ({model.revision}); {MAKE}"
            )
        seen = len(set(self.calibration) & set(samples)) if self.data is not None else 0
        if seen:
            raise UserError(
                f"method.profile={path} was made on {seen} of the {len(samples)} samples of this run, so that its "
                "numbers would flatter the method; lower limit, or profile on other data (calibration=<path>)"
            )


class _Version(msgspec.Struct):
    schema: int


MAKE = "make one: python -m harness.profile method=... model=... task=..."


def fill(cfg: DictConfig) -> tuple[DictConfig, Profile | None]:
    """``cfg`` with the method's null options set from its profile, and the profile if one was used.

    Raises:
        UserError: if options are null and there is no profile, if there is one and no option is null, if it cannot be
            read, or if it belongs to another method.
    """
    node = cfg.method
    names: Sequence[str] = getattr(locate("method", node._target_), "profiled", ())
    empty = [name for name in names if node.get(name) is None]
    path = node.get("profile") if names else None
    if path is None:
        if not empty:
            return cfg, None
        options = ", ".join(f"method.{name}" for name in empty)
        raise UserError(f"{options}: null waits for a profile and method.profile is null too; set a value, or {MAKE}")
    if not empty:
        raise UserError(f"method.profile={path} would set nothing, {', '.join(names)} are given; leave one of them out")
    profile = Profile.read(Path(path).expanduser())
    if profile.method != node._target_:
        raise UserError(f"method.profile={path} was made for {profile.method}, this run's is {node._target_}; {MAKE}")
    pick = node.get("pick", next(iter(profile.picks), ""))
    if pick not in profile.picks:
        raise UserError(f"method.pick={pick}: {path} has no such pick, {nearest(pick, profile.picks)}")
    filled = copy.deepcopy(cfg)
    for name in empty:
        if name not in profile.picks[pick]:
            raise UserError(f"method.profile={path}: its pick {pick} does not say {name}; {MAKE}")
        OmegaConf.update(filled, f"method.{name}", profile.picks[pick][name])
    return filled, profile
