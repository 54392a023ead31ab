"""The part of a wire connection that both sides share: receiving, bounded sending, beats, and one way to end.

Invariants: a connection ends once, with one reason, which is logged and reported to everything that waits on it;
            a malformed frame, a slow frame, a silent peer and a peer that does not read each end only this connection;
            a peer counts as silent only while we read from it, because under back-pressure we do not read its beats.
            For the same reason each side sends beats by itself instead of answering beats that it may not be reading.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import cast

from neve.proto import errors
from neve.rpc.limits import KIB, Limits
from neve.rpc.service import Buffer, FileBytes
from neve.rpc.wire.buffers import ChunkPool
from neve.rpc.wire.file_sender import FILE_BYTES_MIN, CannotRead, FileSender
from neve.rpc.wire.frame import HANDSHAKE_BYTES_MAX, Kind, Prelude, encode
from neve.rpc.wire.receiver import FrameReceiver

log = logging.getLogger(__name__)

JOIN_BYTES_MAX = 16 * KIB  # a buffer up to this size is copied: cheaper than one more for the kernel to gather

FLUSH_BYTES = 64 * KIB  # worth a system call of its own before the end of the turn


class Connection(asyncio.BufferedProtocol):
    """An asyncio protocol. Subclasses implement `on_frame`, `on_ended` and, if needed, the other hooks."""

    def __init__(self, limits: Limits, pool: ChunkPool, *, peer: str) -> None:
        self.limits = limits
        self.peer = peer
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.ended: errors.NeveError | None = None  # the reason, once it is over
        self.closed = self.loop.create_future()  # done when the socket is gone
        self.write_paused = False
        self.receiver = FrameReceiver(
            pool,
            # Before the handshake the peer is unknown and may not make us hold more than this.
            message_bytes_max=HANDSHAKE_BYTES_MAX,
            attachment_bytes_max=0,
            on_frame=self.on_frame,
            on_head=self.on_head if type(self).on_head is not Connection.on_head else None,
            admit=self.admit if type(self).admit is not Connection.admit else None,
        )
        self._queue: list[Buffer] = []  # frames for the next flush
        self._queue_bytes = 0
        self._flush_due = False
        self._file_sender: FileSender | None = None  # made for the first file to send
        self._receiving = False  # frames that are sent now are flushed when all received bytes are handled
        self._heard_s = self.loop.time()
        self._frame_begun_s = 0.0  # when the present incomplete frame began; 0: none
        self._write_stuck_s = 0.0  # since when a full transport has lost no byte; 0: it is not full
        self._write_left_bytes = 0  # what it had then
        self._sent_since_tick = False
        self._beating = False  # beats are sent only after the peer's handshake
        self._tick: asyncio.TimerHandle | None = None

    # --- hooks -----------------------------------------------------------------------------------------------

    def on_frame(self, prelude: Prelude, message: bytes, attachment: memoryview) -> None:
        raise NotImplementedError

    def on_head(self, prelude: Prelude, message: bytes) -> None:
        """The message of a frame has arrived; its attachment has not."""

    def on_ended(self, reason: errors.NeveError) -> None:
        """The connection has ended: nothing can be sent any more. Called once."""
        raise NotImplementedError

    def on_writable(self) -> None:
        """The transport accepts bytes again."""

    def admit(self, prelude: Prelude) -> bool:
        """May this frame be received now?"""
        return True

    def on_held(self) -> None:
        """A frame was not admitted: the connection must not read until the receiver has resumed."""

    # --- sending ---------------------------------------------------------------------------------------------

    def send(
        self, head: bytes, attachment: Sequence[Buffer] = (), attachment_bytes: int = 0, *, at_once: bool = False
    ) -> None:
        """Send a frame; `head` is from `frame.encode`. Large buffers are not copied.

        Frames of one turn of the loop are flushed together at its end, because a system call costs more than the rest
        of a small frame. `at_once`: flush now, as no other frame is likely to follow in this turn.
        """
        if self.ended is not None or self.transport is None:
            return  # the end of the connection was reported to all waiting callers
        if at_once and not self._queue and not self.write_paused and attachment_bytes <= JOIN_BYTES_MAX:
            self._sent_since_tick = True
            self.transport.write(b"".join((head, *attachment)) if attachment_bytes else head)
            return
        self._queue.append(head)
        if attachment_bytes:
            self._queue += attachment
        self._queue_bytes += len(head) + attachment_bytes
        if self.write_paused:
            return
        if self._queue_bytes >= FLUSH_BYTES or at_once:
            self._flush()  # the peer can begin while we continue
        elif not self._receiving and not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self.write_paused or not self._queue or self.ended is not None:
            return
        assert self.transport is not None
        self._sent_since_tick = True
        parts, self._queue = self._queue, []
        size_bytes, self._queue_bytes = self._queue_bytes, 0
        if size_bytes <= JOIN_BYTES_MAX:
            self.transport.write(b"".join(parts))
        else:
            self.transport.writelines(join_small(parts))

    def send_file(self, head: bytes, file: FileBytes) -> bool:
        """Have the kernel send a frame whose attachment is in a file.

        Returns False if the kernel cannot, now or at all. Then nothing was sent, and the caller uses `send`.
        """
        transport = self.transport
        if self.ended is not None or transport is None or len(file.view) < FILE_BYTES_MIN:
            return False
        if self._queue or self.write_paused or transport.is_closing() or transport.get_write_buffer_size():
            return False  # other frames precede it
        if self._file_sender is None:
            self._file_sender = FileSender.of(transport)
        if self._file_sender is None or (descriptor := file.descriptor()) is None:
            return False
        self._sent_since_tick = True
        try:
            left = self._file_sender.send(head, file, descriptor)
        except CannotRead as problem:
            log.error("reply_broken_off peer=%s reason=%s", self.peer, problem)
            file.unreadable(str(problem))
            transport.abort()  # a part of the frame was sent; `connection_lost` reports the end
        except OSError as error:
            log.info("connection_broken peer=%s error=%s", self.peer, error)
            transport.abort()
        else:
            if left:
                transport.writelines(left)
        return True

    def open_limits(self, message_bytes_max: int, attachment_bytes_max: int) -> None:
        """The handshake is done: accept frames of full size."""
        self._beating = True
        self.receiver.message_bytes_max = message_bytes_max
        self.receiver.attachment_bytes_max = attachment_bytes_max

    def unsent_bytes(self) -> int:
        """The number of bytes that the kernel has not taken yet."""
        return self._write_size_bytes() + self._queue_bytes

    def _write_size_bytes(self) -> int:
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    # --- the end ---------------------------------------------------------------------------------------------

    def end(self, reason: errors.NeveError, *, last_words: bool = False) -> None:
        """End the connection for `reason`. With `last_words`, the reason is sent to the peer, if it reads soon."""
        if self.ended is not None:
            return
        if last_words:
            self.send(encode(Kind.ERROR, message=errors.to_message(reason).SerializeToString()))
            self._flush()
        self.ended = reason
        self._queue.clear()
        self._queue_bytes = 0
        if self._tick is not None:
            self._tick.cancel()
        if self._file_sender is not None:
            self._file_sender.close()
        if self.transport is not None:
            if last_words:
                self.transport.close()  # what is buffered is still sent …
                self.loop.call_later(self.limits.handshake_timeout_s, self.transport.abort)  # … but not for ever
            else:
                self.transport.abort()
        self.receiver.close()
        self.on_ended(reason)

    # --- asyncio's side --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its base class
        self.transport = transport
        # Low at 0: `resume_writing` then says that the kernel has taken everything.
        transport.set_write_buffer_limits(high=self.limits.write_buffer_bytes, low=0)
        if self.ended is not None:
            transport.abort()
            return
        self._heard_s = self.loop.time()
        self._schedule_tick()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.ended is not None:
            return
        self._heard_s = self.loop.time()
        receiver = self.receiver
        frames = receiver.frames
        self._receiving = True
        try:
            receiver.received(nbytes)
        except errors.ProtocolViolation as violation:
            self.violated(violation)
            return
        finally:
            self._receiving = False
        if self._queue:
            self._flush()
        if receiver.is_between:
            self._frame_begun_s = 0.0
            return
        if receiver.held:
            self.on_held()
        if not receiver.partial_bytes:
            self._frame_begun_s = 0.0
        elif not self._frame_begun_s or receiver.frames != frames:
            self._frame_begun_s = self._heard_s

    def violated(self, violation: errors.ProtocolViolation) -> None:
        """The peer broke the protocol: log it, report it to the peer, and end only this connection."""
        log.warning("connection_violated peer=%s reason=%s", self.peer, violation.detail)
        self.end(violation, last_words=True)

    def eof_received(self) -> bool:
        self.end(errors.ConnectionLost(address=self.peer, detail="closed by the peer"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        detail = f"{type(exc).__name__}: {exc}" if exc else "closed"
        self.end(errors.ConnectionLost(address=self.peer, detail=detail))
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        self.write_paused = True
        self._write_stuck_s = self.loop.time()
        self._write_left_bytes = self._write_size_bytes()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._write_stuck_s = 0.0
        self._flush()  # may pause again, at once
        if not self.write_paused and self.ended is None:
            self.on_writable()

    # --- signs of life ---------------------------------------------------------------------------------------

    def reading_paused(self) -> bool:
        """We have stopped reading, so we cannot tell whether the peer is silent."""
        return False

    def _schedule_tick(self) -> None:
        self._tick = self.loop.call_later(self.limits.keepalive_s / 2, self._on_tick)

    def _on_tick(self) -> None:
        now_s = self.loop.time()
        if self.reading_paused():
            self._heard_s = now_s
            self._frame_begun_s = now_s if self._frame_begun_s else 0.0
        if self._write_stuck_s and self._write_size_bytes() < self._write_left_bytes:
            self._write_stuck_s, self._write_left_bytes = now_s, self._write_size_bytes()
        reason = ""
        if now_s - self._heard_s > self.limits.dead_peer_s:
            reason = f"nothing heard for {self.limits.dead_peer_s:g} s"
        elif self._frame_begun_s and now_s - self._frame_begun_s > self.limits.frame_timeout_s:
            reason = f"a frame took longer than {self.limits.frame_timeout_s:g} s"
        elif self._write_stuck_s and now_s - self._write_stuck_s > self.limits.frame_timeout_s:
            reason = f"the peer has not read for {self.limits.frame_timeout_s:g} s"
        if reason:
            log.warning("connection_dead peer=%s reason=%s", self.peer, reason)
            self.end(errors.ConnectionLost(address=self.peer, detail=reason))
            return
        if self._beating and not self._sent_since_tick and not self.write_paused:
            self.send(encode(Kind.BEAT))
        self._sent_since_tick = False
        self._schedule_tick()


def join_small(parts: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes in fewer buffers: neighbours that are small are joined, large ones stay as they are."""
    joined: list[Buffer] = []
    run: list[Buffer] = []
    for part in parts:
        if len(part) <= JOIN_BYTES_MAX:
            run.append(part)
            continue
        if run:
            joined.append(run[0] if len(run) == 1 else b"".join(run))
            run = []
        joined.append(part)
    if run:
        joined.append(run[0] if len(run) == 1 else b"".join(run))
    return joined
