"""Writers of several streams that have one lock: it is taken once, all have one token, and they end together.

    async with neve.writer_group([log_id, row_id, meta_id]) as group:
        log, row, meta = group.writers
        await log.append(b"hello")

Invariants: one holding of the lock and one new token for all streams: whoever fences one of them fences all;
            when one writer is over, by the loss of the lock or by trouble of its own, all are: `ended` says so at once;
            the lock is released after the last writer has ended, never before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

from neve.client.streams.writer import Writer
from neve.meta.latch import Latch
from neve.meta.lock import Lock
from neve.proto import common_pb2
from neve.proto.errors import InvalidArgument, NeveError, ShuttingDown

log = logging.getLogger(__name__)

# Takes the common lock for the group, and makes its writers under it; they are not open yet.
MakeWriters = Callable[["WriterGroup"], Awaitable[tuple[Lock, list[Writer]]]]


class WriterGroup:
    """Made by `Client.writer_group`; open it with `async with`, or `await open()` and `await close()`."""

    def __init__(
        self, stream_ids: Sequence[int], *, maker: MakeWriters, on_closed: Callable[[WriterGroup], None]
    ) -> None:
        self.stream_ids = tuple(stream_ids)
        self.writers: tuple[Writer, ...] = ()
        self.ended = Latch()  # with the reason; set before anybody is told that an append came to nothing
        self._maker = maker
        self._on_closed = on_closed
        self._lock: Lock | None = None
        self._closed = False

    async def open(self) -> Self:
        """Take the lock, fence older owners of all streams, and find where to go on in each."""
        if self._lock is not None or self.ended.is_set():
            raise InvalidArgument(what="writer_group", detail="it was opened before")
        lock, writers = await self._maker(self)
        self._lock = lock
        self.writers = tuple(writers)
        lock.lost.add_callback(self.ended.set)
        opening = [asyncio.ensure_future(writer.open()) for writer in writers]
        try:
            await asyncio.gather(*opening)
            self.ensure()
        except BaseException as error:
            for task in opening:
                task.cancel()
            await asyncio.gather(*opening, return_exceptions=True)
            await self.abort(error if isinstance(error, NeveError) else None)
            raise
        return self

    @property
    def lock(self) -> Lock:
        """The holding of all streams; only of a group that was opened."""
        assert self._lock is not None
        return self._lock

    @property
    def token(self) -> int:
        return self.lock.token

    @property
    def owner(self) -> common_pb2.Owner:
        """For calls to the manager on behalf of this group."""
        return common_pb2.Owner(lock=self.lock.name, token=self.lock.token)

    def ensure(self) -> None:
        """Raise unless, by the lease's clock, the lock is ours and all writers go on. Never waits."""
        self.lock.ensure()
        for writer in self.writers:
            if writer.error is not None:
                raise type(writer.error)(**writer.error.facts())  # type: ignore[arg-type]

    def on_writer_ended(self, writer: Writer, error: NeveError) -> None:
        """One of the writers says that it is over; the others end with it."""
        if self.ended.is_set():
            return
        log.info("writer_group_ended stream_id=%d error=%s", writer.stream_id, error)
        self.ended.set(str(error))
        for other in self.writers:
            other.on_end(error)

    async def close(self) -> None:
        """Wait for what is pending, then release the lock. Raises if something was not acknowledged."""
        try:
            ends = await asyncio.gather(*(writer.drain() for writer in self.writers), return_exceptions=True)
        finally:
            await self.abort()
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def abort(self, error: NeveError | None = None) -> None:
        """Release the lock without waiting: what is not acknowledged ends as AppendOutcomeUnknown."""
        lock = self._lock
        if lock is None or self._closed:
            return
        self._closed = True
        error = error or ShuttingDown(detail="the writers were closed")
        self.ended.set(str(error))
        try:
            await asyncio.gather(*(writer.abort(error) for writer in self.writers))
        finally:
            try:
                await lock.release()
            finally:
                self._on_closed(self)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            for writer in self.writers:
                writer.ensure_outcomes()
        else:
            await self.abort()
