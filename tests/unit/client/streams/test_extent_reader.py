"""Reading ahead: asked for as soon as it is known where, and never more than two answers ahead."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from neve.client.manager_link import ManagerLink
from neve.client.streams.catalog import Catalog
from neve.client.streams.core.reader import SourceHistory
from neve.client.streams.options import DEFAULT_OPTIONS
from neve.client.streams.reading import read_race
from neve.client.streams.reading.extent_reader import Chunk, ExtentReader
from neve.client.streams.reading.read_ahead import Fetch
from neve.client.streams.reading.read_race import Race, ReadPlan, Won, with_headers
from neve.client.streams.reading.reader import Reader as StreamReader
from neve.client.streams.types import Extent, Position, Record, Replica, Stream
from neve.proto import extent_node_pb2 as pb
from neve.proto.blocks import HEADER_BYTES, Problem, encode_block
from neve.proto.errors import AcknowledgedLost, ConnectionLost
from neve.rpc.limits import KIB, MIB
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Reply
from neve.rpc.wire.deadlines import Deadlines

BLOCK = encode_block(b"x" * 92)
BLOCKS = 10
REPLICA = Replica(node_id=1, disk_uuid="d", incarnation=1, address="n:1", confirmed=True)
EXTENT = Extent(id=7, eversion=1, length=BLOCKS * len(BLOCK), replicas=(REPLICA,), extent_bytes_max=1 << 20)


class Known:
    """A catalog of one extent."""

    def __init__(self, extent: Extent) -> None:
        self._extent = extent

    async def extent(self, extent_id: int, *, refresh: bool = False) -> Extent:
        return self._extent


class Reader(ExtentReader):
    """Its fetches are answered by the test: one block each."""

    def __init__(self, extent: Extent = EXTENT) -> None:
        super().__init__(
            cast(ChannelPool, None),
            cast(ManagerLink, None),
            cast(Catalog, Known(extent)),
            options=DEFAULT_OPTIONS,
            rng=random.Random(1),
        )
        self.asked: list[Fetch] = []
        self.sizes: list[int] = []
        self.reported: list[int] = []

    def _fetch(
        self, extent: Extent, offset: int, size_bytes: int, *, avoid: Collection[Replica], max_blocks: int = 0
    ) -> Fetch:
        fetch = Fetch(offset)
        fetch.future = asyncio.get_running_loop().create_future()
        self.asked.append(fetch)
        self.sizes.append(size_bytes)
        return fetch

    def _report(self, extent_id: int, replica: Replica, problem: Problem) -> None:
        self.reported.append(problem.offset // len(BLOCK))

    def offsets(self) -> list[int]:
        return [fetch.offset // len(BLOCK) for fetch in self.asked]


def reply_of(fetch: Fetch, *, blocks: int = 1, next_blocks: int = 0) -> pb.ReadBlockReply:
    """`next_blocks`: how many the node says that the next answer will have."""
    end = fetch.offset + blocks * len(BLOCK)
    next_end = end + next_blocks * len(BLOCK) if next_blocks else 0
    return pb.ReadBlockReply(end=end, readable=BLOCKS * len(BLOCK), sealed=True, blocks=blocks, next_end=next_end)


def answer(fetch: Fetch, *, blocks: int = 1, next_blocks: int = 0) -> None:
    reply = reply_of(fetch, blocks=blocks, next_blocks=next_blocks)
    fetch.future.set_result(Won(REPLICA, reply, memoryview(BLOCK * blocks)))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_follows_is_asked_for_as_soon_as_an_awaited_answer_begins_to_come() -> None:
    reader = Reader()
    chunks = reader.chunks(EXTENT.id, 0, follow=False)
    first = asyncio.ensure_future(anext(chunks))
    await turns()
    assert reader.offsets() == [0]
    reader.asked[0].set_head(reply_of(reader.asked[0]))
    assert reader.offsets() == [0, 1]
    answer(reader.asked[0])
    assert (await first).end == len(BLOCK)
    assert reader.offsets() == [0, 1]
    await chunks.aclose()


async def test_nothing_more_is_asked_for_while_the_reader_is_busy_with_an_answer() -> None:
    reader = Reader()
    chunks = reader.chunks(EXTENT.id, 0, follow=False)
    first = asyncio.ensure_future(anext(chunks))
    await turns()
    answer(reader.asked[0])
    await first
    reader.asked[1].set_head(reply_of(reader.asked[1]))  # it comes while nobody waits for it
    answer(reader.asked[1])
    await turns()
    assert reader.offsets() == [0, 1]
    assert (await anext(chunks)).end == 2 * len(BLOCK)
    assert reader.offsets() == [0, 1, 2]
    await chunks.aclose()
    assert reader.asked[2].future.cancelled()


async def test_a_head_that_did_not_win_is_not_followed() -> None:
    reader = Reader()
    chunks = reader.chunks(EXTENT.id, 0, follow=False)
    first = asyncio.ensure_future(anext(chunks))
    await turns()
    reader.asked[0].set_head(reply_of(reader.asked[0], blocks=3))
    answer(reader.asked[0], blocks=2)  # by another replica
    assert (await first).end == 2 * len(BLOCK)
    assert reader.offsets() == [0, 3, 2]
    assert reader.asked[1].future.cancelled()
    await chunks.aclose()


async def test_an_answer_that_fails_after_its_head_is_asked_for_again_from_its_beginning() -> None:
    reader = Reader()
    chunks = reader.chunks(EXTENT.id, 0, follow=False)
    first = asyncio.ensure_future(anext(chunks))
    await turns()
    reader.asked[0].set_head(reply_of(reader.asked[0]))
    reader.asked[0].future.set_exception(ConnectionLost(address="n:1"))
    while len(reader.asked) < 3:
        await asyncio.sleep(0.01)
    assert reader.offsets() == [0, 1, 0]
    assert reader.asked[1].future.cancelled()
    answer(reader.asked[2])
    assert (await first).end == len(BLOCK)
    await chunks.aclose()


async def read_two(reader: Reader) -> AsyncGenerator[Chunk, None]:
    """What reads on behind two answers; the nodes have told of each where the next one will end."""
    chunks = reader.chunks(EXTENT.id, 0, follow=False)
    for number in (0, 1):
        given = asyncio.ensure_future(anext(chunks))
        await turns()
        answer(reader.asked[number], next_blocks=1)
        assert (await given).end == (number + 1) * len(BLOCK)
    return chunks


async def test_two_answers_are_asked_for_ahead_if_it_is_told_where_they_begin() -> None:
    reader = Reader()
    chunks = reader.chunks(EXTENT.id, 0, follow=False)
    first = asyncio.ensure_future(anext(chunks))
    await turns()
    reader.asked[0].set_head(reply_of(reader.asked[0], next_blocks=1))
    answer(reader.asked[0], next_blocks=1)
    await first
    assert reader.offsets() == [0, 1]  # it may be that one is enough
    second = asyncio.ensure_future(anext(chunks))
    await turns()
    reader.asked[1].set_head(reply_of(reader.asked[1], next_blocks=1))
    assert reader.offsets() == [0, 1, 2, 3]
    answer(reader.asked[1], next_blocks=1)
    await second
    assert reader.offsets() == [0, 1, 2, 3]
    await chunks.aclose()
    assert all(fetch.future.cancelled() for fetch in reader.asked[2:])


async def test_an_answer_that_ends_elsewhere_than_was_told_has_what_follows_it_asked_for_again() -> None:
    reader = Reader()
    chunks = await read_two(reader)
    assert reader.offsets() == [0, 1, 2, 3]
    answer(reader.asked[2], blocks=2, next_blocks=1)
    assert (await anext(chunks)).end == 4 * len(BLOCK)
    assert reader.asked[3].future.cancelled()
    assert reader.offsets() == [0, 1, 2, 3, 4, 5]
    await chunks.aclose()


async def test_a_damaged_answer_has_nothing_of_what_it_said_trusted() -> None:
    reader = Reader()
    chunks = await read_two(reader)
    wrong = bytes(len(BLOCK))
    reader.asked[2].future.set_result(Won(REPLICA, reply_of(reader.asked[2], next_blocks=1), memoryview(wrong)))
    again = asyncio.ensure_future(anext(chunks))
    await turns()
    assert reader.offsets() == [0, 1, 2, 3, 4, 2]
    assert reader.reported == [2]
    assert all(fetch.future.cancelled() for fetch in reader.asked[3:5])
    answer(reader.asked[5])
    assert (await again).end == 3 * len(BLOCK)
    await chunks.aclose()


@pytest.mark.parametrize("extent", [EXTENT, replace(EXTENT, length=None)], ids=["sealed", "open"])
async def test_nothing_is_asked_for_ahead_beyond_the_end(extent: Extent) -> None:
    reader = Reader(extent)
    chunks = reader.chunks(EXTENT.id, 0, follow=False)
    for number in range(BLOCKS):
        given = asyncio.ensure_future(anext(chunks))
        await turns()
        answer(reader.asked[number], next_blocks=1)
        await given
    assert reader.offsets() == list(range(BLOCKS))
    await chunks.aclose()


async def test_nothing_is_asked_for_ahead_that_the_caller_will_not_want() -> None:
    reader = Reader()
    stop = 4 * len(BLOCK)
    chunks = reader.chunks(EXTENT.id, 0, follow=False, stop=stop)
    for number in range(4):
        given = asyncio.ensure_future(anext(chunks))
        await turns()
        answer(reader.asked[number], next_blocks=1)
        await given
    assert reader.offsets() == [0, 1, 2, 3]
    assert reader.sizes == [stop - fetch.offset for fetch in reader.asked]
    await chunks.aclose()


# --- one answer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_bytes", [DEFAULT_OPTIONS.read_first_bytes, DEFAULT_OPTIONS.read_bytes, 8 * MIB])
@pytest.mark.parametrize("payload_bytes", [1 * KIB, 4 * KIB, 64 * KIB, 256 * KIB])
def test_as_many_blocks_of_a_common_size_come_at_a_time_as_are_wanted(payload_bytes: int, read_bytes: int) -> None:
    assert with_headers(read_bytes) // (HEADER_BYTES + payload_bytes) >= read_bytes // payload_bytes


class Silent:
    """A channel, and the pool of it, whose calls are answered by the test."""

    def __init__(self) -> None:
        self.begun: list[tuple[pb.ReadBlockRequest, Callable[..., None]]] = []

    def channel(self, address: str) -> Silent:
        return self

    def begin(self, method: object, request: bytes, on_done: Callable[..., None], **how: object) -> Silent:
        self.begun.append((pb.ReadBlockRequest.FromString(request), on_done))
        return self

    def cancel(self) -> None:
        pass


PLAN = ReadPlan(EXTENT, max_bytes=100, max_blocks=1, next_max_bytes=300)


@pytest.fixture
def no_second_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first replica is asked."""
    monkeypatch.setattr(read_race, "SPECULATIVE_DELAY_S_MIN", 1000.0)


@pytest.mark.parametrize("offset", [0, 127, 128, 70_000, (1 << 31) - 1])
def test_a_request_says_what_is_asked_for_and_where(offset: int) -> None:
    plan = ReadPlan(EXTENT, max_bytes=2 * MIB, max_blocks=0, next_max_bytes=3 * MIB)
    others = replace(REPLICA, node_id=2, disk_uuid="e", incarnation=9)
    for replica in (REPLICA, others, REPLICA):
        assert pb.ReadBlockRequest.FromString(plan.request(replica, offset)) == pb.ReadBlockRequest(
            extent_id=EXTENT.id,
            replica=replica.message(),
            eversion=EXTENT.eversion,
            offset=offset,
            max_bytes=2 * MIB,
            next_max_bytes=3 * MIB,
        )


@pytest.mark.usefixtures("no_second_replica")
async def test_an_answer_that_comes_in_one_piece_says_where_it_ends_before_it_is_given() -> None:
    """So that what follows it leaves with the turn that received it."""
    slow: Deadlines[Race] = Deadlines(asyncio.get_running_loop(), Race.on_slow)
    nodes, heard = Silent(), list[pb.ReadBlockReply]()
    race = Race(cast(ChannelPool, nodes), [REPLICA], PLAN, 0, SourceHistory(), slow, DEFAULT_OPTIONS, heard.append)
    ((request, on_done),) = nodes.begun
    assert (request.max_bytes, request.next_max_bytes) == (100, 300)
    reply = pb.ReadBlockReply(end=100, readable=1000, sealed=True, blocks=1, next_end=400)
    on_done(Reply(reply, memoryview(BLOCK)), None)
    assert heard == [reply]
    assert race.future.result().reply == reply
    slow.close()


@pytest.mark.usefixtures("no_second_replica")
async def test_a_read_that_has_ended_is_not_looked_at_again_for_being_slow() -> None:
    slow: Deadlines[Race] = Deadlines(asyncio.get_running_loop(), Race.on_slow)
    replicas = [REPLICA, replace(REPLICA, node_id=2)]
    races = [
        Race(cast(ChannelPool, Silent()), replicas, PLAN, 0, SourceHistory(), slow, DEFAULT_OPTIONS) for _ in range(3)
    ]

    def waiting() -> list[Race]:  # in one bucket or two: time goes on while they are made
        return [race for bucket in slow._buckets.values() for race in bucket]

    assert waiting() == races
    races[0].future.set_exception(ConnectionLost(address="n:1"))
    races[2].future.cancel()
    await turns()
    assert waiting() == [races[1]]
    assert isinstance(races[0].future.exception(), ConnectionLost)
    slow.close()


# --- a stream with an end --------------------------------------------------------------------------------------


class OneStream(Known):
    """The catalog of a stream of one extent."""

    async def stream(self, stream_id: int, *, with_extents: bool = False) -> Stream:
        return cast(
            Stream, SimpleNamespace(id=stream_id, extent_ids=(EXTENT.id,), after_hole=(), version=1, sealed=True)
        )


@pytest.mark.parametrize("blocks", [2, 3, 4], ids=["ends there", "goes on in the answer", "goes on further"])
async def test_a_read_to_a_position_is_over_when_it_is_reached(blocks: int) -> None:
    """And not when an answer from there on has come."""
    extents = Reader()
    catalog = cast(Catalog, OneStream(EXTENT))
    end = Position(EXTENT.id, 2 * len(BLOCK))
    batches = StreamReader(catalog, extents, options=DEFAULT_OPTIONS).read_batches(
        1, start=None, follow=True, end=end, copy=True
    )
    reading = asyncio.ensure_future(_all(batches))
    await turns()
    answer(extents.asked[0], blocks=blocks, next_blocks=1)
    await turns()
    assert reading.done()
    records = await reading
    assert [record.position.offset // len(BLOCK) for record in records] == [0, 1]
    assert extents.offsets() == [0]


async def _all(batches: AsyncIterator[list[Record]]) -> list[Record]:
    return [record async for records in batches for record in records]


@pytest.mark.parametrize(("sealed_blocks", "lost"), [(1, False), (0, True)])
async def test_who_has_read_what_a_seal_leaves_out_is_told_that_it_is_lost(sealed_blocks: int, lost: bool) -> None:
    """One more answer, empty, of an extent that was open and is sealed meanwhile."""
    known = Known(replace(EXTENT, length=None))
    reader = Reader()
    reader._catalog = cast(Catalog, known)
    chunks = reader.chunks(EXTENT.id, 0, follow=False)
    first = asyncio.ensure_future(anext(chunks))
    await turns()
    answer(reader.asked[0])
    assert (await first).end == len(BLOCK)
    second = asyncio.ensure_future(anext(chunks))
    await turns()
    known._extent = replace(EXTENT, length=sealed_blocks * len(BLOCK))
    reader.asked[1].future.set_exception(ConnectionLost())
    if lost:
        with pytest.raises(AcknowledgedLost) as caught:
            await second
        assert (caught.value.sealed_length, caught.value.acknowledged) == (0, len(BLOCK))
    else:
        assert (await second).sealed
    await chunks.aclose()
