"""Client, writer and reader together, on real nodes in the simulation, without faults."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

from neve.client.streams import writer_tail
from neve.client.streams.types import Position
from neve.proto.errors import InvalidArgument, ShuttingDown, TooLarge
from tests.unit.client.streams.rig import Rig, payloads_of, read_all, run


def test_what_was_appended_is_read_back_in_order_with_its_positions() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream = await neve.create_stream(name="events", replicas=3)
            async with neve.writer(stream.id) as writer:
                first = await writer.append(b"hello")
                many = await writer.append_many([b"a", b"b", b"c"])
                pending = writer.submit(b"last")
                await writer.flush()
                assert pending.done()
                positions = [first, *many, await pending]
            records = await read_all(neve, stream.id)
            assert [bytes(record.payload) for record in records] == [b"hello", b"a", b"b", b"c", b"last"]
            assert [record.position for record in records] == positions
            assert (await neve.stream("events")).id == stream.id
            assert [record.position for record in await read_all(neve, stream.id, start=many[1])] == positions[2:]
            assert [record.position for record in await read_all(neve, stream.id, end=many[1])] == positions[:2]
            assert (await neve.read_record(stream.id, many[0])).payload == b"a"

    run(story)


def test_a_full_extent_is_rolled_ahead_of_time_and_nothing_is_lost_or_repeated() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream = await neve.create_stream()
            written = [b"%05d" % number + b"." * (number % 300) for number in range(400)]
            async with neve.writer(stream.id) as writer:
                positions = [await writer.append(payload) for payload in written[:200]]
                positions += await writer.append_many(written[200:])
                assert writer.stats.rolls >= 5
                assert writer.stats.resent_bytes == 0
            made_ahead = rig.manager.calls.count("prepare_extent")
            assert made_ahead >= 5
            assert rig.manager.prepared == {}  # each was used
            records = await read_all(neve, stream.id)
            assert [bytes(record.payload) for record in records] == written
            assert [record.position for record in records] == positions
            assert len({position.extent_id for position in positions}) >= 5

    run(story, extent_bytes_max=10_000)


def test_a_record_larger_than_a_block_and_than_an_extent_comes_back_whole() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream = await neve.create_stream()
            large = bytes(range(256)) * 100
            async with neve.writer(stream.id) as writer:
                await writer.append(b"before")
                position = await writer.append(large)
                mixed = await writer.append_many([b"x", large, b"y"])
            records = await read_all(neve, stream.id)
            assert [bytes(record.payload) for record in records] == [b"before", large, b"x", large, b"y"]
            assert records[1].position == position
            assert [record.position for record in records[2:]] == list(mixed)
            assert (await neve.read_record(stream.id, position)).payload == large

    run(story, extent_bytes_max=5_000)


def test_a_follower_sees_records_as_they_come_over_extents_until_the_stream_is_sealed() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve, rig.client("reader") as other:
            stream = await neve.create_stream()
            seen: list[bytes] = []

            async def follow() -> None:
                async for record in other.read(stream.id, follow=True):
                    seen.append(bytes(record.payload))  # noqa: PERF401 - it is looked at meanwhile

            following = asyncio.ensure_future(follow())
            written = [b"%03d" % number + b"." * 200 for number in range(60)]
            async with neve.writer(stream.id) as writer:
                for payload in written:
                    await writer.append(payload)
                    await asyncio.sleep(0.02)
                assert len(seen) >= len(written) - 3  # the last ones are told a few milliseconds later
                await neve.seal(stream.id)
            await following
            assert seen == written

    run(story, extent_bytes_max=3_000)


def test_a_second_open_goes_on_in_the_same_extent_with_a_higher_token() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client() as neve:
            stream = await neve.create_stream()
            async with neve.writer(stream.id) as writer:
                first = await writer.append(b"one")
                token = writer.token
            async with neve.writer(stream.id) as writer:
                assert writer.token > token
                second = await writer.append(b"two")
            assert second == Position(first.extent_id, first.offset + 11)
            assert await payloads_of(neve, stream.id) == [b"one", b"two"]

    run(story)


def test_a_writer_that_appends_in_the_turn_in_which_it_seemed_idle_tells_nothing() -> None:
    """After a long turn of the loop, its timers come before those who were acknowledged in that turn."""

    async def story(rig: Rig) -> None:
        async with rig.client() as client:
            stream = await client.create_stream()
            async with client.writer(stream.id) as writer:
                await writer.append(b"first")
                await asyncio.sleep(1)
                assert writer._opened is not None
                tail = writer._opened.tail
                tells = 0

                def note() -> None:
                    nonlocal tells
                    tells += 1

                with mock.patch.object(tail, "publish_committed", note):
                    tail.on_idle()
                    pending = writer.submit(b"second")
                    await asyncio.sleep(0)
                    await pending
                    assert tells == 0
                    await asyncio.sleep(1)
                    assert tells == 1

    run(story)


@pytest.mark.parametrize("closes", [False, True])
def test_what_an_idle_writer_had_acknowledged_is_readable_again_after_all_nodes_restarted(
    closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes forget how far readers may go. The writer repeats it after a while, or at the latest when it closes."""
    monkeypatch.setattr(writer_tail, "REPUBLISH_COMMITTED_S", 1000.0 if closes else 5.0)

    async def story(rig: Rig) -> None:
        async with rig.client() as neve, rig.client("reader") as reader:
            stream = await neve.create_stream(replicas=3)
            async with neve.writer(stream.id) as writer:
                await writer.append_many([b"a", b"b"])
                await asyncio.sleep(1.0)
                assert await payloads_of(reader, stream.id) == [b"a", b"b"]
                for node in rig.tail_nodes(stream.id):
                    node.kill()
                    await node.start()
                assert await payloads_of(reader, stream.id) == []
                await asyncio.sleep(8.0)
                if not closes:
                    assert await payloads_of(reader, stream.id) == [b"a", b"b"]
            assert await payloads_of(reader, stream.id) == [b"a", b"b"]

    run(story)


def test_a_record_that_no_reader_would_take_is_refused_and_the_writer_goes_on() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client(record_bytes_max=3000) as neve:
            stream = await neve.create_stream()
            async with neve.writer(stream.id) as writer:
                await writer.append(bytes(3000))
                with pytest.raises(TooLarge, match="3001"):
                    await writer.append(bytes(3001))
                with pytest.raises(TooLarge, match="3001"):
                    writer.submit(bytes(3001))
                with pytest.raises(TooLarge, match="3001"):
                    await writer.append_many([b"x", bytes(3001)])
                await writer.append(b"last")
            assert await payloads_of(neve, stream.id) == [bytes(3000), b"last"]

    run(story)


def test_a_client_that_is_not_open_says_so_and_changes_nothing() -> None:
    async def story(rig: Rig) -> None:
        neve = rig.make_client()
        with pytest.raises(ShuttingDown, match="is not open"):
            await neve.create_stream()
        with pytest.raises(ShuttingDown, match="is not open"):
            await payloads_of(neve, 1)
        assert rig.manager.streams == {}
        async with neve:
            stream = await neve.create_stream()
            with pytest.raises(InvalidArgument, match="already open"):
                await neve.open()
        for attempt in (neve.open, neve.create_stream, neve.writer(stream.id).open, lambda: neve.delete(stream.id)):
            with pytest.raises(ShuttingDown, match="is closed"):
                await attempt()
        assert list(rig.manager.streams) == [stream.id]

    run(story)


def test_readers_may_go_to_the_end_of_what_is_frozen_before_it_is_sealed() -> None:
    async def story(rig: Rig) -> None:
        async with rig.client(committed_idle_s=1000.0) as neve, rig.client("reader") as reader:
            stream = await neve.create_stream(replicas=3)
            async with neve.writer(stream.id) as writer:
                position = await writer.append(b"a")
                assert await payloads_of(reader, stream.id) == []  # nobody has told the nodes yet
                assert await writer.freeze() == (position.extent_id, writer.committed.offset if writer.committed else 0)
                assert await payloads_of(reader, stream.id) == [b"a"]
                await writer.abort()

    run(story)
