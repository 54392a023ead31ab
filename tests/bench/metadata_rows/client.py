"""The caller of the metadata benchmark: takes one sample for each line of JSON on its standard input.

    {"case": "create", "address": "127.0.0.1:3401", "in_flight": 256, "duration_s": 1.0}

"case" names what `Client` knows; the rest are the arguments of that function. It answers {"value": number}, or
{"error": …} when the sample failed, and ends when its standard input does.

For a cluster without real nodes it also registers made-up ones and sends their heartbeats, as nodes do.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdConfig
from neve.meta.lock import lock_key
from neve.proto import common_pb2, methods
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import ConnectFailed, NotLeader
from neve.proto.method import Method, Rep, Req
from neve.rpc.wire.client import WireChannel
from neve.stream_manager.metadata.records import root_of
from tests.bench import orders
from tests.bench.metadata_rows import fill as metadata_fill
from tests.bench.node_rows.process import CLUSTER

TIMEOUT_S = 60.0
LEASE_TTL_S = 60
NODES = 4
HEARTBEAT_S = 1.0
LEAD_POLL_S = 0.01
LEAD_TIMEOUT_S = 600.0

PUT_VALUE_BYTES = 240  # what an extent's record takes
DISK_BYTES = 1 << 40
EXTENT_BYTES = 1 << 20  # of extents that stay empty: a node reserves no more than this for each

Work = Callable[[], Awaitable[None]]


async def rate(work: Sequence[Work], duration_s: float) -> float:
    """Calls a second, when each of `work` is repeated one after the other, all of them side by side."""
    begun_s = time.perf_counter()
    end_s = begun_s + duration_s
    done = 0

    async def repeat(call: Work) -> None:
        nonlocal done
        while time.perf_counter() < end_s:
            await call()
            done += 1

    await asyncio.gather(*map(repeat, work))
    return done / (time.perf_counter() - begun_s)


class Nodes:
    """Nodes that exist in heartbeats only."""

    def __init__(self, channel: WireChannel) -> None:
        self._channel = channel
        self._disks = [
            [
                en.DiskInfo(
                    disk_uuid=metadata_fill.disk_uuid(node_id),
                    state=en.DiskInfo.WRITABLE,
                    capacity_bytes=DISK_BYTES,
                    free_bytes=DISK_BYTES,
                )
            ]
            for node_id in range(1, NODES + 1)
        ]
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        for node_id, disks in enumerate(self._disks, start=1):
            request = sm.RegisterNodeRequest(
                cluster=CLUSTER,
                node_id=node_id,
                disks=disks,
                wire_address=f"127.0.0.1:{node_id}",
                process_id=node_id,
            )
            await self._channel.call(methods.STREAM_MANAGER_REGISTER_NODE, request, timeout_s=TIMEOUT_S)
        await self._beat()
        self._beating = asyncio.get_running_loop().create_task(self._beat_for_ever())

    async def _beat_for_ever(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._beat()

    async def _beat(self) -> None:
        for node_id, disks in enumerate(self._disks, start=1):
            request = sm.HeartbeatRequest(node_id=node_id, process_id=node_id, disks=disks)
            await self._channel.call(methods.STREAM_MANAGER_HEARTBEAT, request, timeout_s=TIMEOUT_S)

    def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()


class Owned:
    """A stream of ours whose lock we hold, and its tail."""

    def __init__(self, client: Client, stream: sm.StreamInfo, tail: sm.ExtentInfo, token: int) -> None:
        self._client = client
        self._stream_id = stream.stream_id
        self._tail_id = tail.extent_id
        self._owner = common_pb2.Owner(lock=stream.lock, token=token)

    async def roll(self) -> None:
        request = sm.StreamAllocExtentRequest(
            call=self._client.call_id(),
            stream_id=self._stream_id,
            owner=self._owner,
            extent_id=self._tail_id,
            acknowledged_end=0,
        )
        reply = await self._client.call(methods.STREAM_MANAGER_STREAM_ALLOC_EXTENT, request)
        assert reply.all_took_part, reply
        self._tail_id = reply.tail.extent_id

    async def delete(self) -> None:
        request = sm.DeleteStreamRequest(call=self._client.call_id(), stream_id=self._stream_id, owner=self._owner)
        await self._client.call(methods.STREAM_MANAGER_DELETE_STREAM, request)


class Client:
    """One manager, one etcd; made by the first order that names them."""

    def __init__(self) -> None:
        self._channel: WireChannel | None = None
        self._store: EtcdStore | None = None
        self._nodes: Nodes | None = None  # made-up ones
        self._root = b""
        self._client_id = random.getrandbits(63)
        self._call_ids = itertools.count(1)
        self._put_keys = itertools.count(1)

    def call_id(self) -> common_pb2.CallId:
        return common_pb2.CallId(client_id=self._client_id, call_id=next(self._call_ids))

    async def call(self, method: Method[Req, Rep], request: Req) -> Rep:
        assert self._channel is not None, "`connect` comes first"
        return (await self._channel.call(method, request, timeout_s=TIMEOUT_S)).message

    async def take(self, order: dict[str, Any]) -> float:
        cases: dict[str, Callable[..., Awaitable[float]]] = {
            "connect": self.connect,
            "create": self.create,
            "allocate": self.allocate,
            "put": self.put,
            "fill": metadata_fill.fill,
            "until_leading": until_leading,
        }
        return await cases[order.pop("case")](**order)

    async def connect(self, *, address: str, endpoints: Sequence[str], cluster: str, nodes: int) -> float:
        """The manager leads and knows its nodes when this returns. `nodes` are real; 0: they are made up here."""
        took_s = await until_leading(address=address, cluster=cluster)
        self._channel = WireChannel(address, cluster=cluster)
        self._store = await EtcdStore.connect(EtcdConfig(tuple(endpoints)))
        self._root = root_of(cluster)
        if nodes:
            await self._until_registered(nodes)
        else:
            self._nodes = Nodes(self._channel)
            await self._nodes.start()
        return took_s

    async def _until_registered(self, nodes: int) -> None:
        async with asyncio.timeout(LEAD_TIMEOUT_S):
            while True:
                reply = await self.call(methods.STREAM_MANAGER_LIST_NODES, sm.ListNodesRequest())
                if sum(node.health == sm.NODE_HEALTH_ALIVE for node in reply.nodes) >= nodes:
                    return
                await asyncio.sleep(LEAD_POLL_S)

    async def create(self, *, in_flight: int, duration_s: float) -> float:
        async def one() -> None:
            await self.call(methods.STREAM_MANAGER_CREATE_STREAM, sm.CreateStreamRequest(call=self.call_id()))

        return await rate([one] * in_flight, duration_s)

    async def allocate(self, *, in_flight: int, duration_s: float) -> float:
        """Every stream rolls again and again. The streams are new, so that their lists are as short in each sample, and
        they are deleted afterwards: nodes reserve room for each open extent."""
        assert self._store is not None, "`connect` comes first"
        store = self._store
        lease = await store.grant_lease(LEASE_TTL_S)

        async def make() -> Owned:
            policy = sm.StreamPolicy(extent_bytes_max=EXTENT_BYTES)
            request = sm.CreateStreamRequest(call=self.call_id(), policy=policy)
            reply = await self.call(methods.STREAM_MANAGER_CREATE_STREAM, request)
            token = await store.put(lock_key(self._root, reply.stream.lock), b"bench", lease_id=lease.lease_id)
            return Owned(self, reply.stream, reply.tail, token)

        owned = await asyncio.gather(*(make() for _ in range(in_flight)))
        try:
            return await rate([stream.roll for stream in owned], duration_s)
        finally:
            await asyncio.gather(*(stream.delete() for stream in owned))
            await lease.revoke()

    async def put(self, *, in_flight: int, duration_s: float) -> float:
        """New keys, each in a transaction of its own, as `MetaStore.put` makes it."""
        assert self._store is not None, "`connect` comes first"
        store = self._store
        value = os.urandom(PUT_VALUE_BYTES)

        async def one() -> None:
            await store.put(b"/puts/%016x" % next(self._put_keys), value)

        return await rate([one] * in_flight, duration_s)

    async def close(self) -> None:
        if self._nodes is not None:
            self._nodes.stop()
        if self._channel is not None:
            await self._channel.close()
        if self._store is not None:
            await self._store.close()


async def until_leading(*, address: str, cluster: str = CLUSTER) -> float:
    """How many seconds until the manager there answers a question that only a leader answers."""
    channel = WireChannel(address, cluster=cluster)
    begun_s = time.perf_counter()
    try:
        async with asyncio.timeout(LEAD_TIMEOUT_S):
            while True:
                with suppress(NotLeader, ConnectFailed):
                    request = sm.ListQuotasRequest()
                    await channel.call(methods.STREAM_MANAGER_LIST_QUOTAS, request, timeout_s=LEAD_TIMEOUT_S)
                    return time.perf_counter() - begun_s
                await asyncio.sleep(LEAD_POLL_S)
    finally:
        await channel.close()


if __name__ == "__main__":
    orders.serve(Client, TimeoutError)
