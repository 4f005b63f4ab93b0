"""Plain values as JSON, between a program that nobody trusts and the tests that judge it.

Runs inside the sandbox too, so it imports the standard library only. A value arrives as fresh objects of built-in
types; whatever is not plain data becomes :class:`Opaque`, which equals nothing. So no code and no ``__eq__`` of the
program ever reaches the tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from numbers import Integral, Real
from typing import Any, BinaryIO

LONGEST_ITERATOR = 100_000  # items taken from an iterator or generator


class Unsendable(Exception):
    """A value of the tests that is no plain data."""


class Opaque:
    """Stands for an object that is no plain data; equal to nothing, of no use in any operation."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has no truth value here")

    def __repr__(self) -> str:
        return f"<{self.kind} object>"


def encode(value: Any, strict: bool = False) -> Any:
    """``value`` as JSON data: lists stay lists, everything else that JSON lacks is ``{tag: ...}``.

    Subclasses are sent as their built-in base, as equality would compare them.

    Raises:
        Unsendable: if ``strict`` and a part of ``value`` is no plain data.
    """

    def each(values: Any) -> list[Any]:
        return [encode(v, strict) for v in values]

    match value:
        case None | True | False:
            return value
        case str():
            return str.__str__(value)
        case Fraction():
            return {"fraction": [hex(value.numerator), hex(value.denominator)]}
        case Decimal():
            return {"decimal": Decimal.__str__(value)}
        case Integral():
            return {"int": hex(int(value))}
        case Real():
            return {"float": float(value).hex()}
        case complex():
            return {"complex": [value.real.hex(), value.imag.hex()]}
        case bytes() | bytearray():
            return {type(value).__name__: bytes(value).hex()}
        case list():
            return each(list.__iter__(value))
        case tuple():
            return {"tuple": each(tuple.__iter__(value))}
        case set() | frozenset():
            return {"set" if isinstance(value, set) else "frozenset": each(value)}
        case dict():
            return {"dict": [[encode(k, strict), encode(v, strict)] for k, v in dict.items(value)]}
        case range():
            return {"range": each((value.start, value.stop, value.step))}
    if strict:
        raise Unsendable(f"a value of type {type(value).__name__} cannot be handed to the program")
    if isinstance(value, Iterator):
        return {"iterator": each(islice(value, LONGEST_ITERATOR))}
    return {"opaque": str(type(value).__name__)}


def decode(data: Any) -> Any:
    """The value of :func:`encode`.

    Raises:
        ValueError: if ``data`` is nothing that :func:`encode` makes.
    """
    if data is None or isinstance(data, bool | str):
        return data
    if isinstance(data, list):
        return [decode(d) for d in data]
    if not isinstance(data, dict) or len(data) != 1:
        raise ValueError("no encoded value")
    ((tag, part),) = data.items()
    match tag:
        case "int":
            return int(part, 16)
        case "float":
            return float.fromhex(part)
        case "complex":
            return complex(*map(float.fromhex, part))
        case "fraction":
            return Fraction(*(int(p, 16) for p in part))
        case "decimal":
            return Decimal(part)
        case "bytes":
            return bytes.fromhex(part)
        case "bytearray":
            return bytearray.fromhex(part)
        case "tuple":
            return tuple(decode(d) for d in part)
        case "set":
            return {decode(d) for d in part}
        case "frozenset":
            return frozenset(decode(d) for d in part)
        case "dict":
            return {decode(k): decode(v) for k, v in part}
        case "range":
            return range(*(decode(d) for d in part))
        case "iterator":
            return iter([decode(d) for d in part])
        case "opaque":
            return Opaque(str(part))
    raise ValueError(f"no encoded value: {tag}")


def send(stream: BinaryIO, message: Any) -> None:
    """One message a line."""
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def receive(stream: BinaryIO, longest: int) -> Any:
    """The next message.

    Raises:
        EOFError: if the other side is gone, or the line is longer than ``longest`` bytes.
        ValueError: if it is no JSON.
    """
    line = stream.readline(longest)
    if not line.endswith(b"\n"):
        raise EOFError("the other side is gone")
    return json.loads(line)
