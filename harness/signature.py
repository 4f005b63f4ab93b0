"""Arguments from YAML against the signature of what they will be handed to, before anything is constructed.

Checks names always and types where the annotation says something simple (numbers, text, booleans, None, unions,
literals, sequences and mappings of these); any other annotation is left to the constructor.
"""

from __future__ import annotations

import importlib
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union

from harness.errors import UserError
from harness.hint import nearest, render

_WORDS = {
    int: "an integer",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "null",
    Path: "a path",
}


@dataclass(frozen=True)
class Signature:
    """Parameters of a callable that can be given by name.

    Attributes:
        name: of the callable.
        hints: annotation by parameter; ``Any`` where there is none or it cannot be resolved.
        required: parameters without a default.
        open: whether further names are accepted (``**kwargs``).
    """

    name: str
    hints: Mapping[str, Any]
    required: frozenset[str]
    open: bool

    @classmethod
    def of(cls, target: Callable[..., Any]) -> Signature:
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = inspect.signature(target).parameters.values()
        resolved = _hints(target)
        return cls(
            name=getattr(target, "__name__", repr(target)),
            hints={p.name: resolved.get(p.name, Any) for p in parameters if p.kind in named},
            required=frozenset(p.name for p in parameters if p.kind in named and p.default is inspect.Parameter.empty),
            open=any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters),
        )

    def accepts(self, name: str) -> bool:
        return self.open or name in self.hints

    def complaints(self, where: str, given: Mapping[str, Any]) -> Iterator[str]:
        """What of ``given`` does not fit, a sentence each; ``where`` is the option they are under."""
        unknown = [name for name in given if not self.accepts(name)]
        if len(unknown) > 3:
            named = f"{', '.join(unknown[:3])} and {len(unknown) - 3} more"
            yield f"{where}: {self.name} has no options {named}, valid here: {', '.join(self.hints)}"
        else:
            yield from (
                f"{where}.{name}: {self.name} has no such option, {nearest(name, self.hints)}" for name in unknown
            )
        for name, value in given.items():
            if name in self.hints and not fits(value, self.hints[name]):
                yield f"{where}.{name}={render(value)}: expected {describe(self.hints[name])}"
        for name in sorted(self.required - set(given)):
            yield f"{where}.{name}: {self.name} needs a value ({describe(self.hints[name])}), set {where}.{name}=..."


def locate(where: str, path: object) -> Callable[..., Any]:
    """The callable at a dotted ``path``, with a sentence about what is wrong with it otherwise.

    Raises:
        UserError: if it is not there, is not callable, or its module cannot be imported.
    """
    option = f"{where}._target_={path}"
    module_name, _, attribute = str(path).rpartition(".")
    if not module_name:
        raise UserError(f"{option}: expected a dotted path such as my_package.MyClass")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UserError(f"{option}: there is no module {error.name} on the Python path") from error
        raise UserError(f"{option}: it needs the package {error.name}, which is not installed") from error
    except Exception as error:
        raise UserError(f"{option}: importing {module_name} failed with {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if found is None:
        public = [n for n, v in vars(module).items() if inspect.isclass(v) and v.__module__ == module_name]
        raise UserError(f"{option}: {module_name} has no {attribute}, {nearest(attribute, public)}")
    if not callable(found):
        raise UserError(f"{option}: {attribute} cannot be called, give a class or a function")
    made: Callable[..., Any] = found
    return made


def fits(value: object, hint: Any) -> bool:
    """Whether a plain YAML ``value`` may be handed to a parameter annotated ``hint``."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return fits(value, arguments[0])
    if origin in (Union, types.UnionType):
        return any(fits(value, a) for a in arguments)
    if origin is Literal:
        return any(value == a and type(value) is type(a) for a in arguments)
    if isinstance(value, dict) and "_target_" in value:
        return True
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (str, Path):
        return isinstance(value, str)
    if hint is bool:
        return isinstance(value, bool)
    kind = origin or hint
    if isinstance(kind, type) and issubclass(kind, Mapping):
        inner = arguments[1] if len(arguments) == 2 else Any
        return isinstance(value, dict) and all(fits(v, inner) for v in value.values())
    if isinstance(kind, type) and issubclass(kind, Sequence | set | frozenset):
        return isinstance(value, list) and _items_fit(value, kind, arguments)
    return True


def describe(hint: Any) -> str:
    """``hint`` in words: ``an integer or null``."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return describe(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(describe(a) for a in arguments)
    if origin is Literal:
        return f"one of {', '.join(render(a) for a in arguments)}"
    if hint in _WORDS:
        return _WORDS[hint]
    kind = origin or hint
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return "a mapping {name:value,...}"
    if isinstance(kind, type) and issubclass(kind, Sequence | set | frozenset):
        return "a list [value,...]"
    return "a value" if hint is Any else getattr(hint, "__name__", str(hint))


def _items_fit(items: Sequence[object], kind: type, arguments: tuple[Any, ...]) -> bool:
    if kind is tuple and arguments and arguments[-1] is not Ellipsis:
        return len(items) == len(arguments) and all(map(fits, items, arguments))
    inner = arguments[0] if arguments else Any
    return all(fits(i, inner) for i in items)


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    """Resolved annotations of a class's constructor or of a function.

    A dataclass keeps them on its fields, base classes included. An annotation that cannot be resolved here, because
    it was imported for type checkers only, is left out.
    """
    owner: Any = target
    if inspect.isclass(target) and "__init__" in vars(target) and not hasattr(target, "__dataclass_fields__"):
        owner = target.__init__
    try:
        return typing.get_type_hints(owner)
    except (NameError, TypeError):
        return {}
