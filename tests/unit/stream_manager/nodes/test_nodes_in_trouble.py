"""Nodes that flap, hang, stay silent or never come back hold up nobody but themselves, and nothing is lost by them."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest

from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import ConnectFailed
from neve.proto.stream_policy import StreamPolicy
from neve.stream_manager.config import Collecting, Recovery
from neve.stream_manager.metadata.records import Extent, ReplicaAt
from neve.stream_manager.nodes import collect
from neve.stream_manager.placement.topology import Place, Topology
from neve.stream_manager.streams.confirm import seal_replicas
from neve.stream_manager.streams.make_extent import make_extent
from neve.stream_manager.term.revoked_confirmations import RevokedConfirmations
from tests.unit.stream_manager.nodes_rig import Rig, mutation, simulated

SHORT = Collecting(grace_s=120.0, extra_replica_grace_s=60.0, interval_s=5.0)


# --- a dead node that beats now and then (T43) ----------------------------------------------------------------


async def flap(rig: Rig, node_id: int, *, silent_s: float, while_on_it: int) -> None:
    """The node beats for a moment, over and over, until metadata does not list it for that extent, or for 5 minutes."""
    begun_s = rig.ctx.clock()
    while node_id in rig.extent(while_on_it).node_ids and rig.ctx.clock() - begun_s < 300:
        await rig.nodes[node_id].start()
        await rig.wait(1.5)
        rig.nodes[node_id].kill()
        await rig.wait(silent_s)
        assert node_id in rig.ctx.state.dead_nodes()


@pytest.mark.parametrize("silent_s", [4.5, 11.0])  # suspect after 3 s, dead after 8 s: never dead again, or each time
def test_t43_a_dead_node_that_beats_now_and_then_is_replaced(silent_s: float) -> None:
    @simulated
    async def run() -> None:
        async with Rig() as rig:
            await rig.start_nodes(1, 2, 3, 4)
            sealed = (await rig.sealed_stream(nodes=(1, 2, 3))).extent_id
            opened = rig.tail(await rig.make_stream(nodes=(1, 2, 3))).extent_id
            rig.nodes[3].kill()
            await rig.until(lambda: 3 in rig.ctx.state.dead_nodes())
            await flap(rig, 3, silent_s=silent_s, while_on_it=sealed)
            await flap(rig, 3, silent_s=silent_s, while_on_it=opened)
            assert 3 not in rig.extent(sealed).node_ids
            assert 3 not in rig.extent(opened).node_ids

    run()


@simulated
async def test_a_node_that_came_back_for_good_has_its_delay_again_when_it_dies_anew() -> None:
    async with Rig(recovery=Recovery(delay_s=20.0)) as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extent_id = (await rig.sealed_stream(nodes=(1, 2, 3))).extent_id
        rig.nodes[3].kill()
        await rig.until(lambda: 3 in rig.ctx.state.dead_nodes())
        await rig.nodes[3].start()
        await rig.until(lambda: 3 not in rig.ctx.state.dead_nodes())
        await rig.wait(30)
        rig.nodes[3].kill()
        await rig.until(lambda: 3 in rig.ctx.state.dead_nodes())
        await rig.wait(15)
        assert not rig.ctx.state.tasks
        assert 3 in rig.extent(extent_id).node_ids
        await rig.until(lambda: 3 not in rig.extent(extent_id).node_ids)


@simulated
async def test_a_dead_node_that_is_being_worked_on_is_waited_for() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extent_id = (await rig.sealed_stream(nodes=(1, 2, 3))).extent_id
        rig.nodes[3].kill()
        await rig.until(lambda: 3 in rig.ctx.state.dead_nodes())
        order = sm.SetNodeModeRequest(node_id=3, mode=sm.NODE_MODE_MAINTENANCE, maintenance_s=100)
        await rig.part.set_node_mode(order, mutation())
        await rig.wait(90)
        assert not rig.ctx.state.tasks
        assert 3 in rig.extent(extent_id).node_ids
        await rig.until(lambda: 3 not in rig.extent(extent_id).node_ids)


@simulated
async def test_a_task_without_any_target_is_not_rewritten_in_every_pass() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        for _ in range(3):
            await rig.sealed_stream(nodes=(1, 2, 3))

        async def never(*_: object) -> None:
            return None

        rig.part.recovery.steps.finish = never  # type: ignore[method-assign, assignment]
        rig.nodes[3].kill()
        await rig.until(lambda: len(rig.ctx.state.tasks) == 3)
        rig.nodes[4].kill()  # the only possible target
        await rig.until(lambda: 4 in rig.ctx.state.dead_nodes())
        before = rig.term.batcher.counters.committed
        await rig.wait(300)
        assert rig.term.batcher.counters.committed - before < 3 * 300 / 3  # delays of up to 4 s
        await rig.start_nodes(5)
        await rig.until(lambda: {task.target.node_id for task in rig.ctx.state.tasks.values() if task.target} == {5})


# --- leftovers ------------------------------------------------------------------------------------------------


@simulated
async def test_t33_an_extra_replica_is_kept_while_the_listed_ones_are_silent() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extent_id = (await rig.sealed_stream(nodes=(1, 2, 3))).extent_id
        rig.nodes[3].kill()
        await rig.until(lambda: 4 in rig.extent(extent_id).node_ids and rig.extent(extent_id).all_confirmed)
        await rig.nodes[3].start()
        odd = rig.part.collector._odd
        await rig.until(lambda: any(found.extent_id == extent_id for found in odd.get(3, {})))
        since_s = next(odd.since_s for found, odd in odd[3].items() if found.extent_id == extent_id)
        await rig.until(lambda: rig.ctx.clock() > since_s + 56.0)  # of 60
        for node_id in (1, 2, 4):
            rig.nodes[node_id].kill()
        await rig.wait(6.5)
        assert rig.ctx.state.dead_nodes() == set()  # suspect after 3 s, dead after 8 s
        assert rig.holders(extent_id) == [3]
        for node_id in (1, 2, 4):
            await rig.nodes[node_id].start()
        await rig.until(lambda: rig.holders(extent_id) == [1, 2, 4])


@simulated
async def test_t33_listed_replicas_that_fall_silent_during_the_transaction_keep_the_extra_one() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extent_id = (await rig.sealed_stream(nodes=(1, 2, 3))).extent_id
        rig.nodes[3].kill()
        await rig.until(lambda: 4 in rig.extent(extent_id).node_ids and rig.extent(extent_id).all_confirmed)
        await rig.nodes[3].start()
        collector, asked = rig.part.collector, asyncio.Event()
        allow = collector._allow

        async def slow(*arguments: Any) -> bool:
            allowed = await allow(*arguments)
            for node_id in (1, 2, 4):
                rig.nodes[node_id].kill()
            await rig.wait(5)
            asked.set()
            return allowed

        collector._allow = slow  # type: ignore[method-assign, assignment]
        await asked.wait()
        await rig.wait(1)
        assert rig.holders(extent_id) == [3]


async def with_orphans(rig: Rig, count: int) -> None:
    """Extents on every node that were never linked, and are known as orphans by now."""
    policy = StreamPolicy(replicas=len(rig.nodes), extent_bytes_max=1 << 20)
    for _ in range(count):
        await make_extent(rig.ctx, policy, stream_id=1)
    await rig.until(lambda: all(len(rig.part.collector._odd.get(node_id, {})) == count for node_id in rig.nodes))


@mock.patch.object(collect, "DELETES_MAX", 10)
@simulated
async def test_orphans_of_a_dead_node_hold_up_nobody_elses_and_cost_no_transactions() -> None:
    async with Rig(collecting=SHORT) as rig:
        await rig.start_nodes(1, 2, 3)
        await with_orphans(rig, 12)
        rig.nodes[1].kill()
        await rig.until(lambda: not any(rig.part.collector._odd[node_id] for node_id in (2, 3)))
        before = rig.term.batcher.counters.committed
        await rig.wait(300)
        assert len(rig.part.collector._odd[1]) == 12
        assert rig.term.batcher.counters.committed == before


@mock.patch.object(collect, "DELETES_MAX", 10)
@simulated
async def test_orders_that_a_node_refuses_are_given_again_after_growing_delays_and_others_take_their_turns() -> None:
    async with Rig(collecting=SHORT) as rig:
        await rig.start_nodes(1, 2, 3)
        await with_orphans(rig, 12)
        delete, refused = rig.ctx.nodes.delete, []

        async def refuse(extent_id: int, replica: ReplicaAt, *, eversion: int) -> bool:
            if replica.node_id == 1:
                refused.append(rig.ctx.clock())
                raise ConnectFailed(address="node1")
            return await delete(extent_id, replica, eversion=eversion)

        rig.ctx.nodes.delete = refuse  # type: ignore[method-assign]
        await rig.until(lambda: bool(refused))
        await rig.until(lambda: not any(rig.part.collector._odd[node_id] for node_id in (2, 3)), limit_s=30)
        await rig.wait(300)
        assert len(refused) <= 12 * 7  # after 5, 10, 20, 40, 80, 160 s
        rig.ctx.nodes.delete = delete  # type: ignore[method-assign]
        await rig.until(lambda: not rig.part.collector._odd[1])


@simulated
async def test_removed_replicas_of_a_node_that_is_silent_for_a_moment_are_deleted_when_it_is_back() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        extent = await rig.sealed_stream()
        rig.nodes[3].kill()
        await rig.until(lambda: rig.part.registry.seems_down(3))
        await remove(rig, extent)
        rig.part.collector.note_removed([extent])
        await rig.wait(3)
        await rig.nodes[3].start()
        await rig.until(lambda: rig.holders(extent.extent_id) == [], limit_s=30)  # far below the grace of an orphan


# --- a resolver that hangs ------------------------------------------------------------------------------------


class Hanging(Topology):
    def __init__(self) -> None:
        super().__init__(None)
        self.asked = 0

    async def locate(self, address: str) -> Place | None:
        self.asked += 1
        await asyncio.Event().wait()
        return None


@simulated
async def test_t43_a_resolver_that_hangs_does_not_stop_the_judging_of_nodes() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        hanging = rig.part.relocation._topology = rig.part.registry._topology = Hanging()
        await rig.wait(120)
        assert hanging.asked
        rig.nodes[3].kill()
        await rig.until(lambda: 3 in rig.ctx.state.dead_nodes(), limit_s=60)


# --- confirmations --------------------------------------------------------------------------------------------


@simulated
async def test_t46_a_node_that_hangs_in_seals_holds_up_nobody_elses_confirmations() -> None:
    async with Rig(recovery=Recovery(reconcile_max=8, retry_delay_s_max=4)) as rig:
        await rig.start_nodes(1, 2, 3, 4)
        seal, hung = rig.ctx.nodes.seal, asyncio.Event()

        async def hang(extent: Extent, replica: ReplicaAt) -> en.SealExtentReply:
            if replica.node_id == 1:
                await hung.wait()
            return await seal(extent, replica)

        async def away(*_: object) -> en.SealExtentReply:
            raise ConnectFailed(address="everybody")

        rig.ctx.nodes.seal = away  # type: ignore[method-assign, assignment]
        slow = [(await rig.seal(await rig.make_stream(nodes=(1, 2, 3)))).extent_id for _ in range(20)]
        await rig.wait(0.5)  # choices made ahead are forgotten
        fast = [(await rig.seal(await rig.make_stream(nodes=(2, 3, 4)))).extent_id for _ in range(20)]
        rig.ctx.nodes.seal = hang  # type: ignore[method-assign]
        await rig.until(lambda: all(rig.extent(extent_id).all_confirmed for extent_id in fast), limit_s=60)
        assert not any(rig.extent(extent_id).all_confirmed for extent_id in slow)
        hung.set()
        await rig.until(lambda: all(rig.extent(extent_id).all_confirmed for extent_id in slow))


async def condemn(rig: Rig, extent: Extent, node_id: int, *, still_confirmed: bool = False) -> None:
    """Its node says that it has no such file."""
    rig.part.bad.suspect(extent.extent_id, node_id, "by the test")
    describe = rig.ctx.nodes.describe

    async def damaged(extent_id: int, replica: ReplicaAt) -> en.ReplicaInfo:
        return en.ReplicaInfo(extent_id=extent_id, kind=en.LengthAnswer.DAMAGED)

    rig.ctx.nodes.describe = damaged  # type: ignore[method-assign]
    await rig.part.bad.run_once(rig.ctx.clock())
    rig.ctx.nodes.describe = describe  # type: ignore[method-assign]
    assert (node_id in rig.extent(extent.extent_id).confirmed) == still_confirmed


@simulated
async def test_a_condemned_replica_is_not_confirmed_by_the_answer_to_an_earlier_order() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3)
        seal, late = rig.ctx.nodes.seal, asyncio.Event()
        answers = 0

        async def slow_once(extent: Extent, replica: ReplicaAt) -> en.SealExtentReply:
            nonlocal answers
            reply = await seal(extent, replica)
            if replica.node_id == 3:
                answers += 1
                if answers == 1:
                    await late.wait()
            return reply

        rig.ctx.nodes.seal = slow_once  # type: ignore[method-assign]
        extent = await rig.seal(await rig.make_stream())
        await rig.until(lambda: rig.extent(extent.extent_id).confirmed == (1, 2))
        await seal_replicas(rig.ctx, extent.extent_id)  # asked by somebody else, too
        assert rig.extent(extent.extent_id).all_confirmed
        await condemn(rig, extent, 3)
        late.set()
        await rig.wait(1)
        assert rig.extent(extent.extent_id).confirmed == (1, 2)
        await seal_replicas(rig.ctx, extent.extent_id)  # one that was asked after that is believed
        assert rig.extent(extent.extent_id).all_confirmed


@simulated
async def test_a_condemned_replica_is_not_confirmed_by_a_task_that_verified_it_before() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3)
        extent = await rig.sealed_stream()
        replica = extent.replicas[2]
        assert await rig.part.recovery.repair_in_place(extent.extent_id, replica, rig.ctx.clock(), verify=True)
        task = rig.ctx.state.tasks[extent.extent_id]
        await rig.until(lambda: task.task_id in rig.part.registry.status(replica.node_id).copies)
        await condemn(rig, extent, replica.node_id)
        assert not rig.ctx.state.tasks
        await rig.part.recovery.run_once(rig.ctx.clock())
        assert replica.node_id not in rig.extent(extent.extent_id).confirmed


@simulated
async def test_when_all_replicas_are_found_bad_at_once_the_last_one_keeps_its_bit() -> None:
    """Its good blocks may be all there are: what nobody has confirmed is copied by nobody."""
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3)
        extent = await rig.sealed_stream()
        assert extent.all_confirmed
        for node_id in (1, 2):
            rig.part.bad.suspect(extent.extent_id, node_id, "by the test")
        await condemn(rig, extent, 3, still_confirmed=True)
        assert len(rig.extent(extent.extent_id).confirmed) == 1


def test_an_order_as_old_as_what_was_forgotten_is_believed_about_nobody() -> None:
    revoked = RevokedConfirmations(events_max=2)
    revoked.note(1, 1)
    asked_at = revoked.number
    revoked.note(2, 1)
    assert not revoked.since(asked_at, 1, 1)
    assert revoked.since(asked_at, 2, 1)
    revoked.note(3, 1)
    assert not revoked.since(asked_at, 1, 1)  # (1, 1) is forgotten: that was not after the order
    revoked.note(4, 1)
    assert revoked.since(asked_at, 1, 1)  # and (2, 1) was: who knows whom else
    assert not revoked.since(revoked.number, 4, 1)


# --- what is gone is forgotten --------------------------------------------------------------------------------


async def remove(rig: Rig, extent: Extent) -> None:
    changes = rig.ctx.changes()
    changes.delete_stream(rig.ctx.state.streams[extent.stream_id])
    changes.delete_extent(rig.extent(extent.extent_id))
    await rig.ctx.commit(changes)


@simulated
async def test_nothing_is_remembered_of_extents_that_were_removed() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3)
        extent, other = await rig.sealed_stream(), await rig.sealed_stream()
        recovery = rig.part.recovery
        for known in (extent, other):
            recovery.note_bad(known.extent_id, known.replicas[0])
            recovery.problems.note(known.extent_id, "by the test", 0.0)
            recovery.steps._note_failed_node(known.extent_id, 2)
        await remove(rig, extent)
        assert [extent_id for extent_id, _ in recovery.bad] == [other.extent_id]
        assert list(recovery.steps._failed_nodes) == [other.extent_id]
        assert recovery.problems.text(extent.extent_id) == ""
        assert recovery.problems.text(other.extent_id) == "by the test"
        recovery.note_bad(extent.extent_id, extent.replicas[0])  # a late word
        assert [extent_id for extent_id, _ in recovery.bad] == [other.extent_id]
