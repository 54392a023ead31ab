"""Lost replicas are made anew, on real nodes: by whom, in which order, and what a death in the middle does to it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from neve.extent_node.store import control as store_control
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument
from neve.rpc.service import Call
from neve.stream_manager.config import Recovery as RecoveryConfig
from neve.stream_manager.metadata.record_kinds import NODE, TASK
from neve.stream_manager.metadata.records import Extent, ReplicaAt, Task
from neve.stream_manager.nodes.task_steps import swap
from tests.unit.stream_manager.nodes_rig import BLOCKS, BYTES, Rig, mutation, simulated

CALL = Call(None, deadline_s=0.0, principal="", peer="")  # type: ignore[arg-type]
Kind = sm.RecoveryTask.Kind


async def declare_dead(rig: Rig, *node_ids: int) -> None:
    for node_id in node_ids:
        rig.nodes[node_id].kill()
    while not set(node_ids) <= rig.ctx.state.dead_nodes():
        await rig.wait(1.0)
        await rig.part.registry.run_once(rig.ctx.clock())


async def passes(rig: Rig, count: int = 1) -> None:
    for _ in range(count):
        await rig.part.recovery.run_once(rig.ctx.clock())
        await rig.wait(1.5)


async def until_passes(rig: Rig, done: Any, limit: int = 60) -> None:
    for _ in range(limit):
        if done():
            return
        await passes(rig)
    raise AssertionError("it did not happen")


def recovered(rig: Rig, extent: Extent, *lost: int) -> bool:
    now = rig.extent(extent.extent_id)
    return now.all_confirmed and not set(lost) & set(now.node_ids) and not rig.ctx.state.tasks


# --- T43, T33 -------------------------------------------------------------------------------------------------


@simulated
async def test_t43_a_node_lost_for_ever_is_noticed_and_nothing_stays_under_replicated() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4, 5)
        sealed = [await rig.sealed_stream() for _ in range(6)]
        streams = [await rig.make_stream() for _ in range(3)]
        lost = 3
        rig.nodes[lost].kill()
        await rig.until(lambda: not rig.ctx.state.extents_on(lost) and not rig.ctx.state.tasks)
        await rig.until(lambda: not rig.ctx.state.unconfirmed_extents)
        for extent_id in [extent.extent_id for extent in sealed] + [rig.tail(stream).extent_id for stream in streams]:
            if rig.extent(extent_id).seal is not None:
                rig.check_equal(extent_id)
                assert len(rig.extent(extent_id).replicas) == 3
        rig.ctx.state.validate()


@simulated
async def test_t43_an_open_extent_of_an_idle_stream_regains_its_redundancy() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        stream_id = await rig.make_stream(nodes=(1, 2, 3))
        extent_id = rig.tail(stream_id).extent_id
        rig.nodes[2].kill()
        await rig.until(lambda: rig.extent(extent_id).all_confirmed)
        seal = rig.extent(extent_id).seal
        assert seal is not None
        assert seal.length == len(BYTES)
        assert set(rig.extent(extent_id).node_ids) == {1, 3, 4}
        rig.check_equal(extent_id)


@simulated
async def test_t33_a_lost_node_that_returns_during_its_recovery_leaves_exactly_three_copies() -> None:
    """The copy is held up while it runs, the lost node comes back, and only then the copy may go on."""
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        gate = asyncio.Event()
        hold_copies(rig, 4, gate)
        rig.nodes[3].kill()
        await rig.until(lambda: bool(rig.ctx.state.tasks))
        await rig.nodes[3].start()
        await rig.until(lambda: not rig.ctx.state.tasks)
        gate.set()
        await rig.until(lambda: 4 in rig.holders(extent.extent_id))
        assert rig.extent(extent.extent_id).node_ids == extent.node_ids
        await rig.until(lambda: rig.holders(extent.extent_id) == [1, 2, 3])
        assert rig.extent(extent.extent_id).all_confirmed
        rig.check_equal(extent.extent_id)


@simulated
async def test_t33_a_node_that_returns_after_its_recovery_loses_its_copy_after_the_grace_time() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        rig.nodes[3].kill()
        await rig.until(lambda: recovered(rig, extent, 3))
        await rig.nodes[3].start()
        await rig.wait(40)  # it has reported by now, and the grace time is not over
        assert rig.holders(extent.extent_id) == [1, 2, 3, 4]
        await rig.until(lambda: rig.holders(extent.extent_id) == [1, 2, 4])
        rig.check_equal(extent.extent_id)


@simulated
async def test_t33_an_extra_copy_is_kept_while_it_might_be_the_only_good_one() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        rig.nodes[3].kill()
        await rig.until(lambda: recovered(rig, extent, 3))
        await rig.nodes[3].start()
        for node_id in (1, 2, 4):
            rig.nodes[node_id].kill()
        await rig.wait(400)
        assert rig.holders(extent.extent_id) == [3]


def hold_copies(rig: Rig, node_id: int, gate: asyncio.Event) -> None:
    """Copies on this node wait for the gate before they begin."""
    store = rig.nodes[node_id].store
    begin = store.copies.begin

    async def late(request: en.StartCopyRequest) -> Any:
        await gate.wait()
        return await begin(request)

    store.copies.begin = late  # type: ignore[method-assign]


# --- T34, T35: tasks and their ends ---------------------------------------------------------------------------


@simulated
async def test_t34_the_task_is_in_etcd_before_any_node_hears_of_it() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        await declare_dead(rig, 3)
        await rig.wait(6)
        seen: list[Task | None] = []
        order = rig.ctx.nodes.start_copy

        async def start_copy(*args: Any, **named: Any) -> None:
            await rig.depose()  # the manager is over before the order leaves
            seen.append(None)

        rig.ctx.nodes.start_copy = start_copy  # type: ignore[method-assign]
        work = asyncio.ensure_future(rig.part.recovery.run_once(rig.ctx.clock()))
        await rig.until(lambda: bool(seen))
        await asyncio.gather(work, return_exceptions=True)
        del order
        await rig.lead()
        task = rig.ctx.state.tasks[extent.extent_id]
        assert (task.kind, task.lost, task.attempts) == (Kind.COPY, extent.replica_on(3), 0)
        assert rig.holders(extent.extent_id) == [1, 2]
        await until_passes(rig, lambda: recovered(rig, extent, 3))
        rig.check_equal(extent.extent_id)
        assert rig.nodes[4].fs.list_dir("/disk0/tmp") == []


@simulated
async def test_t34_a_copy_that_runs_when_the_manager_changes_is_finished_by_the_next_one_under_the_same_task() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        gate = asyncio.Event()
        hold_copies(rig, 4, gate)
        await declare_dead(rig, 3)
        await rig.wait(6)
        await passes(rig, 2)
        task_id = rig.ctx.state.tasks[extent.extent_id].task_id
        assert len(rig.nodes[4].copier._running) == 1
        await rig.depose()
        await rig.lead()
        await passes(rig, 3)
        assert rig.ctx.state.tasks[extent.extent_id].task_id == task_id
        gate.set()
        await until_passes(rig, lambda: recovered(rig, extent, 3))
        assert rig.nodes[4].copier.counters.tasks_started == 1
        rig.check_equal(extent.extent_id)


@simulated
async def test_t35_a_stale_copy_on_the_target_is_never_done_by_its_existence() -> None:
    """Node 4 holds a short, open file of the same extent: the task is done only after that is made anew."""
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        stale = en.CreateExtentRequest(extent_id=extent.extent_id, eversion=1, extent_bytes_max=1 << 20)
        await store_control.create(rig.nodes[4].store.state, stale)
        await declare_dead(rig, 3)
        await rig.wait(6)
        await until_passes(rig, lambda: recovered(rig, extent, 3))
        info = rig.on_node(4, extent.extent_id)
        assert info is not None
        assert rig.extent(extent.extent_id).replica_on(4) == ReplicaAt(
            4, info.replica.disk_uuid, info.replica.incarnation
        )
        rig.check_equal(extent.extent_id)


@simulated
async def test_t35_a_word_about_another_task_another_length_or_another_digest_is_not_believed() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        hold_copies(rig, 4, asyncio.Event())
        await declare_dead(rig, 3)
        await rig.wait(6)
        await passes(rig)
        assert extent.seal is not None
        good = {"length": extent.seal.length, "eversion": extent.seal.eversion, "digest": extent.seal.digest}
        for wrong in (
            {"seal": {**good, "length": 1}},
            {"seal": {**good, "digest": b"x" * 32}},
            {"seal": {**good, "digest": b""}},
            {"replica": {"node_id": 2, "disk_uuid": "d", "incarnation": 5}},
            {"replica": {"node_id": 4, "disk_uuid": "d", "incarnation": 0}},
            {"task_id": 12345},
        ):
            task = rig.ctx.state.tasks[extent.extent_id]
            told = en.CopyStatusReply(
                **{  # type: ignore[arg-type]
                    "state": en.CopyStatusReply.DONE,
                    "task_id": task.task_id,
                    "extent_id": extent.extent_id,
                    "replica": {"node_id": 4, "disk_uuid": "d", "incarnation": 5},
                    "seal": good,
                    **wrong,
                }
            )
            await rig.part.recovery.steps.finish(task, told, rig.ctx.clock())
            now = rig.ctx.state.tasks[extent.extent_id]
            assert now.task_id != task.task_id, wrong  # tried again, under another id
            assert rig.extent(extent.extent_id) == extent


@simulated
async def test_a_node_that_dies_while_it_copies_hands_its_task_over() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4, 5)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        for node_id in (4, 5):
            hold_copies(rig, node_id, asyncio.Event())
        rig.nodes[3].kill()
        await rig.until(lambda: extent.extent_id in rig.ctx.state.tasks)
        first = rig.ctx.state.tasks[extent.extent_id]
        assert first.target is not None
        other = 9 - first.target.node_id
        rig.nodes[other].kill()
        await rig.nodes[other].start()  # without the gate
        rig.nodes[first.target.node_id].kill()
        await rig.until(lambda: recovered(rig, extent, 3))
        assert set(rig.extent(extent.extent_id).node_ids) == {1, 2, other}
        rig.check_equal(extent.extent_id)


@simulated
async def test_a_copy_whose_target_is_gone_makes_way_for_the_lost_node_if_that_is_back_without_its_replica() -> None:
    """Nobody else can take it: it is filled where it was (found by short story 1770)."""
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        stream_id = await rig.make_stream(nodes=(1, 2, 3))
        extent_id = rig.tail(stream_id).extent_id
        hold_copies(rig, 4, asyncio.Event())
        rig.nodes[3].kill()
        await rig.until(lambda: extent_id in rig.ctx.state.tasks)
        await declare_dead(rig, 4)
        rig.nodes[3].wipe()
        await rig.nodes[3].start()
        await rig.until(lambda: rig.extent(extent_id).all_confirmed and not rig.ctx.state.tasks)
        assert set(rig.extent(extent_id).node_ids) == {1, 2, 3}
        rig.check_equal(extent_id)


@simulated
async def test_a_node_that_restarts_while_it_copies_is_given_the_task_again() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        hold_copies(rig, 4, asyncio.Event())
        rig.nodes[3].kill()
        await rig.until(lambda: len(rig.nodes[4].copier._running) == 1)
        rig.nodes[4].kill()
        await rig.nodes[4].start()
        await rig.until(lambda: recovered(rig, extent, 3))
        rig.check_equal(extent.extent_id)


@simulated
async def test_copies_that_a_restarted_node_has_forgotten_take_no_place_at_their_only_source() -> None:
    async with Rig(recovery=RecoveryConfig(delay_s=1, tasks_per_node_max=2)) as rig:
        await rig.start_nodes(1, 2, 3)
        extents = [await rig.sealed_stream(replicas=2, nodes=(1, 2)) for _ in range(2)]
        hold_copies(rig, 3, asyncio.Event())
        rig.nodes[2].kill()
        await rig.until(lambda: len(rig.nodes[3].copier._running) == 2)
        rig.nodes[3].kill()
        await rig.nodes[3].start()
        for extent in extents:
            await rig.until(lambda extent=extent: recovered(rig, extent, 2))  # type: ignore[misc]
            rig.check_equal(extent.extent_id)


@simulated
async def test_a_copy_that_fails_is_tried_again_and_then_elsewhere() -> None:
    async with Rig(recovery=RecoveryConfig(delay_s=1, retry_delay_s=1, retry_delay_s_max=2, attempts_max=2)) as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        rig.nodes[4].fs.set_capacity("/disk0", 1)  # a full disk that has not been noticed
        rig.nodes[3].kill()
        await rig.until(lambda: bool(rig.part.problems.text(extent.extent_id)))
        await rig.start_nodes(5)
        await rig.until(lambda: recovered(rig, extent, 3))
        assert set(rig.extent(extent.extent_id).node_ids) == {1, 2, 5}


# --- when, and how much ---------------------------------------------------------------------------------------


@simulated
async def test_a_dead_node_is_waited_for_and_a_second_loss_ends_the_wait() -> None:
    slow = RecoveryConfig(delay_s=1000)
    async with Rig(manual=True, recovery=slow) as rig:
        await rig.start_nodes(1, 2, 3, 4, 5)
        one = await rig.sealed_stream(nodes=(1, 2, 3))
        two = await rig.sealed_stream(nodes=(2, 3, 4))
        await declare_dead(rig, 2)
        await passes(rig, 5)
        assert rig.ctx.state.tasks == {}
        await declare_dead(rig, 4)
        await until_passes(rig, lambda: two.extent_id in rig.ctx.state.tasks or recovered(rig, two, 4))
        assert one.extent_id not in rig.ctx.state.tasks
        assert rig.extent(one.extent_id).node_ids == one.node_ids


@simulated
async def test_a_node_that_restarts_in_time_costs_no_copy() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        for node_id in (1, 2, 3):
            rig.nodes[node_id].kill()
            await rig.wait(9)  # dead, but not for long enough
            await rig.nodes[node_id].start()
            await rig.wait(12)
        assert rig.extent(extent.extent_id).node_ids == extent.node_ids
        assert rig.ctx.state.tasks == {}
        assert rig.holders(extent.extent_id) == [1, 2, 3]


@simulated
async def test_the_most_endangered_extents_come_first() -> None:
    bounds = RecoveryConfig(delay_s=1, tasks_max=1)
    async with Rig(manual=True, recovery=bounds) as rig:
        await rig.start_nodes(1, 2, 3, 4, 5)
        await rig.sealed_stream(nodes=(1, 2, 3))
        await rig.sealed_stream(nodes=(1, 2, 3))
        endangered = await rig.sealed_stream(nodes=(2, 3, 4))
        await declare_dead(rig, 3, 4)
        await rig.wait(3)
        await rig.part.recovery.run_once(rig.ctx.clock())
        assert list(rig.ctx.state.tasks) == [endangered.extent_id]


@simulated
async def test_no_more_tasks_than_the_bounds_allow_in_all_and_for_each_node() -> None:
    bounds = RecoveryConfig(delay_s=1, tasks_max=5, tasks_per_node_max=2)
    async with Rig(manual=True, recovery=bounds) as rig:
        await rig.start_nodes(1, 2, 3, 4, 5, 6)
        extents = [await rig.sealed_stream(nodes=(1, 2, 3)) for _ in range(9)]
        for node_id in (4, 5, 6):
            hold_copies(rig, node_id, asyncio.Event())
        await declare_dead(rig, 3)
        await rig.wait(3)
        await passes(rig, 4)
        tasks = rig.ctx.state.tasks.values()
        targets = [task.target.node_id for task in tasks if task.target is not None]
        assert 1 <= len(targets) <= 5
        assert max(targets.count(node_id) for node_id in targets) <= 2
        # Nodes 1 and 2 are the only sources, two copies each.
        assert len(targets) == 4
        assert len(extents) == 9


@simulated
async def test_a_target_takes_no_more_copies_at_a_time_than_it_may() -> None:
    bounds = RecoveryConfig(delay_s=1, tasks_per_node_max=2)
    async with Rig(manual=True, recovery=bounds) as rig:
        await rig.start_nodes(1, 2, 3, 4, 5, 6)
        for node_id in (1, 2, 4, 5):
            await rig.sealed_stream(replicas=2, nodes=(node_id, 3))
        for node_id in (1, 2, 4, 5):  # sources, but no targets
            request = sm.SetNodeModeRequest(node_id=node_id, mode=sm.NODE_MODE_READ_ONLY)
            await rig.part.set_node_mode(request, mutation())
        gate = asyncio.Event()
        hold_copies(rig, 6, gate)
        await declare_dead(rig, 3)
        await rig.wait(3)
        await passes(rig, 4)
        assert len(rig.ctx.state.tasks) == 2
        assert not any(rig.part.problems.text(extent_id) for extent_id in rig.ctx.state.extents)  # they only wait
        gate.set()
        await until_passes(rig, lambda: not rig.ctx.state.extents_on(3))


@simulated
async def test_repairs_that_begin_at_once_keep_the_bounds_and_do_not_wait_for_each_other() -> None:
    """More than all nodes take at a time: those that have a task and no copy yet must not keep all sources busy."""
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3)
        extents = [await rig.sealed_stream(nodes=(1, 2, 3)) for _ in range(30)]
        recovery, now_s = rig.part.recovery, rig.ctx.clock()
        begun = await asyncio.gather(
            *(
                recovery.repair_in_place(extent.extent_id, extent.replicas[number % 3], now_s, verify=True)
                for number, extent in enumerate(extents)
            )
        )
        assert any(begun)
        targets = Counter(task.target.node_id for task in rig.ctx.state.tasks.values() if task.target is not None)
        assert max(targets.values()) <= rig.ctx.config.recovery.tasks_per_node_max
        await until_passes(rig, lambda: not rig.ctx.state.tasks)


@simulated
async def test_tasks_without_a_copy_are_dispatched_however_many_there_are() -> None:
    """As a manager finds them that has just been elected, or after nodes were too busy to take them."""
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3)
        extents = [await rig.sealed_stream(nodes=(1, 2, 3)) for _ in range(18)]
        for number, extent in enumerate(extents):
            lost = extent.replicas[number % 3]
            task = Task(number + 1, extent.extent_id, Kind.FILL, lost, lost, extent.eversion, 0)
            changes = rig.ctx.changes()
            changes.put(TASK, None, task)
            await rig.ctx.commit(changes)
        await until_passes(rig, lambda: not rig.ctx.state.tasks)


@simulated
async def test_a_bad_replica_that_is_to_be_made_elsewhere_is_not_made_on_its_own_node() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extents = [await rig.sealed_stream(nodes=(1, 2, 3)) for _ in range(6)]
        for extent in extents:
            replica = extent.replica_on(3)
            assert replica is not None
            rig.part.recovery.bad[extent.extent_id, 3] = replica.incarnation
        await until_passes(rig, lambda: all(recovered(rig, extent, 3) for extent in extents))
        assert rig.part.recovery.bad == {}


@simulated
async def test_a_replica_that_was_away_while_its_extent_was_open_is_not_made_anew_after_the_seal() -> None:
    """Short story 8154: its disk was swapped and came back; no node could take a copy, and the task never ended."""
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3)
        recovery = rig.part.recovery
        stream_id = await rig.make_stream(nodes=(1, 2, 3))
        opened = rig.tail(stream_id)
        recovery.note_bad(opened.extent_id, opened.replicas[2])
        assert recovery.trouble(0.0).bad, "it is to be sealed because of it"
        sealed = await rig.seal(stream_id)
        await rig.until(lambda: rig.extent(sealed.extent_id).all_confirmed)
        assert not recovery.trouble(0.0).bad
        extent = rig.extent(sealed.extent_id)
        recovery.note_bad(extent.extent_id, extent.replicas[2])  # it has gone bad since
        assert recovery.trouble(0.0).bad


@simulated
async def test_copies_share_the_bandwidth() -> None:
    bounds = RecoveryConfig(delay_s=1, bytes_per_s_max=5 << 20, copy_bytes_per_s_max=2 << 20)
    async with Rig(manual=True, recovery=bounds) as rig:
        await rig.start_nodes(1, 2, 3, 4)
        for _ in range(5):
            await rig.sealed_stream(nodes=(1, 2, 3))
        hold_copies(rig, 4, asyncio.Event())
        rates: list[int] = []
        order = rig.ctx.nodes.start_copy

        async def start_copy(*args: Any, **named: Any) -> None:
            rates.append(named["bytes_per_s_max"] >> 20)
            await order(*args, **named)

        rig.ctx.nodes.start_copy = start_copy  # type: ignore[method-assign]
        await declare_dead(rig, 3)
        await rig.wait(3)
        await passes(rig, 3)
        assert rates == [2, 2, 1]


async def extent_out_of_reach(rig: Rig) -> Extent:
    """Of four nodes the three that have it are dead, and that is said."""
    await rig.start_nodes(1, 2, 3, 4)
    extent = await rig.sealed_stream(nodes=(1, 2, 3))
    for node_id in (1, 2, 3):
        rig.nodes[node_id].kill()
    await rig.until(lambda: "no confirmed replica can be reached" in rig.part.problems.text(extent.extent_id))
    return extent


@simulated
async def test_an_extent_whose_replicas_are_all_gone_is_named_and_recovered_when_one_returns() -> None:
    async with Rig() as rig:
        extent = await extent_out_of_reach(rig)
        await rig.nodes[2].start()
        await rig.until(lambda: 4 in rig.extent(extent.extent_id).node_ids)
        assert rig.bytes_on(4, extent.extent_id) == BYTES


@simulated
async def test_what_held_an_extent_up_is_forgotten_when_its_nodes_are_back() -> None:
    """Nothing is left to do for it, so that nobody else would take the words away."""
    async with Rig() as rig:
        extent = await extent_out_of_reach(rig)
        for node_id in (1, 2, 3):
            await rig.nodes[node_id].start()
        await rig.until(lambda: not rig.part.problems.text(extent.extent_id))
        assert not rig.ctx.state.tasks


@simulated
async def test_an_open_extent_that_could_not_be_sealed_is_held_up_no_longer_when_its_owner_has_sealed_it() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        streams = [await rig.make_stream(nodes=(1, 2, 3)) for _ in range(2)]
        sealed, back = (rig.tail(stream_id).extent_id for stream_id in streams)
        fence = rig.ctx.nodes.fence

        async def missing(*arguments: Any, **named: Any) -> en.LengthAnswer:
            return en.LengthAnswer(kind=en.LengthAnswer.NEVER_EXISTED)

        rig.ctx.nodes.fence = missing  # type: ignore[method-assign]
        rig.nodes[3].kill()
        await rig.until(lambda: all("cannot be sealed" in rig.part.problems.text(each) for each in (sealed, back)))
        rig.ctx.nodes.fence = fence  # type: ignore[method-assign]
        await rig.seal(streams[0])
        await rig.nodes[3].start()
        await rig.until(lambda: not any(rig.part.problems.text(each) for each in (sealed, back)))
        assert not rig.part.open_extents._held_up


@simulated
async def test_a_disk_that_goes_offline_is_recovered_elsewhere_though_its_node_lives() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        (disk,) = rig.nodes[3].store.state.disks.values()
        disk.note_failed("as the test wants it")
        await rig.until(lambda: recovered(rig, extent, 3))
        assert set(rig.extent(extent.extent_id).node_ids) == {1, 2, 4}
        assert rig.ctx.state.dead_nodes() == set()


@simulated
async def test_tasks_are_listed_with_their_progress() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extents = [await rig.sealed_stream(nodes=(1, 2, 3)) for _ in range(3)]
        hold_copies(rig, 4, asyncio.Event())
        await declare_dead(rig, 3)
        await rig.wait(6)
        await passes(rig, 2)
        page = rig.part.recovery.list_tasks(sm.ListTasksRequest(limit=2))
        assert page.more
        rest = rig.part.recovery.list_tasks(sm.ListTasksRequest(after_extent_id=page.tasks[-1].extent_id))
        listed = [*page.tasks, *rest.tasks]
        assert [task.extent_id for task in listed] == [extent.extent_id for extent in extents]
        task = listed[0]
        assert (task.lost.node_id, task.target.node_id, task.replicas_left) == (3, 4, 2)
        assert (task.kind, task.total_bytes) == (Kind.COPY, len(BYTES))


# --- T41: drain and decommission ------------------------------------------------------------------------------


async def decommission(rig: Rig, node_id: int) -> sm.NodeRecord:
    request = sm.SetNodeModeRequest(node_id=node_id, mode=sm.NODE_MODE_DECOMMISSIONED)
    return (await rig.part.set_node_mode(request, mutation())).node


def record(rig: Rig, node_id: int) -> sm.NodeRecord:
    return rig.part.node_record(rig.ctx.state.nodes[node_id])


@simulated
async def test_t41_a_decommission_moves_an_empty_a_full_and_an_open_extent_and_finishes() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        empty = await rig.sealed_stream(nodes=(1, 2, 3), blocks=[])
        full = await rig.sealed_stream(nodes=(1, 2, 3))
        stream_id = await rig.make_stream(nodes=(1, 2, 3))
        opened = rig.tail(stream_id)
        node = await decommission(rig, 3)
        assert node.mode == sm.NODE_MODE_DRAINING
        assert len(node.hold_ups) == 3
        told = f"extent {opened.extent_id} of stream {stream_id} is open"
        assert any(told in line for line in node.hold_ups)
        await rig.until(lambda: record(rig, 3).mode == sm.NODE_MODE_DECOMMISSIONED)
        assert list(record(rig, 3).hold_ups) == []
        for extent in (empty, full, opened):
            assert set(rig.extent(extent.extent_id).node_ids) == {1, 2, 4}
            rig.check_equal(extent.extent_id)
        # By the order behind each swap, and not only when the grace time of extra replicas is over.
        await rig.until(lambda: all(3 not in rig.holders(e.extent_id) for e in (empty, full, opened)), limit_s=10)
        rig.ctx.state.validate()


@simulated
async def test_a_decommission_under_way_is_not_replaced_by_another_order_until_it_is_cancelled() -> None:
    async def order(mode: sm.NodeMode, *, maintenance_s: int = 0) -> sm.NodeRecord:
        request = sm.SetNodeModeRequest(node_id=3, mode=mode, maintenance_s=maintenance_s)
        return (await rig.part.set_node_mode(request, mutation())).node

    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        await rig.sealed_stream(nodes=(1, 2, 3))
        await decommission(rig, 3)
        for refused in (order(sm.NODE_MODE_DRAINING), order(sm.NODE_MODE_MAINTENANCE, maintenance_s=60)):
            with pytest.raises(InvalidArgument, match="run `neve resume 3`"):
                await refused
            assert rig.ctx.state.nodes[3].mode_reason == "decommission"
        await decommission(rig, 3)  # the same again is no other order
        assert (await order(sm.NODE_MODE_NORMAL)).mode == sm.NODE_MODE_NORMAL
        assert (await order(sm.NODE_MODE_DRAINING)).mode == sm.NODE_MODE_DRAINING
        assert rig.ctx.state.nodes[3].mode_reason == ""


@simulated
async def test_t41_a_decommission_that_cannot_finish_says_exactly_why() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        alone = await rig.sealed_stream(replicas=1, nodes=(3,))
        three = await rig.sealed_stream(nodes=(1, 2, 3))
        unsealable = rig.tail(await rig.make_stream(replicas=2, nodes=(2, 3)))
        rig.nodes[2].kill()
        rig.nodes[3].kill()  # and with it the only replica of `alone`
        await rig.until(lambda: rig.ctx.state.dead_nodes() == {2, 3})
        await decommission(rig, 3)

        def told(extent: Extent, *words: str) -> bool:
            names = (f"extent {extent.extent_id} ", f"extent {extent.extent_id}:")
            lines = [line for line in record(rig, 3).hold_ups if line.startswith(names)]
            return len(lines) == 1 and all(word in lines[0] for word in words)

        await rig.until(lambda: told(alone, "no confirmed replica can be reached"))
        await rig.until(lambda: told(three, "nodes are needed", "node 2: dead"))
        await rig.until(lambda: told(unsealable, "is open", "0 of 2 replicas can be trusted", "bring back node"))
        assert record(rig, 3).mode == sm.NODE_MODE_DRAINING
        for node_id in (2, 3):
            await rig.nodes[node_id].start()
        await rig.start_nodes(4)
        await rig.until(lambda: record(rig, 3).mode == sm.NODE_MODE_DECOMMISSIONED)
        for extent in (alone, three, unsealable):
            rig.check_equal(extent.extent_id)
            assert rig.bytes_on(rig.extent(extent.extent_id).node_ids[0], extent.extent_id) == BYTES


@simulated
async def test_a_drain_that_is_taken_back_ends_its_tasks() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        hold_copies(rig, 4, asyncio.Event())
        await decommission(rig, 3)
        await rig.until(lambda: bool(rig.ctx.state.tasks))
        request = sm.SetNodeModeRequest(node_id=3, mode=sm.NODE_MODE_NORMAL)
        await rig.part.set_node_mode(request, mutation())
        await rig.until(lambda: not rig.ctx.state.tasks)
        assert rig.extent(extent.extent_id).node_ids == extent.node_ids
        assert record(rig, 3).mode == sm.NODE_MODE_NORMAL


# --- the swap -------------------------------------------------------------------------------------------------


@simulated
async def test_a_swap_changes_one_replica_and_the_eversion() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        assert extent.seal is not None
        lost = extent.replicas[1]
        made = ReplicaAt(9, "disk", 77)
        new = swap(extent, lost, made, extent.seal.digest)
        assert new.replicas == (extent.replicas[0], made, extent.replicas[2])
        assert new.eversion == extent.eversion + 1
        assert new.confirmed == (extent.node_ids[0], 9, extent.node_ids[2])
        assert swap(extent, lost, lost, extent.seal.digest) is extent


def test_blocks_are_what_the_rig_appends() -> None:
    assert b"".join(BLOCKS) == BYTES


@simulated
async def test_the_lost_replica_of_a_strict_stream_is_placed_strictly_if_any_node_allows_it() -> None:
    """The only node in the other rack has just failed a copy: a hint, which a strict policy outweighs."""
    async with Rig(manual=True) as rig:
        for node_id, rack in ((1, "r1"), (2, "r1"), (3, "r1"), (4, "r2"), (5, "r2")):
            await rig.start_node_at(node_id, "eu", rack)
        extent = await rig.sealed_stream(nodes=(1, 2, 4))
        steps, state = rig.part.recovery.steps, rig.ctx.state
        steps._failed_nodes[extent.extent_id] = {5: None}
        stream = state.streams[extent.stream_id]
        lost = extent.replica_on(4)
        assert lost is not None
        targets = []
        for strict in (False, True):
            state.streams[extent.stream_id] = stream._replace(policy=stream.policy._replace(strict=strict))
            target = steps._choose_target(extent, lost, steps.budget())
            assert target is not None
            targets.append(target.node_id)
        assert targets == [3, 5]
        state._set(NODE, 5, replace(state.nodes[5], health=sm.NODE_HEALTH_DEAD))
        target = steps._choose_target(extent, lost, steps.budget())
        assert target is not None
        assert target.node_id == 3  # better there than nowhere
