"""Who waits for durability, and for what: a call's segments, and the line of one replica. Plain data, no I/O.

Invariants: a call is told once for each segment that it counted in `pending`, and its future is done when none is left;
            `end_wanted` is the highest end that anyone in the line waits for;
            `pieces` are bytes one behind the other from `pieces_offset` on, or there are none;
            of what waits, no more than half was given up: it is bounded by the calls that somebody still waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from neve.extent_node.fs import Buffer
from neve.extent_node.journal_format import Entry
from neve.proto.errors import NeveError

if TYPE_CHECKING:
    from neve.extent_node.replica import Replica

# A segment that goes to the journal together with others of its call: the segment's number, whose it is, its record.
Record = tuple[int, "Replica", Entry]


class Line(Protocol):
    """Where a call's segment waits for its turn."""

    def leave(self, place: asyncio.Future[None]) -> None: ...


class AppendCall:
    """The segments of one AppendBlock call that are not answered yet, and one future for all of them."""

    __slots__ = ("_future", "_then", "ends", "errors", "given_up", "pending", "places", "records")

    def __init__(self, count: int) -> None:
        self.ends = [0] * count
        self.errors: list[NeveError | None] = [None] * count
        self.pending = 0  # segments that will be settled later: whoever defers one counts it here
        self.given_up = False  # nobody waits for it any more
        self.places: list[tuple[Line, asyncio.Future[None]]] | None = None  # in lines, of segments that wait for a turn
        self.records: list[Record] = []  # for the next round of the journal
        self._future: asyncio.Future[None] | None = None
        self._then: Callable[[], None] | None = None

    def settle(self, number: int, error: NeveError | None) -> None:
        self.errors[number] = error
        self.pending -= 1
        if not self.pending:
            self.finish()

    def finish(self) -> None:
        """Nothing is pending any more."""
        if self._then is not None:
            then, self._then = self._then, None
            try:
                then()
            except Exception as failure:  # noqa: BLE001 - a bug of this call's, which others must survive
                context = {"message": "an append was not answered", "exception": failure}
                asyncio.get_running_loop().call_exception_handler(context)
        elif self._future is not None and not self._future.done():
            self._future.set_result(None)

    def then(self, finished: Callable[[], None]) -> None:
        """Have it called when nothing is pending any more, instead of waiting; now, if nothing is."""
        if self.pending:
            self._then = finished
        else:
            finished()

    def give_up(self) -> None:
        """Nobody waits for it any more. The appends that have begun are finished all the same; those that wait for
        their turn leave the line: a disk that hangs must not gather what nobody waits for any more."""
        self.given_up = True
        self._then = None
        for line, place in self.places or ():
            line.leave(place)

    async def wait(self) -> None:
        """Cancelling this gives it up."""
        if self.pending:
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            except asyncio.CancelledError:
                self.give_up()
                raise


class CommitQueue:
    """What waits for one replica's durability. Made for the first append that waits, dropped after the last."""

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
        self.waits: list[tuple[int, AppendCall, int]] = []  # end, call, number of the segment
        self.end_wanted = 0
        self._forgotten = 0  # calls, since the last look for them
        # Bytes for the journal.
        self.pieces: list[Buffer] = []
        self.pieces_offset = 0
        self.pieces_bytes = 0
        self.syncing: asyncio.Future[None] | None = None  # the in-place sync that runs
        self.journaling = False  # records of it are in the round that runs

    @property
    def is_idle(self) -> bool:
        return not self.waits and self.syncing is None and not self.journaling

    def add(self, end: int, call: AppendCall, number: int, offset: int, piece: Buffer | None) -> None:
        """The call's segment waits for `end`. `piece` are its new bytes, if there are any, from `offset` on."""
        self.waits.append((end, call, number))
        if end > self.end_wanted:
            self.end_wanted = end
        if piece is None:
            return
        if not self.pieces:
            self.pieces_offset = offset
        elif offset != self.pieces_offset + self.pieces_bytes:
            # Bytes in between were not for sync: only a sync in place can cover them.
            self.drop_pieces()
            return
        self.pieces.append(piece)
        self.pieces_bytes += len(piece)

    def forget(self, call: AppendCall) -> None:
        """Nobody waits for this call, which is `given_up`, any more."""
        assert call.given_up
        self._forgotten += 1
        if 2 * self._forgotten < len(self.waits):
            return  # thousands may be given up at once, with their connection: not all are gone through for each
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
        """Answer everyone whose bytes are durable by now."""
        waits = self.waits
        if self.end_wanted <= durable_end:
            self.waits, self.end_wanted = [], 0
            if self.pieces:
                self.drop_pieces()
            for _, call, _ in waits:  # as call.settle(number, None), without as many calls
                call.pending -= 1
                if not call.pending:
                    call.finish()
            return
        self.waits = [wait for wait in waits if wait[0] > durable_end]  # the one of `end_wanted` is among them
        for end, call, number in waits:
            if end <= durable_end:
                call.settle(number, None)

    def abandon(self, error: NeveError) -> None:
        """Everyone gets this error."""
        waits, self.waits, self.end_wanted = self.waits, [], 0
        self.drop_pieces()
        for _, call, number in waits:
            call.settle(number, error)
