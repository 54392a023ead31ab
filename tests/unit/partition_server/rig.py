"""Partitions on a simulated cluster: real managers, nodes and stream clients, on virtual time.

@on_cluster(seed=1)
async def test_something(rig: PartitionRig) -> None:
    region = await rig.create()
    partition = await rig.load(region)
    await partition.put(b"key", b"value")
    partition = await rig.crash_and_load(region)
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

from neve.client.streams.client import Client
from neve.client.streams.options import ClientOptions
from neve.client.streams.writer_group import WriterGroup
from neve.partition_server.engine.config import EngineConfig
from neve.partition_server.engine.engine import Partition, PartitionStreams
from neve.partition_server.engine.memory import MemoryBudget
from neve.partition_server.tables.block_cache import BlockCache
from neve.proto import common_pb2
from neve.proto import partition_manager_pb2 as pm
from neve.proto import stream_manager_pb2 as sm
from neve.rpc.limits import KIB
from tests.sim.cluster import SimCluster, run_story
from tests.sim.processes.client import OPTIONS, SimClient

# Small, so that a story of some hundred writes flushes, compacts and rolls.
CONFIG = EngineConfig(
    value_threshold_bytes=200,
    part_bytes=1500,
    memtable_bytes=20_000,
    block_bytes=1000,
    append_bytes=3000,
    tables_max=4,
)
CLIENT_OPTIONS = dataclasses.replace(
    OPTIONS, writer_bytes_max=200_000, buffer_bytes_max=1_000_000, block_payload_bytes_max=20_000
)


@dataclasses.dataclass
class Loaded:
    partition: Partition
    client: SimClient
    group: WriterGroup


class PartitionRig:
    def __init__(self, cluster: SimCluster, *, extent_bytes: int = 30_000) -> None:
        self.cluster = cluster
        self.rng = random.Random(cluster.rng.getrandbits(64))
        self.extent_bytes = extent_bytes
        self.loaded: dict[int, Loaded] = {}
        self._names = itertools.count(1)
        self._partition_ids = itertools.count(1)
        self._operator: Client | None = None
        self.clock_offset_ms = 0
        self.map_version = 1

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(asyncio.get_running_loop().time() * 1000) + self.clock_offset_ms

    async def operator(self) -> Client:
        if self._operator is None:
            self._operator = (await self.cluster.client("operator")).neve
        return self._operator

    async def create(self, start: bytes = b"", end: bytes = b"") -> pm.RegionRecord:
        """A partition with three streams of its own."""
        operator = await self.operator()
        partition_id = next(self._partition_ids)
        lock = f"partition/{partition_id:016x}"
        ids = [
            (await operator.create_stream(replicas=3, extent_bytes_max=self.extent_bytes, lock=lock)).id
            for _ in range(3)
        ]
        return pm.RegionRecord(
            format=1,
            partition_id=partition_id,
            start=start,
            end=end,
            server_id=1,
            version=1,
            log_stream_id=ids[0],
            row_stream_id=ids[1],
            meta_stream_id=ids[2],
            lock=lock,
            epoch=1,
        )

    async def load(
        self,
        region: pm.RegionRecord,
        *,
        config: EngineConfig = CONFIG,
        memory_bytes: int = 1 << 20,
        options: ClientOptions = CLIENT_OPTIONS,
    ) -> Partition:
        """In a process of its own, as a server does that was told to serve the region."""
        client = await self.cluster.client(f"server{next(self._names)}", options=options)

        async def work() -> tuple[Partition, WriterGroup]:
            stream_ids = (region.log_stream_id, region.row_stream_id, region.meta_stream_id)
            group = await client.neve.writer_group(stream_ids).open()
            log, row, meta = group.writers
            partition = await Partition.load(
                region,
                PartitionStreams(log, row, meta, client.neve, group.ensure),
                config=config,
                clock=self.wall_ms,
                rng=random.Random(self.rng.getrandbits(64)),
                cache=BlockCache(1 << 20),
                memory=MemoryBudget(memory_bytes),
            )
            return partition, group

        partition, group = await client.run(work())
        self.loaded[region.partition_id] = Loaded(partition, client, group)
        return partition

    async def run(self, region: pm.RegionRecord, work: Coroutine[Any, Any, Any]) -> Any:
        """As the process that has the partition."""
        return await self.loaded[region.partition_id].client.run(work)

    def crash(self, region: pm.RegionRecord) -> None:
        """Kill -9 of the process that has the partition."""
        self.loaded.pop(region.partition_id).client.kill()

    async def crash_and_load(self, region: pm.RegionRecord, **how: Any) -> Partition:
        self.crash(region)
        return await self.load(region, **how)

    # --- what a partition manager does -----------------------------------------------------------------------

    async def split(self, region: pm.RegionRecord, middle_key: bytes) -> tuple[pm.RegionRecord, pm.RegionRecord]:
        """Both sides, to be loaded. The process that had the partition is killed when the split is done."""
        loaded = self.loaded[region.partition_id]
        ends = await loaded.client.run(loaded.partition.freeze())
        admin = (await self.operator()).admin
        first_id = await admin.alloc_ids(3)
        self.map_version += 1
        right = pm.RegionRecord()
        right.CopyFrom(region)
        right.partition_id = next(self._partition_ids)
        right.start = middle_key
        right.lock = f"partition/{right.partition_id:016x}"
        right.log_stream_id, right.row_stream_id, right.meta_stream_id = first_id, first_id + 1, first_id + 2
        request = sm.SplitStreamsRequest()
        for number, stream_end in enumerate(ends):
            request.streams.add(
                stream_id=stream_end.stream_id,
                owner=loaded.group.owner,
                acknowledged_end=stream_end.acknowledged_end,
                extent_id=stream_end.extent_id,
                new_stream_id=first_id + number,
                new_lock=right.lock,
            )
        await admin.split_streams(request, timeout_s=60)
        left = pm.RegionRecord()
        left.CopyFrom(region)
        left.end = middle_key
        left.version = right.version = self.map_version
        self.crash(region)
        return left, right

    async def merge(self, left: pm.RegionRecord, right: pm.RegionRecord) -> pm.RegionRecord:
        """One of two neighbours, to be loaded."""
        both = [self.loaded[left.partition_id], self.loaded[right.partition_id]]
        ends = [await loaded.client.run(loaded.partition.flush_and_freeze()) for loaded in both]
        self.map_version += 1
        merged = pm.RegionRecord()
        merged.CopyFrom(left)
        merged.end = right.end
        merged.version = merged.merged_at = self.map_version
        del merged.merged_manifests[:]
        for *_, manifest in ends:
            merged.merged_manifests.add(extent_id=manifest.extent_id, offset=manifest.offset)
        request = sm.MergeStreamsRequest()
        for end, absorbed_end in zip(ends[0][:3], ends[1][:3], strict=True):
            request.streams.add(
                stream_id=end.stream_id,
                owner=both[0].group.owner,
                absorbed_stream_id=absorbed_end.stream_id,
                absorbed_owner=both[1].group.owner,
                end=end,
                absorbed_end=absorbed_end,
            )
        await (await self.operator()).admin.merge_streams(request, timeout_s=60)
        self.crash(left)
        self.crash(right)
        return merged

    async def stream_extents(self, stream_id: int) -> tuple[int, ...]:
        """As the leader has it: who follows may lag."""
        return self.cluster.state.streams[stream_id].extent_ids


def call(client_id: int, call_id: int, completed_below: int = 0) -> common_pb2.CallId:
    return common_pb2.CallId(client_id=client_id, call_id=call_id, completed_below=completed_below)


Story = Callable[..., Coroutine[Any, Any, None]]


def on_cluster(*, seed: int = 0, extent_bytes: int = 30 * KIB, **how: Any) -> Callable[[Story], Callable[[], None]]:
    """Turns a story about partitions into a test."""

    def decorate(story: Story) -> Callable[[], None]:
        def test() -> None:
            async def main(cluster: SimCluster) -> None:
                await story(PartitionRig(cluster, extent_bytes=extent_bytes))

            run_story(main, seed=seed, **how)

        functools.update_wrapper(test, story)
        del test.__wrapped__  # type: ignore[attr-defined]  # pytest would look for fixtures of the story
        return test

    return decorate
