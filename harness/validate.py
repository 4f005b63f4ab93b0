"""From a composed configuration to the objects of a run, with every mistake found before anything heavy loads.

Constructing a component is cheap by convention: methods, tasks, models, backends and workflows are descriptions
until the run binds and loads them, so their own range checks can speak here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.config import COMPONENTS, MODES, OPTIONAL, Config, place
from harness.errors import UserError
from harness.hint import nearest, render
from harness.shard import Shard
from harness.signature import Signature, locate

# Keys that Hydra reads itself.
_RESERVED = frozenset({"_target_", "_convert_", "_recursive_", "_partial_", "_args_"})
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


@dataclass(frozen=True)
class Parts:
    """The constructed components of a run.

    ``method`` implements :class:`methods.base.Method`; the others are what their YAML's ``_target_`` makes. ``trace``
    is there for ``task=trace`` only.
    """

    method: Any
    task: Any
    model: Any
    backend: Any
    workflow: Any
    trace: Any = None


def validate(cfg: DictConfig) -> None:
    """Check everything that can be known without loading data or weights.

    Raises:
        UserError: naming every option that is missing, unknown, of the wrong type or out of range.
    """
    build(cfg)


def build(cfg: DictConfig) -> Parts:
    """The components that ``cfg`` names, constructed.

    A ``name`` in a component's YAML labels it in records and is handed over only to constructors that take one.

    Raises:
        UserError: as :func:`validate`.
    """
    _report(_missing(cfg))
    _report(_ranges(cfg))
    groups = (*COMPONENTS, *(group for group in OPTIONAL if cfg.get(group) is not None))
    nodes = {group: _plain(cfg, group) for group in groups}
    borrowed = {f"{group}.{key}": source for group in groups for key, source in _borrowed(cfg[group])}
    _report(_once([c for group, node in nodes.items() for c in _complaints(group, node)], borrowed))
    made, complaints = {}, []
    for group, node in nodes.items():
        try:
            made[group] = instantiate(_without_label(node), _convert_="all")
        except InstantiationException as error:
            complaints.append(_constructor_says(group, node, error))
    _report(_once(complaints, borrowed))
    _report(_protocol(made["method"], nodes["method"]))
    return Parts(**made)


def _missing(cfg: DictConfig) -> list[str]:
    return [f"{key} has no value, set {key}=..." for key in sorted(OmegaConf.missing_keys(cfg))]


def _ranges(cfg: DictConfig) -> list[str]:
    known = [f.name for f in fields(Config)]
    unknown = [str(key) for key in cfg if key not in known]
    found = [f"{key}: there is no such option, {nearest(key, known)}" for key in unknown]
    if cfg.limit is not None and cfg.limit < 1:
        found.append(f"limit={cfg.limit}: expected a positive integer, or null for all samples")
    if cfg.repeats < 1:
        found.append(f"repeats={cfg.repeats}: expected a positive integer")
    if not 0 <= cfg.duplicates < 1:
        found.append(f"duplicates={cfg.duplicates}: expected a share of the requests from 0 to below 1")
    if cfg.warmup < 0:
        found.append(f"warmup={cfg.warmup}: expected 0 or a positive integer")
    if cfg.early < 0:
        found.append(f"early={cfg.early}: expected 0 (nothing apart) or a positive integer")
    if cfg.seed < 0:
        found.append(f"seed={cfg.seed}: expected 0 or a positive integer")
    try:
        place(cfg.results_dir)
    except UserError as error:
        found.append(str(error))
    if cfg.shard is not None:
        try:
            Shard.parse(str(cfg.shard))
        except UserError as error:
            found.append(str(error))
    if cfg.tracking.mode not in MODES:
        found.append(f"tracking.mode={cfg.tracking.mode}: expected one of {', '.join(MODES)}")
    return found


def _plain(cfg: DictConfig, group: str) -> dict[str, Any]:
    try:
        node = OmegaConf.to_container(cfg[group], resolve=True) if OmegaConf.is_config(cfg[group]) else cfg[group]
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key or group}: {str(error).splitlines()[0]}") from error
    if not isinstance(node, dict) or "_target_" not in node:
        raise UserError(f"{group}={render(node)}: expected a choice of the group {group}, whose YAML has a _target_")
    return {str(k): v for k, v in node.items()}


def _borrowed(node: DictConfig) -> Iterator[tuple[str, str]]:
    """Options of a component whose value is that of another option, and that one's name."""
    for key, raw in node.items_ex(resolve=False):
        if isinstance(raw, str) and (reference := _REFERENCE.fullmatch(raw)):
            yield str(key), reference[1]


def _once(complaints: Sequence[str], borrowed: Mapping[str, str]) -> list[str]:
    """``complaints`` without those about a value that was borrowed from an option that is complained about itself."""
    options = [complaint.partition("=")[0] for complaint in complaints]
    return [c for option, c in zip(options, complaints, strict=True) if borrowed.get(option) not in options]


def _complaints(where: str, node: Mapping[str, Any]) -> list[str]:
    """What is wrong with a node that has a ``_target_``, and with all such nodes inside it."""
    try:
        signature = Signature.of(locate(where, node["_target_"]))
    except UserError as error:
        return [str(error)]
    except ValueError as error:
        return [f"{where}._target_={node['_target_']}: {error}"]
    given = {k: v for k, v in node.items() if k not in _RESERVED and (k != "name" or signature.accepts(k))}
    found = list(signature.complaints(where, given))
    if where == "method" and sum(not signature.accepts(name) for name in given) > 3:
        found[0] += " (method=custom brings no options of its own)"
    for key, value in given.items():
        if isinstance(value, dict) and "_target_" in value:
            found += _complaints(f"{where}.{key}", value)
    return found


def _without_label(node: dict[str, Any]) -> dict[str, Any]:
    if "name" in node and not Signature.of(locate("", node["_target_"])).accepts("name"):
        return {k: v for k, v in node.items() if k != "name"}
    return node


def _constructor_says(where: str, node: Mapping[str, Any], error: InstantiationException) -> str:
    """The sentence of a constructor's own check, headed by the option that it speaks of."""
    cause = error.__cause__
    if isinstance(cause, UserError):
        return str(cause)
    if not isinstance(cause, (ValueError, TypeError)):
        raise error
    said = str(cause).rstrip(".")
    spoken = [(m.start(), k) for k in node if k not in _RESERVED and (m := re.search(rf"\b{re.escape(k)}\b", said))]
    if not spoken:
        return f"{where}: {said}"
    _, key = min(spoken)
    return f"{where}.{key}={render(node[key])}: {said}"


def _protocol(method: object, node: Mapping[str, Any]) -> list[str]:
    """What a method still lacks; looked up on the class, since properties may need a bound method."""
    from methods.base import Method  # torch comes with it

    wanted = [n for n in vars(Method) if not n.startswith("_")]
    lacking = [n for n in wanted if not hasattr(type(method), n) and n not in getattr(method, "__dict__", {})]
    if not lacking:
        return []
    return [f"method._target_={node['_target_']}: a method needs {', '.join(lacking)} (see methods.base.Method)"]


def _report(complaints: list[str]) -> None:
    if complaints:
        raise UserError("; ".join(complaints))
