"""Looks at every revision of the region map: it covers all keys once, whatever changes it (T52), no call changes it
twice (T19, T50), and no partition's id is used again.

The same in the simulation and on a real etcd, where a watch tells of revisions: whoever reads the metadata store sees
nothing else. A simulated store tells of each as it is made: not even a compaction comes between.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from neve.meta import keys
from neve.meta.memory.mvcc import KeySpace
from neve.meta.regions import RegionsState
from neve.meta.store import Event, EventKind, MetaStore, Resync
from neve.partition_manager.core_regions import RegionMap


class RegionWatcher:
    """Every revision of the map, as any reader of the metadata store could have seen it."""

    def __init__(self, root: bytes) -> None:
        self._span = keys.region_span(root)
        self._next_revision = 1
        self.state = RegionsState(root)
        self.maps: list[RegionMap] = []
        self.revisions = 0
        self.partition_ids: set[int] = set()  # that there are or were

    async def run(self, store: MetaStore) -> None:
        async with store.watch(self._span, start_revision=1) as watch:
            async for item in watch:
                assert not isinstance(item, Resync), "nothing is compacted here"
                self._take(item.events)

    def catch_up(self, key_space: KeySpace) -> None:
        """All revisions that were made since the last call."""
        while (batch := key_space.first_batch(self._next_revision, self._span)) is not None:
            self._next_revision = batch.revision + 1
            self._take(batch.events)
        self._next_revision = key_space.revision + 1

    def _take(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.kind is EventKind.PUT:
                self.state.put_key(event.kv)
            else:
                self.state.delete_key(event.kv.key)
        self.look()

    def look(self) -> None:
        stored = self.state.map
        if stored is None:
            assert not self.state.regions, "regions without a map"
            return
        self.revisions += 1
        records = [each.record for each in self.state.regions.values()]
        spans = sorted((each.start, each.end) for each in records)  # not by the product's own check, which may be wrong
        bounds = [b"", *itertools.chain.from_iterable(spans), b""]
        assert bounds[0::2] == bounds[1::2], f"the regions do not cover all keys once: {spans}"
        now = RegionMap.of(stored.record, records)  # or MapBroken
        if not self.maps or self.maps[-1] != now:
            if self.maps:
                assert now.version == self.maps[-1].version + 1, "the map's version counts its changes"
            calls = [(made.call.client_id, made.call.call_id) for made in now.replayed]
            assert len(set(calls)) == len(calls), f"a call has changed the map twice: {calls}"
            self._look_at_ids(now)
            self.maps.append(now)

    def _look_at_ids(self, now: RegionMap) -> None:
        """A partition keeps its id, and its id is nobody else's, ever."""
        ids = {region.partition_id for region in now.regions}
        before = {region.partition_id for region in self.maps[-1].regions} if self.maps else set()
        again = (ids - before) & self.partition_ids
        assert not again, f"ids of partitions that are gone are used again: {sorted(again)}"
        self.partition_ids |= ids
