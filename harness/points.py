"""An experiment is a list of runs: its YAML may carry ``points``, a line of overrides for every run.

::

    points:
      - method=dense
      - method=cacheblend method.ratio=0.05,0.15,0.4

A line takes what depends on the size of an experiment from the group ``size``, as ``${sizes.shared}``; a list there is
several values. The lines become choices of a configuration group ``point`` over which Hydra sweeps, so that launchers,
resumption and overrides on the command line work as in any other sweep.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf

from harness.errors import UserError
from harness.explain import CommandLine, search
from harness.hint import nearest, render

GROUP = "point"
SIZE = "laptop"  # as in conf/config.yaml


@dataclass(frozen=True)
class Point:
    """One run of an experiment: ``words`` as they would be typed, a value each."""

    words: tuple[str, ...]

    @property
    def label(self) -> str:
        """Short name for tables: without the group that every line names."""
        return " ".join(word.removeprefix("method=").removeprefix("method.") for word in self.words)


def expand(words: Sequence[str], asked: CommandLine) -> tuple[list[str], dict[str, str]]:
    """Replace the points of the experiments in ``words`` by a sweep over them.

    A ``method=a,b`` on the command line keeps the points of these methods only.

    Returns:
        The words for Hydra, and for every choice of the group ``point`` the label of its run. Both are as they were
        when no experiment has points.

    Raises:
        UserError: for a line that cannot be read, when no point is left, or for points on the command line.
    """
    if any(word.lstrip("+~").startswith("points") for word in asked.overrides):
        raise UserError("points: the runs of an experiment stand in its YAML; write one of your own, with --config-dir")
    loader = search(asked.config_dir)
    names = _experiments(asked)
    sizes = _sizes(asked, loader) if names else {}
    points = [p for name in names for line in _lines(name, loader) for p in _product(sized(line, sizes), loader)]
    if not points:
        return list(words), {}
    wanted = [w for w in asked.overrides if w.startswith("method=")]
    if wanted:
        names = wanted[-1].removeprefix("method=").split(",")
        known = {_method(p) for p in points}
        for name in names:
            if name not in known:
                raise UserError(f"method={name}: the experiment has no run of it, {nearest(name, known)}")
        points = [p for p in points if _method(p) in names]
    groups, own = loader.list_groups(""), _of_points(asked.overrides, points, loader)
    labels = {}
    for number, point in enumerate(points):
        choice = f"p{number:03d}"
        labels[choice] = point.label
        node = _node(Point((*point.words, *own)), groups, loader)
        ConfigStore.instance().store(choice, node, GROUP, "_global_", provider="kvcmas")
    rest = [w for w in words if w not in wanted and w not in own]
    flag = [] if {"-m", "--multirun"} & set(rest) else ["--multirun"]
    at = next(n for n, word in enumerate(rest) if word in asked.overrides)  # overrides stand side by side
    return [*flag, *rest[:at], f"+{GROUP}={','.join(labels)}", *rest[at:]], labels


def sized(line: str, sizes: Mapping[str, Any]) -> str:
    """``line`` with its ``${sizes.<name>}`` filled in. Raises UserError for a name that no size has."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in sizes:
            raise UserError(f"points: {line!r} asks for {found[0]}, {nearest(found[1], sizes)}")
        given = sizes[found[1]]
        return ",".join(map(render, given)) if isinstance(given, list) else render(given)

    return re.sub(r"\$\{sizes\.(\w+)\}", value, line)


def _sizes(asked: CommandLine, loader: ConfigLoaderImpl) -> dict[str, Any]:
    chosen = next((w.removeprefix("size=") for w in reversed(asked.overrides) if w.startswith("size=")), SIZE)
    if "," in chosen:
        raise UserError(f"size={chosen}: an experiment has one size at a time")
    found = loader.repository.load_config(f"size/{chosen}")
    if found is None:
        raise UserError(f"size={chosen}: {nearest(chosen, loader.get_group_options('size'))}")
    return dict(OmegaConf.to_container(found.config)["sizes"])  # type: ignore[arg-type, call-overload, index]


def _experiments(asked: CommandLine) -> list[str]:
    words = (w.partition("=")[2] for w in asked.overrides if w.startswith("+experiment="))
    return [name for word in words for name in word.strip("[]").split(",")]


def _lines(name: str, loader: ConfigLoaderImpl) -> list[str]:
    found = loader.repository.load_config(f"experiment/{name}")
    if found is None or "points" not in found.config:
        return []
    lines = OmegaConf.to_container(found.config)["points"]  # type: ignore[index, call-overload]
    return [str(line) for line in lines]


def _product(line: str, loader: ConfigLoaderImpl) -> Iterator[Point]:
    axes = [_values(override) for override in _parsed(shlex.split(line), line, loader)]
    yield from (Point(words) for words in itertools.product(*axes))


def _parsed(words: Sequence[str], line: str, loader: ConfigLoaderImpl) -> list[Override]:
    try:
        return OverridesParser.create(loader).parse_overrides(list(words))
    except HydraException as error:
        raise UserError(f"points: {line!r} cannot be read, expected words like method.rank=8,16") from error


def _values(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [str(override.input_line)]
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def _method(point: Point) -> str:
    return next((w.removeprefix("method=") for w in point.words if w.startswith("method=")), "")


def _of_points(overrides: Sequence[str], points: Sequence[Point], loader: ConfigLoaderImpl) -> list[str]:
    """Typed options of a group that every point chooses. They have to be composed with the points: Hydra composes all
    other options without them first, where the default of the group need not know them."""
    found = []
    for word in overrides:
        name = word.partition("=")[0]
        group, _, option = name.partition(".")
        if not option or _sweeps(word, loader):
            continue
        choices = {next((w.partition("=")[2] for w in p.words if w.startswith(f"{group}=")), None) for p in points}
        if None not in choices and any(_knows(f"{group}/{choice}", option, loader) for choice in choices):
            found.append(word)
    return found


def _sweeps(word: str, loader: ConfigLoaderImpl) -> bool:
    """Whether Hydra leaves ``word`` to the single runs; one that cannot be read is left to it as well."""
    try:
        return OverridesParser.create(loader).parse_override(word).is_sweep_override()
    except HydraException:
        return True


def _knows(config: str, option: str, loader: ConfigLoaderImpl) -> bool:
    found = loader.repository.load_config(config)
    return found is not None and option.partition(".")[0] in found.config


def _node(point: Point, groups: Sequence[str], loader: ConfigLoaderImpl) -> dict[str, Any]:
    """The point as a configuration of its own: choices into the defaults list, options below."""
    defaults: list[Any] = []
    options = OmegaConf.create({})
    for override in _parsed(point.words, " ".join(point.words), loader):
        key = override.key_or_group
        if key in groups:
            defaults.append({f"override /{key}": override.value()})
        else:
            OmegaConf.update(options, key, override.value(), force_add=True)
    return {"defaults": [*defaults, "_self_"], **OmegaConf.to_container(options)}  # type: ignore[dict-item]
