"""Deliberate bugs of the wire: answers too early, to the wrong call or never, and buffers used again too early.

Invariants: as in bugs.py: nothing outside of a bug's context is changed.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from neve.extent_node.store.append import PendingAppend
from neve.proto import errors
from neve.rpc.wire import buffers, client, server_connection
from neve.rpc.wire.buffers import ChunkPool
from neve.rpc.wire.client import ClientConnection
from neve.rpc.wire.connection import Connection
from neve.rpc.wire.frame import encode_reply
from neve.rpc.wire.server_call import WireCall
from neve.rpc.wire.server_connection import ServerConnection
from neve.stream_manager.metadata import describe
from neve.stream_manager.streams import allocate
from tests.sim.bugs.bugs import FORGETFUL, bug
from tests.sim.troubles.swarm import Shape


def _ragged(shape: Shape) -> bool:
    return shape.ragged


@bug("an append is answered before it is durable", origin="rule 5", needs=FORGETFUL)
def _answered_early(change: Any) -> None:
    """The reply to a frame that waits for its journal leaves on the next turn of the loop."""

    def wrong(self: PendingAppend, on_done: Any) -> None:
        asyncio.get_running_loop().call_soon(lambda: on_done(self._reply(), None))

    change(PendingAppend, "then", wrong)


@bug("a cancelled call's handler goes on", origin="Channel.call", shows="cancelled")
def _not_cancelled(change: Any) -> None:
    """The server reads that nobody waits for a call any more, and lets its handler run to the end."""
    cancel = WireCall.cancel

    def wrong(self: WireCall) -> None:
        if self.task is None and self.driver is None:
            cancel(self)

    change(WireCall, "cancel", wrong)


@bug("a receive buffer is used again too early", origin="rpc/wire/buffers.py", suits=_ragged, world="partitions")
def _used_again(change: Any) -> None:
    """Whoever still holds a view of a chunk finds what came after it."""

    def take_stream(self: ChunkPool) -> bytearray:
        chunk, self._stream = self._stream, bytearray()
        return chunk or self.take(buffers.STREAM_CHUNK_BYTES)

    def take(self: ChunkPool, size_bytes: int) -> bytearray:
        size_bytes = -(-size_bytes // buffers.CHUNK_STEP_BYTES) * buffers.CHUNK_STEP_BYTES
        chunks = self._by_size.get(size_bytes)
        if not chunks:
            return bytearray(size_bytes)
        self._bytes -= size_bytes
        chunk = chunks.pop()
        if not chunks:
            del self._by_size[size_bytes]
        return chunk

    change(ChunkPool, "take_stream", take_stream)
    change(ChunkPool, "take", take)


@bug("a reply goes to another call", origin="docs/formats/wire.md")
def _to_another(change: Any) -> None:
    """One reply of forty has the id of the call before it."""
    count = itertools.count(1)

    def wrong(call_id: int, message: bytes) -> bytes:
        return encode_reply(call_id - 1 if next(count) % 40 == 0 and call_id > 1 else call_id, message)

    change(server_connection, "encode_reply", wrong)


@bug("frames are lost when a full connection goes on", origin="docs/formats/wire.md", suits=_ragged, shows="answer")
def _lost_when_resumed(change: Any) -> None:
    """What was queued while a server's transport was full is forgotten when that has room again."""
    resume_writing = Connection.resume_writing

    def wrong(self: Connection) -> None:
        if isinstance(self, ServerConnection):
            self._queue.clear()
            self._queue_bytes = 0
        resume_writing(self)

    change(Connection, "resume_writing", wrong)


@bug("a lost connection forgets its calls", origin="rpc/wire/client.py", shows="and its connection is over")
def _forgotten(change: Any) -> None:
    """Callers learn that a connection is lost by their deadlines."""

    def wrong(self: ClientConnection, reason: errors.NeveError) -> None:
        if not self.welcome.done():
            self.welcome.set_exception(reason)
            self.welcome.exception()
        self._lone.on_ended()
        self.calls = {}
        self.channel.connection_ended(self)

    change(client.ClientConnection, "on_ended", wrong)


@bug("an encoded reply has gone stale", origin="rule 16")
def _stale(change: Any) -> None:
    """The manager keeps the bytes of its first answer to a stream's roll, and gives them at the next ones, too."""
    alloc_reply = describe.alloc_reply
    kept: dict[int, Any] = {}

    def wrong(state: Any, stream: Any, *rest: Any) -> Any:
        return kept.setdefault(stream.stream_id, alloc_reply(state, stream, *rest))

    change(allocate, "alloc_reply", wrong)


@bug("a cancelled request keeps its bytes", origin="rpc/wire/server_connection.py", shows="request_bytes")
def _never_released(change: Any) -> None:
    """A server goes on counting a request that was cancelled against its bound."""
    finish = ServerConnection._finish

    def wrong(self: ServerConnection, call: WireCall) -> None:
        if call.cancelled:
            call.request_bytes = 0
        finish(self, call)

    change(ServerConnection, "_finish", wrong)
