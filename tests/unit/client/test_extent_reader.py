"""Reading ahead: asked for when the answer before begins to come, and never more than one answer ahead."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from dataclasses import replace
from typing import cast

import pytest

from neve.client.catalog import Catalog
from neve.client.core_reader import SourceHistory
from neve.client.extent_reader import ExtentReader, Fetch
from neve.client.manager_link import ManagerLink
from neve.client.options import DEFAULT_OPTIONS
from neve.client.read_race import Race, ReadPlan, Won
from neve.client.types import Extent, Replica
from neve.proto import extent_node_pb2 as pb
from neve.proto.blocks import HEADER_BYTES, encode_block
from neve.proto.errors import ConnectionLost
from neve.rpc.limits import KIB, MIB
from neve.rpc.pool import ChannelPool
from neve.rpc.wire.deadlines import Deadlines

BLOCK = encode_block(b"x" * 92)
BLOCKS = 10
REPLICA = Replica(node_id=1, disk_uuid="d", incarnation=1, address="n:1", confirmed=True)
EXTENT = Extent(id=7, eversion=1, length=BLOCKS * len(BLOCK), replicas=(REPLICA,), extent_bytes_max=1 << 20)


class Known:
    """A catalog of one sealed extent."""

    async def extent(self, extent_id: int, *, refresh: bool = False) -> Extent:
        return EXTENT


class Reader(ExtentReader):
    """Its fetches are answered by the test: one block each."""

    def __init__(self) -> None:
        super().__init__(
            cast(ChannelPool, None),
            cast(ManagerLink, None),
            cast(Catalog, Known()),
            options=DEFAULT_OPTIONS,
            rng=random.Random(1),
        )
        self.asked: list[Fetch] = []

    def _fetch(
        self, extent: Extent, offset: int, size_bytes: int, *, avoid: Collection[Replica], max_blocks: int = 0
    ) -> Fetch:
        fetch = Fetch(offset)
        fetch.future = asyncio.get_running_loop().create_future()
        self.asked.append(fetch)
        return fetch

    def offsets(self) -> list[int]:
        return [fetch.offset // len(BLOCK) for fetch in self.asked]


def reply_of(fetch: Fetch, *, blocks: int = 1) -> pb.ReadBlockReply:
    end = fetch.offset + blocks * len(BLOCK)
    return pb.ReadBlockReply(end=end, readable=BLOCKS * len(BLOCK), sealed=True, blocks=blocks)


def answer(fetch: Fetch, *, blocks: int = 1) -> None:
    fetch.future.set_result(Won(REPLICA, reply_of(fetch, blocks=blocks), memoryview(BLOCK * blocks)))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_follows_is_asked_for_as_soon_as_an_awaited_answer_begins_to_come() -> None:
    reader = Reader()
    chunks = reader.chunks(EXTENT.id, 0, follow=False)
    first = asyncio.ensure_future(anext(chunks))
    await turns()
    assert reader.offsets() == [0]
    reader.asked[0].heard(reply_of(reader.asked[0]))
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
    reader.asked[1].heard(reply_of(reader.asked[1]))  # it comes while nobody waits for it
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
    reader.asked[0].heard(reply_of(reader.asked[0], blocks=3))
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
    reader.asked[0].heard(reply_of(reader.asked[0]))
    reader.asked[0].future.set_exception(ConnectionLost(address="n:1"))
    while len(reader.asked) < 3:
        await asyncio.sleep(0.01)
    assert reader.offsets() == [0, 1, 0]
    assert reader.asked[1].future.cancelled()
    answer(reader.asked[2])
    assert (await first).end == len(BLOCK)
    await chunks.aclose()


# --- one answer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload_bytes", [1 * KIB, 4 * KIB, 64 * KIB, 1 * MIB])
def test_as_many_blocks_of_a_common_size_come_at_a_time_as_there_are_in_two_mebibytes(payload_bytes: int) -> None:
    assert DEFAULT_OPTIONS.read_bytes // (HEADER_BYTES + payload_bytes) >= 2 * MIB // payload_bytes


class Silent:
    """A channel, and the pool of it, whose calls are never answered."""

    def channel(self, address: str) -> Silent:
        return self

    def begin(self, *args: object, **how: object) -> Silent:
        return self

    def cancel(self) -> None:
        pass


async def test_a_read_that_has_ended_is_not_looked_at_again_for_being_slow() -> None:
    slow: Deadlines[Race] = Deadlines(asyncio.get_running_loop(), Race.on_slow)
    plan = ReadPlan(
        extent_id=EXTENT.id,
        eversion=1,
        offset=0,
        max_bytes=100,
        max_blocks=1,
        sealed_length=EXTENT.length,
        timeout_s=5.0,
        speculative_delay_s_min=1000.0,
    )
    replicas = [REPLICA, replace(REPLICA, node_id=2)]
    races = [Race(cast(ChannelPool, Silent()), replicas, plan, SourceHistory(), slow) for _ in range(3)]
    assert [list(waiting) for waiting in slow._buckets.values()] == [races]
    races[0].future.set_exception(ConnectionLost(address="n:1"))
    races[2].future.cancel()
    await turns()
    assert [list(waiting) for waiting in slow._buckets.values()] == [[races[1]]]
    assert isinstance(races[0].future.exception(), ConnectionLost)
    slow.close()
