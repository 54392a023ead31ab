"""One call on an accepted connection: the handler's view of it, its reservations, and its cancellation.

Invariants: a handler is cancelled at most once, and never before its first step;
            a reservation for a reply counts against the connection's and the server's bounds, or against neither.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from neve.proto.coroutine_driver import CoroutineDriver
from neve.rpc.service import Answer, Call, FileBytes, Route
from neve.rpc.wire.frame import PRELUDE_BYTES, Prelude

if TYPE_CHECKING:
    from neve.rpc.wire.server_connection import ServerConnection


class WireCall(Call):
    """A call on the wire, with its connection and its reservations there."""

    checksummed = True

    # Most calls never set these, so their defaults are attributes of the class.
    reserved_bytes = 0
    started = False
    abandoned = False  # cancelled before its handler started, or in the first step of a driven one
    cancelled = False
    expired = False
    deadline_bucket = 0
    answer: Answer[Any] | None = None  # it is answered by what goes on without it: no task
    ended = False
    task: asyncio.Task[None] | None = None
    driver: CoroutineDriver[Message] | None = None  # of a handler that runs without a task
    cleanup: asyncio.Future[None] | None = None  # done when a driven handler has ended that was cancelled and waits
    reply_file: FileBytes | None = None  # which has all of the reply's attachment

    def __init__(self, connection: ServerConnection, route: Route, prelude: Prelude, attachment: memoryview) -> None:
        # Sets the base class's attributes without calling its __init__, because this runs for every request.
        body_bytes, _, call_id, _, _, _, timeout_ms, _, _ = prelude
        self.method = route.method
        self.attachment = attachment
        self.deadline_s = connection.loop.time() + timeout_ms / 1000
        self.principal = connection.principal
        self.peer = connection.peer
        self.reply_attachment = []
        self.own_checksums = False
        self.connection = connection
        self.call_id = call_id
        self.timeout_ms = timeout_ms
        self.request_bytes = PRELUDE_BYTES + body_bytes

    def cancel(self) -> None:
        """Cancel the handler once, so that a deadline together with a CANCEL does not interrupt its clean-up.

        A task that has not started must not be cancelled, because its body, which releases resources, would never run.
        """
        if self.cancelled:
            return
        self.cancelled = True
        if self.answer is not None:
            self.answer.abandon()
            self.connection.end_call(self, asyncio.CancelledError())
        elif self.driver is not None:
            self.driver.cancel()
            if not self.ended:  # a server that stops waits for the handler's clean-up, as for a task
                self.cleanup = self.connection.loop.create_future()
                self.connection.server.tasks.add(self.cleanup)
        elif self.started and self.task is not None:
            self.task.cancel()
        else:
            self.abandoned = True

    def attach_file(self, file: FileBytes, *, own_checksums: bool = False) -> None:
        super().attach_file(file, own_checksums=own_checksums)
        self.reply_file = file if len(self.reply_attachment) == 1 else None

    async def reserve_reply(self, size_bytes: int) -> None:
        await self.connection.reply_budget.acquire(size_bytes)
        try:
            await self.connection.server.reply_budget.acquire(size_bytes)
        except asyncio.CancelledError:
            self.connection.reply_budget.release(size_bytes)
            raise
        self.reserved_bytes += size_bytes
