"""The wire's channel with two checks: of its caller, and of itself.

The caller must not change an attachment until the call has ended. On a real network a changed buffer is sent as it was,
or as it is, or as a mixture that fails its checksum: whether it shows depends on how full the socket was.

Every call that was sent on a connection ends with it, and does not wait for its deadline.

Invariant:  attachments of `bytes`, which cannot change, cost nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from neve.proto.coroutine_driver import OnDone
from neve.proto.method import Method, Rep, Req
from neve.rpc.service import REPLY_BYTES_DEFAULT, Begun, Buffer, Reply
from neve.rpc.wire.client import ClientConnection, WireChannel
from neve.rpc.wire.pending import Pending


class SimChannel(WireChannel):
    def __init__(self, address: str, **options: Any) -> None:
        super().__init__(address, **options)
        self.open: dict[int, Begun] = {}  # calls that have not ended, in their order
        self._calls_begun = 0

    def begin(
        self,
        method: Method[Req, Rep],
        request: Req | bytes,
        on_done: OnDone[Reply[Rep]],
        *,
        timeout_s: float,
        attachment: Sequence[Buffer] = (),
        attachment_crc32c: int | None = None,
        reply_bytes_max: int = REPLY_BYTES_DEFAULT,
        on_head: Callable[[Rep], None] | None = None,
    ) -> Begun:
        if any(type(buffer) is not bytes for buffer in attachment):
            on_done = _checked(method.path, attachment, on_done)
        number = self._calls_begun = self._calls_begun + 1
        ended = False

        def end(reply: Reply[Rep] | None, error: BaseException | None) -> None:
            nonlocal ended
            ended = True
            self.open.pop(number, None)
            on_done(reply, error)

        begun = super().begin(
            *(method, request, end),
            timeout_s=timeout_s,
            attachment=attachment,
            attachment_crc32c=attachment_crc32c,
            reply_bytes_max=reply_bytes_max,
            on_head=on_head,
        )
        if not ended:
            self.open[number] = begun
        return begun

    def check_lost(self, connection: ClientConnection, wrong: Callable[[str], None]) -> None:
        for begun in self.open.values():
            if isinstance(begun, Pending) and begun.connection is connection:
                wrong(f"a call of {begun.method.path} to {self.address} goes on, and its connection is over")


def lose_connection(protocol: asyncio.BaseProtocol, error: Exception | None, wrong: Callable[[str], None]) -> None:
    """Tell the protocol, as a step of its process."""
    cast(asyncio.BufferedProtocol, protocol).connection_lost(error)
    if isinstance(protocol, ClientConnection) and isinstance(protocol.channel, SimChannel):
        protocol.channel.check_lost(protocol, wrong)


def _checked(path: str, attachment: Sequence[Buffer], on_done: OnDone[Reply[Rep]]) -> OnDone[Reply[Rep]]:
    before = b"".join(attachment)

    def check(reply: Reply[Rep] | None, error: BaseException | None) -> None:
        if b"".join(attachment) != before:
            on_done(None, AssertionError(f"{path}: the attachment changed during the call"))
        else:
            on_done(reply, error)

    return check
