"""Quotas per label prefix, by the real servicer."""

from __future__ import annotations

import asyncio

from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import ConnectFailed, InvalidArgument, NotEnoughNodes, QuotaExceeded
from tests.unit.stream_manager.manager_rig import Cluster, error_of, simulated

MIB = 1 << 20
SMALL = sm.StreamPolicy(extent_bytes_max=MIB)


async def set_quota(cluster: Cluster, prefix: str, **limits: int) -> sm.QuotaUsage:
    request = sm.SetQuotaRequest(quota=sm.Quota(prefix=prefix, **limits))
    return (await cluster.call(methods.STREAM_MANAGER_SET_QUOTA, request)).usage


async def usage(cluster: Cluster) -> dict[str, tuple[int, int, int]]:
    reply = await cluster.call(methods.STREAM_MANAGER_LIST_QUOTAS, sm.ListQuotasRequest())
    return {found.quota.prefix: (found.streams, found.extents, found.bytes) for found in reply.quotas}


@simulated
async def test_streams_beyond_a_quota_are_refused_also_when_many_come_at_once() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        await set_quota(cluster, "tenant=a", streams_max=3)
        replies = await asyncio.gather(
            *(cluster.create(labels={"tenant": "a"}) for _ in range(10)), return_exceptions=True
        )
        refused = [reply for reply in replies if isinstance(reply, QuotaExceeded)]
        assert len(refused) == 7
        assert "tenant=a" in str(refused[0])
        await cluster.create(labels={"tenant": "b"})
        assert (await usage(cluster))["tenant=a"][0] == 3
        cluster.managers[1].kill()  # a quota is metadata like any other
        await error_of(cluster.create(labels={"tenant": "a"}), QuotaExceeded)


@simulated
async def test_a_reservation_is_released_when_the_request_fails() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        await set_quota(cluster, "tenant=a", streams_max=1)

        async def trouble(what: str, extent_id: int, node_id: int) -> None:
            raise ConnectFailed(address="node")

        cluster.nodes.trouble = trouble
        for _ in range(3):
            await error_of(cluster.create(labels={"tenant": "a"}), NotEnoughNodes)
        cluster.nodes.trouble = None
        created = await cluster.create(labels={"tenant": "a"})
        await error_of(cluster.create(labels={"tenant": "a"}), QuotaExceeded)
        delete = sm.DeleteStreamRequest(stream_id=created.stream.stream_id)
        await cluster.call(methods.STREAM_MANAGER_DELETE_STREAM, delete)
        await cluster.create(labels={"tenant": "a"})


@simulated
async def test_bytes_count_with_the_limit_while_open_and_with_the_length_when_sealed() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        await set_quota(cluster, "tenant=", bytes_max=2 * MIB + 500)
        stream, tail, owner = await cluster.opened(labels={"tenant": "a"}, policy=SMALL)
        assert (await usage(cluster))["tenant="] == (1, 1, MIB)
        cluster.nodes.append(tail, 500, token=owner.token)
        rolled = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 500)
        assert (await usage(cluster))["tenant="] == (1, 2, MIB + 500)
        await cluster.create(labels={"tenant": "b"}, policy=SMALL)
        await error_of(cluster.create(labels={"tenant": "b"}, policy=SMALL), QuotaExceeded)
        # The tail is full: what it holds is more than the quota has room for beside a new extent.
        cluster.nodes.append(rolled.tail, MIB, token=owner.token)
        await error_of(cluster.alloc(stream.stream_id, rolled.tail.extent_id, owner, MIB), QuotaExceeded)
        assert not any(replica.fenced for replica in cluster.nodes.of(rolled.tail.extent_id).values())


@simulated
async def test_a_quota_is_changed_and_removed() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        await cluster.create(labels={"tenant": "a"}, policy=SMALL)
        assert (await set_quota(cluster, "tenant=a", extents_max=1)).extents == 1
        await error_of(cluster.create(labels={"tenant": "a"}), QuotaExceeded)
        await set_quota(cluster, "tenant=a", extents_max=2)
        await cluster.create(labels={"tenant": "a"})
        await set_quota(cluster, "tenant=a")
        await cluster.create(labels={"tenant": "a"})
        assert await usage(cluster) == {}
        await error_of(set_quota(cluster, "", streams_max=1), InvalidArgument)
