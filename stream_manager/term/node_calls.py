"""The manager's calls to extent nodes, each with its timeout and the leader's stamp.

Invariants: every order carries `Leader` (create revision, address): a node that knows of a later election refuses it;
            a request names node, disk and incarnation, so that a replaced disk or a file that was created anew is never
            taken for the replica that metadata lists;
            an error or a missing reply is an error here, never a length (scenario T1).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from neve.proto import common_pb2, methods
from neve.proto import extent_node_pb2 as en
from neve.proto.coroutine_driver import CoroutineDriver
from neve.proto.errors import ConnectFailed, NeveError
from neve.proto.method import Method, Rep, Req
from neve.rpc.pool import ChannelPool
from neve.stream_manager.metadata.records import (
    Extent,
    ExtentSeal,
    NodeEntry,
    ReplicaAt,
    replica_at,
    replica_message,
    seal_message,
)
from neve.stream_manager.term.context import NodeChoice
from neve.stream_manager.term.fan_out import fan_out


class NodeCalls(ABC):
    """The calls. All raise errors of `proto.errors`; for a node that metadata does not list, that is `ConnectFailed`.

    A call must not use asyncio.timeout or current_task: see proto/coroutine_driver.py.
    """

    # Concurrent orders to all replicas of an extent. A result may be an error.

    async def create_all(
        self, extent_id: int, choices: Sequence[NodeChoice], *, eversion: int, extent_bytes_max: int, stream_id: int
    ) -> list[ReplicaAt | NeveError]:
        how = {"eversion": eversion, "extent_bytes_max": extent_bytes_max, "stream_id": stream_id}
        return await fan_out([self.create(extent_id, choice, **how) for choice in choices])

    async def fence_all(
        self, extent: Extent, timeouts_s: Mapping[ReplicaAt, float | None], *, token: int
    ) -> list[en.LengthAnswer | NeveError]:
        """Fence the replicas in `timeouts_s`; None: the usual timeout."""
        return await fan_out(
            [self.fence(extent, replica, token=token, timeout_s=timeout_s) for replica, timeout_s in timeouts_s.items()]
        )

    async def raise_all(
        self, extent: Extent, timeouts_s: Mapping[ReplicaAt, float | None], *, token: int
    ) -> list[en.LengthAnswer | NeveError]:
        return await fan_out(
            [
                self.raise_token(extent, replica, token=token, timeout_s=timeout_s)
                for replica, timeout_s in timeouts_s.items()
            ]
        )

    def begin_seals(self, extent: Extent, replicas: Sequence[ReplicaAt]) -> list[CoroutineDriver[en.SealExtentReply]]:
        """Send the seal orders. The caller takes the replies as they arrive."""
        return [CoroutineDriver(self.seal(extent, replica)) for replica in replicas]

    @abstractmethod
    async def create(
        self, extent_id: int, choice: NodeChoice, *, eversion: int, extent_bytes_max: int, stream_id: int
    ) -> ReplicaAt:
        """Create an empty replica. It is durable when the call returns (protocol rule 17)."""

    @abstractmethod
    async def raise_token(
        self, extent: Extent, replica: ReplicaAt, *, token: int, timeout_s: float | None = None
    ) -> en.LengthAnswer:
        """Raise the replica's token and return its length. `timeout_s`: None for the usual timeout."""

    @abstractmethod
    async def fence(
        self, extent: Extent, replica: ReplicaAt, *, token: int = 0, timeout_s: float | None = None
    ) -> en.LengthAnswer:
        """Fence the replica and return its length. `token`: of the owner that asks for it; 0: the manager fences."""

    @abstractmethod
    async def seal(self, extent: Extent, replica: ReplicaAt) -> en.SealExtentReply:
        """Order the replica to seal.

        `extent` is sealed in etcd. If the reply does not confirm, it has the replica's length.
        """

    @abstractmethod
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
        """Order `target` to copy the extent from confirmed replicas. `eversion`: of the record that will list it.

        This is the copy of protocol rule 22.
        """

    @abstractmethod
    async def delete(self, extent_id: int, replica: ReplicaAt, *, eversion: int) -> bool:
        """Delete a replica, after a transaction that allows it (protocol rules 22 and 24).

        Returns whether it existed.
        """

    @abstractmethod
    async def describe(self, extent_id: int, replica: ReplicaAt) -> en.ReplicaInfo: ...


class RpcNodeCalls(NodeCalls):
    """Calls over the wire. `node` finds a node's entry in the state of this term."""

    def __init__(
        self,
        channels: ChannelPool,
        *,
        leader: common_pb2.Leader,
        node: Callable[[int], NodeEntry | None],
        timeout_s: float,
        seal_timeout_s: float,
    ) -> None:
        self._channels = channels
        self._leader = leader
        self._node = node
        self._timeout_s = timeout_s
        self._seal_timeout_s = seal_timeout_s  # longer: to seal, a node reads and verifies the whole extent

    async def create(
        self, extent_id: int, choice: NodeChoice, *, eversion: int, extent_bytes_max: int, stream_id: int
    ) -> ReplicaAt:
        request = en.CreateExtentRequest(
            leader=self._leader,
            extent_id=extent_id,
            replica=common_pb2.Replica(node_id=choice.node_id, disk_uuid=choice.disk_uuid),
            eversion=eversion,
            extent_bytes_max=extent_bytes_max,
            stream_id=stream_id,
        )
        reply = await self._call(choice.node_id, methods.EXTENT_NODE_CREATE_EXTENT, request)
        return replica_at(reply.replica)

    async def raise_token(
        self, extent: Extent, replica: ReplicaAt, *, token: int, timeout_s: float | None = None
    ) -> en.LengthAnswer:
        request = en.RaiseTokenRequest(
            leader=self._leader,
            extent_id=extent.extent_id,
            replica=replica_message(replica),
            eversion=extent.eversion,
            token=token,
        )
        return await self._call(replica.node_id, methods.EXTENT_NODE_RAISE_TOKEN, request, timeout_s=timeout_s)

    async def fence(
        self, extent: Extent, replica: ReplicaAt, *, token: int = 0, timeout_s: float | None = None
    ) -> en.LengthAnswer:
        request = en.FenceRequest(
            leader=self._leader,
            extent_id=extent.extent_id,
            replica=replica_message(replica),
            eversion=extent.eversion,
            token=token,
        )
        return await self._call(replica.node_id, methods.EXTENT_NODE_FENCE, request, timeout_s=timeout_s)

    async def seal(self, extent: Extent, replica: ReplicaAt) -> en.SealExtentReply:
        request = en.SealExtentRequest(
            leader=self._leader,
            extent_id=extent.extent_id,
            replica=replica_message(replica),
            seal=seal_message(_seal_of(extent)),
        )
        return await self._call(
            replica.node_id, methods.EXTENT_NODE_SEAL_EXTENT, request, timeout_s=self._seal_timeout_s
        )

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
        request = en.StartCopyRequest(
            leader=self._leader,
            task_id=task_id,
            extent_id=extent.extent_id,
            replica=common_pb2.Replica(node_id=target.node_id, disk_uuid=target.disk_uuid),
            seal=seal_message(_seal_of(extent)),
            sources=[
                en.CopySource(replica=replica_message(source), address=node.wire_address)
                for source in sources
                if (node := self._node(source.node_id)) is not None
            ],
            bytes_per_s_max=bytes_per_s_max,
            stream_id=extent.stream_id,
            eversion=eversion,
        )
        await self._call(target.node_id, methods.EXTENT_NODE_START_COPY, request)

    async def delete(self, extent_id: int, replica: ReplicaAt, *, eversion: int) -> bool:
        request = en.DeleteExtentRequest(
            leader=self._leader,
            extent_id=extent_id,
            replica=replica_message(replica),
            eversion=eversion,
        )
        reply = await self._call(replica.node_id, methods.EXTENT_NODE_DELETE_EXTENT, request)
        return reply.deleted

    async def describe(self, extent_id: int, replica: ReplicaAt) -> en.ReplicaInfo:
        request = en.DescribeReplicaRequest(extent_id=extent_id, replica=replica_message(replica))
        return await self._call(replica.node_id, methods.EXTENT_NODE_DESCRIBE_REPLICA, request)

    async def _call(
        self, node_id: int, method: Method[Req, Rep], request: Req, *, timeout_s: float | None = None
    ) -> Rep:
        node = self._node(node_id)
        if node is None:
            raise ConnectFailed(address=f"node {node_id}", detail="metadata has no such node")
        channel = self._channels.channel(node.wire_address)
        return (await channel.call(method, request, timeout_s=timeout_s or self._timeout_s)).message


def _seal_of(extent: Extent) -> ExtentSeal:
    assert extent.seal is not None, f"{extent} is open"
    return extent.seal
