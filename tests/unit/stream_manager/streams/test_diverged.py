"""Replicas with different bytes of one extent, which should never be: what the seal does about it (rules 7 and 20)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import ConnectFailed, ReplicaMissing
from neve.stream_manager.metadata.records import Extent, ReplicaAt, replica_message
from neve.stream_manager.streams.confirm import GATHER_S
from neve.stream_manager.streams.core.digest import choose_digest
from neve.stream_manager.streams.core.open import decide_open
from tests.unit.extent_node.store.rig import block_of
from tests.unit.stream_manager.nodes_rig import BLOCKS, BYTES, TOKEN, Rig, simulated

OTHERS = [block_of(f"other {number}", len(block) - len(BLOCKS[0]) + 60) for number, block in enumerate(BLOCKS)]


@simulated
async def test_a_replica_with_other_bytes_is_not_confirmed_and_made_anew_from_the_others() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        stream_id = await rig.make_stream(nodes=(1, 2, 3), blocks=[])
        extent = rig.tail(stream_id)
        await rig.append(extent, 0, OTHERS, nodes=(1,))
        await rig.append(extent, 0, BLOCKS, nodes=(2, 3))
        assert len(rig.bytes_on(1, extent.extent_id)) == len(BYTES)
        assert rig.bytes_on(1, extent.extent_id) != BYTES
        await rig.seal(stream_id)
        await rig.until(lambda: bool(rig.extent(extent.extent_id).confirmed))
        assert rig.extent(extent.extent_id).confirmed == (2, 3)
        await rig.until(lambda: rig.extent(extent.extent_id).all_confirmed)
        rig.check_equal(extent.extent_id)
        assert rig.bytes_on(1, extent.extent_id) == BYTES


async def diverged(rig: Rig, *, others_on: tuple[int, ...]) -> tuple[int, Extent]:
    """Replicas of equal length and different bytes; a node that was sent the others' bytes has refused them."""
    await rig.start_nodes(1, 2, 3)
    stream_id = await rig.make_stream(nodes=(1, 2, 3), blocks=[])
    extent = rig.tail(stream_id)
    ours_on = tuple(node_id for node_id in (1, 2, 3) if node_id not in others_on)
    await rig.append(extent, 0, OTHERS, nodes=others_on)
    await rig.append(extent, 0, BLOCKS, nodes=ours_on)
    with pytest.raises(AssertionError, match="offset"):  # Conflict: the rig wants appends to succeed
        await rig.append(extent, 0, BLOCKS, nodes=others_on[:1])
    return stream_id, extent


@simulated
async def test_a_node_that_met_other_bytes_says_so_and_the_tail_is_sealed_instead_of_gone_on_with() -> None:
    """The writer dies right after the conflict and tells nobody; all replicas are equally long (7)."""
    async with Rig() as rig:
        stream_id, extent = await diverged(rig, others_on=(1,))
        answers = {r.node_id: await rig.ctx.nodes.raise_token(extent, r, token=TOKEN + 1) for r in extent.replicas}
        assert [answers[node_id].conflict for node_id in (1, 2, 3)] == [True, False, False]
        assert {answer.length for answer in answers.values()} == {len(BYTES)}
        assert decide_open(answers, extent.node_ids, token=TOKEN + 1) is None
        sealed = await rig.seal(stream_id)
        assert sealed.conflict
        assert not sealed.all_took_part
        await rig.until(lambda: rig.extent(extent.extent_id).all_confirmed)
        rig.check_equal(extent.extent_id)
        assert rig.bytes_on(1, extent.extent_id) == BYTES


@simulated
async def test_a_reported_conflict_has_the_extent_sealed_and_its_digests_compared_first() -> None:
    """A slow majority decides, not the quick one that confirms alone."""
    async with Rig() as rig:
        _, extent = await diverged(rig, others_on=(1,))
        seal = rig.ctx.nodes.seal
        first: list[int] = []

        async def slow(asked: Extent, replica: ReplicaAt) -> en.SealExtentReply:
            if replica.node_id != 1:
                await asyncio.sleep(20 * GATHER_S)
            reply = await seal(asked, replica)
            first.append(replica.node_id)
            return reply

        rig.ctx.nodes.seal = slow  # type: ignore[method-assign, assignment]
        bad = sm.BadReplica(extent_id=extent.extent_id, replica=replica_message(extent.replicas[0]), conflict=True)
        rig.part.bad.report([bad])
        await rig.until(lambda: rig.extent(extent.extent_id).seal is not None)
        assert rig.extent(extent.extent_id).conflict
        await rig.until(lambda: bool(rig.extent(extent.extent_id).confirmed))
        assert first[0] == 1
        assert rig.extent(extent.extent_id).confirmed == (2, 3)
        await rig.until(lambda: rig.extent(extent.extent_id).all_confirmed)
        assert rig.bytes_on(1, extent.extent_id) == BYTES


@simulated
async def test_a_reported_conflict_marks_whatever_seal_comes_first_also_if_the_node_itself_is_silent() -> None:
    """The node restarts and has forgotten; before the manager seals by itself, somebody opens the stream."""
    async with Rig(manual=True) as rig:
        stream_id, extent = await diverged(rig, others_on=(1,))
        rig.part.bad.report(
            [sm.BadReplica(extent_id=extent.extent_id, replica=replica_message(extent.replicas[0]), conflict=True)]
        )
        fence = rig.ctx.nodes.fence

        async def silent(asked: Extent, replica: ReplicaAt, **how: Any) -> en.LengthAnswer:
            if replica.node_id == 1:
                raise ConnectFailed(address="node1")
            return await fence(asked, replica, **how)

        rig.ctx.nodes.fence = silent  # type: ignore[method-assign, assignment]
        sealed = await rig.seal(stream_id)
        assert sealed.conflict
        assert not sealed.all_took_part
        await rig.part.bad.run_once(rig.ctx.clock())
        assert not rig.ctx.conflicts


@simulated
async def test_after_a_conflict_nobody_waits_for_a_replica_that_its_node_says_is_not_there() -> None:
    """Two that differ and a third one whose file is gone: it can tell nothing, and would hold up every reader."""
    async with Rig() as rig:
        stream_id, extent = await diverged(rig, others_on=(1,))
        seal = rig.ctx.nodes.seal

        async def gone(asked: Extent, replica: ReplicaAt) -> en.SealExtentReply:
            if replica.node_id == 3 and not rig.extent(extent.extent_id).confirmed:
                raise ReplicaMissing(extent_id=asked.extent_id)
            return await seal(asked, replica)

        rig.ctx.nodes.seal = gone  # type: ignore[method-assign, assignment]
        assert (await rig.seal(stream_id)).conflict
        await rig.until(lambda: rig.extent(extent.extent_id).all_confirmed)
        rig.check_equal(extent.extent_id)


def test_after_a_conflict_no_digest_counts_that_others_could_still_outvote() -> None:
    a, b = b"a", b"b"
    nodes = (1, 2, 3)

    def choose(told: dict[int, bytes], *, conflict: bool = True, dead: tuple[int, ...] = ()) -> bytes | None:
        return choose_digest(told, nodes, without_digest=dead, conflict=conflict)

    assert choose({1: a}, conflict=False) == a
    assert choose({1: a}) is None
    assert choose({1: a, 2: b}) is None
    assert choose({1: a, 2: a}) == a
    assert choose({1: b, 2: a, 3: a}) == a
    assert choose({1: a, 2: b}, dead=(3,)) == a  # nobody else can be asked: what came first (20)
    assert choose({2: b}, dead=(1, 3)) == b
    assert choose({1: a, 2: b, 3: b"c"}) == a
