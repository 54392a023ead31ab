"""Writers of several streams that share a lock. The group takes the lock once; its writers end together.

    async with neve.writer_group([log_id, row_id, meta_id]) as group:
        log, row, meta = group.writers
        await log.append(b"hello")

Invariants: the group holds the lock once and has one new token for all streams, so fencing one stream fences all;
            when one writer ends, by losing the lock or by its own failure, all end, and `ended` is set at once;
            the lock is released only after the last writer has ended.
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

# Takes the common lock for the group, and makes the group's writers, which are not open yet.
MakeWriters = Callable[["WriterGroup"], Awaitable[tuple[Lock, list[Writer]]]]


class WriterGroup:
    """Writers of streams with one lock. `Client.writer_group` makes it; `async with` (or `open`) opens it."""

    def __init__(
        self, stream_ids: Sequence[int], *, maker: MakeWriters, on_closed: Callable[[WriterGroup], None]
    ) -> None:
        self.stream_ids = tuple(stream_ids)
        self.writers: tuple[Writer, ...] = ()
        self.ended = Latch()  # with the reason; set before any append of the group fails
        self._maker = maker
        self._on_closed = on_closed
        self._lock: Lock | None = None
        self._closed = False

    async def open(self) -> Self:
        """Take the lock, fence older owners of all streams and find the end of each stream."""
        if self._lock is not None or self.ended.is_set():
            raise InvalidArgument(what="writer_group", detail="it was already opened")
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
        """The common lock. Only an opened group has one."""
        assert self._lock is not None
        return self._lock

    @property
    def token(self) -> int:
        return self.lock.token

    @property
    def owner(self) -> common_pb2.Owner:
        """The owner to name in calls to the manager."""
        return common_pb2.Owner(lock=self.lock.name, token=self.lock.token)

    def ensure(self) -> None:
        """Raise unless the lock is still held, by the lease's clock, and every writer is open. Never waits."""
        self.lock.ensure()
        for writer in self.writers:
            if writer.error is not None:
                raise type(writer.error)(**writer.error.facts())  # type: ignore[arg-type]

    def on_writer_ended(self, writer: Writer, error: NeveError) -> None:
        """A writer of the group has ended: end the others."""
        if self.ended.is_set():
            return
        log.info("writer_group_ended stream_id=%d error=%s", writer.stream_id, error)
        self.ended.set(str(error))
        for other in self.writers:
            other.on_end(error)

    async def close(self) -> None:
        """Wait for pending appends, then release the lock. Raises if one of them was not acknowledged."""
        try:
            ends = await asyncio.gather(*(writer.drain() for writer in self.writers), return_exceptions=True)
        finally:
            await self.abort()
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def abort(self, error: NeveError | None = None) -> None:
        """Release the lock without waiting. Pending appends raise AppendOutcomeUnknown."""
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
