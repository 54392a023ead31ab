"""Owners, leaders and unknown outcomes: scenarios T11 to T20 on a whole stream layer (T12 is a node's own matter)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from neve.meta.lock import acquire_lock
from neve.meta.memory.link import Fault
from neve.proto import common_pb2, methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import AppendOutcomeUnknown, MetaUnavailable, NeveError, NotLeader, NotOwner
from neve.stream_manager.metadata import records as r
from tests.sim import raw
from tests.sim.checks.ledger import payloads
from tests.sim.cluster import LEASE_TTL_S, ROOT, SimCluster, simulated
from tests.sim.processes.client import SimClient
from tests.sim.processes.manager import SimManager
from tests.sim.test_scenarios_seal import length_of, sealed_length, written

PAST_LEASE_S = 12.0  # virtual: above the leases of clients and managers


def others_than(cluster: SimCluster, leader: SimManager) -> list[SimManager]:
    return [manager for manager in cluster.managers.values() if manager is not leader]


@pytest.mark.parametrize("takeover", [False, True])
@pytest.mark.parametrize("buffered", [False, True])
@simulated()
async def test_t11_a_writer_that_was_stopped_past_its_lease_acknowledges_nothing(
    cluster: SimCluster, takeover: bool, buffered: bool
) -> None:
    stream, old, writer, extent = await written(cluster)
    queued = [writer.submit(100) for _ in range(20)]
    await cluster.wait(1e-5)
    assert not any(attempt.settled for attempt in queued)
    old.pause(buffered=buffered)  # with frames under way, and answers that wait: on the way, or in its own buffers
    if not takeover:
        await cluster.wait(PAST_LEASE_S)
    await cluster.wait(0.5)
    held = [len(cluster.bytes_on(node_id, extent.extent_id) or b"") for node_id in extent.node_ids]
    assert min(held) > length_of(writer), "all replicas have taken more, and have answered"
    new = await cluster.client("new")
    successor = await new.writer(stream.id, takeover=takeover)
    await successor.append_some(5, 100)
    await cluster.wait(PAST_LEASE_S)
    old.resume()
    await cluster.wait(5)
    assert all(attempt.settled for attempt in queued)
    for attempt in queued:
        assert attempt.future is not None
        assert isinstance(attempt.future.exception(), AppendOutcomeUnknown)
    with pytest.raises(NeveError):
        await writer.append()
    await successor.append()
    await cluster.settle()


@pytest.mark.parametrize("rate", [0.99, 1.0, 1.01])
@simulated()
async def test_t11_a_writer_whose_clock_runs_slow_gives_its_lease_up_before_the_store_does(
    cluster: SimCluster, rate: float
) -> None:
    """Whoever gets the lock next must not meet an owner who still trusts his lease (rule 2)."""
    stream, old, writer, _ = await written(cluster)
    old.process.clock.set_rate(rate)
    old.meta.stall()
    new = await cluster.client("new")
    successor = await new.writer(stream.id)  # waits for the lease's end; watched_store.py looks at its holder then
    await successor.append_some(3, 100)
    cluster.check_no_bugs()
    with pytest.raises(NeveError):
        await writer.append()
    await cluster.settle()


@simulated()
async def test_t13_a_fence_that_one_node_never_got(cluster: SimCluster) -> None:
    stream, _, writer, extent = await written(cluster)
    missed = extent.node_ids[2]
    for manager in cluster.managers.values():
        cluster.network.partition(manager.host, f"node{missed}")
    new = await cluster.client("new")
    opening = asyncio.ensure_future(new.writer(stream.id, takeover=True))
    during = []
    while not opening.done():  # the old writer reaches all nodes, and goes on as long as it can
        try:
            during.append(writer.submit(100))
        except NeveError:
            break
        await cluster.wait(0.02)
    successor = await opening
    acknowledged = [attempt for attempt in during if attempt.position is not None]
    await successor.append_some(3)
    await cluster.wait(3)
    assert [attempt for attempt in during if attempt.position is not None] == acknowledged
    assert writer.writer.error is not None
    await cluster.settle()


@simulated(managers=3)
async def test_t14_a_deposed_leaders_late_transaction_and_orders_change_nothing(cluster: SimCluster) -> None:
    stream, client, writer, extent = await written(cluster)
    acknowledged = length_of(writer)
    leader = await cluster.leader()
    revision = cluster.etcd.key_space.revision
    # It fences the tail for its writer, and is stopped before its transaction reaches the store.
    leader.store.stall()
    cluster.nodes[extent.node_ids[0]].kill()
    writer.submit(100)
    await cluster.wait(2.0)
    assert cluster.etcd.key_space.revision == revision
    leader.pause()
    client.kill()
    await cluster.until(lambda: any(m.term is not None for m in others_than(cluster, leader)), "another one leads")
    successor = await cluster.take_over("new", stream.id)
    await successor.append_some(3)
    assert sealed_length(cluster, extent) >= acknowledged
    length = sealed_length(cluster, extent)
    tail = cluster.tail(stream.id)
    leader.store.resume()
    leader.resume()
    number = next(number for number, manager in cluster.managers.items() if manager is leader)
    with pytest.raises(NotLeader):
        await raw.ask(cluster, number, methods.STREAM_MANAGER_LIST_TASKS, sm.ListTasksRequest())
    request = sm.SealStreamRequest(call=common_pb2.CallId(client_id=1, call_id=1), stream_id=stream.id)
    with pytest.raises(NotLeader):
        await raw.ask(cluster, number, methods.STREAM_MANAGER_SEAL_STREAM, request)
    # What it says as a follower is not older than what was asked for.
    wanted = cluster.state.streams[stream.id].mod_revision
    reply = await raw.ask(
        cluster,
        number,
        methods.STREAM_MANAGER_DESCRIBE_STREAMS,
        sm.DescribeStreamsRequest(stream_ids=[stream.id], revision_min=wanted),
    )
    assert tuple(reply.streams[0].extent_ids) == cluster.state.streams[stream.id].extent_ids
    await cluster.wait(5)
    assert sealed_length(cluster, extent) == length
    assert cluster.tail(stream.id).extent_id == tail.extent_id  # nobody fenced the new owner's tail
    await successor.append_some(3)
    await cluster.settle()


@simulated(managers=3)
async def test_t15_a_leader_that_cannot_load_gives_the_election_up(cluster: SimCluster) -> None:
    cluster.expected_errors = ("load_failed",)
    stream, _, writer, _ = await written(cluster)
    leader = await cluster.leader()
    broken, *_ = others_than(cluster, leader)
    _fail_to_load(broken)
    for _ in range(4):  # whoever comes first in the election
        current = await cluster.leader()
        assert current is not broken
        current.kill()
        await cluster.leader()
        current.start()
    assert broken.running
    assert broken.manager.terms == 0
    await writer.append()
    assert (await cluster.leader()) is not broken
    _heal_loading(broken)
    await cluster.settle()
    assert stream.id in cluster.stored_state().streams


def _fail_to_load(manager: SimManager) -> None:
    store = manager.store
    original = store.range

    async def fail(keys: Any, **how: Any) -> Any:
        start = keys if isinstance(keys, bytes) else keys.start
        if start.startswith(ROOT + r.EXTENTS):
            raise MetaUnavailable(detail="as the story wants it")
        return await original(keys, **how)

    store.range = fail  # type: ignore[method-assign]


def _heal_loading(manager: SimManager) -> None:
    del manager.store.range


@pytest.mark.parametrize("fault", [Fault.LOST_AFTER_APPLY, Fault.LOST_BEFORE_APPLY])
@simulated()
async def test_t16_unknown_outcomes_make_nothing_twice_and_skip_no_seal(cluster: SimCluster, fault: Fault) -> None:
    leader = await cluster.leader()
    client = await cluster.client("client")
    streams = []
    for number in range(4):
        leader.store.plan.scripted.extend([fault] * (1 + number % 3))
        name = f"stream {number}"
        streams.append(await client.run(client.neve.create_stream(name=name, extent_bytes_max=2000)))
        cluster.ledger.streams[streams[-1].id] = None
    for stream in streams:
        leader.store.plan.scripted.extend([fault] * 2)
        writer = await client.writer(stream.id)
        for _ in range(4):
            await writer.append_some(6, 200)
            leader.store.plan.scripted.append(fault)
    state = cluster.stored_state()
    assert sorted(state.streams) == sorted(stream.id for stream in streams)
    assert len(state.names) == len(streams)
    for stream_id in state.streams:
        assert len(state.streams[stream_id].extent_ids) >= 3
    listed = [extent_id for stream in state.streams.values() for extent_id in stream.extent_ids]
    assert sorted(listed) == sorted(state.extents)  # none twice, none that nobody refers to
    for stored in state.streams.values():
        assert all(state.extents[extent_id].seal is not None for extent_id in stored.extent_ids[:-1])
    await cluster.settle()


@simulated(managers=2)
async def test_t17_a_follower_whose_watch_was_down_over_a_compaction_loses_no_change(cluster: SimCluster) -> None:
    first, client, writer, _ = await written(cluster)
    leader = await cluster.leader()
    (follower,) = others_than(cluster, leader)
    follower.store.interrupt_watches(20.0)
    second = await client.run(client.neve.create_stream(name="second", extent_bytes_max=1000))
    cluster.ledger.streams[second.id] = None
    rolling = await client.writer(second.id)
    await rolling.append_some(12, 200)
    await rolling.close()
    await writer.close()
    cluster.ledger.deleted[first.id] = None
    await client.run(client.neve.delete(first.id))
    cluster.etcd.compact(cluster.etcd.key_space.revision)
    behind = follower.manager.follower.state
    assert behind is not None
    assert second.id not in behind.streams
    await cluster.wait(25)
    seen = follower.manager.follower.state
    assert seen is not None
    seen.validate()
    stored = cluster.stored_state()
    assert seen.streams == stored.streams
    assert seen.extents == stored.extents
    assert first.id not in seen.streams
    leader.kill()
    await cluster.leader()  # and it can lead
    await cluster.settle()


@simulated()
async def test_t18_an_owner_whose_lease_ended_while_it_opened_notices_before_it_writes(cluster: SimCluster) -> None:
    stream = await cluster.create_stream(replicas=3)
    slow = await cluster.client("slow")
    lock_key = ROOT + b"locks/" + stream.lock.encode()
    opening = asyncio.ensure_future(slow.writer(stream.id))
    await cluster.until(lambda: cluster.etcd.at(lock_key) is not None, "it has the lock", step_s=0.0001)
    assert not opening.done()
    slow.pause()
    await cluster.wait(PAST_LEASE_S)
    assert cluster.etcd.at(lock_key) is None
    extent = cluster.tail(stream.id)
    slow.resume()
    with pytest.raises(NeveError):
        await opening
    assert all(cluster.bytes_on(node_id, extent.extent_id) == b"" for node_id in extent.node_ids)
    await (await cluster.take_over("next", stream.id)).append()
    await cluster.settle()


# --- split: the manager's part --------------------------------------------------------------------------------


async def split_request(
    cluster: SimCluster, client: SimClient, count: int
) -> tuple[sm.SplitStreamsRequest, list[int], list[int]]:
    """Some streams with records, each with an owner, and how to split them into twins."""
    request = sm.SplitStreamsRequest(call=common_pb2.CallId(client_id=99, call_id=7))
    stream_ids = []
    for _ in range(count):
        stream = await cluster.create_stream(replicas=3)
        writer = await client.writer(stream.id)
        await writer.append_some(3, 100)
        request.streams.add(
            stream_id=stream.id,
            owner=raw.owner_of(writer),
            extent_id=cluster.tail(stream.id).extent_id,
            acknowledged_end=length_of(writer),
            new_lock=f"twin {stream.id}",
        )
        stream_ids.append(stream.id)
    reply = await raw.order(client, methods.STREAM_MANAGER_ALLOC_ID, sm.AllocIdRequest(count=count))
    twin_ids = [reply.first_id + number for number in range(count)]
    for copy, twin_id in zip(request.streams, twin_ids, strict=True):
        copy.new_stream_id = twin_id
    request.writes.add(key=ROOT + b"partitions/1", value=b"split")
    return request, stream_ids, twin_ids


@simulated(managers=3)
async def test_t19_a_split_that_is_repeated_over_a_change_of_leader_is_applied_once(cluster: SimCluster) -> None:
    client = await cluster.client("partition-manager")
    request, stream_ids, twin_ids = await split_request(cluster, client, 2)
    leader = await cluster.leader()
    # Its answer is lost after everything was committed, and it dies.
    cluster.network.partition_one_way(leader.host, client.name)
    asking = asyncio.ensure_future(raw.order(client, methods.STREAM_MANAGER_SPLIT_STREAMS, request))
    await cluster.until(lambda: all(t in cluster.stored_state().streams for t in twin_ids), "the split is committed")
    before = cluster.stored_state()
    leader.kill()
    cluster.network.heal_all()
    reply = await asking
    assert [stream.stream_id for stream in reply.streams] == stream_ids
    again = await raw.order(client, methods.STREAM_MANAGER_SPLIT_STREAMS, request)
    assert again == reply
    after = cluster.stored_state()
    assert sorted(after.streams) == sorted([*stream_ids, *twin_ids])
    for stream_id, twin_id in zip(stream_ids, twin_ids, strict=True):
        assert after.streams[twin_id] == before.streams[twin_id]
        assert after.streams[twin_id].extent_ids == after.streams[stream_id].extent_ids
        records = await client.read(twin_id)
        assert payloads(records) == [a.payload for a in cluster.ledger.acknowledged(stream_id)]
    cluster.ledger.sightings.clear()  # of twins: the ledger knows them by their parents
    await cluster.settle()


@simulated()
async def test_t20_a_split_that_fails_half_way_leaves_nothing_locked_and_the_streams_go_on(cluster: SimCluster) -> None:
    client = await cluster.client("partition-manager")
    request, stream_ids, twin_ids = await split_request(cluster, client, 3)
    request.streams[2].owner.token += 1  # the third one's owner is not who he says
    with pytest.raises(NotOwner):
        await raw.order(client, methods.STREAM_MANAGER_SPLIT_STREAMS, request)
    state = cluster.stored_state()
    assert not any(twin_id in state.streams for twin_id in twin_ids)
    assert cluster.etcd.at(ROOT + b"partitions/1") is None
    for stream_id in stream_ids:  # each is served on, by its owner and by the next one
        writer = client.neve._writer_of(stream_id)
        assert writer is not None
        position = await client.run(writer.append(b"by hand"))
        assert position is not None
    state.validate()
    for stream_id in stream_ids:
        successor = await cluster.take_over(f"next{stream_id}", stream_id)
        await successor.append()
    cluster.ledger.streams.clear()  # what was appended past the ledger is for nobody to judge
    await cluster.settle()


def test_the_lease_of_a_story_is_shorter_than_its_pauses() -> None:
    assert PAST_LEASE_S > 2 * LEASE_TTL_S


@simulated()
async def test_t11_a_seal_for_an_owner_who_loses_the_lock_meanwhile_is_not_decided(cluster: SimCluster) -> None:
    """Rules 3 and 19: the manager finds the owner in order, is busy with nodes, and decides when he is not any more."""
    stream, client, writer, extent = await written(cluster)
    leader = await cluster.leader()
    for node in cluster.nodes.values():
        cluster.network.slow(leader.host, node.host, factor=3000)  # some tenths of a second for each order
    request = raw.alloc(client, raw.owner_of(writer), stream.id, extent.extent_id)
    asking = asyncio.ensure_future(request)
    await cluster.wait(0.05)
    revision = cluster.etcd.key_space.revision
    other = await cluster.client("other")
    lease = await other.run(other.meta.grant_lease(10))
    await other.run(acquire_lock(other.meta, stream.lock, "other", lease, root=ROOT, takeover=True, timeout_s=5.0))
    assert cluster.etcd.key_space.revision == revision + 1, "nothing was decided before the lock was taken"
    with pytest.raises(NotOwner):
        await asking
    stored = cluster.stored_state()
    assert stored.extents[extent.extent_id].seal is None
    assert stored.streams[stream.id].tail_id == extent.extent_id
    await cluster.settle()
