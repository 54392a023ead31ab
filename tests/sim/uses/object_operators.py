"""Operators of the key-value layer in a story: they split, merge and move partitions, compact them, have extents of
their logs given back, and look.

Invariants: an order that is repeated with its call id is done once; one that makes no sense is refused, never silently
            done by half; nobody orders anything when the story is over.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any

from neve.proto import methods
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_server_pb2 as ps
from neve.proto.errors import NeveError
from tests.sim.partitions import PartitionCluster
from tests.sim.troubles.troubles import Scene

MIDDLE_KEYS = (b"b", b"d", b"h", b"l", b"n", b"p", b"r")  # none of them between the twins
REGIONS_MAX = 6
EXTENTS_MAX = 100
SCATTERED = 0.3  # of splits: the new half is moved
ORDER_TIMEOUT_S = 15.0
OPERATOR = "kv operator"  # to whom it is told when something fails


class Operators:
    def __init__(
        self,
        scene: Scene,
        partitions: PartitionCluster,
        rng: random.Random,
        *,
        is_over: Callable[[], bool],
        wrong: Callable[[str], None],
    ) -> None:
        self._scene = scene
        self._partitions = partitions
        self._rng = rng
        self._is_over = is_over
        self._wrong = wrong

    async def run(self) -> None:
        while not self._is_over():
            await asyncio.sleep(self._rng.uniform(0.3, 3.0))
            self._rng.choice((self.split, self.split, self.merge, self.move, self.move, self.compact, self.look))()

    def reshape(self, key: bytes) -> None:
        """The partition of a key, at once."""
        region = self._partitions.region(key)
        if self._rng.random() < 0.3:
            self.split(region.server_id)
        elif not self._is_over():
            self._move(region.partition_id, region.server_id)

    def split(self, server_id: int | None = None) -> bool:
        """One of this server's; of anybody's."""
        regions = self._partitions.map.regions
        found = [(key, self._partitions.region(key)) for key in MIDDLE_KEYS]
        found = [(key, region) for key, region in found if server_id in (None, region.server_id)]
        if self._is_over() or not found or len(regions) >= REGIONS_MAX:
            return False
        middle_key, region = self._rng.choice(found)
        if region.start == middle_key:
            return False
        how = self._rng.random()
        if how < 0.15:
            outside = region.end or region.start
            self._scene.spawn(self._split_outside(region.partition_id, outside))
        middle_key = middle_key if how < 0.6 else b""
        self._scene.say(f"partition {region.partition_id} is split at {middle_key.decode() or 'its middle'}")
        request = pm.SplitRegionRequest(partition_id=region.partition_id, middle_key=middle_key)
        scattered = server_id is not None or self._rng.random() < SCATTERED
        self._order(methods.PARTITION_MANAGER_SPLIT_REGION, request, then=self._scatter if scattered else None)
        return True

    def _scatter(self, reply: pm.SplitRegionReply) -> None:
        """The new half goes elsewhere at once, as balance would have it."""
        self._move(reply.right.partition_id, reply.right.server_id)

    async def _split_outside(self, partition_id: int, middle_key: bytes) -> None:
        """Where the region ends or begins: an error, never a silent OK (T19)."""
        if not middle_key:  # it has all keys: there is nothing outside
            return
        version = self._partitions.map.get(partition_id).version
        request = pm.SplitRegionRequest(partition_id=partition_id, middle_key=middle_key, version=version)
        try:
            await self._partitions.order(methods.PARTITION_MANAGER_SPLIT_REGION, request, timeout_s=ORDER_TIMEOUT_S)
        except NeveError as error:
            self._scene.told(f"{OPERATOR}: split outside", error)
            return
        self._wrong(f"partition {partition_id} was split at {middle_key!r}, which is outside of it (T19)")

    def mergeable(self, server_id: int | None = None) -> list[tuple[pm.RegionRecord, pm.RegionRecord]]:
        """Those of this server's that may become a part of another's; any two."""
        pairs = list(itertools.pairwise(self._partitions.map.regions))
        if server_id is not None:
            pairs = [pair for pair in pairs if pair[1].server_id == server_id != pair[0].server_id]
        return [] if self._is_over() else pairs

    def merge(self) -> bool:
        if not (pairs := self.mergeable()):
            return False
        self.merge_pair(*self._rng.choice(pairs))
        return True

    def merge_pair(
        self, left: pm.RegionRecord, right: pm.RegionRecord, *, then: Callable[[Any], None] | None = None
    ) -> None:
        self._scene.say(f"partitions {left.partition_id} and {right.partition_id} are merged")
        request = pm.MergeRegionsRequest(left_partition_id=left.partition_id, right_partition_id=right.partition_id)
        self._order(methods.PARTITION_MANAGER_MERGE_REGIONS, request, then=then)

    def move(self) -> bool:
        if self._is_over():
            return False
        region = self._rng.choice(self._partitions.map.regions)
        self._move(region.partition_id, region.server_id)
        return True

    def _move(self, partition_id: int, from_id: int) -> None:
        server_id = self._rng.choice([each for each in self._partitions.servers if each != from_id])
        self._scene.say(f"partition {partition_id} goes from server {from_id} to {server_id}")
        request = pm.MoveRegionRequest(partition_id=partition_id, server_id=server_id)
        self._order(methods.PARTITION_MANAGER_MOVE_REGION, request)

    def compact(self, server_id: int | None = None) -> bool:
        """One of this server's, of anybody's; and give back what can be of its log."""
        regions = [each for each in self._partitions.map.regions if server_id in (None, each.server_id)]
        if self._is_over() or not regions:
            return False
        region = self._rng.choice(regions)
        if region.server_id not in self._partitions.servers:
            return False
        self._scene.say(f"partition {region.partition_id} is compacted at server {region.server_id}")
        self._scene.spawn(self._compact(region))
        return True

    def give_back(self, key: bytes) -> None:
        """All that its partition's log can do without."""
        region = self._partitions.region(key)
        if not self._is_over() and region.server_id in self._partitions.servers:
            self._scene.spawn(self._compact(region, extents_max=EXTENTS_MAX))

    def look(self) -> None:
        """Who serves what, by the manager's word and by a server's own."""
        self._scene.spawn(self._look(self._rng.choice(list(self._partitions.servers.values())).address))

    async def _look(self, address: str) -> None:
        channel, described = self._partitions.operator_channel(address), methods.PARTITION_SERVER_DESCRIBE_PARTITIONS
        try:
            reply = await self._partitions.order(
                methods.PARTITION_MANAGER_LIST_PARTITION_SERVERS,
                pm.ListPartitionServersRequest(),
                timeout_s=ORDER_TIMEOUT_S,
            )
            if strangers := {each.server_id for each in reply.servers} - self._partitions.servers.keys():
                self._wrong(f"there are partition servers that nobody has started: {strangers}")
            await channel.call(described, ps.DescribePartitionsRequest(), timeout_s=ORDER_TIMEOUT_S)
        except NeveError as error:
            self._scene.told(f"{OPERATOR}: look", error)

    def _order(self, method: Any, request: Any, *, then: Callable[[Any], None] | None = None) -> None:
        self._scene.spawn(self._ordered(method, request, repeats=self._rng.choice((0, 0, 1)), then=then))

    async def _ordered(self, method: Any, request: Any, *, repeats: int, then: Callable[[Any], None] | None) -> None:
        """Perhaps once more with the same call id: it is done once (T19, T50). `then`: when it is done first."""
        request.call.CopyFrom(self._partitions.call_id())
        versions = set()
        for _ in range(1 + repeats):
            try:
                reply = await self._partitions.order(method, request, timeout_s=ORDER_TIMEOUT_S)
                versions.add(reply.version)
                if then is not None and not self._is_over():
                    then(reply)
                    then = None
            except NeveError as error:
                self._scene.told(f"{OPERATOR}: {method.name}", error)
        if len(versions) > 1:
            self._wrong(f"{method.name} was done twice, as versions {sorted(versions)} of the map (T19, T50)")

    async def _compact(self, region: pm.RegionRecord, *, extents_max: int = 2) -> None:
        channel = self._partitions.operator_channel(self._partitions.servers[region.server_id].address)
        extents = self._scene.cluster.stored_state().streams.get(region.log_stream_id)
        sealed = list(extents.extent_ids[:-1]) if extents is not None else []
        try:
            compact = ps.CompactPartitionRequest(partition_id=region.partition_id, full=self._rng.random() < 0.5)
            await channel.call(methods.PARTITION_SERVER_COMPACT_PARTITION, compact, timeout_s=ORDER_TIMEOUT_S)
            if sealed:
                some = self._rng.sample(sealed, min(extents_max, len(sealed)))
                reclaim = ps.ReclaimLogExtentsRequest(partition_id=region.partition_id, extent_ids=some)
                reply = await channel.call(
                    methods.PARTITION_SERVER_RECLAIM_LOG_EXTENTS, reclaim, timeout_s=ORDER_TIMEOUT_S
                )
                self._scene.say(f"partition {region.partition_id} gave back {list(reply.message.punched)}")
        except NeveError as error:
            self._scene.told(f"{OPERATOR}: compact", error)
