"""The writer of a stream: append, wait, flush. The stream's lock allows one writer in the whole cluster.

Invariants: an append is acknowledged when every replica of its extent has it (guarantee G1), and never after the lock
            may have been lost: appends that are not acknowledged by then raise AppendOutcomeUnknown (protocol rule 2);
            the stream has the appends in the order of their calls, each once, whatever is retried (guarantee G6);
            the unacknowledged bytes are bounded: at the bound `append` waits and `submit` raises Overloaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, cast

from neve.client.streams.core.batch import Batch
from neve.client.streams.core.writer import WriterCore
from neve.client.streams.options import ClientOptions
from neve.client.streams.sending.budget import Share
from neve.client.streams.types import Position, Positions, new_position
from neve.client.streams.writer_tail import WriterTail
from neve.meta.lock import Lock
from neve.proto import common_pb2
from neve.proto.blocks import HEADER_BYTES
from neve.proto.crc import Buffer
from neve.proto.errors import AppendOutcomeUnknown, InvalidArgument, NeveError, Overloaded, ShuttingDown, TooLarge

log = logging.getLogger(__name__)

CLOSE_PUBLISH_TIMEOUT_S = (
    1.0  # a closing writer tries this long to publish `committed` to readers; nothing depends on it
)


@dataclass(frozen=True, slots=True)
class WriterStats:
    """Counters of a writer since it was opened."""

    records: int  # acknowledged
    acknowledged_bytes: int  # including block headers
    held_bytes: int  # appended, not yet acknowledged
    rolls: int  # extents that the writer filled or gave up
    resends: int  # segments sent again to a replica
    resent_bytes: int  # moved into the next extent because the sealed one did not keep them


@dataclass(frozen=True, slots=True)
class Opened:
    """The lock and the tail of a writer that has just been opened."""

    lock: Lock
    tail: WriterTail
    shared: bool = False  # a group holds the lock, and releases it when all of its writers have ended


MakeTail = Callable[["Writer", WriterCore], Awaitable[Opened]]


class Writer:
    """Appends to one stream. `Client.writer` makes it; `async with` opens it, or `await open()` and `await close()`.

    Every method that appends raises the error that ended the writer, if one did. Appends that were pending at that
    time raise AppendOutcomeUnknown: each of them may or may not be in the stream.

    async with neve.writer(stream.id) as writer:
        position = await writer.append(b"hello")
        positions = await writer.append_many([b"a", b"b"])
        pending = writer.submit(b"c")
        await writer.flush()
    """

    def __init__(
        self,
        stream_id: int,
        *,
        opener: MakeTail,
        on_closed: Callable[[Writer], None],
        share: Share,
        options: ClientOptions,
        on_ended: Callable[[Writer, NeveError], None] = lambda writer, error: None,
    ) -> None:
        self.stream_id = stream_id
        self._opener = opener
        self._on_closed = on_closed
        self._on_ended = on_ended
        self._share = share
        self._options = options
        self._record_bytes_max = options.record_bytes_max + HEADER_BYTES
        self._core = WriterCore(
            run_bytes_max=options.frame_bytes,
            payload_bytes_max=options.block_payload_bytes_max,
            attempts_max=options.append_attempts_max,
        )
        self._loop = asyncio.get_running_loop()
        self._opened: Opened | None = None
        self._error: NeveError | None = ShuttingDown(detail="this writer is not open")
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []  # with the settled bytes they wait for, ascending
        self._records = 0
        self._acknowledged_bytes = 0
        self._returned_bytes = 0  # returned to the budget since the writer was opened
        self._unknown = 0  # appends that raised AppendOutcomeUnknown

    async def open(self) -> Self:
        """Take the lock, fence older owners and find the end of the stream."""
        if self._opened is not None:
            raise InvalidArgument(what="writer", detail="it is already open")
        self._opened = await self._opener(self, self._core)
        self._error = None
        lost = self._opened.lock.lost
        lost.add_callback(self._on_lock_lost)
        return self

    # --- appends ---------------------------------------------------------------------------------------------

    async def append(self, payload: Buffer) -> Position:
        """Append one record and return its position, once it is acknowledged.

        Waits while the writer's buffer is full. A record larger than one block takes several blocks; one larger than
        `record_bytes_max` of the options raises TooLarge, because readers would refuse it.
        """
        data = payload if type(payload) is bytes else _as_bytes(payload)
        size_bytes = len(data) + HEADER_BYTES
        if size_bytes > self._record_bytes_max:
            raise self._too_large(len(data))
        if self._error is not None or not self._share.try_take(size_bytes):
            await self._wait_for_room(size_bytes)
        return await self._push(data, size_bytes, hurry=True)

    async def append_many(self, payloads: Iterable[Buffer]) -> Sequence[Position]:
        """Append a list of records and return their positions, once all are acknowledged.

        This is the cheapest way to append many records. A list larger than the writer's bound waits until no other
        bytes are unacknowledged, and is then sent as a whole.
        """
        parts = cast("list[bytes]", list(payloads))
        if {*map(type, parts)} - {bytes}:
            parts = [_as_bytes(payload) for payload in parts]
        if not parts:
            return []
        sizes = list(map(len, parts))
        if max(sizes) + HEADER_BYTES > self._record_bytes_max:
            raise self._too_large(max(sizes))
        size_bytes = sum(sizes) + HEADER_BYTES * len(sizes)
        if self._error is not None or not self._share.try_take(size_bytes):
            await self._wait_for_room(size_bytes)
        if max(sizes) <= self._core.payload_bytes_max:
            return await self._push_many(parts, size_bytes, hurry=True)
        pending = [self._push(part, len(part) + HEADER_BYTES) for part in parts]
        return [await each for each in pending]

    def submit(self, payload: Buffer) -> asyncio.Future[Position]:
        """Append one record without waiting. The future gets its position when it is acknowledged.

        Raises Overloaded when the writer's buffer is full. Then `await writer.ready()`, or an earlier future, and
        submit again.
        """
        data = payload if type(payload) is bytes else _as_bytes(payload)
        if self._error is not None:
            raise self._end_error()
        size_bytes = len(data) + HEADER_BYTES
        if size_bytes > self._record_bytes_max:
            raise self._too_large(len(data))
        if not self._share.try_take(size_bytes):
            raise self._overloaded()
        core = self._core
        if len(data) > core.payload_bytes_max:
            return self._push(data, size_bytes)
        future: asyncio.Future[Position] = self._loop.create_future()  # the same as `_push`, without that call
        if core.push(data, future):
            self._wake(hurry=False)
        return future

    def submit_many(self, payloads: list[bytes]) -> asyncio.Future[Sequence[Position]]:
        """Like `submit`, for records of one block each. The future gets their positions when all are acknowledged.

        Raises Overloaded if the buffer has no room for all of them; then none is appended. The writer keeps the list,
        so it must not change afterwards.
        """
        if self._error is not None:
            raise self._end_error()
        if {*map(type, payloads)} - {bytes}:
            raise InvalidArgument(what="payloads", detail="every payload must be bytes")
        sizes = list(map(len, payloads))
        if not sizes or max(sizes) > self._core.payload_bytes_max:
            detail = f"expected at least one payload, each of at most {self._core.payload_bytes_max} bytes"
            raise InvalidArgument(what="payloads", detail=detail)
        size_bytes = sum(sizes) + HEADER_BYTES * len(sizes)
        if not self._share.try_take(size_bytes):
            raise self._overloaded()
        return self._push_many(payloads, size_bytes)

    async def ready(self, size_bytes: int = 1) -> None:
        """Wait until the buffer has room for an append of this size. Raises the error that ended the writer."""
        self._check_open()
        await self._share.until_room(size_bytes + HEADER_BYTES)
        self._check_open()

    async def flush(self) -> None:
        """Wait until every earlier append is acknowledged. Raises the error that ended the writer.

        Afterwards the nodes are notified how far readers may go.
        """
        core = self._core
        if self._error is not None:
            raise self._end_error()
        if core.held_bytes:
            future: asyncio.Future[None] = self._loop.create_future()
            self._flushes.append((core.pushed_bytes, future))
            await future
        self._check_open()  # again: `abort` may have run in the turn that acknowledged the last append
        assert self._opened is not None
        confirming = list(self._opened.tail.confirming.values())
        if confirming:
            await asyncio.wait(confirming)
        if self._error is not None:
            raise self._end_error()
        self._opened.tail.publish_committed()

    def tell_again(self) -> None:
        """Notify all replicas of the tail again how far readers may go.

        A node that restarts forgets it, and an idle writer, which sends that node nothing, does not notice.
        """
        if self._opened is not None and self._error is None:
            self._opened.tail.republish_committed()

    @property
    def stats(self) -> WriterStats:
        """Counters since the writer was opened."""
        tail = self._opened.tail if self._opened is not None else None
        return WriterStats(
            records=self._records,
            acknowledged_bytes=self._acknowledged_bytes,
            held_bytes=self._core.held_bytes,
            rolls=tail.rolls if tail is not None else 0,
            resends=tail.resends if tail is not None else 0,
            resent_bytes=tail.resent_bytes if tail is not None else 0,
        )

    @property
    def error(self) -> NeveError | None:
        """The error that ended the writer; None while it takes appends."""
        return self._error

    @property
    def token(self) -> int:
        """The token of the lock, which fences older owners. Every open gets a higher one."""
        return self._opened.lock.token if self._opened is not None else 0

    @property
    def owner(self) -> common_pb2.Owner | None:
        """The owner to name in calls to the manager; None after the writer has ended."""
        return self._opened.tail.owner if self._opened is not None and self._error is None else None

    @property
    def committed(self) -> Position | None:
        """The end of the acknowledged records in the tail extent."""
        tail = self._core.tail
        return Position(tail.extent_id, self._core.committed) if tail is not None else None

    # --- the end ---------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for pending appends and release the lock. Raises if one of them was not acknowledged."""
        opened = self._opened
        if opened is None:
            return
        try:
            await self.drain()
        finally:
            await self._release(opened)

    async def drain(self) -> None:
        """Wait for pending appends, and until readers may read all of them. Does nothing if the writer has ended."""
        if self._error is None:
            await self.flush()
            assert self._opened is not None
            await self._opened.tail.republish_and_wait(CLOSE_PUBLISH_TIMEOUT_S)

    async def freeze(self) -> tuple[int, int]:
        """Wait for pending appends and stop acknowledging, before a request to seal the stream.

        Returns the tail extent and the end of its acknowledged records. The nodes let readers go that far: the seal may
        take a while, and this writer does not notify them again.
        """
        while True:
            await self.drain()
            self._check_open()
            assert self._opened is not None
            if self._core.held_bytes:
                continue  # the caller appended more in the meantime
            frozen = self._opened.tail.freeze()
            if frozen is not None:
                return frozen
            await asyncio.sleep(self._options.append_retry_delay_s)  # the tail rolls, with nothing to send

    async def abort(self, error: NeveError | None = None) -> None:
        """Release the lock without waiting. Pending appends raise AppendOutcomeUnknown."""
        opened = self._opened
        if opened is not None:
            self._end(error or ShuttingDown(detail="the writer was closed"))
            await self._release(opened)

    def ensure_outcomes(self) -> None:
        """Raise AppendOutcomeUnknown if the writer ended with pending appends.

        A program that submitted records and ignored the futures must not take this for success.
        """
        if self._unknown:
            raise self._unknown_outcome(f"of {self._unknown} appends: ")

    async def _release(self, opened: Opened) -> None:
        self._end(ShuttingDown(detail="the writer was closed"))
        self._opened = None
        try:
            await opened.tail.closed()  # reporting a conflict may take seconds, and may be cancelled
        finally:
            try:
                if not opened.shared:
                    await opened.lock.release()
            finally:
                self._on_closed(self)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            self.ensure_outcomes()
            return
        try:
            if isinstance(error, Exception):
                await self.close()  # appends made before the body failed are worth waiting for
            else:
                await self.abort()
        except NeveError as second:
            log.info("writer_closed_with stream_id=%d error=%s", self.stream_id, second)

    def _on_lock_lost(self, _: str) -> None:
        if self._error is None and self._opened is not None:
            try:
                self._opened.lock.ensure()
            except NeveError as error:
                self._end(error)

    def on_end(self, error: NeveError) -> None:
        """The tail reports that this writer has ended."""
        self._end(error)

    def _end(self, error: NeveError) -> None:
        """Stop acknowledging and fail everything that is pending. Only the first call has an effect."""
        if self._error is not None:
            return
        self._error = error
        assert self._opened is not None
        self._opened.tail.close()
        self._on_ended(self, error)
        waiters = self._core.abandon()
        log.log(
            logging.WARNING if waiters else logging.INFO,
            "writer_ended stream_id=%d unknown=%d error=%s",
            *(self.stream_id, len(waiters), error),
        )
        self._fail_as_unknown(waiters)
        for _, future in self._flushes:
            if not future.done():
                future.set_exception(self._unknown_outcome())
        self._flushes.clear()
        self._share.end(self._end_error())
        self.on_settled()

    def on_unknown(self, batches: list[Batch]) -> None:
        """The tail reports batches that are on every replica but came after the lock may have been lost."""
        for batch in batches:
            if batch.waiters is not None:
                self._fail_as_unknown(batch.waiters)
            elif batch.ticket is not None:
                self._fail_as_unknown([batch.ticket.waiter])

    def _fail_as_unknown(self, waiters: Iterable[asyncio.Future[object]]) -> None:
        for future in waiters:
            if not future.done():
                self._unknown += 1
                future.set_exception(self._unknown_outcome())
                future.exception()  # marks it as seen: `flush` raises too, so the caller may have dropped this future

    def _unknown_outcome(self, of: str = "") -> AppendOutcomeUnknown:
        """A new AppendOutcomeUnknown, caused by the end of the writer."""
        cause = self._end_error()
        error = AppendOutcomeUnknown(detail=f"{of}{cause}")
        error.__cause__ = cause
        return error

    def _end_error(self) -> NeveError:
        """A copy of the error that ended the writer: raising one object twice would mix the tracebacks."""
        assert self._error is not None
        return type(self._error)(**self._error.facts())  # type: ignore[arg-type]

    # --- inside ----------------------------------------------------------------------------------------------

    async def _wait_for_room(self, size_bytes: int) -> None:
        self._check_open()
        await self._share.wait_and_take(size_bytes)
        try:
            self._check_open()
        except NeveError:
            self._share.give_back(size_bytes)
            raise

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._end_error()

    def _push(self, data: bytes, taken_bytes: int, *, hurry: bool = False) -> asyncio.Future[Position]:
        """Pass a record to the core. The caller took `taken_bytes` from the budget for it."""
        core = self._core
        future: asyncio.Future[Position] = self._loop.create_future()
        if len(data) <= core.payload_bytes_max:
            wake = core.push(data, future)
        else:
            before_bytes = core.pushed_bytes
            wake = core.push_record(data, future)
            self._share.take(core.pushed_bytes - before_bytes - taken_bytes)  # the headers of the other blocks
        if wake:
            self._wake(hurry=hurry)
        return future

    def _push_many(
        self, payloads: list[bytes], size_bytes: int, *, hurry: bool = False
    ) -> asyncio.Future[Sequence[Position]]:
        """Pass records of one block each to the core. The caller took `size_bytes` from the budget for them."""
        future: asyncio.Future[Sequence[Position]] = self._loop.create_future()
        if self._core.push_many(cast("list[Buffer]", payloads), size_bytes, future):
            self._wake(hurry=hurry)
        return future

    def _too_large(self, size_bytes: int) -> TooLarge:
        """The error for a record that readers with the same options would refuse, so that they could not go past it."""
        return TooLarge(what="record", size_bytes=size_bytes, limit_bytes=self._options.record_bytes_max)

    def _overloaded(self) -> Overloaded:
        return Overloaded(what="writer", detail=f"{self._share.used_bytes} bytes are not yet acknowledged")

    def _wake(self, *, hurry: bool) -> None:
        assert self._opened is not None
        self._opened.tail.wake(hurry=hurry)

    def on_acknowledged(self, extent_id: int, batches: list[Batch]) -> None:
        """The tail reports batches that are on every replica; it has checked the lock."""
        for batch in batches:
            self._acknowledged_bytes += batch.size_bytes
            waiters = batch.waiters
            if waiters is not None:
                self._records += len(waiters)
                offset = batch.offset
                for future, size_bytes in zip(waiters, batch.block_sizes, strict=True):
                    if not future.done():
                        future.set_result(new_position(Position, (extent_id, offset)))
                    offset += size_bytes
            elif (ticket := batch.ticket) is not None and ticket.note(batch.placed(extent_id)):
                future = ticket.waiter
                self._records += 1 if ticket.is_record else ticket.blocks
                if not future.done():
                    positions = Positions(ticket.pieces)
                    future.set_result(positions[0] if ticket.is_record else positions)
        self.on_settled()

    def on_settled(self) -> None:
        """The writer holds fewer bytes than before: return them to the budget and complete flushes."""
        settled_bytes = self._core.settled_bytes
        if settled_bytes > self._returned_bytes:
            self._share.give_back(settled_bytes - self._returned_bytes)
            self._returned_bytes = settled_bytes
        while self._flushes and self._flushes[0][0] <= settled_bytes:
            future = self._flushes.pop(0)[1]
            if not future.done():
                future.set_result(None)


def _as_bytes(payload: Buffer) -> bytes:
    """Copy the payload, so that the caller can change its buffer afterwards."""
    if not isinstance(payload, (bytearray, memoryview, bytes)):
        raise TypeError(f"a payload must be bytes, a bytearray or a memoryview, not {type(payload).__name__}")
    return bytes(payload)
