"""Partition servers' reports to the leader of one term: the load of each partition, from the last heartbeat.

Invariants: reports do not decide which servers live: the registrations on leases do;
            a server that is gone, or a partition that its server no longer has, is dropped.
"""

from __future__ import annotations

from collections.abc import Collection

from neve.proto import partition_manager_pb2 as pm


class ServerTable:
    def __init__(self) -> None:
        self._loads: dict[int, dict[int, pm.PartitionLoad]] = {}
        self._seen: set[int] = set()

    def note_load(self, server_id: int, load: Collection[pm.PartitionLoad]) -> None:
        self._loads[server_id] = {each.partition_id: each for each in load}

    def registered(self, server_ids: Collection[int]) -> None:
        """Note the registered servers, and drop the reports of others."""
        self._seen.update(server_ids)
        for gone in self._loads.keys() - set(server_ids):
            del self._loads[gone]

    def was_seen(self, server_id: int) -> bool:
        """Whether the server had a registration at any time in this term."""
        return server_id in self._seen

    def load_of(self, server_id: int) -> list[pm.PartitionLoad]:
        return list(self._loads.get(server_id, {}).values())

    def loads(self, regions: Collection[pm.RegionRecord]) -> dict[int, pm.PartitionLoad]:
        """The load of each partition, as its own server reported it."""
        found = {}
        for region in regions:
            load = self._loads.get(region.server_id, {}).get(region.partition_id)
            if load is not None:
                found[region.partition_id] = load
        return found
