"""Allocate and seal, by the real servicer: rules 3 and 16 to 20."""

from __future__ import annotations

import asyncio

import pytest

from neve.meta.memory.link import Fault
from neve.proto import common_pb2, methods
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import (
    ConnectFailed,
    DeadlineExceeded,
    InvalidArgument,
    NotEnoughNodes,
    NotFound,
    NotOwner,
    SealUnavailable,
    VersionConflict,
)
from neve.stream_manager.streams.seal_tail import seal_open_extent
from tests.unit.stream_manager.manager_rig import Cluster, error_of, simulated


async def wait_confirmed(
    cluster: Cluster, stream_id: int, extent_id: int, owner: common_pb2.Owner
) -> sm.WaitConfirmedReply:
    request = sm.WaitConfirmedRequest(stream_id=stream_id, extent_id=extent_id, owner=owner)
    return await cluster.call(methods.STREAM_MANAGER_WAIT_CONFIRMED, request)


def node_ids(extent: sm.ExtentInfo) -> list[int]:
    return [replica.replica.node_id for replica in extent.replicas]


@simulated
async def test_a_stream_is_created_opened_and_rolled_on_real_nodes() -> None:
    async with Cluster(real_nodes=True) as cluster:
        await cluster.start_managers(1)
        await cluster.start_nodes(1, 2, 3)
        stream, tail, owner = await cluster.opened(name="events")
        assert len(tail.replicas) == 3
        reply = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        assert reply.sealed.seal.length == 0
        assert reply.all_took_part
        assert list(reply.stream.extent_ids) == [tail.extent_id, reply.tail.extent_id]
        waited = await wait_confirmed(cluster, stream.stream_id, tail.extent_id, owner)
        assert all(replica.confirmed for replica in waited.extent.replicas)


@simulated
async def test_the_next_extent_exists_on_its_nodes_before_the_tail_is_fenced() -> None:
    """Rule 17, and rule 20: replicas are told the length only after etcd has it."""
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        cluster.nodes.calls.clear()
        reply = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        await wait_confirmed(cluster, stream.stream_id, tail.extent_id, owner)
        order = [(what, extent_id) for what, extent_id, _ in cluster.nodes.calls]
        created, fenced, sealed = ("create", reply.tail.extent_id), ("fence", tail.extent_id), ("seal", tail.extent_id)
        assert order == [created] * 3 + [fenced] * 3 + [sealed] * 3


@simulated
async def test_a_failed_creation_leaves_the_tail_writable() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()

        async def no_creation(what: str, extent_id: int, node_id: int) -> None:
            if what == "create" and node_id == 2:
                raise ConnectFailed(address="node2")

        cluster.nodes.trouble = no_creation
        error = await error_of(cluster.alloc(stream.stream_id, tail.extent_id, owner, 0), NotEnoughNodes)
        assert "node 2 failed" in str(error)
        cluster.nodes.append(tail, 50, token=owner.token)  # nothing is fenced
        cluster.nodes.trouble = None
        assert (await cluster.alloc(stream.stream_id, tail.extent_id, owner, 50)).sealed.seal.length == 50


@simulated
async def test_a_node_that_cannot_create_is_replaced_by_another() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, nodes=(1, 2, 3, 4))

        async def no_creation(what: str, extent_id: int, node_id: int) -> None:
            if what == "create" and node_id == 2:
                raise ConnectFailed(address="node2")

        cluster.nodes.trouble = no_creation
        created = await cluster.create()
        assert node_ids(created.tail) == [1, 3, 4]


@simulated
async def test_t03_sealing_twice_gives_one_answer() -> None:
    """[10, 9, 9] seals at 9; whatever replicas say later, and whoever leads, it stays 9."""
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        stream, tail, owner = await cluster.opened()
        cluster.nodes.append(tail, 9, token=owner.token)
        cluster.nodes.append(tail, 10, nodes=[1], token=owner.token)
        first = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 5)
        assert first.sealed.seal.length == 9
        for node_id in (2, 3):
            cluster.nodes.replicas.pop((tail.extent_id, node_id), None)
        again = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 5)
        assert (again.sealed.seal.length, again.tail.extent_id) == (9, first.tail.extent_id)
        (await cluster.leader()).kill()
        third = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 5)
        assert (third.sealed.seal.length, third.tail.extent_id) == (9, first.tail.extent_id)
        assert third.all_took_part


@simulated
async def test_a_repeated_request_finds_its_successor_also_after_that_was_sealed() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        stream, tail, owner = await cluster.opened()
        call = cluster.call_id()
        first = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0, call=call)
        second = await cluster.alloc(stream.stream_id, first.tail.extent_id, owner, 0)
        assert second.tail.extent_id != first.tail.extent_id
        replayed = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0, call=call)
        assert replayed.tail.extent_id == first.tail.extent_id
        assert replayed.tail.HasField("seal")
        (await cluster.leader()).kill()
        replayed = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0, call=call)
        assert replayed.tail.extent_id == first.tail.extent_id
        other_call = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        assert other_call.tail.extent_id == first.tail.extent_id
        assert len((await cluster.describe(stream.stream_id)).streams[0].extent_ids) == 3


@simulated
async def test_t05_a_replica_shorter_than_the_writers_end_is_not_listed_as_good() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        cluster.nodes.append(tail, 100, token=owner.token)
        cluster.nodes.of(tail.extent_id)[3].length = 60  # it lost what it had acknowledged
        reply = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 100)
        assert reply.sealed.seal.length == 100
        assert not reply.all_took_part
        await cluster.until(lambda: tail.extent_id in cluster.part.unconfirmed)
        (extent,) = [e for e in (await cluster.describe(stream.stream_id)).extents if e.extent_id == tail.extent_id]
        assert {replica.replica.node_id: replica.confirmed for replica in extent.replicas} == {
            1: True,
            2: True,
            3: False,
        }


@simulated
async def test_t06_length_zero_is_a_seal() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        assert not tail.HasField("seal")
        reply = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        assert reply.sealed.HasField("seal")
        assert reply.sealed.seal.length == 0
        waited = await wait_confirmed(cluster, stream.stream_id, tail.extent_id, owner)
        assert all(replica.confirmed for replica in waited.extent.replicas)
        sealed = [e for e in (await cluster.describe(stream.stream_id)).extents if e.HasField("seal")]
        assert [e.extent_id for e in sealed] == [tail.extent_id]
        again = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)  # or it would be sealed once more
        assert (again.sealed.seal.length, again.tail.extent_id) == (0, reply.tail.extent_id)
        assert len((await cluster.describe(stream.stream_id)).streams[0].extent_ids) == 2


@simulated
async def test_an_answer_with_a_sealed_length_is_for_the_owner_alone() -> None:
    """Rule 3: also the repeated and the replayed answer, which no transaction of its own proves."""
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        cluster.nodes.append(tail, 30, token=owner.token)
        call = cluster.call_id()
        await cluster.alloc(stream.stream_id, tail.extent_id, owner, 10, call=call)
        await cluster.own(stream, takeover=True)
        await error_of(cluster.alloc(stream.stream_id, tail.extent_id, owner, 10, call=call), NotOwner)
        await error_of(cluster.alloc(stream.stream_id, tail.extent_id, owner, 10), NotOwner)
        await error_of(wait_confirmed(cluster, stream.stream_id, tail.extent_id, owner), NotOwner)


@simulated
async def test_a_deposed_owner_seals_nothing() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        successor = await cluster.own(stream, takeover=True)
        await error_of(cluster.alloc(stream.stream_id, tail.extent_id, owner, 0), NotOwner)
        reply = await cluster.open(stream.stream_id, successor)
        await error_of(cluster.alloc(stream.stream_id, reply.tail.extent_id, owner, 0), NotOwner)
        assert (await cluster.describe(stream.stream_id)).streams[0].extent_ids[-1] == reply.tail.extent_id


@simulated
async def test_a_token_that_nobody_holds_never_reaches_a_replica() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        made_up = common_pb2.Owner(lock=owner.lock, token=owner.token + 1_000_000)
        await error_of(cluster.alloc(stream.stream_id, tail.extent_id, made_up, 0), NotOwner)
        await error_of(cluster.open(stream.stream_id, made_up), NotOwner)
        assert all(replica.token == owner.token for replica in cluster.nodes.of(tail.extent_id).values())
        assert not any(replica.fenced for replica in cluster.nodes.of(tail.extent_id).values())


@simulated
async def test_t16_an_unknown_outcome_makes_neither_two_extents_nor_skips_a_seal() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        cluster.nodes.append(tail, 40, token=owner.token)
        leader = await cluster.leader()
        leader.store.plan.scripted.extend([Fault.LOST_AFTER_APPLY, Fault.LOST_AFTER_APPLY])
        reply = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 40)
        assert not leader.store.plan.scripted
        assert reply.sealed.seal.length == 40
        described = await cluster.describe(stream.stream_id)
        assert list(described.streams[0].extent_ids) == [tail.extent_id, reply.tail.extent_id]
        assert len(cluster.term.state.extents) == 2


@simulated
async def test_t46_a_hung_node_holds_a_roll_up_for_a_bounded_time() -> None:
    async with Cluster(real_nodes=True) as cluster:
        await cluster.start_managers(1)
        await cluster.start_nodes(1, 2, 3, 4)
        stream, tail, owner = await cluster.opened()
        hung = node_ids(tail)[0]
        cluster.sim_nodes[hung].pause()
        begun_s = asyncio.get_running_loop().time()
        reply = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0, avoid_node_ids=[hung])
        assert asyncio.get_running_loop().time() - begun_s < 5.0  # virtual: twice the timeout of a call, and a little
        assert reply.sealed.seal.length == 0
        assert not reply.all_took_part
        assert hung not in node_ids(reply.tail)


@simulated
async def test_nobody_waits_for_a_node_that_is_declared_dead() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, nodes=(1, 2, 3, 4))
        stream, tail, owner = await cluster.opened()
        cluster.nodes.append(tail, 20, token=owner.token)

        async def for_ever(what: str, extent_id: int, node_id: int) -> None:
            if node_id == 2:
                await asyncio.sleep(3600)

        cluster.nodes.trouble = for_ever
        await cluster.declare_dead(2)
        reply = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 20)
        assert reply.sealed.seal.length == 20
        assert not reply.all_took_part
        assert node_ids(reply.tail) == [1, 3, 4]


@simulated
async def test_confirmations_are_recorded_while_a_slow_replica_is_waited_for() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()

        async def slow(what: str, extent_id: int, node_id: int) -> None:
            if what == "seal" and node_id == 3:
                await asyncio.sleep(30)

        cluster.nodes.trouble = slow
        await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        await asyncio.sleep(1)
        assert cluster.term.state.extents[tail.extent_id].confirmed == (1, 2)
        waited = await wait_confirmed(cluster, stream.stream_id, tail.extent_id, owner)
        assert all(replica.confirmed for replica in waited.extent.replicas)


@simulated
async def test_a_digest_that_differs_is_reported_and_not_confirmed() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        cluster.nodes.of(tail.extent_id)[2].digest = b"other"
        await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        await cluster.until(lambda: bool(cluster.part.suspected))
        assert cluster.part.suspected == [(tail.extent_id, 2)]
        assert cluster.term.state.extents[tail.extent_id].confirmed == (1, 3)


@simulated
async def test_when_replicas_diverged_the_digest_of_most_is_believed() -> None:
    """Rule 7: also if the one that differs is asked first."""
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        cluster.nodes.of(tail.extent_id)[1].digest = b"other"
        await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        await cluster.until(lambda: bool(cluster.part.suspected))
        assert cluster.part.suspected == [(tail.extent_id, 1)]
        assert cluster.term.state.extents[tail.extent_id].confirmed == (2, 3)


@simulated
async def test_waiting_for_confirmations_ends_with_the_callers_deadline() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        cluster.nodes.append(tail, 10, token=owner.token)
        cluster.nodes.of(tail.extent_id)[1].length = 5
        await cluster.alloc(stream.stream_id, tail.extent_id, owner, 10)
        request = sm.WaitConfirmedRequest(stream_id=stream.stream_id, extent_id=tail.extent_id, owner=owner)
        manager = await cluster.leader()
        await error_of(cluster.ask(manager, methods.STREAM_MANAGER_WAIT_CONFIRMED, request), DeadlineExceeded)


@simulated
async def test_a_prepared_extent_is_linked_when_the_writer_names_it() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        request = sm.PrepareExtentRequest(stream_id=stream.stream_id, owner=owner)
        prepared = await cluster.call(methods.STREAM_MANAGER_PREPARE_EXTENT, request)
        request = sm.PrepareExtentRequest(stream_id=stream.stream_id, owner=owner)
        again = await cluster.call(methods.STREAM_MANAGER_PREPARE_EXTENT, request)
        assert again.extent.extent_id == prepared.extent.extent_id
        assert (await cluster.describe(stream.stream_id)).streams[0].extent_ids == [tail.extent_id]
        reply = await cluster.alloc(
            stream.stream_id, tail.extent_id, owner, 0, prepared_extent_id=prepared.extent.extent_id
        )
        assert reply.tail.extent_id == prepared.extent.extent_id
        reply = await cluster.alloc(
            stream.stream_id, reply.tail.extent_id, owner, 0, prepared_extent_id=prepared.extent.extent_id
        )
        assert reply.tail.extent_id != prepared.extent.extent_id


@simulated
async def test_a_prepared_extent_that_is_too_old_is_never_linked() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        request = sm.PrepareExtentRequest(stream_id=stream.stream_id, owner=owner)
        prepared = await cluster.call(methods.STREAM_MANAGER_PREPARE_EXTENT, request)
        await asyncio.sleep(cluster.config.collecting.grace_s / 2 + 1)
        reply = await cluster.alloc(
            stream.stream_id, tail.extent_id, owner, 0, prepared_extent_id=prepared.extent.extent_id
        )
        assert reply.tail.extent_id != prepared.extent.extent_id


@simulated
async def test_too_few_trustworthy_replicas_seal_nothing_until_an_operator_names_a_length() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, nodes=(1, 2, 3, 4, 5, 6))
        stream, tail, owner = await cluster.opened()
        cluster.nodes.append(tail, 90, token=owner.token)
        held = cluster.nodes.of(tail.extent_id)
        held[1].kind = held[2].kind = en.LengthAnswer.DAMAGED
        held[1].length, held[2].length = 40, 20
        cluster.nodes.replicas.pop((tail.extent_id, 3))
        await error_of(cluster.alloc(stream.stream_id, tail.extent_id, owner, 90), SealUnavailable)
        assert cluster.term.state.extents[tail.extent_id].seal is None

        def accept(length: int) -> sm.AcceptLengthRequest:
            return sm.AcceptLengthRequest(extent_id=tail.extent_id, length=length, reason="two disks burned")

        error = await error_of(cluster.call(methods.STREAM_MANAGER_ACCEPT_LENGTH, accept(41)), InvalidArgument)
        assert "40 valid bytes" in str(error)
        reply = await cluster.call(methods.STREAM_MANAGER_ACCEPT_LENGTH, accept(40))
        assert reply.extent.seal.length == 40
        assert (await cluster.call(methods.STREAM_MANAGER_ACCEPT_LENGTH, accept(40))).extent.seal.length == 40
        await error_of(cluster.call(methods.STREAM_MANAGER_ACCEPT_LENGTH, accept(20)), VersionConflict)
        # The owner goes on: the same request now finds the seal, and gets a new tail.
        rolled = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 90)
        assert rolled.sealed.seal.length == 40
        assert not rolled.all_took_part
        assert rolled.tail.extent_id != tail.extent_id


@simulated
async def test_bad_requests_are_refused_with_a_sentence() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        assert "no such stream" in str(await error_of(cluster.alloc(999, 1, owner, 0), NotFound))
        assert "extent" in str(await error_of(cluster.alloc(stream.stream_id, 999, owner, 0), NotFound))
        nobody = common_pb2.Owner(lock=owner.lock)
        await error_of(cluster.alloc(stream.stream_id, tail.extent_id, nobody, 0), InvalidArgument)
        other_lock = common_pb2.Owner(lock="other", token=owner.token)
        await error_of(cluster.alloc(stream.stream_id, tail.extent_id, other_lock, 0), NotOwner)


@pytest.mark.parametrize("seed", range(3))
@simulated
async def test_many_writers_roll_side_by_side_through_faults(seed: int) -> None:
    """Exactly the extents that replies name are in the lists, and memory is what etcd has."""
    async with Cluster(seed=seed) as cluster:
        await cluster.start_managers(1)
        leader = await cluster.leader()
        writers = [await cluster.opened() for _ in range(6)]
        plan = leader.store.plan
        plan.rng.seed(seed)
        plan.lost_after_apply_share = plan.lost_before_apply_share = 0.1

        async def roll(stream: sm.StreamInfo, tail: sm.ExtentInfo, owner: common_pb2.Owner) -> list[int]:
            named = [tail.extent_id]
            for length in range(4):
                cluster.nodes.append(tail, length, token=owner.token)
                reply = await cluster.alloc(stream.stream_id, tail.extent_id, owner, length)
                assert reply.sealed.seal.length == length
                tail = reply.tail
                named.append(tail.extent_id)
            return named

        lists = await asyncio.gather(*(roll(*writer) for writer in writers))
        plan.lost_after_apply_share = plan.lost_before_apply_share = 0.0
        for (stream, _, _), named in zip(writers, lists, strict=True):
            assert (await cluster.describe(stream.stream_id)).streams[0].extent_ids == named
        assert sorted(cluster.term.state.extents) == sorted(number for named in lists for number in named)


@simulated
async def test_after_a_fail_over_an_older_roll_s_call_id_does_not_roll_again() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        calls = [cluster.call_id() for _ in range(2)]
        first = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0, call=calls[0])
        second = await cluster.alloc(stream.stream_id, first.tail.extent_id, owner, 0, call=calls[1])
        (await cluster.leader()).kill()
        await cluster.start_managers(2, nodes=())
        for call in calls:  # with other content: it names what it cannot have known
            again = cluster.alloc(stream.stream_id, second.tail.extent_id, owner, 0, call=call)
            await error_of(again, InvalidArgument)
        extent_ids = cluster.term.state.streams[stream.stream_id].extent_ids
        assert extent_ids[-1] == second.tail.extent_id
        same = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0, call=calls[0])
        assert (same.sealed.extent_id, same.tail.extent_id) == (tail.extent_id, first.tail.extent_id)
        await seal_open_extent(cluster.term.ctx, second.tail.extent_id)  # by the manager itself
        again = cluster.alloc(stream.stream_id, second.tail.extent_id, owner, 0, call=calls[0])
        await error_of(again, InvalidArgument)
        assert cluster.term.state.streams[stream.stream_id].extent_ids == extent_ids
        third = await cluster.alloc(stream.stream_id, second.tail.extent_id, owner, 0)
        assert third.tail.extent_id == cluster.term.state.streams[stream.stream_id].tail_id
