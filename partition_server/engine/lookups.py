"""Lookups of a key's newest entry: acknowledged ones for reads, pending ones too for conditions.

Invariants: a read sees only acknowledged writes. A condition is checked against the newest state with submitted writes;
            no write of that key is submitted between the lookup and the check, because neither awaits;
            NotFound is never raised: a missing extent says nothing about an object;
            a lookup whose table was replaced and removed in the meantime starts again.
"""

from __future__ import annotations

from collections.abc import Iterable

from neve.partition_server.engine.entry import Entry
from neve.partition_server.engine.shared import Store, View
from neve.partition_server.tables.bloom import key_hash
from neve.proto.errors import Internal, NotFound

ATTEMPTS_MAX = 100  # each lasts until a table is replaced, so that many in a row mean a bug


class Lookups:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def newest(self, key: bytes) -> Entry | None:
        """Return the newest acknowledged entry, which may be a delete."""
        store = self._store
        for _ in range(ATTEMPTS_MAX):
            view = store.view
            entry = in_memory(view, key)
            if entry is not None or not view.tables:
                return entry
            try:
                return await in_tables(view, key)
            except NotFound as error:
                if store.view is view:
                    raise store.gone(error) from error
        raise Internal(detail=f"tables for {key!r}: every one was replaced during its read")

    async def current(self, keys: Iterable[bytes]) -> dict[bytes, Entry | None]:
        """Return the newest entry of each key, including pending writes. Use the result before the next await."""
        store = self._store
        pending = store.pending
        keys = list(keys)
        for _ in range(ATTEMPTS_MAX):
            view = store.view
            found: dict[bytes, Entry | None] = {}
            try:
                for key in keys:
                    if key not in pending and in_memory(view, key) is None and view.tables:
                        found[key] = await in_tables(view, key)
            except NotFound as error:
                if store.view is view:
                    raise store.gone(error) from error
                continue
            if store.view is view:  # newer writes are in its memtables or pending, and both are read now
                for key in keys:
                    entry = pending.get(key) or in_memory(view, key)
                    if entry is not None:
                        found[key] = entry
                return {key: found.get(key) for key in keys}
        raise Internal(detail="tables for a condition: every one was replaced during its read")


def in_memory(view: View, key: bytes) -> Entry | None:
    for memtable in view.memtables:
        entry = memtable.entries.get(key)
        if entry is not None:
            return entry
    return None


async def in_tables(view: View, key: bytes) -> Entry | None:
    """Return the newest entry of the tables."""
    hashed = key_hash(key)
    for table in view.tables:
        if table.may_contain(key, hashed):
            entry = await table.get(key)
            if entry is not None:
                return entry
    return None
