"""What a reader has asked for and not yet given out: answers of one extent, one behind the other.

A node that has answered must not wait for the reader to ask again, and a reader that has checked an answer must not
wait for the node. So two answers are asked for ahead: where they begin is told by the heads of those before them, a
sealed extent's node saying also where the next answer will end. Measured on two cores, 2 MiB a time from a sealed
gibibyte: 3.5 GB/s with each asked for when the one before was there, 3.7 when that began to come, 4.2 with two ahead.

Invariants: at most AHEAD_MAX fetches are ahead of the one that is awaited or given out, and one alone until a first
            answer was given out: who reads a little shall not be sent a lot;
            a fetch is used only where the answer before it has ended: what was told of that is a hint.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from neve.client.streams.reading.read_race import Won
from neve.proto import extent_node_pb2 as pb

AHEAD_MAX = 2


class Fetch:
    """An answer that was asked for. Whoever awaits it may hear where it ends before it is here."""

    __slots__ = ("future", "head", "offset", "on_head")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.future: asyncio.Future[Won]
        self.head: pb.ReadBlockReply | None = None
        self.on_head: Callable[[pb.ReadBlockReply], None] | None = None

    def heard(self, reply: pb.ReadBlockReply) -> None:
        self.head = reply
        if self.on_head is not None:
            self.on_head(reply)

    async def wait(self, on_head: Callable[[pb.ReadBlockReply], None]) -> Won:
        """`on_head` is called at most once, now or while this waits, and never afterwards: nothing more is fetched
        while nobody waits."""
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
            self.future.exception()  # seen: nobody else will look at it


class Ahead:
    """What follows the answer that is awaited, or given out."""

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
        """The fetch of what begins there, if it was asked for."""
        self._keep(offset)
        return self._fetches.popleft() if self._fetches else None

    def wanted(self, reply: pb.ReadBlockReply) -> list[int]:
        """Where to ask, now that this answer is known to end where it says."""
        self._keep(reply.end)
        begins = (reply.end, reply.next_end) if reply.next_end > reply.end else (reply.end,)
        return [begin for begin in begins[len(self._fetches) : self._room] if begin < reply.readable]

    def given_out(self) -> None:
        """An answer was: this is no short read."""
        self._room = AHEAD_MAX

    def drop(self) -> None:
        while self._fetches:
            self._fetches.pop().drop()

    def _keep(self, offset: int) -> None:
        """What does not begin there is of no use: another replica has answered in between, and ended elsewhere."""
        if self._fetches and self._fetches[0].offset != offset:
            self.drop()
