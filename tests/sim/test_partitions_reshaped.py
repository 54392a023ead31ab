"""Splits and merges: once only, whole or not at all, and nothing is lost, doubled or hidden by them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from neve.client.objects.client import KeyValueClient
from neve.partition_server.config import Serving
from neve.partition_server.hosted import Phase
from neve.proto import methods
from neve.proto import partition_manager_pb2 as pm
from neve.proto.errors import InvalidArgument, NeveError, NotFound, VersionConflict
from tests.history.workload import Journal
from tests.sim.partitions import RESTLESS, PartitionCluster, partitioned

SPLIT = methods.PARTITION_MANAGER_SPLIT_REGION
MERGE = methods.PARTITION_MANAGER_MERGE_REGIONS


@asynccontextmanager
async def writing(kv: KeyValueClient, *, workers: int = 4, pause_s: float = 0.01) -> AsyncIterator[Journal]:
    """Puts of new keys, all over the key space, for as long as the context lasts."""
    journal = Journal()
    over = False

    async def work(worker: int) -> None:
        number = 0
        while not over:
            number += 1
            key = b"%c/%d/%04d" % (97 + (7 * number + worker) % 26, worker, number)
            await journal.put(kv, key, b"%d " % number * 10)
            await asyncio.sleep(pause_s)

    tasks = [asyncio.ensure_future(work(worker)) for worker in range(workers)]
    yield journal
    over = True
    await asyncio.gather(*tasks)


async def fill(kv: KeyValueClient, count: int = 26) -> list[bytes]:
    keys = [b"%c/key%d" % (97 + n % 26, n) for n in range(count)]
    await asyncio.gather(*(kv.put(key, b"value of " + key) for key in keys))
    return sorted(keys)


@partitioned(seed=21)
async def test_splits_and_merges_under_writes_lose_and_double_nothing(cluster: PartitionCluster) -> None:
    await cluster.bootstrap()
    kv = await cluster.kv()
    async with writing(kv) as journal:
        for middle_key in (b"m", b"f", b"t"):
            await asyncio.sleep(0.5)
            reply = await cluster.split(cluster.region(middle_key).partition_id, middle_key)
            assert (reply.left.end, reply.right.start) == (middle_key, middle_key)
            await cluster.until_served()
        assert [region.start for region in cluster.map.regions] == [b"", b"f", b"m", b"t"]
        await cluster.move(cluster.region(b"g").partition_id, 2)
        await cluster.move(cluster.region(b"z").partition_id, 1)
        for left_key, right_key in ((b"a", b"f"), (b"m", b"t")):
            await asyncio.sleep(0.5)
            await cluster.merge(cluster.region(left_key).partition_id, cluster.region(right_key).partition_id)
            await cluster.until_served()
        await cluster.merge(cluster.region(b"a").partition_id, cluster.region(b"z").partition_id)
        await cluster.until_served()
        await asyncio.sleep(0.5)
    assert len(journal.acknowledged) == len(journal.tried) > 200
    await journal.check(kv)
    assert len(cluster.map.regions) == 1
    assert len(cluster.sim.state.streams) == 3, "the streams of merged partitions are gone"


@partitioned(seed=22, managers=2)
async def test_t19_a_split_repeated_at_the_next_leader_is_made_once(cluster: PartitionCluster) -> None:
    await cluster.bootstrap()
    kv = await cluster.kv()
    keys = await fill(kv)
    region = cluster.region(b"a")
    request = pm.SplitRegionRequest(call=cluster.call_id(), partition_id=region.partition_id, middle_key=b"m")
    first, twice = await asyncio.gather(cluster.order(SPLIT, request), cluster.order(SPLIT, request))
    assert first == twice
    (await cluster.leader()).kill()
    again = await cluster.order(SPLIT, request)
    assert (again.left.partition_id, again.right.partition_id, again.version) == (
        first.left.partition_id,
        first.right.partition_id,
        first.version,
    )
    assert (len(cluster.map.regions), cluster.map.version) == (2, 2)
    await cluster.until_served()
    assert [info.key async for info in kv.scan()] == keys


@partitioned(seed=23)
async def test_t19_a_middle_key_outside_is_an_error_and_changes_nothing(cluster: PartitionCluster) -> None:
    await cluster.bootstrap(b"m")
    left, right = cluster.map.regions
    for partition_id, middle_key in ((left.partition_id, b"m"), (left.partition_id, b"x"), (right.partition_id, b"a")):
        with pytest.raises(InvalidArgument):
            await cluster.split(partition_id, middle_key)
    with pytest.raises(InvalidArgument):
        await cluster.split(left.partition_id)  # there is no key to choose
    with pytest.raises(NotFound):
        await cluster.split(999, b"a")
    with pytest.raises(InvalidArgument):
        await cluster.merge(right.partition_id, left.partition_id)
    stale = pm.SplitRegionRequest(partition_id=left.partition_id, middle_key=b"c", version=1)
    await cluster.move(left.partition_id, 3 - left.server_id)
    with pytest.raises(VersionConflict):
        await cluster.order(SPLIT, stale)
    assert cluster.map.version == 2
    await cluster.until_served()


@partitioned(seed=24)
async def test_a_server_chooses_the_middle_key(cluster: PartitionCluster) -> None:
    await cluster.bootstrap()
    kv = await cluster.kv()
    keys = await fill(kv, 100)
    reply = await cluster.split(cluster.region(b"a").partition_id)
    assert keys[20] < reply.right.start < keys[80]
    await cluster.until_served()
    assert [info.key async for info in kv.scan()] == keys


@partitioned(seed=25)
async def test_t20_a_split_that_fails_midway_leaves_the_partition_served(cluster: PartitionCluster) -> None:
    """The stream manager cannot be reached once the partition is frozen: the freeze ends by itself, with a load."""
    await cluster.bootstrap()
    kv = await cluster.kv()
    keys = await fill(kv)
    region = cluster.region(b"a")
    leader = await cluster.leader()
    server = cluster.servers[region.server_id]
    hosted = server.host_.hosted[region.partition_id]
    request = pm.SplitRegionRequest(partition_id=region.partition_id, middle_key=b"m")
    splitting = asyncio.ensure_future(cluster.once(SPLIT, request))
    await cluster.sim.until(lambda: hosted.phase is not Phase.SERVING, "it is being frozen", step_s=0.00002)
    for manager in cluster.sim.managers.values():
        cluster.sim.network.partition(leader.host, manager.host)
    put = asyncio.ensure_future(kv.put(b"q/held", b"while it is frozen"))
    with pytest.raises(NeveError):
        await splitting
    cluster.sim.network.heal_all()
    await put
    await cluster.until_served()
    assert cluster.map.version == 1
    assert hosted.loads == 2
    assert [info.key async for info in kv.scan()] == sorted([*keys, b"q/held"])
    await cluster.split(region.partition_id, b"m")
    await cluster.until_served()
    assert [info.key async for info in kv.scan()] == sorted([*keys, b"q/held"])


@partitioned(seed=35, server={"serving": Serving(frozen_ms=60_000, hold_s=60.0)})
async def test_t20_partitions_are_thawed_when_what_they_were_frozen_for_fails(cluster: PartitionCluster) -> None:
    """And not when their freeze is over."""
    await cluster.bootstrap(b"m")
    kv = await cluster.kv()
    await fill(kv)
    left, right = cluster.region(b"a"), cluster.region(b"q")
    loop = asyncio.get_running_loop()
    leader = await cluster.leader()
    requests: list[tuple[Any, Any]] = [
        (SPLIT, pm.SplitRegionRequest(partition_id=left.partition_id, middle_key=b"c")),
        (MERGE, pm.MergeRegionsRequest(left_partition_id=left.partition_id, right_partition_id=right.partition_id)),
    ]
    for method, request in requests:
        frozen = [
            cluster.servers[region.server_id].host_.hosted[region.partition_id]
            for region in ([left] if method is SPLIT else [left, right])
        ]
        reshaping = asyncio.ensure_future(cluster.once(method, request))
        await cluster.sim.until(
            lambda: not any(each.phase is Phase.SERVING for each in frozen),  # noqa: B023
            "frozen",
            step_s=0.00002,
        )
        for manager in cluster.sim.managers.values():
            cluster.sim.network.partition(leader.host, manager.host)
        with pytest.raises(NeveError):
            await reshaping
        failed_s = loop.time()
        await asyncio.gather(kv.put(b"b", b""), kv.put(b"r", b""))
        assert loop.time() - failed_s < 10
        cluster.sim.network.heal_all()
        await cluster.until_served()
    assert cluster.map.version == 1


@partitioned(seed=26, managers=2)
async def test_t20_a_manager_that_dies_with_a_partition_frozen_leaves_it_served(cluster: PartitionCluster) -> None:
    await cluster.bootstrap(b"m")
    kv = await cluster.kv()
    keys = await fill(kv)
    region = cluster.region(b"a")
    hosted = cluster.servers[region.server_id].host_.hosted[region.partition_id]
    request = pm.SplitRegionRequest(call=cluster.call_id(), partition_id=region.partition_id, middle_key=b"e")
    splitting = asyncio.ensure_future(cluster.order(SPLIT, request))
    await cluster.sim.until(lambda: hosted.phase is not Phase.SERVING, "it is being frozen", step_s=0.00002)
    (await cluster.leader()).kill()
    reply = await splitting  # the operator's call goes to the next leader, which makes it, or finds it made
    assert (reply.left.end, len(cluster.map.regions)) == (b"e", 3)
    await cluster.until_served()
    assert [info.key async for info in kv.scan()] == keys


@partitioned(seed=27)
async def test_a_late_split_of_a_partition_that_was_loaded_again_is_refused(cluster: PartitionCluster) -> None:
    """The stream manager gets the request only after the freeze is over: the token in it is an old one by then."""
    await cluster.bootstrap()
    kv = await cluster.kv()
    keys = await fill(kv)
    region = cluster.region(b"a")
    hosted = cluster.servers[region.server_id].host_.hosted[region.partition_id]
    leader = await cluster.leader()
    request = pm.SplitRegionRequest(partition_id=region.partition_id, middle_key=b"m")
    splitting = asyncio.ensure_future(cluster.once(SPLIT, request))
    await cluster.sim.until(lambda: hosted.phase is not Phase.SERVING, "it is being frozen", step_s=0.00002)
    for manager in cluster.sim.managers.values():
        cluster.sim.network.pause(manager.host)  # what is on its way waits there
    await cluster.until(lambda: hosted.phase.value == "loading", "the freeze is over")
    for manager in cluster.sim.managers.values():
        cluster.sim.network.resume(manager.host)
    with pytest.raises(NeveError):
        await splitting
    assert leader.running
    await cluster.until_served()
    await asyncio.sleep(30.0)
    assert cluster.map.version == 1
    assert len(cluster.sim.state.streams) == 3
    assert [info.key async for info in kv.scan()] == keys


@partitioned(seed=28, servers=3)
async def test_t51_scans_during_splits_moves_and_merges_are_complete(cluster: PartitionCluster) -> None:
    await cluster.bootstrap(b"h")
    kv = await cluster.kv()
    keys = await fill(kv, 200)
    scans: list[list[bytes]] = []
    over = False

    async def scan() -> None:
        while not over:
            found = []
            async for info in kv.scan():
                found.append(info.key)
                if len(found) % 20 == 0:
                    await asyncio.sleep(0.05)
            scans.append(found)

    scanning = [asyncio.ensure_future(scan()) for _ in range(3)]
    for middle_key in (b"d", b"p", b"k"):
        await cluster.split(cluster.region(middle_key).partition_id, middle_key)
        await asyncio.sleep(0.3)
    for number, region in enumerate(cluster.map.regions):
        await cluster.move(region.partition_id, number % 3 + 1)
        await asyncio.sleep(0.2)
    for left_key, right_key in ((b"a", b"d"), (b"k", b"p")):
        await cluster.merge(cluster.region(left_key).partition_id, cluster.region(right_key).partition_id)
        await asyncio.sleep(0.3)
    over = True
    await asyncio.gather(*scanning)
    assert len(scans) >= 5
    assert all(found == keys for found in scans)


@partitioned(
    seed=29,
    balance=RESTLESS,
)
async def test_partitions_are_split_by_size_and_merged_when_they_are_empty_again(cluster: PartitionCluster) -> None:
    await cluster.bootstrap()
    kv = await cluster.kv()
    keys = [b"%c/%d" % (97 + n % 26, n) for n in range(300)]
    for start in range(0, len(keys), 50):
        await asyncio.gather(*(kv.put(key, b"x" * 400) for key in keys[start : start + 50]))
    await cluster.until(lambda: len(cluster.map.regions) >= 3, "it was split again and again")
    assert [info.key async for info in kv.scan()] == sorted(keys)
    await asyncio.gather(*(kv.delete(key) for key in keys))
    for region in cluster.map.regions:
        await cluster.until_served()
        await cluster.compact(region.partition_id)
    await cluster.until(lambda: len(cluster.map.regions) == 2, "the least number is left")
    await cluster.until_served()
    assert [info.key async for info in kv.scan()] == []
