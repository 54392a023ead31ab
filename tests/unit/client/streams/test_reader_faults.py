"""The reader under trouble: slow, hung, dead and damaged replicas, truncated streams, dead writers."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from neve.client import InvalidArgument, NeveError, NotFound, OutOfRange, Position, ReplicaDamaged
from neve.proto.blocks import BlockType
from tests.unit.client.streams.rig import Rig, payloads_of, read_all, run

PAYLOADS = [b"%03d" % number + b"." * 300 for number in range(40)]


async def sealed_stream(rig: Rig, neve: Any) -> tuple[Any, list[Position]]:
    stream = await neve.create_stream()
    async with neve.writer(stream.id) as writer:
        positions = list(await writer.append_many(PAYLOADS))
    await neve.seal(stream.id)
    extents = rig.manager.extents
    while not all(each.confirmed for extent_id in stream.extent_ids for each in extents[extent_id].replicas):
        await asyncio.sleep(0.1)
    return await neve.stream(stream.id), positions


def test_t29_a_damaged_block_is_read_elsewhere_and_the_replica_reported() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream, positions = await sealed_stream(rig, neve)
        (extent_id,) = stream.extent_ids
        for node in rig.nodes[:]:
            if node.fs.stat(node.extent_path(extent_id)) is not None:
                node.fs.flip(node.extent_path(extent_id), positions[7].offset + 20, 3)
                damaged = node
                break
        async with rig.client() as neve:
            for _ in range(3):
                assert await payloads_of(neve, stream.id) == PAYLOADS
                assert (await neve.read_record(stream.id, positions[7])).payload == PAYLOADS[7]
            for node in rig.nodes:  # whichever is asked first
                if node is not damaged:
                    rig.network.slow("client", node.host, factor=100.0)
            assert await payloads_of(neve, stream.id) == PAYLOADS
            await asyncio.sleep(1)
            assert {(bad.extent_id, bad.replica.node_id) for bad in rig.manager.bad} == {(extent_id, damaged.node_id)}
            assert {bad.offset for bad in rig.manager.bad} == {positions[7].offset}

    run(story)


def test_bytes_that_are_wrong_everywhere_are_an_error_and_never_returned() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream, positions = await sealed_stream(rig, neve)
            (extent_id,) = stream.extent_ids
            for node in rig.nodes:
                if node.fs.stat(node.extent_path(extent_id)) is not None:
                    node.fs.flip(node.extent_path(extent_id), positions[7].offset + 20, 3)
            got: list[bytes] = []

            async def read() -> None:
                async for record in neve.read(stream.id):
                    got.append(bytes(record.payload))  # noqa: PERF401 - looked at after the error

            with pytest.raises(ReplicaDamaged):
                await read()
            assert got == PAYLOADS[:7]

    run(story)


@pytest.mark.parametrize("offset", [1, 9, 317])
def test_a_start_inside_of_a_block_is_an_error_and_accuses_no_replica(offset: int) -> None:
    async def story(rig: Rig) -> None:
        async with rig.client(read_deadline_s=2.0) as neve:
            stream = await neve.create_stream()
            async with neve.writer(stream.id) as writer:
                await writer.append_many(PAYLOADS)
            start = Position(stream.extent_ids[0], offset)
            with pytest.raises((ReplicaDamaged, InvalidArgument)):
                await read_all(neve, stream.id, start=start)
            await neve.seal(stream.id)
            await asyncio.sleep(5)
            with pytest.raises((ReplicaDamaged, InvalidArgument)):
                await read_all(neve, stream.id, start=start)
            assert rig.manager.bad == []

    run(story)


def test_a_payload_that_looks_like_a_block_accuses_no_replica_either() -> None:
    """The node cannot tell: by its header a block does begin there. Its CRC is wrong on every replica."""

    async def story(rig: Rig) -> None:
        async with rig.client(read_deadline_s=2.0) as neve:
            stream = await neve.create_stream()
            async with neve.writer(stream.id) as writer:
                looks_like_one = struct.pack("<II", 0x12345678, BlockType.FULL << 24 | 4) + b"abcd"
                position = await writer.append(looks_like_one)
                await writer.flush()
                await asyncio.sleep(0.1)
                with pytest.raises(ReplicaDamaged):
                    await read_all(neve, stream.id, start=Position(position.extent_id, position.offset + 8))
            await asyncio.sleep(1)
            assert rig.manager.bad == []

    run(story)


def test_a_slow_replica_is_raced_by_a_second_one() -> None:
    async def story(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        async with rig.client() as neve:
            stream, positions = await sealed_stream(rig, neve)
        async with rig.client() as neve:
            begun_s = loop.time()
            first = rig.node(
                neve._extents._history.order(await neve._catalog.extent(stream.extent_ids[0]), 0)[0].node_id
            )
            rig.network.pause(first.host)
            assert (await neve.read_record(stream.id, positions[0])).payload == PAYLOADS[0]
            assert loop.time() - begun_s < 1.0  # of virtual time: a hung replica alone would take five seconds
            rig.network.resume(first.host)

    run(story)


def test_reads_go_on_when_a_node_dies_in_the_middle() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream, _ = await sealed_stream(rig, neve)
            got = []
            async for record in neve.read(stream.id):
                got.append(bytes(record.payload))
                if len(got) == 5:
                    rig.nodes[0].kill()
                if len(got) == 15:
                    rig.nodes[1].kill()
            assert got == PAYLOADS

    run(story)


def test_a_follower_goes_on_when_its_replica_dies_and_the_writer_rolls() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve, rig.client("reader") as other:
            stream = await neve.create_stream()
            seen: list[bytes] = []

            async def follow() -> None:
                async for record in other.read(stream.id, follow=True):
                    seen.append(bytes(record.payload))  # noqa: PERF401 - looked at meanwhile

            following = asyncio.ensure_future(follow())
            async with neve.writer(stream.id) as writer:
                for number, payload in enumerate(PAYLOADS):
                    await writer.append(payload)
                    await asyncio.sleep(0.05)
                    if number == 10:
                        rig.tail_nodes(stream.id)[0].kill()
                await neve.seal(stream.id)
            await following
            assert seen == PAYLOADS

    run(story)


def test_a_truncated_start_says_where_the_stream_begins_now() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream = await neve.create_stream()
            async with neve.writer(stream.id) as writer:
                positions = list(await writer.append_many(PAYLOADS))
                middle = positions[20]
                after = await neve.truncate(stream.id, middle)
            assert after.start == Position(middle.extent_id, 0)
            with pytest.raises(NotFound, match=f"begins at {middle.extent_id}:0"):
                await read_all(neve, stream.id, start=positions[0])
            rest = await read_all(neve, stream.id)
            assert [record.position for record in rest] == [p for p in positions if p.extent_id >= middle.extent_id]

    run(story, extent_bytes_max=3000)


def test_a_start_behind_the_end_of_a_sealed_extent_is_out_of_range() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream, positions = await sealed_stream(rig, neve)
            end = Position(positions[-1].extent_id, positions[-1].offset + len(PAYLOADS[-1]) + 8)
            assert await read_all(neve, stream.id, start=end) == []
            with pytest.raises(OutOfRange):
                await read_all(neve, stream.id, start=Position(end.extent_id, end.offset + 1))

    run(story)


def test_a_record_whose_writer_died_is_passed_over_when_another_owner_goes_on() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client("old", append_attempts_max=50) as old, rig.client("new") as new:
            stream = await old.create_stream()
            writer = await old.writer(stream.id).open()
            await writer.append(b"before")
            unfinished = writer.submit(b"x" * 50_000)  # some of its blocks arrive everywhere
            while rig.nodes[0].store.state.counters.appended_bytes < 5_000:
                await asyncio.sleep(0.0001)
            for node in rig.nodes:
                rig.network.partition("old", node.host)
            async with new.writer(stream.id, takeover=True) as successor:
                await successor.append(b"after")
            assert await payloads_of(new, stream.id) == [b"before", b"after"]
            await writer.abort()
            with pytest.raises(NeveError):
                await unfinished

    run(story)


def test_single_records_come_from_the_cache_the_second_time() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream, positions = await sealed_stream(rig, neve)
            for _ in range(2):
                for position, payload in zip(positions, PAYLOADS, strict=True):
                    assert (await neve.read_record(stream.id, position)).payload == payload
            assert neve._extents.cache.hits == len(PAYLOADS)
            with pytest.raises((NotFound, InvalidArgument)):
                await neve.read_record(stream.id, Position(positions[0].extent_id, 5))

    run(story)


def test_a_reader_without_follow_sees_what_any_replica_was_told() -> None:
    """Nodes forget `committed` when they restart: one that knows it is enough."""

    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream = await neve.create_stream()
            async with neve.writer(stream.id) as writer:
                await writer.append_many(PAYLOADS)
                await writer.flush()
                await asyncio.sleep(0.1)
                for node in rig.tail_nodes(stream.id)[:2]:
                    node.kill()
                    await node.start()
                assert await payloads_of(neve, stream.id) == PAYLOADS

    run(story)
