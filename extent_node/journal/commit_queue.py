"""Segments that wait for durability: those of one frame, and the queue of one replica. Plain data, no I/O.

Invariants: a frame is settled once for each segment counted in `pending`, and its reply is sent when none is left;
            `end_wanted` is the highest end that any segment in a replica's queue waits for;
            `pieces` are consecutive bytes from `pieces_offset` on, or there are none;
            at most half of the segments in a queue belong to abandoned calls, so that a queue is bounded by the calls
            that still wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from neve.extent_node.disk.file_system import Buffer
from neve.extent_node.journal.format import Entry
from neve.proto.errors import NeveError

if TYPE_CHECKING:
    from neve.extent_node.store.replica import Replica, TurnLock

# A record that goes to the journal together with its frame: the index of its segment, the replica, the record.
Record = tuple[int, "Replica", Entry]


class AppendCall:
    """The segments of one AppendBlock call: their results, and the callback for when all are settled."""

    __slots__ = ("_future", "_then", "ends", "errors", "given_up", "pending", "queued", "records")

    def __init__(self, count: int) -> None:
        self.ends = [0] * count
        self.errors: list[NeveError | None] = [None] * count
        self.pending = 0  # segments that will be settled later
        self.given_up = False  # no caller waits for the reply any more
        self.queued: list[tuple[TurnLock, asyncio.Future[None]]] | None = None  # segments that wait for a replica
        self.records: list[Record] = []  # for the next round of the journal
        self._future: asyncio.Future[None] | None = None
        self._then: Callable[[], None] | None = None

    def settle(self, index: int, error: NeveError | None) -> None:
        """Give a pending segment its result. The last one finishes the frame."""
        self.errors[index] = error
        self.pending -= 1
        if not self.pending:
            self._finish()

    def _finish(self) -> None:
        if self._then is not None:
            then, self._then = self._then, None
            try:
                then()
            except Exception as failure:  # noqa: BLE001 - a bug in one reply must not affect other calls
                context = {"message": "the reply to an append failed", "exception": failure}
                asyncio.get_running_loop().call_exception_handler(context)
        elif self._future is not None and not self._future.done():
            self._future.set_result(None)

    def then(self, finished: Callable[[], None]) -> None:
        """Call `finished` when no segment is pending, which may be at once."""
        if self.pending:
            self._then = finished
        else:
            finished()

    def note_queued(self, lock: TurnLock, turn: asyncio.Future[None]) -> None:
        """Record that a segment waits for its turn at a replica."""
        if self.queued is None:
            self.queued = []
        self.queued.append((lock, turn))

    def give_up(self) -> None:
        """The caller does not wait for the reply any more.

        Segments that have begun are finished. Those that wait for their turn leave the replica's queue: otherwise
        abandoned segments would gather behind a disk that hangs.
        """
        self.given_up = True
        self._then = None
        for lock, turn in self.queued or ():
            lock.leave(turn)

    async def wait(self) -> None:
        """Wait until no segment is pending. If this is cancelled, the call gives up."""
        if self.pending:
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            except asyncio.CancelledError:
                self.give_up()
                raise


class CommitQueue:
    """The segments that wait for one replica's durability. Made for the first of them, dropped after the last."""

    __slots__ = (
        "_forgotten",
        "end_wanted",
        "journaling",
        "pieces",
        "pieces_bytes",
        "pieces_offset",
        "syncing",
        "waits",
    )

    def __init__(self) -> None:
        self.waits: list[tuple[int, AppendCall, int]] = []  # end, call, index of the segment
        self.end_wanted = 0
        self._forgotten = 0  # calls given up since the queue was last searched for them
        self.pieces: list[Buffer] = []  # bytes for the journal
        self.pieces_offset = 0
        self.pieces_bytes = 0
        self.syncing: asyncio.Future[None] | None = None  # the running in-place sync
        self.journaling = False  # whether the journal's running round has records of it

    @property
    def is_idle(self) -> bool:
        return not self.waits and self.syncing is None and not self.journaling

    def add(self, end: int, call: AppendCall, index: int, offset: int, piece: Buffer | None) -> None:
        """Let the call's segment wait for `end`. `piece`: its new bytes from `offset` on, if there are any."""
        self.waits.append((end, call, index))
        if end > self.end_wanted:
            self.end_wanted = end
        if piece is None:
            return
        if not self.pieces:
            self.pieces_offset = offset
        elif offset != self.pieces_offset + self.pieces_bytes:
            # The bytes in between were appended without sync, so only a sync in place can cover them.
            self.drop_pieces()
            return
        self.pieces.append(piece)
        self.pieces_bytes += len(piece)

    def forget(self, call: AppendCall) -> None:
        """Drop the segments of abandoned calls, when enough of them have gathered."""
        assert call.given_up
        self._forgotten += 1
        if 2 * self._forgotten < len(self.waits):
            return  # a lost connection may abandon thousands at once: do not search the queue for each of them
        self._forgotten = 0
        self.waits = [wait for wait in self.waits if not wait[1].given_up]
        self.end_wanted = max((end for end, _, _ in self.waits), default=0)
        if not self.waits:
            self.drop_pieces()

    def drop_pieces(self) -> None:
        if self.pieces:
            self.pieces = []
            self.pieces_bytes = 0

    def settle(self, durable_end: int) -> None:
        """Settle the segments whose bytes are durable now."""
        waits = self.waits
        if self.end_wanted <= durable_end:
            self.waits, self.end_wanted = [], 0
            self.drop_pieces()
            for _, call, index in waits:
                call.settle(index, None)
            return
        self.waits = [wait for wait in waits if wait[0] > durable_end]  # includes the one of `end_wanted`
        for end, call, index in waits:
            if end <= durable_end:
                call.settle(index, None)

    def abandon(self, error: NeveError) -> None:
        """Settle all segments with this error."""
        waits, self.waits, self.end_wanted = self.waits, [], 0
        self.drop_pieces()
        for _, call, index in waits:
            call.settle(index, error)
