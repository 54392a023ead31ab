"""Several nodes on one simulated network, for the tests of copier and scrubber.

Each node has a machine and a store of its own; what it serves to others is ReadRange, and nothing else.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

from neve.extent_node.store.copier import Copier
from neve.extent_node.store.storage import Storage
from neve.proto import common_pb2
from neve.proto import extent_node_pb2 as pb
from neve.proto.methods import EXTENT_NODE_READ_RANGE
from neve.proto.stream_manager_pb2 import BadReplica
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Call, Service
from tests.sim.network.network import SimNetwork
from tests.unit.extent_node.store import rig
from tests.unit.extent_node.store.rig import Machine, block_of

EXTENT = 2
FOLDER = f"/disk0/extents/{EXTENT:02x}"
PATH = f"{FOLDER}/{EXTENT:016x}.ext"
INDEX_PATH = f"{FOLDER}/{EXTENT:016x}.idx"

BLOCKS = [block_of(f"block {number}", 90 + 40 * number) for number in range(8)]
BYTES = b"".join(BLOCKS)


class RangeServicer:
    def __init__(self, store: Storage) -> None:
        self.store = store
        self.requests: list[pb.ReadRangeRequest] = []
        self.before: Callable[[pb.ReadRangeRequest], None] = lambda request: None
        self.spoil: Callable[[bytes], bytes] = lambda payload: payload  # on the way: after the checksum was made

    async def read_range(self, request: pb.ReadRangeRequest, call: Call) -> pb.ReadRangeReply:
        self.requests.append(request)
        self.before(request)
        result = await self.store.reader.read_range(request)
        call.attach(self.spoil(b"".join(bytes(piece) for piece in result.payload)))
        return result.reply


class Node:
    """A machine with a running store, and its address on the network."""

    def __init__(self, machine: Machine, store: Storage, name: str) -> None:
        self.machine = machine
        self.fs = machine.fs
        self.store = store
        self.address = f"{name}:7000"
        self.servicer = RangeServicer(store)

    def source(self) -> pb.CopySource:
        return pb.CopySource(replica=rig.describe(self.store, EXTENT).replica, address=self.address)

    def files(self, folder: str, disk: int = 0) -> list[str]:
        return self.fs.list_dir(f"/disk{disk}/{folder}")


class Cluster:
    """Made inside of the loop that it runs on."""

    def __init__(self, seed: int = 0) -> None:
        self.network = SimNetwork(random.Random(seed))
        self.bad: list[BadReplica] = []
        self._names = 0

    async def node(self, machine: Machine | None = None, **how: Any) -> Node:
        self._names += 1
        name = f"node{self._names}"
        machine = machine or (Machine(**how) if how else _formatted().clone())
        machine.processes += 1
        store = rig.make_store(machine.fs, machine.config, seed=self._names * 100 + machine.processes)
        await store.start()
        node = Node(machine, store, name)
        self.network.serve(node.address, [Service([EXTENT_NODE_READ_RANGE], node.servicer)], cluster="test")
        return node

    async def sealed_node(self, blocks: list[bytes] = BLOCKS, **how: Any) -> Node:
        """A node with a sealed and confirmed replica."""
        node = await self.node(**how)
        await fill(node.store, blocks)
        assert (await rig.seal(node.store, EXTENT, len(b"".join(blocks)))).confirmed
        return node

    def copier(self, node: Node, **how: Any) -> Copier:
        host = node.address.partition(":")[0]
        channels = ChannelPool(lambda address: self.network.channel(host, address, cluster="test"))
        how = {"tasks_max": 4, "bytes_per_s_max": 0, "range_bytes": 256, "on_bad": self.bad.append, **how}
        return Copier(node.store, channels, rng=random.Random(1), reporter=node.address, **how)


@functools.cache
def _formatted() -> Machine:
    """Formatting costs more than most tests do."""
    return Machine()


async def fill(store: Storage, blocks: list[bytes]) -> None:
    await rig.create(store, EXTENT)
    if blocks:
        await rig.append(store, EXTENT, 0, *blocks)


def order(*sources: Node, task_id: int = 1, **fields: Any) -> pb.StartCopyRequest:
    """To copy the extent as the first source has sealed it."""
    seal = common_pb2.Seal()
    seal.CopyFrom(rig.describe(sources[0].store, EXTENT).seal)
    return pb.StartCopyRequest(
        **{
            "task_id": task_id,
            "extent_id": EXTENT,
            "seal": seal,
            "sources": [node.source() for node in sources],
            "stream_id": 5,
            **fields,
        }
    )
