"""Calls that a story makes by hand, past the client: what a delayed frame, an old writer or a curious reader sends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from neve.proto import common_pb2, methods
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import from_message
from neve.proto.method import Method, Rep, Req
from neve.rpc.service import Channel
from neve.stream_manager.metadata.records import Extent
from tests.sim.cluster import SimCluster
from tests.sim.processes.client import SimClient, SimWriter
from tests.sim.processes.node import CLUSTER
from tests.unit.extent_node.store.rig import segment

TIMEOUT_S = 5.0


@asynccontextmanager
async def closing(channel: Channel) -> AsyncIterator[None]:
    """Each call has a connection of its own, and leaves none."""
    try:
        yield
    finally:
        await channel.close()


async def append(
    cluster: SimCluster,
    node_id: int,
    extent: Extent,
    offset: int,
    blocks: Sequence[bytes],
    *,
    token: int,
    host: str = "by-hand",
    no_sync: bool = False,
) -> int:
    """To one replica; the end that it answers. A refusal is raised."""
    message, body = segment(extent.extent_id, offset, blocks, token=token, eversion=extent.eversion, no_sync=no_sync)
    channel = cluster.network.channel(host, cluster.nodes[node_id].address, cluster=CLUSTER)
    request = en.AppendBlockRequest(segments=[message])
    async with closing(channel):
        reply = await channel.call(
            methods.EXTENT_NODE_APPEND_BLOCK, request, timeout_s=TIMEOUT_S, attachment=[body] if body else []
        )
    result = reply.message.results[0]
    if result.HasField("error"):
        raise from_message(result.error)
    return offset + len(body)


async def read(cluster: SimCluster, node_id: int, extent_id: int, offset: int = 0) -> bytes:
    """What one replica gives to readers from there on."""
    channel = cluster.network.channel("by-hand", cluster.nodes[node_id].address, cluster=CLUSTER)
    request = en.ReadBlockRequest(extent_id=extent_id, offset=offset, max_bytes=1 << 20)
    async with closing(channel):
        return bytes((await channel.call(methods.EXTENT_NODE_READ_BLOCK, request, timeout_s=TIMEOUT_S)).attachment)


async def ask(cluster: SimCluster, number: int, method: Method[Req, Rep], request: Req) -> Rep:
    """One manager, whether it leads or not."""
    channel = cluster.network.channel("by-hand", cluster.managers[number].address, cluster=CLUSTER)
    async with closing(channel):
        return (await channel.call(method, request, timeout_s=TIMEOUT_S)).message


async def order(client: SimClient, method: Method[Req, Rep], request: Req) -> Rep:
    """The leader, as a client would."""
    return await client.run(client.neve._link.order(method, request))


def owner_of(writer: SimWriter) -> common_pb2.Owner:
    owner = writer.writer.owner
    assert owner is not None, "this writer is over"
    return owner


async def alloc(
    client: SimClient, owner: common_pb2.Owner, stream_id: int, extent_id: int
) -> sm.StreamAllocExtentReply:
    """Without an end, and with a call id of its own: as somebody would who asks for the first time."""
    request = sm.StreamAllocExtentRequest(stream_id=stream_id, owner=owner, extent_id=extent_id)
    return await order(client, methods.STREAM_MANAGER_STREAM_ALLOC_EXTENT, request)
