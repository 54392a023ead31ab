"""Every replica of a sealed extent comes to the same bytes: whoever was away, short, long, wiped, wrong or damaged."""

from __future__ import annotations

from typing import Any

from neve.proto import blocks as block_format
from neve.proto import errors
from neve.proto import extent_node_pb2 as en
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import ConnectFailed
from neve.proto.methods import EXTENT_NODE_APPEND_BLOCK
from neve.rpc.service import Call
from neve.stream_manager.config import Recovery
from neve.stream_manager.metadata.records import Extent
from tests.sim.processes.node import SimNode
from tests.unit.extent_node.store.rig import block_of, segment
from tests.unit.stream_manager.nodes_rig import BLOCKS, BYTES, TOKEN, Rig, simulated

CALL = Call(None, deadline_s=0.0, principal="", peer="")  # type: ignore[arg-type]


async def confirmed(rig: Rig, extent_id: int) -> None:
    await rig.until(lambda: rig.extent(extent_id).all_confirmed)
    rig.check_equal(extent_id)
    rig.ctx.state.validate()


async def append_error(rig: Rig, node_id: int, extent: Extent, offset: int) -> str:
    message, body = segment(extent.extent_id, offset, [block_of("late")], token=TOKEN, eversion=extent.eversion)
    channel = rig.network.channel("writer", rig.nodes[node_id].address, cluster="test")
    request = en.AppendBlockRequest(segments=[message])
    reply = await channel.call(EXTENT_NODE_APPEND_BLOCK, request, timeout_s=5.0, attachment=[body])
    result = reply.message.results[0]
    assert result.HasField("error"), result
    return type(errors.from_message(result.error)).__name__


# --- T1, T5, T7, T8, T10 --------------------------------------------------------------------------------------


@simulated
async def test_t01_a_wiped_disk_does_not_shorten_the_seal_and_is_filled_again() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        stream_id = await rig.make_stream(nodes=(1, 2, 3))
        rig.nodes[2].kill()
        rig.nodes[2].wipe()
        await rig.nodes[2].start()
        sealed = await rig.seal(stream_id)
        assert sealed.seal is not None
        assert sealed.seal.length == len(BYTES)
        assert not sealed.all_took_part
        await confirmed(rig, sealed.extent_id)
        assert rig.bytes_on(2, sealed.extent_id) == BYTES


@simulated
async def test_t05_a_replica_shorter_than_the_writers_end_is_not_good_before_it_is_filled() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3)
        stream_id = await rig.make_stream(nodes=(1, 2, 3), blocks=BLOCKS[:3])
        half = len(b"".join(BLOCKS[:3]))
        await rig.append(rig.tail(stream_id), half, BLOCKS[3:], nodes=(1, 2))
        sealed = await rig.seal(stream_id, acknowledged_end=len(BYTES))
        assert sealed.seal is not None
        assert sealed.seal.length == len(BYTES)
        await rig.until(lambda: len(rig.extent(sealed.extent_id).confirmed) == 2)
        await rig.wait(5)
        assert 3 not in rig.extent(sealed.extent_id).confirmed
        for _ in range(10):
            await rig.part.reconciler.run_once(rig.ctx.clock())
            await rig.part.recovery.run_once(rig.ctx.clock())
            await rig.wait(1.5)
        await confirmed(rig, sealed.extent_id)


@simulated
async def test_t07_a_node_that_was_away_returns_with_more_bytes_and_is_cut_before_any_read() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        stream_id = await rig.make_stream(nodes=(1, 2, 3))
        extent = rig.tail(stream_id)
        await rig.append(extent, len(BYTES), [block_of("unacknowledged", 500)], nodes=(3,))
        rig.nodes[3].kill()
        sealed = await rig.seal(stream_id)
        assert sealed.seal is not None
        assert sealed.seal.length == len(BYTES)
        await rig.nodes[3].start()
        await confirmed(rig, extent.extent_id)
        assert rig.bytes_on(3, extent.extent_id) == BYTES
        assert rig.extent(extent.extent_id).replica_on(3) == extent.replica_on(3)  # cut where it is, not copied


@simulated
async def test_t07_a_node_that_was_away_returns_with_fewer_bytes_and_is_filled() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        stream_id = await rig.make_stream(nodes=(1, 2, 3), blocks=BLOCKS[:2])
        extent = rig.tail(stream_id)
        rig.nodes[3].kill()
        await rig.append(extent, len(b"".join(BLOCKS[:2])), BLOCKS[2:], nodes=(1, 2))
        sealed = await rig.seal(stream_id)
        assert sealed.seal is not None
        assert sealed.seal.length == len(BYTES)
        await rig.nodes[3].start()
        await confirmed(rig, extent.extent_id)
        assert rig.bytes_on(3, extent.extent_id) == BYTES


@simulated
async def test_t08_a_node_that_was_away_refuses_the_old_writer_once_it_was_told_of_the_seal() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        stream_id = await rig.make_stream(nodes=(1, 2, 3))
        extent = rig.tail(stream_id)
        rig.network.partition("manager1", "node3")
        await rig.seal(stream_id)
        await rig.append(extent, len(BYTES), [block_of("by an unfenced writer")], nodes=(3,))  # nobody knows here yet
        rig.network.heal("manager1", "node3")
        await confirmed(rig, extent.extent_id)
        assert await append_error(rig, 3, extent, len(BYTES)) == "ExtentSealed"


@simulated
async def test_t10_sealed_replicas_are_byte_equal_whatever_happened_meanwhile() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, 4)
        streams = [await rig.make_stream(nodes=(1, 2, 3), blocks=BLOCKS[:2]) for _ in range(4)]
        at = len(b"".join(BLOCKS[:2]))
        await rig.append(rig.tail(streams[0]), at, BLOCKS[2:4], nodes=(1, 2))
        await rig.append(rig.tail(streams[1]), at, BLOCKS[2:3], nodes=(3,))
        await rig.append(rig.tail(streams[2]), at, BLOCKS[2:], nodes=(1, 3))
        rig.nodes[2].power_cut()
        await rig.nodes[2].start()
        sealed = [await rig.seal(stream_id) for stream_id in streams]
        rig.nodes[1].kill()
        await rig.wait(4)
        await rig.nodes[1].start()
        rig.nodes[3].kill()  # for ever
        for extent in sealed:
            await rig.until(lambda extent=extent: rig.extent(extent.extent_id).all_confirmed)  # type: ignore[misc]
        await rig.until(lambda: not rig.ctx.state.extents_on(3))
        for extent in sealed:
            await confirmed(rig, extent.extent_id)


@simulated
async def test_a_short_replica_that_cannot_be_filled_where_it_is_is_made_elsewhere() -> None:
    async with Rig(recovery=Recovery(delay_s=1, retry_delay_s=1, retry_delay_s_max=2, attempts_max=2)) as rig:
        await rig.start_nodes(1, 2, 3, 4)
        stream_id = await rig.make_stream(nodes=(1, 2, 3), blocks=BLOCKS[:2])
        extent = rig.tail(stream_id)
        await rig.append(extent, len(b"".join(BLOCKS[:2])), BLOCKS[2:], nodes=(1, 2))
        rig.nodes[3].store.copies.begin = refuse  # type: ignore[method-assign]
        await rig.seal(stream_id, acknowledged_end=len(BYTES))
        await rig.until(lambda: set(rig.extent(extent.extent_id).node_ids) == {1, 2, 4})
        await confirmed(rig, extent.extent_id)


async def refuse(request: en.StartCopyRequest) -> Any:
    raise errors.DiskFull(extent_id=request.extent_id, detail="as the test wants it")


@simulated
async def test_a_task_without_a_source_keeps_nobody_from_being_asked() -> None:
    """Disks of two nodes are away, and their replicas condemned; the third node goes for ever before it was copied.
    When the disks come back, whole, they are all there is, and enough."""
    async with Rig(recovery=Recovery(delay_s=1)) as rig:
        await rig.start_nodes(1, 2, 3, 4, disks=2)
        extent_id = (await rig.sealed_stream(nodes=(1, 2, 3))).extent_id
        await confirmed(rig, extent_id)
        folders = {node_id: _folder(rig.nodes[node_id], extent_id) for node_id in (1, 2)}
        strange = {node_id: SimNode(rig.network, node_id=90 + node_id, managers=[], disks=2).fs for node_id in (1, 2)}

        async def exchange_disks() -> None:
            for node_id, folder in folders.items():
                node = rig.nodes[node_id]
                node.kill()
                node.fs.swap_disk(strange[node_id], folder)
                await node.start()

        async def unreachable(*_: object, **__: object) -> None:
            raise ConnectFailed(detail="as the test wants it")

        start_copy, rig.ctx.nodes.start_copy = rig.ctx.nodes.start_copy, unreachable  # type: ignore[method-assign]
        await exchange_disks()
        await rig.until(lambda: rig.extent(extent_id).confirmed == (3,) and extent_id in rig.ctx.state.tasks)
        rig.nodes[3].kill()
        await rig.until(lambda: rig.ctx.state.nodes[3].dead)
        assert rig.ctx.state.tasks[extent_id].attempts == 0
        rig.ctx.nodes.start_copy = start_copy  # type: ignore[method-assign]
        await exchange_disks()
        await rig.until(lambda: rig.extent(extent_id).all_confirmed and 3 not in rig.extent(extent_id).node_ids)
        rig.check_equal(extent_id)


def _folder(node: SimNode, extent_id: int) -> str:
    """Of the disk that has this extent."""
    return next(f"/disk{disk}" for disk in range(node.disks) if node.fs.stat(node.extent_path(extent_id, disk)))


# --- a manager that dies in between ---------------------------------------------------------------------------


@simulated
async def test_confirmations_that_a_dead_manager_left_open_are_asked_for_by_the_next_one() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3)
        stream_id = await rig.make_stream(nodes=(1, 2, 3))
        extent_id = rig.tail(stream_id).extent_id
        work = rig.ctx.nodes.seal

        async def silent(*_: object) -> en.SealExtentReply:
            raise ConnectFailed(detail="the manager died before it asked")

        rig.ctx.nodes.seal = silent  # type: ignore[method-assign, assignment]
        await rig.seal(stream_id)
        await rig.wait(1)
        assert rig.extent(extent_id).confirmed == ()
        rig.ctx.nodes.seal = work  # type: ignore[method-assign]
        rig.manual = False
        await rig.depose()
        await rig.lead()
        await confirmed(rig, extent_id)


@simulated
async def test_a_replica_with_other_bytes_is_quarantined_and_made_anew() -> None:
    """Node 3 has blocks of the same sizes with other content, whole by their checksums: only the digest tells."""
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        stream_id = await rig.make_stream(nodes=(1, 2, 3), blocks=[])
        extent = rig.tail(stream_id)
        await rig.append(extent, 0, BLOCKS, nodes=(1, 2))
        other = [block_of(f"other {n}".encode(), len(b) - block_format.HEADER_BYTES) for n, b in enumerate(BLOCKS)]
        await rig.append(extent, 0, other, nodes=(3,))
        rig.network.partition("manager1", "node3")
        await rig.seal(stream_id)
        await rig.until(lambda: len(rig.extent(extent.extent_id).confirmed) == 2)
        rig.network.heal("manager1", "node3")
        await confirmed(rig, extent.extent_id)
        assert rig.bytes_on(3, extent.extent_id) == BYTES
        assert len(rig.nodes[3].fs.list_dir("/disk0/quarantine")) >= 1


@simulated
async def test_an_extent_that_nobody_can_confirm_is_named() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        stream_id = await rig.make_stream(nodes=(1, 2, 3))
        extent_id = rig.tail(stream_id).extent_id
        for node_id in (1, 2, 3):
            rig.nodes[node_id].fs.flip(rig.nodes[node_id].extent_path(extent_id), 20, 1)
        await rig.seal(stream_id)
        await rig.until(lambda: "no replica has confirmed the seal" in rig.part.problems.text(extent_id))
        assert rig.extent(extent_id).confirmed == ()


# --- bad replicas ---------------------------------------------------------------------------------------------


async def report(rig: Rig, extent: Extent, node_id: int) -> None:
    replica = extent.replica_on(node_id)
    assert replica is not None
    bad = sm.BadReplica(extent_id=extent.extent_id, reason="wrong CRC", reporter="a reader", offset=0)
    bad.replica.node_id, bad.replica.disk_uuid, bad.replica.incarnation = replica
    rig.part.bad.report([bad])


@simulated
async def test_a_replica_that_a_reader_found_bad_is_verified_by_its_node_and_repaired() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        rig.nodes[2].fs.flip(rig.nodes[2].extent_path(extent.extent_id), 30, 3)
        await report(rig, extent, 2)
        await rig.until(lambda: rig.extent(extent.extent_id).replica_on(2) != extent.replica_on(2))
        assert rig.bytes_on(2, extent.extent_id) == BYTES
        await confirmed(rig, extent.extent_id)
        assert rig.part.bad.waiting == 0


@simulated
async def test_a_report_about_a_good_replica_changes_nothing() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        await report(rig, extent, 2)
        assert rig.part.bad.waiting == 1
        await rig.until(lambda: rig.part.bad.waiting == 0 and not rig.ctx.state.tasks)
        await rig.wait(5)
        now = rig.extent(extent.extent_id)
        assert (now.replicas, now.confirmed, now.eversion) == (extent.replicas, extent.confirmed, extent.eversion)
        assert rig.nodes[2].copier.counters.tasks_done == 1  # every byte was verified
        assert rig.nodes[2].copier.counters.copied_bytes == 0


@simulated
async def test_reports_about_files_that_metadata_does_not_list_are_passed_over() -> None:
    async with Rig(manual=True) as rig:
        await rig.start_nodes(1, 2, 3, 4)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        strange = [
            sm.BadReplica(extent_id=999, replica={"node_id": 1}),
            sm.BadReplica(extent_id=extent.extent_id, replica={"node_id": 4}),
            sm.BadReplica(extent_id=extent.extent_id, replica={"node_id": 1, "incarnation": 12345}),
        ]
        rig.part.bad.report(strange)
        assert rig.part.bad.waiting == 0


@simulated
async def test_scrubbing_finds_damage_and_the_replica_is_made_anew() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3, scrub_interval_s=20.0)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        rig.nodes[2].fs.flip(rig.nodes[2].extent_path(extent.extent_id), 30, 3)
        await rig.until(lambda: rig.bytes_on_or_none(2, extent.extent_id) == BYTES)
        await confirmed(rig, extent.extent_id)
        assert len(rig.nodes[2].fs.list_dir("/disk0/quarantine")) >= 1


@simulated
async def test_a_confirmed_replica_that_is_gone_is_noticed_by_the_nodes_report_and_made_anew() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        extents = [await rig.sealed_stream(nodes=(1, 2, 3)) for _ in range(3)]
        rig.nodes[2].kill()
        rig.nodes[2].wipe()
        await rig.nodes[2].start()
        for extent in extents:
            await rig.until(lambda extent=extent: rig.bytes_on_or_none(2, extent.extent_id) == BYTES)  # type: ignore[misc]
            await confirmed(rig, extent.extent_id)


@simulated
async def test_an_open_replica_that_is_gone_makes_the_manager_seal_its_extent() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        stream_id = await rig.make_stream(nodes=(1, 2, 3))
        extent_id = rig.tail(stream_id).extent_id
        rig.nodes[2].kill()
        rig.nodes[2].wipe()
        await rig.nodes[2].start()
        await rig.until(lambda: rig.extent(extent_id).seal is not None)
        await confirmed(rig, extent_id)
        assert rig.bytes_on(2, extent_id) == BYTES


@simulated
async def test_blocks_that_are_bad_in_two_replicas_at_different_places_still_make_good_ones() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        extent = await rig.sealed_stream(nodes=(1, 2, 3))
        path = rig.nodes[1].extent_path(extent.extent_id)
        rig.nodes[1].fs.flip(path, 20, 1)
        rig.nodes[2].fs.flip(path, len(BYTES) - 20, 1)
        await report(rig, extent, 1)
        await report(rig, extent, 2)
        await rig.until(lambda: all(rig.bytes_on_or_none(n, extent.extent_id) == BYTES for n in (1, 2, 3)))
        await confirmed(rig, extent.extent_id)
