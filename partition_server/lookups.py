"""Finds the newest entry of a key: among acknowledged writes for reads, with those under way for conditions.

Invariants: a read sees acknowledged writes only; a condition is decided on the newest state, submitted writes included,
            and nothing of that key is submitted between the look and the decision: the look ends without an await;
            a reader that finds its table or value gone, because it was replaced meanwhile, looks again.
Neighbours: writes.py decides, values.py reads what is found, scans.py looks at ranges.
"""

from __future__ import annotations

from collections.abc import Iterable

from neve.partition_server.entry import Entry
from neve.partition_server.store import Store, View


class Lookups:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def newest(self, key: bytes) -> Entry | None:
        """The newest acknowledged entry, which may be a delete."""
        return in_memory(self._store.view, key)

    async def current(self, keys: Iterable[bytes]) -> dict[bytes, Entry | None]:
        """The newest entry of each key, writes under way included. Decide before the next await."""
        store = self._store
        pending = store.pending
        return {key: pending.get(key) or in_memory(store.view, key) for key in keys}


def in_memory(view: View, key: bytes) -> Entry | None:
    for memtable in view.memtables:
        entry = memtable.entries.get(key)
        if entry is not None:
            return entry
    return None
