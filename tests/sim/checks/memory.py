"""What a process holds in memory: every list, dict, set, queue and byte array reached from its own objects, by name.

    held_by(node.store, node.copier)      {"StoreState.replicas": 7, "TurnLock._waiters": 0, ...}
    held_by_modules()                     {"neve.proto.errors._BY_CODE": 40, ...}: of all processes together

Invariants: it looks at whatever there is: what somebody adds tomorrow is looked at tomorrow, without a word here;
            what several processes share (the network, which is no part of the product, and the metadata store) is
            nobody's own, and is not entered;
            it changes nothing. Bytes are not looked at, nor what is only in a closure or a task.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, cast

from neve.meta.memory.client import MemoryStore

PRODUCT = "neve."
LOWEST = ("neve.proto.fields",)  # others have its names
SHARED = (MemoryStore,)
CONTAINERS = (dict, list, set, frozenset, collections.deque, bytearray)


def held_by(*roots: object, numbers: Iterable[str] = ()) -> dict[str, int]:
    """How long the longest of each name is. A name is a class and its attribute, with [] for what lies inside of it.
    `numbers`: attributes that count something, as theirs."""
    counted = frozenset(numbers)
    sizes: dict[str, int] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [(type(root).__name__, root) for root in roots]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, int):
            if name in counted:
                sizes[name] = max(sizes.get(name, 0), abs(int(value)))
        elif id(value) in seen:
            continue
        elif isinstance(value, CONTAINERS):
            seen.add(id(value))
            sizes[name] = max(sizes.get(name, 0), _size(value))
            waiting += ((name + "[]", inner) for inner in _inside(value))
        elif isinstance(value, asyncio.Queue):
            seen.add(id(value))
            sizes[name] = max(sizes.get(name, 0), value.qsize())
        elif isinstance(value, tuple):
            seen.add(id(value))
            waiting += ((name + "[]", inner) for inner in value)
        elif _is_own(_kind(value)):
            seen.add(id(value))
            kind = type(value).__name__
            waiting += ((f"{kind}.{attribute}", inner) for attribute, inner in _attributes(value))
    return sizes


def held_by_modules() -> dict[str, int]:
    """What modules and classes of the product hold, and how much their caches without a bound."""
    sizes: dict[str, int] = {}
    seen: set[int] = set()  # what a module has from another one is that one's
    modules = [name for name in sys.modules if name.startswith(PRODUCT)]
    for name in sorted(modules, key=lambda name: not name.startswith(LOWEST)):
        _add_globals(sizes, name, vars(sys.modules[name]), seen)
    return sizes


def _add_globals(sizes: dict[str, int], owner: str, values: Mapping[str, Any], seen: set[int]) -> None:
    for name, value in [*values.items()]:
        if isinstance(value, CONTAINERS) and not name.startswith("__"):
            if id(value) not in seen:
                sizes[f"{owner}.{name}"] = _size(value)
            seen.add(id(value))
        elif isinstance(value, functools._lru_cache_wrapper) and value.cache_info().maxsize is None:
            sizes[f"{owner}.{name}"] = value.cache_info().currsize
        elif isinstance(value, type) and value.__module__ == owner:
            _add_globals(sizes, f"{owner}.{name}", vars(value), seen)


def _size(value: Any) -> int:
    return sum(map(abs, value.values())) if isinstance(value, collections.Counter) else len(value)


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.keys()
        yield from value.values()
    elif not isinstance(value, bytearray):  # a receive buffer has many bytes
        yield from value


def _kind(value: object) -> Hashable:
    return cast(Hashable, type(value))


@functools.cache
def _is_own(kind: Hashable) -> bool:
    assert isinstance(kind, type)
    product = any(each.__module__.startswith(PRODUCT) for each in kind.__mro__)  # itself, or what it extends
    return product and not issubclass(kind, (*SHARED, type, BaseException))


@functools.cache
def _slots(kind: Hashable) -> tuple[str, ...]:
    assert isinstance(kind, type)
    return tuple(name for each in kind.__mro__ for name in getattr(each, "__slots__", ()) if name != "__weakref__")


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    for name in _slots(_kind(value)):
        if (found := getattr(value, name, None)) is not None:
            yield name, found
    yield from getattr(value, "__dict__", {}).items()
