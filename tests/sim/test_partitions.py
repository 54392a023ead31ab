"""Scenarios of the partition layer's control: who serves what, through deaths, pauses and moves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from neve.partition_manager.core_balance import BalanceConfig
from neve.partition_manager.region_store import Snapshot
from neve.proto import common_pb2, methods
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_server_pb2 as ps
from neve.proto.errors import (
    AlreadyExists,
    InvalidArgument,
    LeaseLost,
    MetaUnavailable,
    NeveError,
    NotLeader,
    WrongCluster,
)
from tests.history.workload import Journal
from tests.sim.partitions import PartitionCluster, partitioned
from tests.sim.processes.node import CLUSTER


@partitioned(seed=1)
async def test_bootstrap_shares_the_regions_out_and_is_answered_again(cluster: PartitionCluster) -> None:
    first = await cluster.bootstrap(b"g", b"p")
    assert [region.start for region in first.regions] == [b"", b"g", b"p"]
    assert sorted(cluster.homes().values()) == [1, 1, 2]
    again = await cluster.bootstrap(b"g", b"p")
    assert [region.partition_id for region in again.regions] == [region.partition_id for region in first.regions]
    with pytest.raises(AlreadyExists):
        await cluster.bootstrap(b"other")
    assert len(cluster.sim.state.streams) == 9
    assert cluster.map.version == 1


@partitioned(seed=2)
async def test_objects_are_found_behind_every_server(cluster: PartitionCluster) -> None:
    await cluster.bootstrap(b"g", b"p")
    kv = await cluster.kv()
    keys = [b"apple", b"grape", b"pear", b"zebra"]
    await asyncio.gather(*(kv.put(key, key * 3) for key in keys))
    for key in keys:
        assert (await kv.get(key)).value == key * 3


@partitioned(seed=3)
async def test_t11_a_paused_server_answers_nothing_after_its_lease(cluster: PartitionCluster) -> None:
    """The old server is stopped past its lease, with calls in its buffers; the new one takes writes; then the old one
    goes on."""
    await cluster.bootstrap()
    region = cluster.region(b"k")
    old, new = cluster.servers[region.server_id], cluster.servers[3 - region.server_id]
    kv = await cluster.kv()
    await kv.put(b"k", b"before")
    old.pause(buffered=True)
    # Straight to the old server, as a client with an old map would.
    direct = cluster.sim.network.channel("direct", old.address, cluster=CLUSTER)
    put = ps.PutRequest(call=common_pb2.CallId(client_id=9, call_id=1), key=b"k")
    queued_put = asyncio.ensure_future(
        direct.call(methods.PARTITION_SERVER_PUT, put, timeout_s=60.0, attachment=[b"stale"])
    )
    queued_get = asyncio.ensure_future(
        direct.call(methods.PARTITION_SERVER_GET, ps.GetRequest(key=b"k"), timeout_s=60.0)
    )
    await kv.put(b"k", b"after")
    assert cluster.region(b"k").server_id == new.server_id
    old.resume()
    for queued in (queued_put, queued_get):
        with pytest.raises(NeveError):
            await queued
    with pytest.raises(NeveError):
        await direct.call(methods.PARTITION_SERVER_GET, ps.GetRequest(key=b"k"), timeout_s=20.0)
    assert (await kv.get(b"k")).value == b"after"
    await cluster.until(lambda: len(cluster.watcher.state.servers) == 2, "the old one has registered again")
    await cluster.until_served()


@partitioned(seed=4, servers=3)
async def test_a_dead_servers_partitions_are_shared_out_and_no_other_one_moves(cluster: PartitionCluster) -> None:
    await cluster.bootstrap(b"c", b"f", b"k", b"p", b"t")
    before = cluster.homes()
    kv = await cluster.kv()
    journal = Journal()
    await asyncio.gather(*(journal.put(kv, b"%c%d" % (97 + n % 26, n), b"v%d" % n) for n in range(60)))
    cluster.servers[1].kill()
    await cluster.until(lambda: 1 not in cluster.homes().values(), "its partitions have another server")
    await cluster.until_served()
    after = cluster.homes()
    assert {number for number in before if before[number] != after[number]} == {
        number for number, home in before.items() if home == 1
    }
    assert len(journal.acknowledged) == 60
    for key, value in journal.tried.items():
        assert (await kv.get(key)).value == value


@partitioned(seed=5)
async def test_a_server_that_is_told_to_stop_gives_its_locks_back_at_once(cluster: PartitionCluster) -> None:
    await cluster.bootstrap(b"m")
    kv = await cluster.kv()
    await kv.put(b"a", b"1")
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    await cluster.servers[cluster.region(b"a").server_id].stop()
    assert (await kv.get(b"a")).value == b"1"
    assert loop.time() - begun_s < 1.5, "virtual: far below the lease"
    await cluster.until_served()


@partitioned(seed=6)
async def test_a_server_that_was_killed_and_comes_back_keeps_its_partitions(cluster: PartitionCluster) -> None:
    await cluster.bootstrap(b"m")
    before = cluster.homes()
    kv = await cluster.kv()
    await kv.put(b"z", b"1")
    server = cluster.servers[cluster.region(b"z").server_id]
    server.kill()
    await asyncio.sleep(0.5)
    await server.start()
    assert (await kv.get(b"z")).value == b"1"
    assert cluster.homes() == before, "nothing was moved"


@partitioned(seed=7)
async def test_moves_under_writes_lose_and_double_nothing(cluster: PartitionCluster) -> None:
    await cluster.bootstrap(b"m")
    kv = await cluster.kv()
    journal = Journal()
    done = asyncio.Event()

    async def write(worker: int) -> None:
        number = 0
        while not done.is_set():
            number += 1
            await journal.put(kv, b"%c/%d/%d" % (b"ax"[worker % 2], worker, number), b"%d" % number)
            await asyncio.sleep(0.01)

    writing = [asyncio.ensure_future(write(worker)) for worker in range(4)]
    for round_number in range(6):
        await asyncio.sleep(0.5)
        region = cluster.region(b"a" if round_number % 2 else b"x")
        await cluster.move(region.partition_id, 3 - region.server_id)
        await cluster.until_served()
    done.set()
    await asyncio.gather(*writing)
    assert len(journal.acknowledged) == len(journal.tried) > 100
    for key, value in journal.tried.items():
        assert (await kv.get(key)).value == value
    assert cluster.map.version == 7


@partitioned(seed=8, managers=3)
async def test_t50_a_call_repeated_at_the_next_leader_is_executed_once(cluster: PartitionCluster) -> None:
    await cluster.bootstrap(b"m")
    region = cluster.region(b"a")
    request = pm.MoveRegionRequest(
        call=cluster.call_id(), partition_id=region.partition_id, server_id=3 - region.server_id
    )
    first = await cluster.order(methods.PARTITION_MANAGER_MOVE_REGION, request)
    back = await cluster.move(region.partition_id, region.server_id)
    (await cluster.leader()).kill()
    again = await cluster.order(methods.PARTITION_MANAGER_MOVE_REGION, request)
    assert again.version == first.version
    assert cluster.map.version == back.version
    assert cluster.region(b"a").server_id == region.server_id, "the repeated move moved nothing"


@partitioned(seed=8, managers=3)
async def test_t50_a_move_that_had_nothing_to_do_does_nothing_when_it_is_repeated(cluster: PartitionCluster) -> None:
    """The first answer said that the partition is where it should be. If another order moves it on, a late repetition
    of the first one must not fetch it back (story 507743367 of the larger world)."""
    await cluster.bootstrap(b"m")
    region = cluster.region(b"a")
    stay = pm.MoveRegionRequest(call=cluster.call_id(), partition_id=region.partition_id, server_id=region.server_id)
    first = await cluster.order(methods.PARTITION_MANAGER_MOVE_REGION, stay)
    assert first.region.server_id == region.server_id
    elsewhere = 3 - region.server_id
    moved = await cluster.move(region.partition_id, elsewhere)
    assert moved.version > first.version
    again = await cluster.order(methods.PARTITION_MANAGER_MOVE_REGION, stay)
    assert (again.version, again.region.server_id) == (first.version, elsewhere)
    (await cluster.leader()).kill()
    again = await cluster.order(methods.PARTITION_MANAGER_MOVE_REGION, stay)
    assert (again.version, again.region.server_id) == (first.version, elsewhere)
    assert cluster.map.version == moved.version, "a repetition changes nothing"


@partitioned(seed=8, managers=3)
async def test_t50_a_pause_of_balancing_is_not_repeated_after_balancing_went_on(cluster: PartitionCluster) -> None:
    await cluster.bootstrap()
    method = methods.PARTITION_MANAGER_SET_BALANCING
    for already in (False, True):  # whether it changes anything the first time
        pause = pm.SetBalancingRequest(call=cluster.call_id(), paused=True)
        if already:
            await cluster.order(method, pm.SetBalancingRequest(paused=True))
        first = await cluster.order(method, pause)
        last = await cluster.order(method, pm.SetBalancingRequest(paused=False))
        assert (await cluster.order(method, pause)).version == first.version
        (await cluster.leader()).kill()
        assert (await cluster.order(method, pause)).version == first.version
        assert cluster.map.version == last.version
        assert not cluster.map.balancing_paused


@partitioned(seed=9, managers=2)
async def test_any_manager_tells_the_map_and_waits_for_a_version(cluster: PartitionCluster) -> None:
    await cluster.bootstrap(b"m")
    leader = await cluster.leader()
    follower = next(manager for manager in cluster.managers.values() if manager is not leader)
    channel = cluster.sim.network.channel("asker", follower.address, cluster=CLUSTER)

    async def ask(**how: Any) -> pm.ListRegionsReply:
        reply = await channel.call(methods.PARTITION_MANAGER_LIST_REGIONS, pm.ListRegionsRequest(**how), timeout_s=5.0)
        return reply.message

    now = await ask()
    assert (now.version, len(now.regions), now.more) == (1, 2, False)
    assert {region.address for region in now.regions} == {"pserver1:3801", "pserver2:3801"}
    page = await ask(limit=1)
    assert (len(page.regions), page.more) == (1, True)
    waiting = asyncio.ensure_future(ask(version_min=2))
    await asyncio.sleep(1.0)
    assert not waiting.done()
    region = cluster.region(b"a")
    await cluster.move(region.partition_id, 3 - region.server_id)
    assert (await waiting).version == 2
    with pytest.raises(NeveError):
        await ask(version_min=99)


@partitioned(seed=10, servers=1, balance=BalanceConfig(interval_s=1.0, rest_s=1.0))
async def test_a_new_server_gets_its_share_unless_balancing_is_paused(cluster: PartitionCluster) -> None:
    await cluster.bootstrap(b"d", b"h", b"p")
    await cluster.order(methods.PARTITION_MANAGER_SET_BALANCING, pm.SetBalancingRequest(paused=True))
    await cluster.add_server(2).start()
    await asyncio.sleep(30.0)
    assert set(cluster.homes().values()) == {1}
    await cluster.order(methods.PARTITION_MANAGER_SET_BALANCING, pm.SetBalancingRequest(paused=False))
    await cluster.until(lambda: sorted(cluster.homes().values()) == [1, 1, 2, 2], "each has two")
    await cluster.until_served()
    version = cluster.map.version
    await asyncio.sleep(30.0)
    assert cluster.map.version == version, "and that is all"


@partitioned(seed=11, managers=2)
async def test_a_bootstrap_that_broke_off_leaves_no_streams_behind(cluster: PartitionCluster) -> None:
    request = pm.BootstrapRequest(call=cluster.call_id(), split_keys=[b"g", b"p"])
    first = asyncio.ensure_future(cluster.order(methods.PARTITION_MANAGER_BOOTSTRAP, request))
    await cluster.until(lambda: len(cluster.sim.state.streams) >= 4, "some streams are made")
    (await cluster.leader()).kill()
    reply = await first
    assert [region.start for region in reply.regions] == [b"", b"g", b"p"]
    await cluster.until_served()
    used = {
        number
        for region in cluster.map.regions
        for number in (region.log_stream_id, region.row_stream_id, region.meta_stream_id)
    }
    await cluster.until(lambda: set(cluster.sim.state.streams) == used, "the first try's streams are deleted")


@partitioned(seed=14)
async def test_a_bootstrap_that_is_made_and_not_heard_of_in_time_keeps_its_streams(cluster: PartitionCluster) -> None:
    """The transaction is done, but the manager's own watch lags for longer than the manager waits."""
    regions = (await cluster.leader()).manager.regions
    known, late = regions.known, MetaUnavailable(detail="this manager knows revision 1, but version 1 is wanted")

    async def lagging(version: int) -> Snapshot:
        regions.known = known  # type: ignore[method-assign]
        raise late

    regions.known = lagging  # type: ignore[method-assign]
    with pytest.raises(MetaUnavailable):
        await cluster.once(methods.PARTITION_MANAGER_BOOTSTRAP, pm.BootstrapRequest(split_keys=[b"g"]))
    assert len(cluster.map.regions) == 2
    await cluster.until_served()
    again = await cluster.bootstrap(b"g")
    assert [region.start for region in again.regions] == [b"", b"g"]
    assert len(cluster.sim.state.streams) == 6


@partitioned(seed=12, servers=1)
async def test_an_id_belongs_to_one_live_server(cluster: PartitionCluster) -> None:
    store = cluster.sim.etcd.client()
    lease = await store.grant_lease(60)

    async def register(**fields: Any) -> int:
        request = pm.RegisterPartitionServerRequest(
            call=cluster.call_id(),
            **{"cluster": CLUSTER, "server_id": 1, "wire_address": "elsewhere:1", "lease_id": lease.lease_id, **fields},
        )
        return (await cluster.once(methods.PARTITION_MANAGER_REGISTER_PARTITION_SERVER, request)).server_id

    with pytest.raises(AlreadyExists):
        await register()
    with pytest.raises(WrongCluster):
        await register(cluster="other")
    with pytest.raises(InvalidArgument):
        await register(lease_id=0)
    with pytest.raises(LeaseLost):
        await register(server_id=5, lease_id=999_999)
    given = await register(server_id=0)
    assert given not in (0, 1)
    assert await register(server_id=0) == given, "asked again, it has the id that it was given"
    # Started again at the same address: the first process cannot live.
    assert await register(wire_address=cluster.servers[1].address) == 1
    await cluster.until(lambda: cluster.watcher.state.servers[1].lease_id == lease.lease_id, "it is taken over")
    await lease.revoke()


@partitioned(seed=13, managers=2)
async def test_t14_a_leader_that_was_paused_past_its_lease_changes_nothing(cluster: PartitionCluster) -> None:
    await cluster.bootstrap(b"m")
    old = await cluster.leader()
    region = cluster.region(b"a")
    channel = cluster.sim.network.channel("direct", old.address, cluster=CLUSTER)
    old.pause(buffered=True)
    request = pm.MoveRegionRequest(
        call=cluster.call_id(), partition_id=region.partition_id, server_id=3 - region.server_id
    )
    queued = asyncio.ensure_future(channel.call(methods.PARTITION_MANAGER_MOVE_REGION, request, timeout_s=60.0))
    new = await cluster.leader()
    assert new is not old
    old.resume()
    with pytest.raises(NotLeader) as told:
        await queued
    assert told.value.leader in ("", new.address)
    assert cluster.map.version == 1
    reply = await cluster.order(methods.PARTITION_MANAGER_MOVE_REGION, request)
    assert (reply.version, cluster.map.version) == (2, 2)


@partitioned(seed=18, server={"cache_bytes_max": 8})
async def test_an_idle_partition_is_read_when_all_nodes_have_restarted(cluster: PartitionCluster) -> None:
    """Nodes forget by a restart how far readers may go; its owner has nothing to append, and tells them when it misses
    something (short story 107 of the larger world)."""
    await cluster.bootstrap()
    kv = await cluster.kv()
    await kv.put(b"in the log", b"l" * 1000)
    await kv.put(b"in a table", b"t" * 50)
    await cluster.compact(cluster.region(b"in").partition_id)
    await asyncio.sleep(1.0)
    for node in cluster.sim.nodes.values():
        node.kill()
        await node.start()
    assert (await kv.get(b"in the log", timeout_s=3.0)).value == b"l" * 1000
    assert (await kv.get(b"in a table", timeout_s=3.0)).value == b"t" * 50
    assert [info.key async for info in kv.scan(timeout_s=3.0)] == [b"in a table", b"in the log"]
