"""Encodes values as JSON and decodes them exactly: what the guard remembers of a topic outlives its process.

Driven by the fields of the dataclasses, so a new field needs nothing here. Refuses text of another version, unknown or missing
fields and values of the wrong type: an incomplete memory would take a lagging replica for fine. Knows no file.
"""

from __future__ import annotations

import json
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from headstone.coordination.guard_values import Memory

MEMORY_VERSION = 1
"""Raise it with every change of a field's meaning. A new field that has a default needs no new version."""

T = TypeVar("T")


class NotAMemory(ValueError):
    """What is wrong with the text; the caller adds the file's name."""


def memory_json(memory: Memory) -> str:
    return json.dumps({"version": MEMORY_VERSION, "memory": plain(memory)}, separators=(",", ":"))


def memory_of(text: str) -> Memory:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise NotAMemory(f"not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("version") != MEMORY_VERSION:
        version = document.get("version") if isinstance(document, dict) else None
        raise NotAMemory(f"version {version!r} of the stored state; this program reads version {MEMORY_VERSION}")
    return value_of(Memory, document.get("memory"))


def plain(value: object) -> object:
    """A dataclass becomes an object without the fields that have their default value; a tuple, also a named one, becomes a
    list."""
    if is_dataclass(value) and not isinstance(value, type):
        present = ((field.name, getattr(value, field.name), field.default) for field in fields(value))
        return {name: plain(content) for name, content, default in present if default is MISSING or content != default}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def value_of(kind: type[T], document: object) -> T:
    return typing.cast(T, _read(kind, document, kind.__name__))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(kind: Any, document: object, place: str) -> object:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _read_union(typing.get_args(kind), document, place)
    if origin is tuple:
        return _read_tuple(typing.get_args(kind), document, place)
    if isinstance(kind, type) and issubclass(kind, tuple):
        named: Any = _read_tuple(tuple(_hints(kind).values()), document, place)
        return typing.cast(Any, kind)(*named)
    if is_dataclass(kind):
        return _read_fields(typing.cast(type, kind), document, place)
    if isinstance(kind, type) and issubclass(kind, StrEnum) and isinstance(document, str) and document in set(kind):
        return kind(document)
    if kind is float and type(document) is int:
        return float(document)
    if type(document) is not kind:
        raise NotAMemory(f"{place}: expected {getattr(kind, '__name__', kind)}, found {document!r}")
    return document


def _read_union(kinds: tuple[Any, ...], document: object, place: str) -> object:
    if document is None and type(None) in kinds:
        return None
    (kind,) = (kind for kind in kinds if kind is not type(None))
    return _read(kind, document, place)


def _read_tuple(kinds: tuple[Any, ...], document: object, place: str) -> object:
    if not isinstance(document, list):
        raise NotAMemory(f"{place}: expected a list, found {document!r}")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_read(kinds[0], item, place) for item in document)
    if len(kinds) != len(document):
        raise NotAMemory(f"{place}: {len(document)} items, expected {len(kinds)}")
    return tuple(_read(kind, item, place) for kind, item in zip(kinds, document, strict=True))


def _read_fields(kind: type, document: object, place: str) -> object:
    if not isinstance(document, dict):
        raise NotAMemory(f"{place}: expected {kind.__name__}, found {document!r}")
    hints = _hints(kind)
    unknown = sorted(document.keys() - hints.keys())
    missing = sorted(
        field.name
        for field in fields(kind)
        if field.name not in document and field.default is MISSING and field.default_factory is MISSING
    )
    if unknown or missing:
        raise NotAMemory(f"{place}: " + (f"unknown field {unknown[0]}" if unknown else f"no field {missing[0]}"))
    return kind(**{name: _read(hints[name], content, f"{place}.{name}") for name, content in document.items()})
