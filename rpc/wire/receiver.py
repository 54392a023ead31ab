"""Parser of received bytes into a stream of frames, in place (frame.py has the format of a frame). No I/O.

The transport writes the next bytes into `buffer()` and reports their number with `received(count)`. Frames are parsed
in place; an attachment is a view of the chunk into which it was received.

Invariants: a frame takes no more memory than its prelude announces, and only after `admit` has agreed;
            after an error nothing more is parsed;
            an attachment is copied only if it is small, so that it does not pin a large chunk for long, or if its frame
            does not fit into the chunk after the earlier frames.
"""

from __future__ import annotations

from collections.abc import Callable

from neve.proto.crc import crc32c_bytes
from neve.proto.errors import ProtocolViolation
from neve.rpc.limits import KIB
from neve.rpc.service import EMPTY
from neve.rpc.wire.buffers import STREAM_CHUNK_BYTES, ChunkPool
from neve.rpc.wire.frame import PRELUDE_BYTES, Prelude, check_body, check_message, decode_prelude

ATTACHMENT_COPY_BYTES_MAX = 64 * KIB
READ_BYTES_MIN = 16 * KIB  # less room than this after the last frame is not worth a system call

_NO_CHUNK = bytearray()

OnFrame = Callable[[Prelude, bytes, memoryview], None]
OnHead = Callable[[Prelude, bytes], None]
Admit = Callable[[Prelude], bool]


class FrameReceiver:
    """The received direction of one connection."""

    def __init__(
        self,
        pool: ChunkPool,
        *,
        message_bytes_max: int,
        attachment_bytes_max: int,
        on_frame: OnFrame,
        on_head: OnHead | None = None,
        admit: Admit | None = None,
    ) -> None:
        """`on_head` gets the message of a frame whose attachment has not arrived yet, once, before `on_frame`."""
        self.message_bytes_max = message_bytes_max
        self.attachment_bytes_max = attachment_bytes_max
        self._pool = pool
        self._on_frame = on_frame
        self._on_head = on_head
        self._head_told = False  # of the frame that is being received
        self._admit = admit
        self._chunk = _NO_CHUNK
        self._view = EMPTY
        self._start = 0  # of the frame that is being received
        self._end = 0  # of the received bytes
        self._prelude: Prelude | None = None  # of that frame, if known and admitted
        self._whole_at = 0  # the end of that frame, once nothing is to be reported before it is whole; 0: not yet
        self._held = False  # `admit` has refused: the frame waits for `resume`
        self.frames = 0  # handed on so far
        self._frame_bytes_hint = 0  # the size of the last large frame, as a guess for the next one

    @property
    def partial_bytes(self) -> int:
        """The number of received bytes of an incomplete frame."""
        return self._end - self._start

    @property
    def is_between(self) -> bool:
        """Whether all received bytes are handed on and no frame waits to be admitted."""
        return self._end == self._start and not self._held

    @property
    def held(self) -> bool:
        """Whether a frame waits to be admitted. The transport must not read until `resume` has returned True."""
        return self._held

    def buffer(self) -> memoryview:
        """The memory for the next bytes; never empty."""
        hint_bytes = self._frame_bytes_hint
        if not self._chunk:
            self._use(self._pool.take(hint_bytes) if hint_bytes else self._pool.take_stream())
        elif self._prelude is None and len(self._chunk) - self._end < READ_BYTES_MIN:
            self._move(STREAM_CHUNK_BYTES)
        # After a large frame, the view ends where another frame of the same size would. The frame after that then
        # begins in a chunk of its own and need not be moved.
        if hint_bytes and self._start == 0 and self._end < hint_bytes:
            return self._view[self._end : max(hint_bytes, self._wanted_end())]
        return self._view[self._end :] if self._end else self._view

    def received(self, count: int) -> None:
        """`count` bytes are in `buffer()`: hand on every complete frame."""
        self._end += count
        if self._end >= self._whole_at:  # often false: most bytes are in the middle of a large frame
            self._parse()

    def resume(self) -> bool:
        """Ask `admit` again for the waiting frame. Returns True if reading may continue."""
        if self._held:
            self._held = False
            self._parse()
        return not self._held

    def close(self) -> None:
        """Drop everything received. Existing views of chunks stay valid."""
        self._view = EMPTY
        self._chunk = _NO_CHUNK
        self._start = self._end = self._whole_at = 0
        self._prelude = None

    def _parse(self) -> None:
        while (available := self._end - self._start) >= PRELUDE_BYTES:
            start, view, prelude = self._start, self._view, self._prelude
            if prelude is None:
                head = bytes(view[start : start + PRELUDE_BYTES])
                prelude = decode_prelude(head, self.message_bytes_max, self.attachment_bytes_max)
                if self._admit is not None and not self._admit(prelude):
                    self._held = True
                    return
                self._prelude = prelude
            body_bytes, message_bytes, _, _, _, _, _, message_crc, attachment_crc = prelude
            size_bytes = PRELUDE_BYTES + body_bytes
            if available < size_bytes:
                if not self._frame_fits():
                    self._move(size_bytes)
                if self._on_head is not None and not self._head_told:
                    self._tell_head(prelude)
                if self._on_head is None or self._head_told:
                    self._whole_at = self._start + size_bytes
                return
            message_start = start + PRELUDE_BYTES
            message_end, end = message_start + message_bytes, start + size_bytes
            message = bytes(view[message_start:message_end])
            if end == message_end:  # as most frames are: checked in place
                attachment = EMPTY
                if crc32c_bytes(message) != message_crc or attachment_crc:
                    check_body(prelude, message, b"")
            elif end - message_end > ATTACHMENT_COPY_BYTES_MAX:
                attachment = view[message_end:end]
                check_body(prelude, message, attachment)
            else:
                copy = bytes(view[message_end:end])
                attachment = memoryview(copy)
                if crc32c_bytes(message) != message_crc or crc32c_bytes(copy) != attachment_crc:
                    check_body(prelude, message, copy)  # says what is wrong, or that the caller looks at it
            self._frame_bytes_hint = size_bytes if size_bytes > STREAM_CHUNK_BYTES else 0
            self._start = end
            self._prelude = None
            self._head_told = False
            self._whole_at = 0
            self.frames += 1
            self._on_frame(prelude, message, attachment)
        if self._start == self._end and self._chunk:
            self._drop_chunk()

    def _tell_head(self, prelude: Prelude) -> None:
        start = self._start + PRELUDE_BYTES
        end = start + prelude.message_bytes
        if self._end < end or prelude.body_bytes == prelude.message_bytes:
            return
        message = bytes(self._view[start:end])
        check_message(prelude, message)
        self._head_told = True
        assert self._on_head is not None
        self._on_head(prelude, message)

    def _wanted_end(self) -> int:
        return self._start + PRELUDE_BYTES + (self._prelude.body_bytes if self._prelude else 0)

    def _frame_fits(self) -> bool:
        return self._wanted_end() <= len(self._chunk)

    def _use(self, chunk: bytearray) -> None:
        self._chunk = chunk
        self._view = memoryview(chunk)

    def _move(self, size_bytes: int) -> None:
        """Continue in another chunk, into which the received bytes of the present frame are copied."""
        partial = self._end - self._start
        chunk = self._pool.take(max(size_bytes, STREAM_CHUNK_BYTES))
        chunk[:partial] = self._view[self._start : self._end]
        old, self._view = self._chunk, EMPTY
        self._pool.give(old)
        self._use(chunk)
        self._start, self._end = 0, partial

    def _drop_chunk(self) -> None:
        """Give the chunk back between frames, so that thousands of idle connections hold no memory."""
        old, self._view, self._chunk = self._chunk, EMPTY, _NO_CHUNK
        self._start = self._end = 0
        self._pool.give_stream(old)


def violation_of_kind(prelude: Prelude, state: str) -> ProtocolViolation:
    """The error for a frame whose kind is not allowed in this state of the connection."""
    return ProtocolViolation(detail=f"frame kind {prelude.kind} is not allowed {state}")
