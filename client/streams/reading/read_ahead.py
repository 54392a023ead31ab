"""Read-ahead: the fetches of one extent that follow the reply being consumed.

A node should not idle until the reader asks again, and a reader should not idle until the node replies, so two replies
are fetched ahead. The head of a reply says where it ends, and for a sealed extent also where the next one will end.
Measured on two cores with 2 MiB replies from a sealed GiB: 3.5 GB/s if each fetch starts when the previous reply is
complete, 3.7 when its head arrives, 4.2 with two ahead.

Invariants: at most AHEAD_MAX fetches are ahead of the one awaited or consumed, and only one until the first reply was
            delivered, so that a short read does not fetch much;
            a fetch is used only if the previous reply ends where it begins: the announced ends are hints.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from neve.client.streams.reading.read_race import Won
from neve.proto import extent_node_pb2 as pb

AHEAD_MAX = 2


class Fetch:
    """One requested reply. Its consumer can be notified of the reply's end before all of it has arrived."""

    __slots__ = ("future", "head", "offset", "on_head")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.future: asyncio.Future[Won]
        self.head: pb.ReadBlockReply | None = None
        self.on_head: Callable[[pb.ReadBlockReply], None] | None = None

    def set_head(self, reply: pb.ReadBlockReply) -> None:
        self.head = reply
        if self.on_head is not None:
            self.on_head(reply)

    async def wait(self, on_head: Callable[[pb.ReadBlockReply], None]) -> Won:
        """Wait for the reply. Calls `on_head` at most once, now or while waiting.

        It is never called afterwards: nothing more is fetched while the consumer is not waiting.
        """
        if self.head is not None:
            on_head(self.head)
        else:
            self.on_head = on_head
        try:
            return await self.future
        finally:
            self.on_head = None

    def drop(self) -> None:
        if not self.future.cancel() and not self.future.cancelled():
            self.future.exception()  # mark it as retrieved: there is no consumer any more


class ReadAhead:
    """The fetches after the reply that is awaited or consumed."""

    __slots__ = ("_fetches", "_room")

    def __init__(self) -> None:
        self._fetches: deque[Fetch] = deque()
        self._room = 1

    def __len__(self) -> int:
        return len(self._fetches)

    def put(self, fetch: Fetch) -> None:
        assert len(self._fetches) < self._room, (len(self._fetches), self._room)
        self._fetches.append(fetch)

    def take(self, offset: int) -> Fetch | None:
        """Return the fetch that begins at `offset`, if there is one."""
        self._drop_unless_at(offset)
        return self._fetches.popleft() if self._fetches else None

    def next_offsets(self, reply: pb.ReadBlockReply) -> list[int]:
        """Return the offsets to fetch, given the end of this reply."""
        self._drop_unless_at(reply.end)
        begins = (reply.end, reply.next_end) if reply.next_end > reply.end else (reply.end,)
        return [begin for begin in begins[len(self._fetches) : self._room] if begin < reply.readable]

    def note_delivered(self) -> None:
        """A reply was delivered to the consumer, so this is not a short read."""
        self._room = AHEAD_MAX

    def drop(self) -> None:
        while self._fetches:
            self._fetches.pop().drop()

    def _drop_unless_at(self, offset: int) -> None:
        """Drop all fetches unless the first begins at `offset`: another replica's reply may have ended elsewhere."""
        if self._fetches and self._fetches[0].offset != offset:
            self.drop()
