"""The larger world: partition managers, partition servers, key-value clients and operators, on a whole stream layer.

Everything that befalls the stream layer befalls it here, too; some stories have users of streams beside it. Memtables,
tables and extents are so small that a story flushes, merges tables and gives extents of the log back all the time.

Invariants: nothing but the seed decides;
            what a partition's streams were told to be safe is on all replicas at that moment (G1), and no seal is
            shorter (G2); what else must hold of streams is looked at as in the small world.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Sequence
from typing import Any

from neve.client.objects.options import KeyValueOptions
from neve.partition_server.config import Serving
from neve.partition_server.engine.config import EngineConfig
from neve.stream_manager.config import Defaults
from tests.sim.checks import object_checkers as kv_checkers
from tests.sim.partitions import NO_BALANCE, RESTLESS, PartitionCluster
from tests.sim.processes.client import OPTIONS
from tests.sim.troubles import swarm
from tests.sim.troubles.kinds import KINDS
from tests.sim.troubles.partitions import PartitionTroubles
from tests.sim.troubles.swarm import Shape
from tests.sim.troubles.troubles import Kind, Scene
from tests.sim.uses.object_operators import MIDDLE_KEYS
from tests.sim.uses.objects import KeyValueUsers
from tests.sim.worlds import World

PART_BYTES = 1100  # of streamed puts and gets
NARROW_BYTES = 1500

MOMENTS = (
    ("AbortUpload", "request"),
    ("Batch", "request"),
    ("CompleteUpload", "request"),
    ("CompleteUpload", "reply"),
    ("Delete", "request"),
    ("FlushPartition", "reply"),
    ("MergeRegions", "request"),
    ("MergeStreams", "request"),
    ("MergeStreams", "reply"),
    ("MoveRegion", "request"),
    ("MoveRegion", "reply"),
    ("Multi", "request"),
    ("Multi", "reply"),
    ("PreparePartitionMerge", "request"),
    ("PreparePartitionMerge", "reply"),
    ("PreparePartitionSplit", "request"),
    ("PreparePartitionSplit", "reply"),
    ("PunchHoles", "request"),
    ("PunchHoles", "reply"),
    ("PutMany", "request"),
    ("PutMany", "reply"),
    ("RegisterPartitionServer", "request"),
    ("Scan", "reply"),
    ("SplitRegion", "request"),
    ("SplitStreams", "request"),
    ("SplitStreams", "reply"),
    ("TruncateStream", "request"),
    ("UploadPart", "request"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Setup:
    """Sizes and policies of the partition layer in a story."""

    servers: int
    clients: int
    workers: int  # of a client
    readers: int  # clients that only read
    operators: int
    regions: int  # at first
    extent_bytes: int
    memtable_bytes: int
    memory_bytes: int  # of all memtables of a server
    tables: int
    flush_after_s: float
    maintenance_s: float
    garbage: float  # of a log extent: then it is given back
    page_keys: int  # of a scan
    alone_bytes: int  # puts from here on go in calls of their own
    flush_on_stop: bool
    balanced: bool  # managers split, merge and move by themselves
    restarted: bool  # all servers, before the last look
    emphasis: float  # of the partition layer's own troubles: the stream layer has three times as many kinds
    rest_s: float  # a lease, a new server and some use of it, or less
    frozen_ms: int
    uploads: int  # of a partition, at most
    upload_idle_s: float  # then nobody goes on with it
    narrow: bool  # answers of many gets, and of scans, have room for few values

    @classmethod
    def of(cls, seed: int) -> Setup:
        rng = random.Random(f"partitions {seed}")
        return cls(
            servers=rng.choice((2, 2, 3)),
            clients=2,
            workers=rng.choice((1, 2)),
            readers=rng.choice((0, 1)),
            operators=rng.choice((0, 1)),
            regions=rng.choice((1, 2, 3)),
            extent_bytes=rng.choice((12_000, 12_000, 30_000)),
            memtable_bytes=rng.choice((3_000, 8_000, 20_000)),
            memory_bytes=rng.choice((60_000, 8 << 20)),
            tables=rng.choice((2, 4)),
            flush_after_s=rng.choice((1.5, 600.0)),
            maintenance_s=rng.choice((0.2, 1.0)),
            garbage=rng.choice((0.2, 0.6)),
            page_keys=rng.choice((3, 1000)),
            alone_bytes=rng.choice((200, 1 << 18)),
            flush_on_stop=rng.random() < 0.5,
            balanced=rng.random() < 0.2,
            restarted=rng.random() < 0.7,
            emphasis=rng.choice((1.0, 4.0)),
            rest_s=rng.choice((5.0, 15.0)),
            frozen_ms=rng.choice((3000, 8000)),
            uploads=rng.choice((2, 100)),
            upload_idle_s=rng.choice((3.0, 15.0)),
            narrow=rng.random() < 0.3,
        )

    @property
    def engine(self) -> EngineConfig:
        return EngineConfig(
            value_threshold_bytes=200,
            part_bytes=1500,
            memtable_bytes=self.memtable_bytes,
            flush_after_s=self.flush_after_s,
            block_bytes=1000,
            append_bytes=3000,
            tables_max=self.tables,
            maintenance_s=self.maintenance_s,
            log_garbage_ratio=self.garbage,
            uploads_max=self.uploads,
            upload_idle_s=self.upload_idle_s,
        )

    @property
    def serving(self) -> Serving:
        return Serving(frozen_ms=self.frozen_ms, hold_s=5.0, load_retry_s_max=1.0, flush_on_stop=self.flush_on_stop)

    @property
    def client(self) -> KeyValueOptions:
        return KeyValueOptions(
            operation_timeout_s=12.0,
            scan_page_keys_max=self.page_keys,
            alone_bytes_min=self.alone_bytes,
            part_bytes=PART_BYTES,
            first_part_bytes=PART_BYTES // 2,
            scan_page_bytes_max=NARROW_BYTES if self.narrow else 4 << 20,
            limits=OPTIONS.limits,
        )


class PartitionWorld(World):
    moments = MOMENTS

    def __init__(self, scene: Scene, seed: int) -> None:
        super().__init__(scene, seed)
        self.setup = setup = Setup.of(seed)
        self.emphasis, self.rest_s = setup.emphasis, setup.rest_s
        self.partitions = PartitionCluster(
            scene.cluster,
            managers=2,
            servers=setup.servers,
            balance=RESTLESS if setup.balanced else NO_BALANCE,
            engine=setup.engine,
            serving=setup.serving,
            memory_bytes_max=setup.memory_bytes,
            multi_reply_bytes_max=NARROW_BYTES if setup.narrow else 4 << 20,
        )
        self.users = KeyValueUsers(scene, self.partitions, options=setup.client)
        self._troubles = PartitionTroubles(scene, self.partitions, self.users)
        scene.cluster.wire.on_committed = self._on_committed

    @staticmethod
    def shape(seed: int, *, short: bool = False) -> Shape:
        rng = random.Random(f"partition world {seed}")
        shape = Shape.of(seed, short=short)
        shape = dataclasses.replace(
            shape,
            managers=2,
            streams=rng.choice((0, 0, 1)),
            writers=1,
            readers=min(shape.readers, 1),
            operators=shape.operators * rng.choice((0, 1)),
        )
        return swarm.allowing(shape, PartitionWorld.dealt(seed))

    @staticmethod
    def dealt(seed: int) -> Sequence[str]:
        return swarm.dealt(seed, KINDS["partitions"])

    @staticmethod
    def cluster_options(seed: int) -> dict[str, Any]:
        return {"defaults": Defaults(extent_bytes_max=Setup.of(seed).extent_bytes)}

    # --- what stories ask ------------------------------------------------------------------------------------

    def kinds(self) -> Sequence[Kind]:
        return self._troubles.kinds()

    def _processes(self) -> list[Any]:
        return [*self.partitions.servers.values(), *self.partitions.managers.values()]

    def hosts(self) -> list[str]:
        clients = [client.name for client in self.partitions.clients if client.running]
        return [process.host for process in self._processes()] + clients

    def meta_users(self) -> list[Any]:
        return [(process.host, process.store) for process in self._processes() if process.active]

    def cast(self) -> frozenset[str]:
        """A partition's server, those of its log's tail, who leads, and mostly who is to have it next."""
        rng, sim = self.scene.rng, self.scene.cluster
        if rng.random() < 0.4:
            return frozenset()
        region = rng.choice(self.partitions.map.regions)
        hosts = [f"pserver{region.server_id}"]
        hosts += [manager.host for manager in self.partitions.managers.values() if manager.term is not None]
        hosts += [manager.host for manager in sim.managers.values() if manager.term is not None]
        stream = sim.stored_state().streams.get(region.log_stream_id)
        if stream is not None and stream.tail_id is not None:
            hosts += [f"node{node_id}" for node_id in sim.etcd.nodes_of.get(stream.tail_id, ())]
        return frozenset(hosts)

    def provoke(self, method: str) -> None:
        if self.scene.rng.random() < 0.3:
            return
        if method in ("PreparePartitionSplit", "SplitStreams", "SplitRegion"):
            self.users.operators.split()
        elif method in ("PreparePartitionMerge", "MergeStreams", "FlushPartition", "MergeRegions"):
            self.users.operators.merge()
        elif method == "MoveRegion":
            self.users.operators.move()
        elif method in ("PunchHoles", "TruncateStream"):
            self.users.operators.compact()

    # --- the story -------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        setup = self.setup
        self.scene.say(str(setup))
        for process in self._processes():
            self.scene.set_far(process.host)
        await self.partitions.start()
        await self.partitions.bootstrap(*sorted(self.scene.rng.sample(MIDDLE_KEYS, setup.regions - 1)))
        self.users.begin(clients=setup.clients, workers=setup.workers, readers=setup.readers, operators=setup.operators)

    async def heal(self) -> None:
        await self.partitions.heal_own()

    def end(self) -> None:
        self.users.over = True

    async def finish(self) -> None:
        partitions = self.partitions
        await partitions.heal_own()  # somebody was told to stop, and has
        await partitions.until_served()
        if self.setup.restarted:
            await self._restart_servers()
        client = await self.users.connected("last")
        assert client is not None, "nobody can connect, though all is well"
        await kv_checkers.check_objects(self.users, client.kv)
        self.scene.say(
            f"{len(self.users.recorder.history)} operations, {len(self.users.journal.acknowledged)} keys put once, "
            f"{self.users.scans} scans, version {partitions.map.version} of the map"
        )
        await kv_checkers.check_at_rest(partitions)
        await partitions.hang_up()
        for process in self._processes():
            await process.stop()
        kv_checkers.check_left_over(partitions)

    async def _restart_servers(self) -> None:
        """Everything comes from the streams from now on."""
        for server in self.partitions.servers.values():
            if self.scene.rng.random() < 0.5:
                server.kill()
            else:
                await server.stop()
        await asyncio.sleep(self.scene.rng.choice((0.0, 5.0)))
        for server in self.partitions.servers.values():
            await server.start()
        await self.partitions.until_served()

    def stop(self) -> None:
        self.partitions.kill_all()

    # --- what streams were told ------------------------------------------------------------------------------

    def _on_committed(self, client: str, extent_id: int, end: int) -> None:
        """A partition server says that all replicas have acknowledged the extent up to `end`."""
        sim = self.scene.cluster
        etcd = sim.etcd
        if not client.startswith("pserver") or end <= etcd.acknowledged.get(extent_id, 0):
            return
        sim.note_acknowledged(extent_id, end)
        if extent_id in etcd.seals or not etcd.is_listed(extent_id):
            return
        for node_id in etcd.nodes_of.get(extent_id, ()):
            node = sim.nodes[node_id]
            if node_id in sim.unreliable or node.repairs or not node.serving:
                continue
            if not node.stored(extent_id, end - 1, 1):
                told = f"{client} has acknowledged extent {extent_id} up to {end}, and node {node_id} has less (G1)"
                sim.violations.append(told)
