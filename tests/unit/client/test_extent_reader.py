"""Reading ahead: asked for when the answer before begins to come, and never more than one answer ahead."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from typing import cast

from neve.client.catalog import Catalog
from neve.client.extent_reader import ExtentReader, Fetch
from neve.client.manager_link import ManagerLink
from neve.client.options import DEFAULT_OPTIONS
from neve.client.read_race import Won
from neve.client.types import Extent, Replica
from neve.proto import extent_node_pb2 as pb
from neve.proto.blocks import encode_block
from neve.proto.errors import ConnectionLost
from neve.rpc.pool import ChannelPool

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
