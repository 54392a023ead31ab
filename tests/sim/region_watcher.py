"""Looks at every revision of the region map, from a watch: it covers all keys once, whatever changes it (T52).

The same in the simulation and on a real etcd: whoever reads the metadata store sees nothing else.
"""

from __future__ import annotations

from neve.meta import keys
from neve.meta.regions import RegionsState
from neve.meta.store import EventKind, MetaStore, Resync
from neve.partition_manager.core_regions import RegionMap


class RegionWatcher:
    """Every revision of the map, as any reader of the metadata store could have seen it."""

    def __init__(self, store: MetaStore, root: bytes) -> None:
        self._store = store
        self._root = root
        self.state = RegionsState(root)
        self.maps: list[RegionMap] = []
        self.revisions = 0

    async def run(self) -> None:
        async with self._store.watch(keys.region_span(self._root), start_revision=1) as watch:
            async for item in watch:
                assert not isinstance(item, Resync), "nothing is compacted here"
                for event in item.events:
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
        now = RegionMap.of(stored.record, [each.record for each in self.state.regions.values()])  # or MapBroken
        if not self.maps or self.maps[-1] != now:
            if self.maps:
                assert now.version == self.maps[-1].version + 1, "the map's version counts its changes"
            self.maps.append(now)
