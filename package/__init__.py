"""Neve: an append-only, replicated extent store. Most programs need only `from neve import Client, KeyValueClient`.

Invariants: importing `neve` loads nothing else, so that a server does not load the client: the names below are loaded
            when a program first uses them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neve.client import Client, KeyValueClient, NeveError, Position, SyncClient, SyncKeyValueClient

__version__ = "0.1.0"  # pyproject.toml reads it from here

__all__ = [
    "Client",
    "KeyValueClient",
    "NeveError",
    "Position",
    "SyncClient",
    "SyncKeyValueClient",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'neve' has no attribute {name!r}")
    value = getattr(importlib.import_module("neve.client"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
