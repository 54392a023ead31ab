"""Repair, membership and slow parts: scenarios T33 to T35 and T41 to T47 on a whole stream layer."""

from __future__ import annotations

import asyncio
import dataclasses
import errno

import pytest

from neve.client.streams.types import Stream
from neve.extent_node.journal.folder import LABEL, JournalRefused
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NeveError
from neve.stream_manager.config import Placing
from tests.sim.cluster import SimCluster, simulated
from tests.sim.processes.client import OPTIONS, SimClient, SimWriter
from tests.sim.test_scenarios_seal import length_of, sealed_length, written


async def sealed_stream(cluster: SimCluster, *, extents: int = 3) -> tuple[Stream, SimClient, SimWriter]:
    """A stream of some sealed extents, all in order, and an open one."""
    stream = await cluster.create_stream(replicas=3, extent_bytes_max=2000)
    client = await cluster.client("writer")
    writer = await client.writer(stream.id)
    while len(cluster.state.streams[stream.id].extent_ids) <= extents:
        await writer.append(300)
    await cluster.until_in_order()
    return stream, client, writer


def holders(cluster: SimCluster, extent_id: int) -> list[int]:
    return [node_id for node_id in cluster.nodes if cluster.bytes_on(node_id, extent_id) is not None]


def copies_are_exact(cluster: SimCluster) -> bool:
    """Every extent is where metadata says, and nowhere else."""
    extents = cluster.state.extents.values()
    return all(sorted(extent.node_ids) == holders(cluster, extent.extent_id) for extent in extents)


def parts_of_copies(cluster: SimCluster) -> list[str]:
    """Files that are still being made, on all nodes."""
    return [
        f"{node.host}/disk{disk}/tmp/{name}"
        for node in cluster.nodes.values()
        for disk in range(node.disks)
        for name in node.fs.list_dir(f"/disk{disk}/tmp")
    ]


@pytest.mark.parametrize("returns_after_s", [9.0, 13.0, 14.0, 40.0])
@simulated()
async def test_t33_a_lost_node_that_returns_leaves_exactly_three_copies(
    cluster: SimCluster, returns_after_s: float
) -> None:
    """Declared dead after 8 s, copied from 4 s later on: it returns before, during and after that."""
    cluster.expected_errors = ("node_dead",)
    await sealed_stream(cluster)
    cluster.nodes[1].kill()
    await cluster.wait(returns_after_s)
    await cluster.nodes[1].start()
    await cluster.until_in_order()
    await cluster.until(lambda: copies_are_exact(cluster), "extra copies are gone")
    await cluster.settle()
    assert copies_are_exact(cluster)


@pytest.mark.parametrize("pause_s", [0.0, 0.003, 0.02, 0.2])
@simulated(managers=3)
async def test_t34_managers_that_die_during_a_recovery_leave_no_half_copy(cluster: SimCluster, pause_s: float) -> None:
    cluster.expected_errors = ("node_dead",)
    await sealed_stream(cluster)
    lost = 1
    cluster.nodes[lost].kill()
    for _ in range(3):  # each dies at another step of the task: saved, ordered, copied, swapped
        await cluster.leader()
        await cluster.until(
            lambda: bool(cluster.state.tasks) or not cluster.state.extents_on(lost), "a task is saved", step_s=0.001
        )
        await cluster.wait(pause_s)
        leader = await cluster.leader()
        leader.kill()
        await cluster.leader()
        leader.start()
    await cluster.until(lambda: not cluster.state.extents_on(lost), "its replicas are elsewhere")
    await cluster.until_in_order()
    assert not parts_of_copies(cluster)
    await cluster.settle()
    await cluster.until(lambda: copies_are_exact(cluster), "extra copies are gone")


@simulated()
async def test_t35_a_node_that_has_a_stale_copy_is_not_done_by_having_it(cluster: SimCluster) -> None:
    """The target of a recovery finds a short file of an earlier life of that extent on its disk."""
    cluster.expected_errors = ("node_dead", "replica_unreadable")
    _, _, writer, extent = await written(cluster)
    data = cluster.bytes_on(extent.node_ids[0], extent.extent_id)
    assert data is not None
    (spare,) = [node_id for node_id in cluster.nodes if node_id not in extent.node_ids]
    lost = extent.node_ids[2]
    cluster.nodes[lost].kill()
    await writer.append()  # sealed, with two of three
    await writer.close()
    # By now `spare` has no replica: a restored backup of its disk brings a part of one, with nothing to tell it apart.
    node, source = cluster.nodes[spare], cluster.nodes[extent.node_ids[0]]
    node.kill()
    path = node.extent_path(extent.extent_id)
    node.fs.make_dirs(path.rpartition("/")[0])
    descriptor = node.fs.open(path, create=True)
    node.fs.pwrite(descriptor, [data[: len(data) // 2]], 0)
    from_fd = source.fs.open(path, writable=False)
    for name in ("user.neve.meta", "user.neve.token"):
        value = source.fs.get_xattr(from_fd, name)
        assert value is not None
        node.fs.set_xattr(descriptor, name, value)
    source.fs.close(from_fd)
    node.fs.fsync(descriptor)
    node.fs.close(descriptor)
    await node.start()
    await cluster.until(lambda: lost not in cluster.state.extents[extent.extent_id].node_ids, "it is replaced")
    await cluster.until_in_order()
    assert set(cluster.state.extents[extent.extent_id].node_ids) == {*extent.node_ids, spare} - {lost}
    assert cluster.bytes_on(spare, extent.extent_id) == data
    await cluster.settle()


async def set_mode(client: SimClient, node_id: int, mode: sm.NodeMode) -> None:
    await client.run(client.neve.admin.set_node_mode(node_id, mode))


async def node_record(client: SimClient, node_id: int) -> sm.NodeRecord:
    (record,) = await client.run(client.neve.admin.nodes([node_id]))
    return record


@simulated()
async def test_t41_a_decommission_with_empty_full_and_open_extents_finishes_while_writing(cluster: SimCluster) -> None:
    _, client, writer = await sealed_stream(cluster)
    await cluster.create_stream(replicas=3)  # an empty one, open
    await set_mode(client, 1, sm.NODE_MODE_DECOMMISSIONED)
    leaving = asyncio.ensure_future(
        cluster.until(lambda: not cluster.state.extents_on(1), "node 1 is empty", limit_s=200)
    )
    while not leaving.done():
        await writer.append(200)
        await cluster.wait(0.5)
    await leaving
    while (await node_record(client, 1)).mode != sm.NODE_MODE_DECOMMISSIONED:
        await cluster.wait(1)
    assert list((await node_record(client, 1)).hold_ups) == []
    await cluster.settle()
    assert not cluster.state.extents_on(1)


@simulated(nodes=3)
async def test_t41_a_decommission_that_cannot_finish_says_why(cluster: SimCluster) -> None:
    _, client, _ = await sealed_stream(cluster)
    await set_mode(client, 1, sm.NODE_MODE_DECOMMISSIONED)
    await cluster.wait(60)
    record = await node_record(client, 1)
    assert record.mode == sm.NODE_MODE_DRAINING
    assert len(record.hold_ups) > 0
    assert any("node" in line for line in record.hold_ups)
    added = cluster.add_node(4)
    await added.start()
    while (await node_record(client, 1)).mode != sm.NODE_MODE_DECOMMISSIONED:
        await cluster.wait(1)
    await cluster.settle()


@simulated(seed=42, managers=3)
async def test_t42_nodes_come_and_go_under_partitions_and_kills(cluster: SimCluster) -> None:
    cluster.expected_errors = ("node_dead",)
    _, client, writer = await sealed_stream(cluster)
    for round_number in range(3):
        added = cluster.add_node(5 + round_number)
        await added.start()
        leaving = round_number + 1
        await set_mode(client, leaving, sm.NODE_MODE_DECOMMISSIONED)
        pending = asyncio.ensure_future(writer.append_some(20, 200))
        await cluster.wait(0.05)
        if round_number == 0:
            (await cluster.leader()).kill()
        elif round_number == 1:
            cluster.network.partition("node3", "node4")
            cluster.network.partition(added.host, "manager1")
        else:
            cluster.nodes[4].kill()
        await pending
        await cluster.wait(20)
        await cluster.heal()
    await cluster.until(lambda: all(not cluster.state.extents_on(n) for n in (1, 2, 3)), "the old nodes are empty")
    for node_id in (1, 2, 3):
        cluster.nodes[node_id].kill()
    await cluster.wait(5)
    await writer.append_some(3)
    records = await client.read(writer.session.stream_id)
    assert len(records) >= len(cluster.ledger.acknowledged()) - 1
    await cluster.settle()


@simulated()
async def test_t43_a_node_that_is_gone_for_ever_leaves_nothing_under_replicated(cluster: SimCluster) -> None:
    cluster.expected_errors = ("node_dead",)
    _, client, writer = await sealed_stream(cluster)
    idle = await cluster.create_stream(replicas=3)  # its open extent counts, too
    lost = next(node_id for node_id in cluster.nodes if cluster.state.extents_on(node_id))
    cluster.nodes[lost].kill()
    status = await client.run(client.neve.admin.status())
    await cluster.until(lambda: lost in cluster.state.dead_nodes(), "it is declared dead")
    status = await client.run(client.neve.admin.status())
    assert status.under_replicated > 0
    await writer.append()
    await cluster.until(lambda: not cluster.state.extents_on(lost), "its replicas are elsewhere")
    await cluster.until_in_order()
    status = await client.run(client.neve.admin.status())
    assert status.under_replicated == 0
    assert status.tasks == 0
    await (await cluster.take_over("next", idle.id)).append()
    await cluster.settle()


@simulated(placing=Placing(free_bytes_min=10_000))
async def test_t44_a_full_node_gets_no_new_extent(cluster: SimCluster) -> None:
    _, _, writer = await sealed_stream(cluster)
    full = 2
    fs = cluster.nodes[full].fs
    fs.set_capacity("/disk0", 1 << 30)
    used = fs.usage("/disk0")
    fs.set_capacity("/disk0", used.capacity_bytes - used.free_bytes + 2_000)
    await cluster.wait(10)  # it looks at its disks every 5 s, and tells it with a heartbeat
    cluster.term.allocator._prepared.clear()  # what was made ahead, when there was room
    before = set(cluster.state.extents)
    while len(set(cluster.state.extents) - before) < 6:
        await writer.append(300)
    made = [extent for extent_id, extent in cluster.state.extents.items() if extent_id not in before]
    assert all(full not in extent.node_ids for extent in made)
    fs.set_capacity("/disk0", 1 << 30)
    await cluster.settle()


@simulated()
async def test_t45_a_writer_of_a_deleted_stream_is_refused(cluster: SimCluster) -> None:
    stream, _, writer, extent = await written(cluster)
    operator = await cluster.client("operator")
    cluster.ledger.deleted[stream.id] = None
    await operator.run(operator.neve.delete(stream.id))
    with pytest.raises(NeveError):
        await writer.append(100)
    assert writer.writer.error is not None
    acknowledged = len(cluster.ledger.acknowledged())
    await cluster.wait(10)
    assert len(cluster.ledger.acknowledged()) == acknowledged
    assert extent.extent_id not in cluster.stored_state().extents
    await cluster.until(lambda: not holders(cluster, extent.extent_id), "its files are deleted")
    await cluster.settle()


@pytest.mark.parametrize("hung", ["stopped", "silent"])
@simulated()
async def test_t46_one_hung_node_holds_up_appends_opening_and_recovery_for_a_bounded_time(
    cluster: SimCluster, hung: str
) -> None:
    cluster.expected_errors = ("node_dead",)
    stream, _, writer, extent = await written(cluster)
    loop = asyncio.get_running_loop()
    node = cluster.nodes[extent.node_ids[0]]
    if hung == "stopped":
        node.pause()
    else:  # it lives, and answers nobody
        for other in ["writer", "other", "third", *(m.host for m in cluster.managers.values())]:
            cluster.network.partition_one_way(node.host, other)
    begun_s = loop.time()
    await writer.append(100)
    # Attempts at the replica, then a fence that waits for it, and a new extent that is tried on it at worst.
    attempts_s = OPTIONS.append_timeout_s * OPTIONS.append_attempts_max
    bound_s = attempts_s + 4 * cluster.config.timeouts.node_call_s + 2
    assert loop.time() - begun_s < bound_s
    begun_s = loop.time()
    await (await cluster.take_over("other", stream.id)).append(100)
    assert loop.time() - begun_s < bound_s
    assert sealed_length(cluster, extent) >= length_of(writer) - 108
    await cluster.until(lambda: not cluster.state.extents_on(node.node_id), "its replicas are elsewhere", limit_s=60)
    await (await cluster.take_over("third", stream.id)).append(100)
    await cluster.settle()


@simulated()
async def test_t47_a_slow_replica_bounds_what_a_client_holds(cluster: SimCluster) -> None:
    stream = await cluster.create_stream(replicas=3, extent_bytes_max=1 << 22)
    options = dataclasses.replace(
        OPTIONS, writer_bytes_max=20_000, frames_in_flight_max=2, frame_bytes=1000, append_timeout_s=5.0
    )
    client = await cluster.client("writer", options=options)
    writer = await client.writer(stream.id)
    slow = f"node{cluster.tail(stream.id).node_ids[1]}"
    cluster.network.slow("writer", slow, factor=1000)  # a tenth of a second a frame, and no error
    deadline_s = asyncio.get_running_loop().time() + 60
    appended = 0

    async def load() -> None:
        nonlocal appended
        while asyncio.get_running_loop().time() < deadline_s:
            await writer.append(800)
            appended += 1

    loads = [asyncio.ensure_future(load()) for _ in range(50)]  # twice as much as it may hold
    most_bytes = 0
    while not all(task.done() for task in loads):
        most_bytes = max(most_bytes, writer.writer.stats.held_bytes)
        await cluster.wait(0.05)
    await asyncio.gather(*loads)
    assert most_bytes <= options.writer_bytes_max
    assert most_bytes > options.writer_bytes_max * 0.9, "the story must reach the bound"
    assert appended > 200
    assert writer.writer.stats.rolls == 0, "slow is no reason to leave it"
    await cluster.settle()


@simulated(nodes=5, node_options={"disks": 2})
async def test_replicas_that_come_back_are_asked_while_a_task_finds_no_source(cluster: SimCluster) -> None:
    """One replica is lost for ever, and two are out of reach just then: the copy begins without a source. When those
    are back with all bytes, they confirm, and the copy goes on. Found by a story with swapped and wiped disks."""
    cluster.expected_errors = ("bad_replica_found", "copy_failed", "disk_gone", "disk_refused")
    stream, _, _ = await sealed_stream(cluster, extents=1)
    extent_id = cluster.state.streams[stream.id].extent_ids[0]
    wiped, *away = (cluster.nodes[node_id] for node_id in cluster.state.extents[extent_id].node_ids)
    others = [node for node in cluster.nodes.values() if node not in (wiped, *away)]
    folders = [f"/disk{n}" for node in away for n in (0, 1) if node.fs.stat(node.extent_path(extent_id, n)) is not None]

    async def swap() -> None:
        for node, other, folder in zip(away, others, folders, strict=True):
            node.kill()
            other.kill()
            cluster.wire.without_disk.update((node.host, other.host))
            node.fs.swap_disk(other.fs, folder)
            await node.start()
            await other.start()

    cluster.unreliable.add(wiped.node_id)
    wiped.kill()
    wiped.wipe()
    await swap()
    await cluster.until(lambda: cluster.state.extents[extent_id].confirmed == (wiped.node_id,), "two are not found")
    await cluster.until(lambda: extent_id in cluster.state.tasks, "a copy is begun")
    await wiped.start()
    await cluster.until(lambda: cluster.state.tasks[extent_id].attempts > 0, "it has failed")
    await swap()
    await cluster.settle()


@simulated()
async def test_a_node_whose_journal_cannot_be_read_refuses_to_start_and_starts_when_it_can(cluster: SimCluster) -> None:
    """Short story 2046: a restart within the time for which the journal's disk gives errors."""
    _, _, writer = await sealed_stream(cluster)
    node = cluster.nodes[cluster.tail(writer.session.stream_id).node_ids[0]]
    fault = node.fs.fail(errno.EIO, match=lambda call, path: call == "pread" and path.endswith(LABEL), times=None)
    node.kill()
    with pytest.raises(JournalRefused, match="copy the folder to another disk"):
        await node.start()
    assert not node.running
    await writer.append_some(3, 300)  # the others go on without it
    fault.clear()
    await node.start()
    await cluster.settle()
