"""Why a command line does not compose, in one sentence with the nearest valid names.

Hydra's own messages differ by place and speak of its internals. Here every override is looked at by itself: does it
parse, does the choice exist, does the option exist, does its value fit. Hydra's words are the last resort.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from harness.config import CONF, GROUPS, OPTIONAL, Config
from harness.errors import UserError
from harness.hint import nearest
from harness.signature import describe

# Where Hydra's and OmegaConf's messages turn to their own insides.
_LOCATION = re.compile(r"\n\s*(?:full_key:|Config search path:|See https:)")


@dataclass(frozen=True)
class CommandLine:
    """What was asked for.

    Attributes:
        overrides: ``option=value`` words.
        multirun: whether several values for one option are allowed.
        config_dir: folder of further YAML files, which cannot replace ours.
    """

    overrides: tuple[str, ...]
    multirun: bool = False
    config_dir: str | None = None


@dataclass(frozen=True)
class Assignment:
    """One override with one value: ``text`` as typed, or one of the values of a sweep."""

    override: Override
    text: str
    value: str

    @property
    def key(self) -> str:
        return self.override.key_or_group


def explain(error: BaseException, asked: CommandLine) -> str:
    """One sentence for ``error``, which composing ``asked`` has raised."""
    chain = list(_chain(error))
    for link in chain:
        if isinstance(link, UserError):
            return str(link)
        if isinstance(link, OSError) and link.filename is not None:
            return f"results_dir: {link.filename} cannot be made ({link.strerror}), name another folder"
        if isinstance(link, MarkedYAMLError) and link.problem_mark is not None:
            at = link.problem_mark
            return f"{at.name}:{at.line + 1}: expected YAML, {link.problem}"
    return next(_findings(asked), None) or _first_words(chain)


def _findings(asked: CommandLine) -> Iterator[str]:
    """Sentences about single overrides, most telling first; lazily, since one is enough."""
    loader = search(asked.config_dir)
    groups = [g for g in loader.list_groups("") if g != "hydra"]
    assignments: list[Assignment] = []
    for text in asked.overrides:
        try:
            override = OverridesParser.create(loader).parse_overrides([text])[0]
        except HydraException:
            yield _syntax(text, loader, groups)
            return
        if override.is_sweep_override() and not asked.multirun:
            yield f"{text}: several values need -m to run one after another (or quote a list as '[value,value]')"
            return
        try:
            assignments += _spread(override, text)
        except ValueError as error:
            yield f"{text}: {error}"
            return
    own = [a for a in assignments if not a.override.is_hydra_override()]
    words = {a.text for a in own}
    for a in own:
        home = OPTIONAL.get(a.key.partition(".")[0])
        if home is not None and home not in words:
            yield f"{a.text}: nothing but {home} uses {a.key.partition('.')[0]}; add {home}"
            return
        if a.key in groups:
            yield from _choice(a, loader)
    chosen = [a for a in own if a.key in groups]
    first = {a.key: a.text for a in reversed(chosen)}
    composed = _compose(loader, list(first.values()))
    if composed is None:
        return
    for a in own:
        if a.key not in groups and not a.override.is_add() and not a.override.is_force_add():
            yield from _unknown(a, composed, groups)
    for a in own:
        if a.key not in groups and _compose(loader, [*first.values(), a.text]) is None:
            yield _misfit(a)
    whole = _compose(loader, [*first.values(), *(a.text for a in own if a.key not in groups)])
    if whole is not None:
        yield from _dangling(whole)


def _dangling(cfg: DictConfig) -> Iterator[str]:
    """References ``${...}`` that lead nowhere."""
    plain = OmegaConf.to_container(OmegaConf.masked_copy(cfg, [str(k) for k in cfg if k != "hydra"]))
    leaves: list[tuple[str, object]] = [("", plain)]
    while leaves:
        key, value = leaves.pop()
        if isinstance(value, dict):
            leaves += [(f"{key}.{k}".lstrip("."), v) for k, v in value.items()]
        elif isinstance(value, str) and "${" in value:
            try:
                OmegaConf.select(cfg, key)
            except OmegaConfBaseException as error:
                yield f"{key}={value}: {str(error).splitlines()[0]}"


def _syntax(text: str, loader: ConfigLoaderImpl, groups: Sequence[str]) -> str:
    if "=" not in text:
        homes = [f"{g}={text}" for g in groups if text in loader.get_group_options(g)]
        return f"{text}: expected option=value{f', did you mean {homes[0]}?' if homes else ''}"
    key, _, value = text.partition("=")
    return f"{text}: the value cannot be read, put it in two pairs of quotes: '{key}=\"{value}\"'"


def _choice(a: Assignment, loader: ConfigLoaderImpl) -> Iterator[str]:
    options = loader.get_group_options(a.key)
    default = a.key in GROUPS
    if a.value in ("null", "") and default:
        yield f"{a.text}: a run needs a {a.key}, choose one of {', '.join(options)}"
    elif a.value not in options and a.value not in ("null", ""):
        hint = nearest(a.value, options)
        others = f" (there are {', '.join(options)})" if "?" in hint and 1 < len(options) <= 12 else ""
        yield f"{a.key}={a.value}: there is no such {a.key}, {hint}{others}"
    elif (default or a.key in OPTIONAL) and a.override.is_add():
        yield f"{a.text}: write {a.text.lstrip('+')}, without the plus sign"
    elif not default and a.key not in OPTIONAL and not a.override.is_add():
        yield f"{a.text}: write +{a.text}, nothing is chosen from {a.key} by default"


def _unknown(a: Assignment, composed: DictConfig, groups: Sequence[str]) -> Iterator[str]:
    node: object = composed
    path = a.key.split(".")
    for depth, name in enumerate(path):
        here, above = ".".join(path[: depth + 1]), ".".join(path[:depth])
        if not isinstance(node, DictConfig):
            yield f"{a.text}: there is no option {here}, {above} is a single value"
            return
        if name not in node.keys():  # noqa: SIM118 (a missing value does not count as `in`)
            known = [str(k) for k in node if not str(k).startswith("_") and k != "hydra"]
            if depth and not known:
                yield f"{a.text}: {above} has no options yet, add one as +{a.text}"
            else:
                yield f"{a.text}: there is no option {here}, {nearest(name, known if depth else {*known, *groups})}"
            return
        node = None if OmegaConf.is_missing(node, name) else node._get_node(name)


def _misfit(a: Assignment) -> str:
    """``a`` names an option of the schema (or adds one to it) and its value does not fit."""
    if a.override.is_delete():
        return f"{a.text}: {a.key} cannot be left out, set it to a value"
    hint: object = Config
    path = a.key.split(".")
    for depth, name in enumerate(path):
        hints = typing.get_type_hints(hint) if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__") else {}
        if name not in hints:
            return f"{a.text}: there is no option {'.'.join(path[: depth + 1])}, {nearest(name, hints)}"
        hint = hints[name]
    return f"{a.text}: expected {describe(hint)}"


def _spread(override: Override, text: str) -> list[Assignment]:
    if override.is_sweep_override() and override.is_discrete_sweep():
        key = override.get_key_element()
        return [Assignment(override, f"{key}={value}", str(value)) for value in override.sweep_string_iterator()]
    return [Assignment(override, text, override.get_value_element_as_str())]


def search(config_dir: str | None) -> ConfigLoaderImpl:
    """Hydra's loader over ``config_dir``, where given, and our own YAML files."""
    search = create_config_search_path(str(CONF))
    if config_dir is not None:
        anchor = SearchPathQuery(provider="schema", path=None)
        search.prepend(provider="command-line", path=f"file://{Path(config_dir).resolve()}", anchor=anchor)
    return ConfigLoaderImpl(search)


def _compose(loader: ConfigLoaderImpl, overrides: list[str]) -> DictConfig | None:
    try:
        return loader.load_configuration("config", overrides, RunMode.RUN)
    except (HydraException, ValueError):
        return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first_words(chain: Sequence[BaseException]) -> str:
    """The innermost message that says something, headed by the option it is about if OmegaConf knows."""
    for link in reversed(chain):
        said = _LOCATION.split(str(link))[0].split()
        if said:
            key = link.full_key if isinstance(link, OmegaConfBaseException) else None
            return " ".join([f"{key}:"] * bool(key) + said)
    return type(chain[0]).__name__
