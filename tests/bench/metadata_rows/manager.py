"""A stream manager whose nodes answer at once; for comparison with etcd alone, it stores nothing on any node.

    python -m tests.bench.metadata_rows.manager [the manager's own arguments]

All else is the manager as it is: its front door, pipeline, locks, placement, batches, log lines and etcd.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from neve.proto import common_pb2
from neve.proto import extent_node_pb2 as en
from neve.proto.coroutine_driver import CoroutineDriver
from neve.proto.errors import NeveError
from neve.rpc.pool import ChannelPool
from neve.stream_manager import server
from neve.stream_manager.config import ManagerConfig
from neve.stream_manager.metadata.records import Extent, NodeEntry, ReplicaAt, seal_message
from neve.stream_manager.term.context import NodeChoice
from neve.stream_manager.term.node_calls import NodeCalls

DIGEST = bytes(32)
EVERSION_SEALED = 2

_new = tuple.__new__  # as in stream_manager.records


async def _answered(reply: en.SealExtentReply) -> en.SealExtentReply:
    return reply


class AtOnce(NodeCalls):
    """Nodes whose replies cost nothing, so that the manager alone is measured.

    Every replica exists, is empty and confirms its seal. Orders to all replicas of an extent get replies that were made
    before.
    """

    def __init__(self, node: Callable[[int], NodeEntry | None]) -> None:
        self._node = node
        self._disks: dict[int, str] = {}  # every node has one
        self._fenced = en.LengthAnswer(kind=en.LengthAnswer.LENGTH, fenced=True)
        seal = common_pb2.Seal(length=0, eversion=EVERSION_SEALED, digest=DIGEST)
        self._sealed = CoroutineDriver(_answered(en.SealExtentReply(confirmed=True, seal=seal)))

    async def create_all(
        self, extent_id: int, choices: Sequence[NodeChoice], *, eversion: int, extent_bytes_max: int, stream_id: int
    ) -> list[ReplicaAt | NeveError]:
        disks = self._disks
        for choice in choices:
            if choice.node_id not in disks:
                disks[choice.node_id] = self._disk(choice)
        return [_new(ReplicaAt, (choice.node_id, disks[choice.node_id], extent_id)) for choice in choices]

    async def fence_all(
        self, extent: Extent, timeouts_s: Mapping[ReplicaAt, float | None], *, token: int
    ) -> list[en.LengthAnswer | NeveError]:
        return [self._fenced] * len(timeouts_s)

    def begin_seals(self, extent: Extent, replicas: Sequence[ReplicaAt]) -> list[CoroutineDriver[en.SealExtentReply]]:
        return [self._sealed] * len(replicas)

    def _disk(self, choice: NodeChoice) -> str:
        if choice.disk_uuid:
            return choice.disk_uuid
        node = self._node(choice.node_id)
        assert node is not None, choice
        return node.disks[0].disk_uuid

    async def create(
        self, extent_id: int, choice: NodeChoice, *, eversion: int, extent_bytes_max: int, stream_id: int
    ) -> ReplicaAt:
        return ReplicaAt(choice.node_id, self._disk(choice), extent_id)

    async def raise_token(
        self, extent: Extent, replica: ReplicaAt, *, token: int, timeout_s: float | None = None
    ) -> en.LengthAnswer:
        return en.LengthAnswer(kind=en.LengthAnswer.LENGTH, token=token)

    async def fence(
        self, extent: Extent, replica: ReplicaAt, *, token: int = 0, timeout_s: float | None = None
    ) -> en.LengthAnswer:
        return en.LengthAnswer(kind=en.LengthAnswer.LENGTH, token=token, fenced=True)

    async def seal(self, extent: Extent, replica: ReplicaAt) -> en.SealExtentReply:
        assert extent.seal is not None, extent
        seal = seal_message(extent.seal._replace(digest=DIGEST))
        return en.SealExtentReply(confirmed=True, seal=seal)

    async def start_copy(
        self,
        extent: Extent,
        target: ReplicaAt,
        *,
        task_id: int,
        sources: Sequence[ReplicaAt],
        bytes_per_s_max: int,
        eversion: int,
    ) -> None:
        raise AssertionError("nothing is copied in this benchmark")

    async def delete(self, extent_id: int, replica: ReplicaAt, *, eversion: int) -> bool:
        return True

    async def describe(self, extent_id: int, replica: ReplicaAt) -> en.ReplicaInfo:
        return en.ReplicaInfo(extent_id=extent_id)


def at_once(
    config: ManagerConfig,
    channels: ChannelPool,
    leader: common_pb2.Leader,
    node: Callable[[int], NodeEntry | None],
) -> NodeCalls:
    return AtOnce(node)


def main(arguments: Sequence[str]) -> int:
    server.rpc_node_calls = at_once
    return server.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
