"""Terms: winning, loading, serving, losing. Rule 25, G7."""

from __future__ import annotations

import asyncio
import logging

import pytest

from neve.meta.txn import KeyRange
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NeveError, NotLeader
from neve.stream_manager.metadata.record_kinds import NODE
from neve.stream_manager.metadata.records import NodeEntry
from tests.unit.stream_manager.manager_rig import ROOT, Cluster, ManagerProcess, error_of, simulated

STATUS = methods.STREAM_MANAGER_CLUSTER_STATUS


@simulated
async def test_a_follower_says_who_leads() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        await asyncio.sleep(1)
        error = await error_of(
            cluster.ask(cluster.managers[2], methods.STREAM_MANAGER_CREATE_STREAM, sm.CreateStreamRequest()), NotLeader
        )
        assert isinstance(error, NotLeader)
        assert error.leader == cluster.managers[1].address
        described = await cluster.ask(
            cluster.managers[2], methods.STREAM_MANAGER_DESCRIBE_CLUSTER, sm.DescribeClusterRequest()
        )
        assert described.leader.address == cluster.managers[1].address
        assert list(described.managers) == [manager.address for manager in cluster.managers.values()]
        assert described.meta_root == ROOT.decode()


@simulated
async def test_everything_survives_a_fail_over() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        stream, tail, owner = await cluster.opened(name="events", labels={"a": "b"})
        cluster.nodes.append(tail, 33, token=owner.token)
        await cluster.alloc(stream.stream_id, tail.extent_id, owner, 33)
        await asyncio.sleep(1)
        before = await cluster.describe(stream.stream_id)
        ids = {stream.stream_id, *before.streams[0].extent_ids}
        cluster.managers[1].kill()
        after = await cluster.describe(stream.stream_id)
        assert after.streams == before.streams
        assert after.extents == before.extents
        await cluster.leader()
        created = await cluster.create()
        assert {created.stream.stream_id, created.tail.extent_id}.isdisjoint(ids)
        assert created.stream.stream_id > max(ids)


@simulated
async def test_a_manager_that_stops_resigns_and_the_next_one_leads_at_once() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        begun_s = asyncio.get_running_loop().time()
        await cluster.managers[1].stop()
        await cluster.until(lambda: cluster.managers[2].manager.term is not None)
        assert asyncio.get_running_loop().time() - begun_s < cluster.config.lease_ttl_s / 2  # virtual


@simulated
async def test_t14_a_paused_leader_changes_nothing_when_it_goes_on() -> None:
    """Stopped past its lease in the middle of a roll; another one leads. What it does then has no effect."""
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        stream, tail, owner = await cluster.opened()
        cluster.nodes.append(tail, 10, token=owner.token)
        old = cluster.managers[1]
        paused = asyncio.Event()

        async def pause_in_the_middle(what: str, extent_id: int, node_id: int) -> None:
            if what == "fence" and not paused.is_set():
                paused.set()
                old.pause()

        cluster.nodes.trouble = pause_in_the_middle
        request = sm.StreamAllocExtentRequest(
            stream_id=stream.stream_id, extent_id=tail.extent_id, owner=owner, acknowledged_end=10
        )
        request.call.CopyFrom(cluster.call_id())
        first = asyncio.ensure_future(
            _quietly(cluster.ask(old, methods.STREAM_MANAGER_STREAM_ALLOC_EXTENT, request, timeout_s=60.0))
        )
        await paused.wait()
        cluster.nodes.trouble = None
        await cluster.until(lambda: cluster.managers[2].manager.term is not None)
        decided = await cluster.ask(cluster.managers[2], methods.STREAM_MANAGER_STREAM_ALLOC_EXTENT, request)
        assert decided.sealed.seal.length == 10
        old.resume()
        result = await first
        assert isinstance(result, NeveError), result
        await asyncio.sleep(5)
        assert old.manager.term is None
        described = await cluster.describe(stream.stream_id)
        assert list(described.streams[0].extent_ids) == [tail.extent_id, decided.tail.extent_id]
        assert all(replica.length == 10 for replica in cluster.nodes.of(tail.extent_id).values())


@simulated
async def test_t14_a_leader_past_its_lease_answers_no_read() -> None:
    """By the lease's clock, before any timer has run: the first thing it does when it goes on is a read."""
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, _, _ = await cluster.opened()
        leader = cluster.managers[1]
        term = leader.manager.term
        assert term is not None
        lease = term._leadership.lease
        lease._deadline_s = asyncio.get_running_loop().time()  # it has been stopped for so long
        await error_of(cluster.ask(leader, STATUS, sm.ClusterStatusRequest()), NotLeader)
        assert term.ended.is_set()
        described = await cluster.describe(stream.stream_id)  # by the next term, or as a follower
        assert described.streams[0].stream_id == stream.stream_id


async def _quietly(work: object) -> object:
    try:
        return await work  # type: ignore[misc]
    except NeveError as error:
        return error


@simulated
async def test_t15_a_leader_that_cannot_load_resigns() -> None:
    """A record that the first manager cannot read: it gives the election up, and a manager that can takes over."""
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        await cluster.create(name="events")
        first = cluster.managers[1]
        await first.stop()
        key = ROOT + b"streams/%016x" % 99
        await cluster.store.put(key, b"\xff\xff\xff not a record")
        second = _added(cluster, 2)
        await asyncio.sleep(20)
        assert second.manager.term is None
        assert second.manager.terms == 0
        # Nobody keeps the key while serving nothing: somebody who can load leads at the next try.
        await cluster.store.delete(key)
        await cluster.until(lambda: second.manager.term is not None)
        assert "events" in cluster.term.state.names


def _added(cluster: Cluster, number: int) -> ManagerProcess:
    manager = cluster.managers[number] = ManagerProcess(cluster, number)
    manager.start()
    return manager


@simulated
async def test_losing_etcd_ends_the_term_at_once_and_every_call_in_flight() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        await cluster.create()
        leader = cluster.managers[1]
        leader.store.disconnect()
        request = sm.CreateStreamRequest(call=cluster.call_id())
        result = await _quietly(cluster.ask(leader, methods.STREAM_MANAGER_CREATE_STREAM, request, timeout_s=20))
        assert isinstance(result, NeveError), result
        await cluster.until(lambda: leader.manager.term is None)
        leader.store.reconnect()
        created = await cluster.call(methods.STREAM_MANAGER_CREATE_STREAM, request)
        assert len(cluster.term.state.streams) == 2
        again = await cluster.call(methods.STREAM_MANAGER_CREATE_STREAM, request)
        assert again.stream.stream_id == created.stream.stream_id


@simulated
async def test_background_work_of_a_term_ends_with_it() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        term = cluster.term
        steps: list[float] = []

        async def work() -> None:
            while True:
                steps.append(term.ctx.clock())
                await asyncio.sleep(0.1)

        term.ctx.spawn(work())
        await asyncio.sleep(1)
        term.end("a test ends it")
        count = len(steps)
        await asyncio.sleep(2)
        assert len(steps) == count
        changes = term.ctx.changes()
        changes.put(NODE, None, NodeEntry(9, "late:1"))
        with pytest.raises(NotLeader):
            await term.ctx.commit(changes)
        await cluster.leader()
        assert 9 not in cluster.term.state.nodes


@simulated
async def test_a_standby_goes_on_with_the_state_that_it_has_followed_and_misses_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        stream, tail, owner = await cluster.opened(name="events")
        for _ in range(3):
            tail = (await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)).tail
        standby = cluster.managers[2]
        await cluster.until(lambda: standby.manager.follower.state is not None)
        followed = standby.manager.follower.state
        last = (await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)).tail  # may not have been heard of yet
        (await cluster.leader()).kill()
        await cluster.until(lambda: standby.manager.term is not None)
        term = cluster.term
        assert term.state is followed
        assert term.state.streams[stream.stream_id].tail_id == last.extent_id
        term.state.validate()
        assert "adopted=True" in caplog.text
        await cluster.alloc(stream.stream_id, last.extent_id, owner, 0)  # lanes and locks go on
        assert cluster.term is term


@simulated
async def test_a_followed_state_that_lacks_something_is_not_adopted(caplog: pytest.LogCaptureFixture) -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        stream_id = (await cluster.create()).stream.stream_id
        standby = cluster.managers[2]
        await cluster.until(
            lambda: standby.manager.follower.state is not None and stream_id in standby.manager.follower.state.streams
        )
        followed = standby.manager.follower.state
        assert followed is not None
        followed.delete_key(ROOT + b"streams/%016x" % stream_id)
        (await cluster.leader()).kill()
        await cluster.until(lambda: standby.manager.term is not None)
        assert cluster.term.state is not followed
        assert stream_id in cluster.term.state.streams
        assert "followed_state_is_wrong" in caplog.text


@simulated
async def test_a_standby_whose_watch_is_behind_loads_instead() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        standby = cluster.managers[2]
        await cluster.until(lambda: standby.manager.follower.state is not None)
        followed = standby.manager.follower.state
        for watch in standby.store.watches:
            if watch._keys == KeyRange.prefix(ROOT):  # the follower's, not the candidate's
                watch.interrupt(60.0)
        stream_id = (await cluster.create()).stream.stream_id
        (await cluster.leader()).kill()
        await cluster.until(lambda: standby.manager.term is not None)
        assert cluster.term.state is not followed
        assert stream_id in cluster.term.state.streams
