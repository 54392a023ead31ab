"""An idle stream reads as it was written after all of its nodes were restarted; one with an owner is left alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from neve.meta.lock import lock_key
from neve.proto import extent_node_pb2 as en
from neve.proto.methods import EXTENT_NODE_APPEND_BLOCK, EXTENT_NODE_READ_BLOCK
from neve.stream_manager.config import Recovery
from neve.stream_manager.metadata.records import replica_message
from tests.sim import cluster as whole
from tests.sim.cluster import SimCluster
from tests.unit.extent_node.store.rig import segment
from tests.unit.stream_manager.nodes_rig import BYTES, TOKEN, Rig, simulated

DELAY_S = 30.0


async def written(rig: Rig, **how: Any) -> tuple[int, int]:
    """A stream whose writer told readers how far they may go, and is gone: its id, and its tail's."""
    stream_id = await rig.make_stream(nodes=(1, 2, 3), **how)
    extent = rig.tail(stream_id)
    for node_id in extent.node_ids:
        message, _ = segment(extent.extent_id, len(BYTES), [], token=TOKEN, committed=len(BYTES))
        channel = rig.network.channel("writer", rig.nodes[node_id].address, cluster="test")
        request = en.AppendBlockRequest(segments=[message])
        reply = await channel.call(EXTENT_NODE_APPEND_BLOCK, request, timeout_s=5.0)
        assert not reply.message.results[0].HasField("error"), reply
    return stream_id, extent.extent_id


async def read(rig: Rig, node_id: int, extent_id: int) -> bytes:
    replica = rig.extent(extent_id).replica_on(node_id)
    assert replica is not None
    request = en.ReadBlockRequest(extent_id=extent_id, replica=replica_message(replica), max_bytes=1 << 20)
    channel = rig.network.channel("reader", rig.nodes[node_id].address, cluster="test")
    return bytes((await channel.call(EXTENT_NODE_READ_BLOCK, request, timeout_s=5.0)).attachment)


async def restart(rig: Rig, node_ids: Iterable[int] = (1, 2, 3)) -> None:
    for node_id in node_ids:
        rig.nodes[node_id].kill()
    for node_id in node_ids:
        await rig.nodes[node_id].start()


async def look(rig: Rig) -> None:
    await rig.part.unread.run_once(rig.ctx.clock())


async def take_lock(rig: Rig, stream_id: int) -> int:
    return await rig.manager.store.put(lock_key(rig.ctx.root, rig.ctx.state.streams[stream_id].lock), b"owner")


async def drop_lock(rig: Rig, stream_id: int) -> None:
    await rig.manager.store.delete(lock_key(rig.ctx.root, rig.ctx.state.streams[stream_id].lock))


@simulated
async def test_an_idle_stream_reads_to_its_end_some_time_after_all_its_nodes_were_restarted() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        _, extent_id = await written(rig)
        assert await read(rig, 2, extent_id) == BYTES
        await restart(rig)
        await rig.wait(DELAY_S / 2)
        assert rig.extent(extent_id).seal is None
        assert await read(rig, 2, extent_id) == b""
        await rig.until(lambda: rig.extent(extent_id).all_confirmed, limit_s=3 * DELAY_S)
        for node_id in (1, 2, 3):
            assert await read(rig, node_id, extent_id) == BYTES
        rig.check_equal(extent_id)
        assert rig.part.unread.sealed == 1


@simulated
async def test_the_delay_can_be_configured() -> None:
    async with Rig(recovery=Recovery(unread_delay_s=2.0)) as rig:
        await rig.start_nodes(1, 2, 3)
        _, extent_id = await written(rig)
        await restart(rig)
        await rig.until(lambda: rig.extent(extent_id).seal is not None, limit_s=DELAY_S / 2)


@simulated
async def test_rolling_restarts_leave_nobody_who_knows_either() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        _, extent_id = await written(rig)
        for node_id in (1, 2):
            await restart(rig, [node_id])
            await rig.wait(3 * DELAY_S)
            assert rig.extent(extent_id).seal is None  # readers find the rest on the others
        await restart(rig, [3])
        await rig.until(lambda: rig.extent(extent_id).seal is not None, limit_s=3 * DELAY_S)


@simulated
async def test_a_stream_with_an_owner_is_left_alone_until_it_has_none() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        stream_id, extent_id = await written(rig)
        await take_lock(rig, stream_id)
        await restart(rig)
        await rig.wait(5 * DELAY_S)
        assert rig.extent(extent_id).seal is None
        assert not any(rig.on_node(node_id, extent_id).fenced for node_id in (1, 2, 3))  # type: ignore[union-attr]
        await drop_lock(rig, stream_id)
        await rig.until(lambda: rig.extent(extent_id).seal is not None, limit_s=5 * DELAY_S)


@simulated
async def test_an_owner_who_came_and_went_meanwhile_begins_the_delay_anew() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3)
        stream_id, extent_id = await written(rig)
        await restart(rig)
        await rig.wait(3)
        await look(rig)
        await rig.wait(DELAY_S / 2)
        token = await take_lock(rig, stream_id)
        extent = rig.extent(extent_id)
        for replica in extent.replicas:
            await rig.ctx.nodes.raise_token(extent, replica, token=token)
        await drop_lock(rig, stream_id)
        await rig.wait(DELAY_S / 2)
        await look(rig)
        assert rig.extent(extent_id).seal is None
        await rig.wait(DELAY_S)
        await look(rig)
        assert rig.extent(extent_id).seal is not None


@simulated
async def test_an_owner_who_comes_at_the_last_moment_is_seen_by_the_transaction() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3)
        stream_id, extent_id = await written(rig)
        await restart(rig)
        await rig.wait(3)
        await look(rig)
        await rig.wait(DELAY_S)
        fence = rig.ctx.nodes.fence

        async def owner_comes(*arguments: Any, **named: Any) -> en.LengthAnswer:
            await take_lock(rig, stream_id)
            return await fence(*arguments, **named)

        rig.ctx.nodes.fence = owner_comes  # type: ignore[method-assign]
        await look(rig)
        assert rig.extent(extent_id).seal is None
        assert rig.part.unread.sealed == 0
        assert rig.part.problems.text(extent_id) == ""


@simulated
async def test_an_empty_tail_stays_open() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        stream_id = await rig.make_stream(nodes=(1, 2, 3), blocks=[])
        await restart(rig)
        await rig.wait(4 * DELAY_S)
        assert rig.tail(stream_id).seal is None


@simulated
async def test_a_tail_that_cannot_be_sealed_says_so_and_is_tried_again() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        _, extent_id = await written(rig)
        fence = rig.ctx.nodes.fence

        async def doubtful(*arguments: Any, **named: Any) -> en.LengthAnswer:
            answer = await fence(*arguments, **named)
            return en.LengthAnswer(kind=en.LengthAnswer.NEVER_EXISTED, fenced=answer.fenced)

        rig.ctx.nodes.fence = doubtful  # type: ignore[method-assign]
        await restart(rig)
        await rig.until(lambda: "cannot be sealed" in rig.part.problems.text(extent_id))
        rig.ctx.nodes.fence = fence  # type: ignore[method-assign]
        await rig.until(lambda: rig.extent(extent_id).seal is not None)
        assert rig.part.problems.text(extent_id) == ""


@whole.simulated()
async def test_a_client_reads_all_that_was_written_after_all_nodes_were_restarted(cluster: SimCluster) -> None:
    stream = await cluster.create_stream(replicas=3, extent_bytes_max=1 << 20)
    client = await cluster.client("writer")
    writer = await client.writer(stream.id)
    for _ in range(20):
        await writer.append(300)
    await writer.close()
    reader = await cluster.client("reader")
    assert len(await reader.read(stream.id)) == 20
    for node in cluster.nodes.values():
        node.kill()
    for node in cluster.nodes.values():
        await node.start()
    await cluster.wait(4)
    assert len(await reader.read(stream.id)) == 0
    await cluster.until(lambda: cluster.tail(stream.id).all_confirmed, "the idle tail is sealed")
    assert len(await reader.read(stream.id)) == 20
    again = await cluster.client("another")
    writer = await again.writer(stream.id)  # goes on with a new tail
    await writer.append(300)
    assert len(cluster.state.streams[stream.id].extent_ids) == 2
    await writer.close()
    await cluster.wait(1)
    assert len(await reader.read(stream.id)) == 21
