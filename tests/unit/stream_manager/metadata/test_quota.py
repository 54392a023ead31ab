"""Quotas per label prefix, by the real servicer."""

from __future__ import annotations

import asyncio

import pytest

from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import ConnectFailed, InvalidArgument, NotEnoughNodes, QuotaExceeded
from neve.stream_manager.term import requests
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


@simulated
async def test_a_quota_that_is_set_again_owes_nothing_to_requests_of_before() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        await set_quota(cluster, "tenant=a", streams_max=1)
        fail = asyncio.Event()

        async def trouble(what: str, extent_id: int, node_id: int) -> None:
            await fail.wait()
            raise ConnectFailed(address="node")

        cluster.nodes.trouble = trouble
        creation = asyncio.ensure_future(error_of(cluster.create(labels={"tenant": "a"}), NotEnoughNodes))
        await asyncio.sleep(0.5)
        await set_quota(cluster, "tenant=a")
        await set_quota(cluster, "tenant=a", streams_max=1)
        fail.set()
        await creation
        cluster.nodes.trouble = None
        await cluster.create(labels={"tenant": "a"})
        await error_of(cluster.create(labels={"tenant": "a"}), QuotaExceeded)


@simulated
async def test_opening_makes_no_extent_beyond_a_quota_or_the_limit_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "STREAM_EXTENTS_MAX", 3)
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        await set_quota(cluster, "tenant=a", extents_max=2)
        for tenant, most in (("a", 2), ("b", 3)):
            created = await cluster.create(labels={"tenant": tenant})
            stream_id = created.stream.stream_id
            refused = 0
            for _ in range(4):
                owner = await cluster.own(created.stream, takeover=True)
                tail_id = cluster.term.state.streams[stream_id].tail_id
                assert tail_id is not None
                cluster.nodes.of(tail_id)[1].fenced = True  # it cannot be gone on with: a new one is needed
                try:
                    await cluster.open(stream_id, owner)
                except QuotaExceeded:
                    refused += 1
            assert len(cluster.term.state.streams[stream_id].extent_ids) == most
            assert refused == 4 - (most - 1)


@simulated
async def test_a_twins_bytes_and_what_a_merge_brings_under_other_labels_are_counted() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened(labels={"tenant": "a"}, policy=SMALL)
        cluster.nodes.append(tail, 500, token=owner.token)
        await set_quota(cluster, "tenant=a", bytes_max=MIB)

        async def split() -> sm.SplitStreamsReply:
            ids = await cluster.call(methods.STREAM_MANAGER_ALLOC_ID, sm.AllocIdRequest(count=1))
            copy = sm.StreamCopy(stream_id=stream.stream_id, owner=owner, new_stream_id=ids.first_id)
            return await cluster.call(methods.STREAM_MANAGER_SPLIT_STREAMS, sm.SplitStreamsRequest(streams=[copy]))

        await set_quota(cluster, "tenant=a", bytes_max=999)
        await error_of(split(), QuotaExceeded)
        await set_quota(cluster, "tenant=a", bytes_max=1000)
        await split()
        assert (await usage(cluster))["tenant=a"] == (2, 2, 1000)

        other, other_tail, other_owner = await cluster.opened(labels={"tenant": "b"}, policy=SMALL)
        cluster.nodes.append(other_tail, 1, token=other_owner.token)
        join = sm.StreamJoin(
            stream_id=stream.stream_id,
            owner=owner,
            absorbed_stream_id=other.stream_id,
            absorbed_owner=other_owner,
        )

        async def merge() -> sm.MergeStreamsReply:
            return await cluster.call(methods.STREAM_MANAGER_MERGE_STREAMS, sm.MergeStreamsRequest(streams=[join]))

        await error_of(merge(), QuotaExceeded)
        await set_quota(cluster, "tenant=a", bytes_max=1001)
        await merge()
        assert (await usage(cluster))["tenant=a"] == (2, 3, 1001)
