"""Streams by the real servicer: create, list, describe, truncate, punch, seal, delete."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from neve.meta.lock import lock_key
from neve.meta.memory.link import Fault
from neve.proto import common_pb2, methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import (
    AlreadyExists,
    ConnectFailed,
    InvalidArgument,
    NotEnoughNodes,
    NotFound,
    NotOwner,
    SealUnavailable,
)
from neve.stream_manager.config import Defaults, Limits, ManagerConfig
from neve.stream_manager.streams.streams import EXTENTS_PER_TXN
from tests.unit.stream_manager.manager_rig import ROOT, Cluster, error_of, simulated


async def rolled(cluster: Cluster, times: int) -> tuple[sm.StreamInfo, common_pb2.Owner]:
    """A stream with `times` sealed extents and an open one."""
    stream, tail, owner = await cluster.opened()
    for _ in range(times):
        reply = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 0)
        stream, tail = reply.stream, reply.tail
    return stream, owner


@simulated
async def test_a_stream_has_what_its_creator_asked_for_and_defaults_for_the_rest() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        policy = sm.StreamPolicy(replicas=2, no_sync=True, extent_bytes_max=1 << 20, strict=True)
        reply = await cluster.create(name="events", policy=policy, labels={"tenant": "a", "app": "b"})
        assert reply.stream.policy == policy
        assert dict(reply.stream.labels) == {"tenant": "a", "app": "b"}
        assert len(reply.tail.replicas) == 2
        plain = await cluster.create()
        assert plain.stream.policy.replicas == 3
        assert plain.stream.policy.extent_bytes_max == cluster.config.defaults.extent_bytes_max
        assert plain.stream.lock == f"stream/{plain.stream.stream_id:016x}"
        assert plain.stream.created_ms > 0


@simulated
async def test_a_name_belongs_to_one_stream() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        replies = await asyncio.gather(*(cluster.create(name="events") for _ in range(5)), return_exceptions=True)
        assert sorted(type(reply).__name__ for reply in replies) == ["AlreadyExists"] * 4 + ["CreateStreamReply"]
        request = sm.DescribeStreamsRequest(names=["events"])
        (stream,) = (await cluster.call(methods.STREAM_MANAGER_DESCRIBE_STREAMS, request)).streams
        await cluster.call(methods.STREAM_MANAGER_DELETE_STREAM, sm.DeleteStreamRequest(stream_id=stream.stream_id))
        assert (await cluster.create(name="events")).stream.stream_id != stream.stream_id


@simulated
async def test_t16_an_unknown_outcome_makes_no_two_streams() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        leader = await cluster.leader()
        for faults in ([Fault.LOST_AFTER_APPLY], [Fault.LOST_BEFORE_APPLY, Fault.LOST_AFTER_APPLY]):
            await cluster.create()  # ids are at hand, so that the fault meets the commit
            leader.store.plan.scripted.extend(faults)
            await cluster.create(name=f"events{len(faults)}")
            assert not leader.store.plan.scripted
        assert len(cluster.term.state.streams) == 4


@simulated
async def test_a_repeated_create_is_executed_once_also_after_a_fail_over() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1, 2)
        call = cluster.call_id()
        replies = await asyncio.gather(*(cluster.create(call=call, name="events") for _ in range(3)))
        assert len({reply.stream.stream_id for reply in replies}) == 1
        (await cluster.leader()).kill()
        again = await cluster.create(call=call, name="events")
        assert again.stream.stream_id == replies[0].stream.stream_id
        assert len(cluster.term.state.streams) == 1
        error = await error_of(cluster.create(call=call, name="other"), InvalidArgument)
        assert "call id is used once" in str(error)


@simulated
async def test_how_small_extents_may_be_is_configured() -> None:
    async with Cluster(limits=Limits(extent_bytes_min=1000)) as cluster:
        await cluster.start_managers(1)
        await error_of(cluster.create(policy=sm.StreamPolicy(extent_bytes_max=999)), InvalidArgument)
        made = await cluster.create(policy=sm.StreamPolicy(extent_bytes_max=1000))
        assert made.stream.policy.extent_bytes_max == 1000
    for defaults in (Defaults(extent_bytes_max=1000), Defaults(extent_bytes_max=3 << 30)):
        with pytest.raises(ValueError, match=r"defaults\.extent_bytes_max must be 1048576 to 2147483648 bytes"):
            ManagerConfig(cluster="test", defaults=defaults)


@simulated
async def test_bad_input_is_refused_with_a_sentence() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        too_many = await error_of(cluster.create(policy=sm.StreamPolicy(replicas=5)), NotEnoughNodes)
        assert "5 nodes are needed, 3 can take an extent" in str(too_many)
        await error_of(cluster.create(policy=sm.StreamPolicy(replicas=8)), InvalidArgument)
        await error_of(cluster.create(policy=sm.StreamPolicy(extent_bytes_max=3 << 30)), InvalidArgument)
        for size_bytes in (1, (1 << 20) - 1):
            small = await error_of(cluster.create(policy=sm.StreamPolicy(extent_bytes_max=size_bytes)), InvalidArgument)
            assert f"{size_bytes}, at least 1048576 and at most" in str(small)
        await error_of(cluster.create(name="a\nb"), InvalidArgument)
        digits = await error_of(cluster.create(name="777"), InvalidArgument)
        assert "777 would be read as a stream's id" in str(digits)
        await error_of(cluster.create(labels={"a=b": "c"}), InvalidArgument)
        await error_of(cluster.create(labels={str(number): "" for number in range(100)}), InvalidArgument)
        for method, request in (
            (methods.STREAM_MANAGER_SEAL_STREAM, sm.SealStreamRequest(stream_id=9)),
            (methods.STREAM_MANAGER_DELETE_STREAM, sm.DeleteStreamRequest(stream_id=9)),
            (methods.STREAM_MANAGER_TRUNCATE_STREAM, sm.TruncateStreamRequest(stream_id=9)),
            (methods.STREAM_MANAGER_PUNCH_HOLES, sm.PunchHolesRequest(stream_id=9)),
            (methods.STREAM_MANAGER_DESCRIBE_STREAMS, sm.DescribeStreamsRequest(stream_ids=[9])),
        ):
            error = await error_of(cluster.call(cast(Any, method), cast(Any, request)), NotFound)
            assert str(error) == "no such stream: 9"
        assert not cluster.term.state.streams


@simulated
async def test_streams_are_listed_in_pages_and_by_label() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        ids = [
            (await cluster.create(labels={"tenant": "a" if number % 3 else "b"})).stream.stream_id
            for number in range(10)
        ]

        async def listed(labels: dict[str, str]) -> list[int]:
            found: list[int] = []
            after = 0
            while True:
                request = sm.ListStreamsRequest(after_stream_id=after, limit=2, labels=labels)
                reply = await cluster.call(methods.STREAM_MANAGER_LIST_STREAMS, request)
                found += [stream.stream_id for stream in reply.streams]
                if not reply.more:
                    return found
                after = reply.scanned_stream_id or reply.streams[-1].stream_id

        assert await listed({}) == ids
        assert await listed({"tenant": "b"}) == ids[::3]
        assert await listed({"tenant": "c"}) == []


@simulated
async def test_truncating_removes_what_is_before_and_orders_the_replicas_deleted() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, owner = await rolled(cluster, 3)
        first, second, third, tail = stream.extent_ids
        request = sm.TruncateStreamRequest(stream_id=stream.stream_id, owner=owner, before_extent_id=third)
        reply = await cluster.call(methods.STREAM_MANAGER_TRUNCATE_STREAM, request)
        assert list(reply.stream.extent_ids) == [third, tail]
        assert reply.stream.truncated_before == third
        assert cluster.part.removed == [first, second]
        assert sorted(cluster.term.state.extents) == [third, tail]
        gone = sm.TruncateStreamRequest(stream_id=stream.stream_id, before_extent_id=first)
        await error_of(cluster.call(methods.STREAM_MANAGER_TRUNCATE_STREAM, gone), NotFound)
        await cluster.own(stream, takeover=True)
        late = sm.TruncateStreamRequest(stream_id=stream.stream_id, owner=owner, before_extent_id=tail)
        await error_of(cluster.call(methods.STREAM_MANAGER_TRUNCATE_STREAM, late), NotOwner)


@simulated
async def test_more_extents_than_a_transaction_takes_are_removed_in_several() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        count = 2 * EXTENTS_PER_TXN + 7
        stream, owner = await rolled(cluster, count)
        request = sm.TruncateStreamRequest(
            stream_id=stream.stream_id, owner=owner, before_extent_id=stream.extent_ids[-3]
        )
        request.call.CopyFrom(cluster.call_id())
        reply = await cluster.call(methods.STREAM_MANAGER_TRUNCATE_STREAM, request)
        assert list(reply.stream.extent_ids) == list(stream.extent_ids[-3:])
        again = await cluster.call(methods.STREAM_MANAGER_TRUNCATE_STREAM, request)
        assert again.stream == reply.stream
        assert cluster.part.removed == list(stream.extent_ids[:-3])
        delete = sm.DeleteStreamRequest(stream_id=stream.stream_id, owner=owner)
        await cluster.call(methods.STREAM_MANAGER_DELETE_STREAM, delete)
        assert cluster.part.removed == list(stream.extent_ids)


@simulated
async def test_holes_are_whole_extents_and_never_the_tail() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, owner = await rolled(cluster, 3)
        first, second, third, tail = stream.extent_ids
        request = sm.PunchHolesRequest(stream_id=stream.stream_id, owner=owner, extent_ids=[second, 12345])
        reply = await cluster.call(methods.STREAM_MANAGER_PUNCH_HOLES, request)
        assert list(reply.stream.extent_ids) == [first, third, tail]
        request = sm.PunchHolesRequest(stream_id=stream.stream_id, owner=owner, extent_ids=[first, tail])
        await error_of(cluster.call(methods.STREAM_MANAGER_PUNCH_HOLES, request), InvalidArgument)
        assert cluster.part.removed == [second]


@simulated
async def test_a_sealed_stream_takes_nothing_more_and_its_writer_learns_the_length() -> None:
    """An operator seals under a live writer: the reply settles what is not acknowledged, and has no new tail."""
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        cluster.nodes.append(tail, 25, token=owner.token)
        request = sm.SealStreamRequest(stream_id=stream.stream_id)
        reply = await cluster.call(methods.STREAM_MANAGER_SEAL_STREAM, request)
        assert reply.stream.sealed
        assert reply.sealed.seal.length == 25
        again = sm.SealStreamRequest(stream_id=stream.stream_id)
        assert (await cluster.call(methods.STREAM_MANAGER_SEAL_STREAM, again)).stream == reply.stream
        settled = await cluster.alloc(stream.stream_id, tail.extent_id, owner, 10)
        assert settled.sealed.seal.length == 25
        assert not settled.HasField("tail")
        assert settled.stream.sealed


@simulated
async def test_t45_an_old_writer_cannot_append_after_the_stream_is_deleted() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        cluster.nodes.append(tail, 25, token=owner.token)
        await cluster.call(methods.STREAM_MANAGER_DELETE_STREAM, sm.DeleteStreamRequest(stream_id=stream.stream_id))
        assert all(replica.fenced for replica in cluster.nodes.of(tail.extent_id).values())
        await error_of(cluster.alloc(stream.stream_id, tail.extent_id, owner, 25), NotFound)
        assert cluster.part.removed == [tail.extent_id]
        assert not cluster.term.state.extents


@simulated
async def test_a_stream_is_not_deleted_while_its_tail_cannot_be_fenced() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, _, owner = await cluster.opened()

        async def unreachable(what: str, extent_id: int, node_id: int) -> None:
            raise ConnectFailed(address=f"node{node_id}")

        cluster.nodes.trouble = unreachable
        delete = sm.DeleteStreamRequest(stream_id=stream.stream_id)
        await error_of(cluster.call(methods.STREAM_MANAGER_DELETE_STREAM, delete), SealUnavailable)
        for node_id in (1, 2, 3):
            await cluster.declare_dead(node_id)
        # All are dead: but while somebody holds the lock, a node that returns could still acknowledge.
        delete = sm.DeleteStreamRequest(stream_id=stream.stream_id)
        with pytest.raises(Exception, match="locks/"):
            await cluster.call(methods.STREAM_MANAGER_DELETE_STREAM, delete)
        await cluster.store.delete(lock_key(ROOT, owner.lock))
        delete = sm.DeleteStreamRequest(stream_id=stream.stream_id)
        await cluster.call(methods.STREAM_MANAGER_DELETE_STREAM, delete)
        assert not cluster.term.state.streams


@simulated
async def test_every_mutation_leaves_an_audit_line() -> None:
    lines: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    keeper = Keeper()
    audit = logging.getLogger("neve.audit")
    audit.addHandler(keeper)
    level = audit.level
    audit.setLevel(logging.INFO)
    try:
        async with Cluster() as cluster:
            await cluster.start_managers(1)
            lines.clear()
            created = await cluster.create(name="events")
            await error_of(cluster.create(name="events"), AlreadyExists)
    finally:
        audit.removeHandler(keeper)
        audit.setLevel(level)
    assert len(lines) == 2
    assert "method=CreateStream" in lines[0]
    assert f"streams={created.stream.stream_id} " in lines[0]
    assert lines[0].endswith("outcome=done")
    assert "outcome=AlreadyExists" in lines[1]


@simulated
async def test_an_end_acknowledged_in_an_earlier_tail_says_nothing_of_this_one() -> None:
    """With one replica silent it would be taken for the end, and seal 40 acknowledged bytes away."""
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, old_tail, owner = await cluster.opened()
        cluster.nodes.append(old_tail, 10, token=owner.token)
        rolled_on = await cluster.alloc(stream.stream_id, old_tail.extent_id, owner, 10)
        cluster.nodes.append(rolled_on.tail, 50, token=owner.token)

        async def silent(what: str, extent_id: int, node_id: int) -> None:
            if node_id == 3:
                raise ConnectFailed(address="node3")

        cluster.nodes.trouble = silent
        nameless = sm.SealStreamRequest(stream_id=stream.stream_id, owner=owner, acknowledged_end=10)
        await error_of(cluster.call(methods.STREAM_MANAGER_SEAL_STREAM, nameless), InvalidArgument)
        late = sm.SealStreamRequest(
            stream_id=stream.stream_id, owner=owner, acknowledged_end=10, extent_id=old_tail.extent_id
        )
        reply = await cluster.call(methods.STREAM_MANAGER_SEAL_STREAM, late)
        assert reply.sealed.seal.length == 50


@simulated
async def test_people_read_ids_as_commands_show_them() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        stream, tail, owner = await cluster.opened()
        unknown = 0xABCDEF
        requests = (
            sm.TruncateStreamRequest(stream_id=stream.stream_id, before_extent_id=unknown),
            sm.StreamAllocExtentRequest(stream_id=stream.stream_id, extent_id=unknown, owner=owner),
            sm.WaitConfirmedRequest(stream_id=stream.stream_id, extent_id=unknown, owner=owner),
            sm.AcceptLengthRequest(extent_id=unknown, reason="test"),
        )
        asked = (
            methods.STREAM_MANAGER_TRUNCATE_STREAM,
            methods.STREAM_MANAGER_STREAM_ALLOC_EXTENT,
            methods.STREAM_MANAGER_WAIT_CONFIRMED,
            methods.STREAM_MANAGER_ACCEPT_LENGTH,
        )
        for method, request in zip(asked, requests, strict=True):
            error = await error_of(cluster.call(cast(Any, method), request), NotFound)
            assert str(unknown) in str(error), error
        cluster.nodes.replicas.clear()
        lost = await error_of(cluster.alloc(stream.stream_id, tail.extent_id, owner, 10), SealUnavailable)
        assert f"extent {tail.extent_id}:" in str(lost)
        assert f"{tail.extent_id:016x}" not in str(lost)
