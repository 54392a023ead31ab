"""A length by an operator's word: only where rule 18 has none, and only one that a replica can confirm."""

from __future__ import annotations

import pytest

from neve.proto import extent_node_pb2 as pb
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument
from neve.stream_manager.streams.core.seal import check_accepted
from tests.unit.stream_manager import nodes_rig
from tests.unit.stream_manager.manager_rig import Cluster, error_of, simulated
from tests.unit.stream_manager.nodes_rig import BLOCKS, BYTES, Rig, mutation

Kind = pb.LengthAnswer.Kind
NEVER = pb.LengthAnswer(kind=Kind.NEVER_EXISTED)


def length(n: int, committed: int = 0) -> pb.LengthAnswer:
    return pb.LengthAnswer(kind=Kind.LENGTH, length=n, committed=committed)


def damaged(valid: int, committed: int = 0) -> pb.LengthAnswer:
    return pb.LengthAnswer(kind=Kind.DAMAGED, valid_length=valid, committed=committed)


def accept(n: int, *answers: pb.LengthAnswer | None, dead: tuple[int, ...] = ()) -> None:
    check_accepted(dict(enumerate(answers, 1)), n, dead=dead, extent_id=7)


def refused(n: int, *answers: pb.LengthAnswer | None, dead: tuple[int, ...] = ()) -> str:
    with pytest.raises(InvalidArgument) as caught:
        accept(n, *answers, dead=dead)
    return str(caught.value)


def test_nothing_is_accepted_where_the_replicas_are_enough_to_choose() -> None:
    for n in (0, 37, 100):
        assert "agree on 100" in refused(n, length(100), length(100), length(100))
        assert "agree on 100" in refused(n, length(100), length(100), None)
        assert "agree on 100" in refused(n, length(100), None, None, dead=(2, 3))


def test_a_length_is_what_some_replica_answered() -> None:
    answers = (damaged(40), damaged(20), None)
    accept(40, *answers)
    accept(20, *answers)
    for n in (0, 19, 30, 41):
        assert "node 1 has 40 valid bytes; node 2 has 20 valid bytes" in refused(n, *answers)
    accept(90, length(90), None, None)
    assert "node 2, 3 does not answer" in refused(89, length(90), None, None)


def test_nothing_known_to_be_acknowledged_is_given_up() -> None:
    assert "60 bytes are known" in refused(40, damaged(40), length(80, committed=60), None)
    accept(80, damaged(40), length(80, committed=60), None)
    assert "60 bytes are known" in refused(0, damaged(0, committed=60), NEVER, NEVER)


def test_zero_is_accepted_when_nobody_has_a_byte_and_nobody_may_return_with_one() -> None:
    accept(0, NEVER, NEVER, None, dead=(3,))
    accept(0, None, None, None, dead=(1, 2, 3))
    assert "node 3 does not answer" in refused(0, NEVER, NEVER, None)
    assert "node 1, 2, 3 does not answer" in refused(0, None, None, None)
    unknown = pb.LengthAnswer(kind=99)  # type: ignore[arg-type]
    assert "node 3 does not answer" in refused(0, NEVER, NEVER, unknown)
    refused(0, NEVER, damaged(10), NEVER)
    accept(0, NEVER, damaged(0), NEVER)


@simulated
async def test_a_length_that_is_left_out_is_not_zero() -> None:
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        _, tail, _ = await cluster.opened()
        for node_id in (1, 2, 3):
            cluster.nodes.replicas.pop((tail.extent_id, node_id))
        request = sm.AcceptLengthRequest(extent_id=tail.extent_id, reason="all disks burned")
        await error_of(cluster.call(methods.STREAM_MANAGER_ACCEPT_LENGTH, request), InvalidArgument)
        assert cluster.term.state.extents[tail.extent_id].seal is None
        request = sm.AcceptLengthRequest(extent_id=tail.extent_id, length=0, reason="all disks burned")
        reply = await cluster.call(methods.STREAM_MANAGER_ACCEPT_LENGTH, request)
        assert reply.extent.HasField("seal")
        assert reply.extent.seal.length == 0


@nodes_rig.simulated
async def test_an_accepted_length_is_one_that_real_nodes_confirm() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        stream_id = await rig.make_stream(nodes=(1, 2, 3))
        extent = rig.tail(stream_id)
        longer = len(BYTES) + len(BLOCKS[0])
        await rig.append(extent, len(BYTES), [BLOCKS[0]], nodes=(3,))

        async def order(n: int) -> None:
            request = sm.AcceptLengthRequest(extent_id=extent.extent_id, length=n, reason="two nodes hang")
            await rig.term.allocator.accept_length(request, mutation())

        await nodes_rig.error_of(order(37), InvalidArgument)  # three replicas answer: they are enough
        rig.nodes[1].pause()
        rig.nodes[2].pause()
        await nodes_rig.error_of(order(37), InvalidArgument)
        await nodes_rig.error_of(order(len(BYTES)), InvalidArgument)
        assert rig.extent(extent.extent_id).seal is None
        await order(longer)
        for node_id in (1, 2):
            rig.nodes[node_id].resume()
        await rig.until(lambda: rig.extent(extent.extent_id).all_confirmed)
        rig.check_equal(extent.extent_id)
