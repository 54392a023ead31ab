"""Admission of operations: reserves their memory and gives writes their numbers.

Invariants: memory is bounded by `buffer_bytes_max`. The replies that servers keep for this client are bounded by
            WRITES_OPEN_MAX: a new write waits while the oldest open write is that far behind;
            an admitted operation gives back exactly what it took, however it ends.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from neve.client.objects.core_routing import CallWindow
from neve.client.objects.options import KeyValueOptions
from neve.client.streams.sending.budget import Budget
from neve.proto import common_pb2
from neve.proto.errors import DeadlineExceeded, ShuttingDown

OPERATION_COST_BYTES = 512  # added to key and value, so that `buffer_bytes_max` also bounds the number of operations
WRITES_OPEN_MAX = 16_000  # from the oldest open write to the newest; a partition keeps 16,384 replies


class Ticket(NamedTuple):
    """What an admitted operation took. `call_id` is 0 for reads."""

    cost_bytes: int
    call_id: int


class Admission:
    """Admits the operations of one client."""

    def __init__(self, client_id: int, options: KeyValueOptions) -> None:
        self.client_id = client_id
        self.window = CallWindow()
        self._options = options
        self._share = Budget(options.buffer_bytes_max).share(options.buffer_bytes_max)
        self._waiters: dict[asyncio.Future[None], None] = {}  # writes that wait for the window to move
        self._closed = False

    def call(self, call_id: int) -> common_pb2.CallId:
        """Return the call id of a write for a request."""
        return common_pb2.CallId(client_id=self.client_id, call_id=call_id, completed_below=self.window.completed_below)

    def try_enter(self, size_bytes: int, *, write: bool) -> Ticket | None:
        """Admit the operation if there is room now, else return None."""
        window = self.window
        if write and window.span >= WRITES_OPEN_MAX:
            return None
        cost_bytes = OPERATION_COST_BYTES + size_bytes
        if not self._share.try_take(cost_bytes):
            return None
        return Ticket(cost_bytes, window.begin() if write else 0)

    async def enter(self, size_bytes: int, deadline_s: float, *, write: bool) -> Ticket:
        """Admit the operation when there is room. Raises DeadlineExceeded if there is none in time; nothing is sent."""
        cost_bytes = OPERATION_COST_BYTES + size_bytes
        begun_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._share.wait_and_take(cost_bytes)
                try:
                    while write and self.window.span >= WRITES_OPEN_MAX:
                        await self._until_window_moves()
                except BaseException:
                    self._share.give_back(cost_bytes)
                    raise
        except TimeoutError:
            timeout_ms = int((deadline_s - begun_s) * 1000)
            detail = "nothing was sent: too many operations are in progress"
            raise DeadlineExceeded(method="wait for room", timeout_ms=timeout_ms, detail=detail) from None
        return Ticket(cost_bytes, self.window.begin() if write else 0)

    async def _until_window_moves(self) -> None:
        if self._closed:
            raise ShuttingDown(detail="this client was closed")
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[room] = None
        try:
            await room
        finally:
            self._waiters.pop(room, None)

    def leave(self, ticket: Ticket) -> None:
        """The operation has ended and is never sent again: give back what it took."""
        self._share.give_back(ticket.cost_bytes)
        if ticket.call_id:
            self.window.end(ticket.call_id)
            if self._waiters:
                self._wake(WRITES_OPEN_MAX - self.window.span)

    def close(self) -> None:
        self._closed = True
        self._share.end(ShuttingDown(detail="this client was closed"))
        self._wake(len(self._waiters))

    def _wake(self, count: int) -> None:
        for room in [*self._waiters][: max(0, count)]:
            if not room.done():
                room.set_result(None)
