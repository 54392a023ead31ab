"""A call of a wire client that has not ended: its request, and the callbacks for its end.

Invariants: `on_done` is called exactly once, and `on_head` at most once, before it;
            an exception of a callback goes to the loop's handler, and harms neither the connection nor its other calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from neve.proto.coroutine_driver import OnDone
from neve.proto.method import Method
from neve.rpc.service import Buffer, Reply

if TYPE_CHECKING:
    from neve.rpc.wire.client import ClientConnection, WireChannel


class Pending:
    """A call that has not ended."""

    __slots__ = (
        "attachment",
        "attachment_bytes",
        "attachment_crc",
        "bucket",
        "call_id",
        "channel",
        "connection",
        "cost_bytes",
        "deadline_s",
        "message",
        "method",
        "on_done",
        "on_head",
        "timeout_ms",
    )

    def __init__(
        self,
        channel: WireChannel,
        method: Method[Any, Any],
        on_done: OnDone[Reply[Any]],
        on_head: Callable[[Any], None] | None,
    ) -> None:
        self.channel = channel
        self.method = method
        self.on_head = on_head
        self.on_done: OnDone[Reply[Any]] | None = on_done  # None: the call has ended
        self.connection: ClientConnection | None = None  # set when it was sent
        self.bucket = 0  # of its deadline, once it has one
        self.attachment: Sequence[Buffer] = ()
        self.attachment_bytes = 0
        self.attachment_crc: int | None = None
        # The channel sets the other attributes once it has checked that the call may be sent.
        self.call_id: int
        self.message: bytes
        self.cost_bytes: int
        self.deadline_s: float
        self.timeout_ms: int

    def end(self, reply: Reply[Any] | None, error: BaseException | None) -> None:
        """End the call. Later calls of `end` do nothing."""
        on_done = self.on_done
        if on_done is None:
            return
        self.on_done = None
        if self.bucket and (deadlines := self.channel.deadlines) is not None:
            deadlines.remove(self, self.bucket)
        try:
            on_done(reply, error)
        except Exception as failure:  # noqa: BLE001 - it is told
            self._failed(failure)

    def tell_head(self, message: Any) -> None:
        if self.on_head is not None and self.on_done is not None:
            try:
                self.on_head(message)
            except Exception as failure:  # noqa: BLE001 - it is told
                self._failed(failure)

    def _failed(self, failure: Exception) -> None:
        """Report a bug in a caller's callback, which the connection's other calls must survive."""
        context = {"message": f"the caller of {self.method.path} failed over its answer", "exception": failure}
        asyncio.get_running_loop().call_exception_handler(context)

    def cancel(self) -> None:
        self.channel.give_up(self, asyncio.CancelledError())
