"""Configuration of a server process: a frozen dataclass filled from a TOML file and from flags.

A field is a key; a field that is itself a dataclass is a table. Types are checked, unknown keys are refused, and every
error names the key, so a typo stops the start instead of being ignored. Only a key that the last release still had is
ignored, with a warning (removed_settings.py). Numbers are finite and not negative in every table. A table lists the
numbers that must be above 0 with `check_above_zero`.

Keys for numbers of bytes (`…_bytes`, `…_bytes_max`, `…_bytes_per_s`) also accept text such as "64 MiB".
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from neve.proto.errors import InvalidArgument
from neve.rpc.removed_settings import without_removed

T = TypeVar("T")

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)")
_SIZE_KEY = re.compile(r"_bytes(_[a-z]+)*$")


def load(cls: type[T], path: Path | None, assignments: Sequence[str] = ()) -> T:
    """Read `path` if it is given, apply the `key=value` assignments over it, and check everything."""
    return build(cls, read_table(path, assignments))


def read_table(path: Path | None, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """The tables of `path` with the assignments applied, unchecked."""
    table: dict[str, Any] = {}
    if path is not None:
        try:
            table = tomllib.loads(path.read_text())
        except OSError as error:
            raise InvalidArgument(what=f"config file {path}", detail=str(error.strerror)) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(what=f"config file {path}", detail=str(error)) from error
    for assignment in assignments:
        _assign(table, assignment)
    return table


def build(cls: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """An instance of `cls` from a table. `where` is the path of the table, for errors."""
    assert dataclasses.is_dataclass(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    table = without_removed(cls, table, where)
    for key in table:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean {_join(where, near[0])}?" if near else f"known keys are {', '.join(sorted(fields))}"
            raise InvalidArgument(what=f"config key {_join(where, key)}", detail=hint)
    values = {key: _convert(hints[key], value, _join(where, key)) for key, value in table.items()}
    for name, field in fields.items():
        if name not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise InvalidArgument(what=f"config key {_join(where, name)}", detail="is missing, and has no default")
    try:
        return cls(**values)
    except ValueError as error:  # from a dataclass's own check of its fields
        raise InvalidArgument(what=f"config table [{where}]" if where else "config", detail=str(error)) from error


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _convert(kind: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):  # `X | None`: TOML has no null, so the value is an X
        kind = next(option for option in typing.get_args(kind) if option is not types.NoneType)
        origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise _wrong(where, "a table", value)
        return build(typing.cast(type, kind), value, where)
    if origin in (list, tuple):
        if not isinstance(value, list):
            raise _wrong(where, "a list", value)
        item = typing.get_args(kind)[0]
        made = [_convert(item, element, f"{where}[{index}]") for index, element in enumerate(value)]
        return tuple(made) if origin is tuple else made
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _wrong(where, "a table", value)
        item = typing.get_args(kind)[1]
        return {key: _convert(item, element, _join(where, key)) for key, element in value.items()}
    if kind is int and isinstance(value, str) and _SIZE_KEY.search(where):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise _wrong(where, 'a number of bytes, or text such as "64 MiB"', value)
        return int(float(match[1]) * _UNITS[match[2]])
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind in (int, float) and type(value) in (int, float) and not 0 <= value < math.inf:  # refuses nan, too
        raise _wrong(where, "a number that is 0 or more", value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:  # exact, because a bool is no number here
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path as text"}
        raise _wrong(where, names.get(kind, str(kind)), value)
    return value


def check_above_zero(table: Any, *, but: Sequence[str] = ()) -> None:
    """For `__post_init__`: check that every number of this table is above 0, or at least 0 if `but` names it."""
    for field in dataclasses.fields(table):
        value = getattr(table, field.name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            least = "0 or more" if field.name in but else "above 0"
            if not math.isfinite(value) or value < 0 or (value == 0 and field.name not in but):
                raise ValueError(f"{field.name} must be {least}, not {value}")


def _wrong(where: str, wanted: str, value: Any) -> InvalidArgument:
    return InvalidArgument(what=f"config key {where}", detail=f"must be {wanted}, not {value!r}")


def _assign(table: dict[str, Any], assignment: str) -> None:
    """Apply `listen.wire=127.0.0.1:0` or `limits.connections_max=10`. The value is TOML, or otherwise text."""
    key, equals, text = assignment.partition("=")
    if not equals or not all(key.split(".")):
        raise InvalidArgument(
            what=f"setting {assignment!r}", detail="expected key=value, for example limits.connections_max=10"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *parents, last = key.split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise InvalidArgument(what=f"setting {assignment!r}", detail=f"{parent} is not a table")
    table[last] = value
