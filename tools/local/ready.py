"""The check that a local cluster serves, over its public ports: etcd's health, status pages, the managers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from neve.client.streams.options import ClientOptions
from neve.proto import errors, methods
from neve.proto import partition_server_pb2 as ps
from neve.proto import stream_manager_pb2 as sm
from neve.rpc.pool import ChannelPool
from neve.rpc.wire.client import WireChannel
from neve.tools.local.layout import HOST, Layout
from neve.tools.objects.partition_link import PartitionLink

POLL_S = 0.1
ASK_TIMEOUT_S = 5.0
READY_CALL_S = 60.0  # for one call, including all attempts


async def etcd_serves(host: str, port: int) -> None:
    async def healthy() -> bool:
        status, body = await _http_get(host, port, "/health")
        return status == 200 and json.loads(body).get("health") == "true"

    await _until(healthy)


async def until_ready(layout: Layout, *, token: str = "", split_keys: Sequence[bytes] = ()) -> None:
    """Wait until the cluster serves.

    Every port is open. If there are managers, one leads and sees every node alive. If there are partition servers, the
    key space is set up, and every key has a server that answers for it.
    """
    for port in layout.status_ports.values():
        await _until(partial(_is_open, port))
    for address in layout.manager_addresses:
        channel = WireChannel(address, cluster=layout.cluster, token=token)
        try:
            await _until(partial(_knows_all, channel, len(layout.nodes)))
        finally:
            await channel.close()

    if layout.partition_servers:
        await _partitions_ready(layout, token, split_keys)


async def _partitions_ready(layout: Layout, token: str, split_keys: Sequence[bytes]) -> None:
    options = ClientOptions(call_timeout_s=READY_CALL_S, attempt_timeout_s=ASK_TIMEOUT_S)
    pool = ChannelPool(lambda address: WireChannel(address, cluster=layout.cluster, token=token))
    try:
        link = PartitionLink(pool, layout.partition_manager_addresses, options=options)
        await _until(partial(_has_servers, link, len(layout.partition_servers)))
        with contextlib.suppress(errors.AlreadyExists):  # the folder already has its partitions
            await link.bootstrap(split_keys)
        await _until(partial(_all_served, link, pool))
    finally:
        await pool.close()


async def _has_servers(link: PartitionLink, count: int) -> bool:
    return len(await link.servers()) >= count


async def _all_served(link: PartitionLink, pool: ChannelPool) -> bool:
    """Wait until each region's (key range's) server answers whether it has some key of it; "no" is an answer, too."""
    for region in (await link.regions())[0]:
        if not region.address:
            return False
        head = ps.HeadRequest(key=region.start or b"\0")
        try:
            await pool.channel(region.address).call(methods.PARTITION_SERVER_HEAD, head, timeout_s=ASK_TIMEOUT_S)
        except errors.NotFound:
            continue
        except errors.NeveError as error:
            if not error.retriable:
                raise
            return False
    return True


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    while True:  # no process notifies us, so poll
        if await holds():
            return
        await asyncio.sleep(POLL_S)


async def _is_open(port: int) -> bool:
    return (await _http_get(HOST, port, "/ready"))[0] == 200


async def _knows_all(channel: WireChannel, nodes: int) -> bool:
    try:
        request = sm.ClusterStatusRequest()
        reply = await channel.call(methods.STREAM_MANAGER_CLUSTER_STATUS, request, timeout_s=ASK_TIMEOUT_S)
    except errors.NeveError as error:
        if not error.retriable:
            raise
        return False
    alive = [node for node in reply.message.nodes if node.health == sm.NODE_HEALTH_ALIVE]
    return bool(reply.message.leader.address) and len(alive) >= nodes


async def _http_get(host: str, port: int, path: str) -> tuple[int, bytes]:
    """Status and body; (0, b"") if there is no answer."""
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                head, _, body = (await reader.read(1 << 20)).partition(b"\r\n\r\n")
            finally:
                writer.close()
        return int(head.split(b" ")[1]), body
    except (OSError, TimeoutError, IndexError, ValueError):
        return 0, b""
