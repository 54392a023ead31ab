"""Reads a stream that this process writes: to its very end, and at positions that were just acknowledged.

Nodes give readers nothing beyond what they were told to be committed. They are told a moment after the append, and
have forgotten it when they restart: then they are told again when it is missed. A reader in general may be content with
less; an owner must not be: a load that missed the last record would lose a write.

Invariants: `read_to_end` gives every record that was acknowledged before, by whichever owner;
            a record in the tail that is not readable yet is waited for, up to a bound; one that is gone is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from neve.client.streams.client import Client
from neve.client.streams.types import Position, Record
from neve.client.streams.writer import Writer
from neve.meta.core_retry import Backoff, Delays
from neve.proto.errors import NeveError, NotFound, OutOfRange

ATTEMPTS_MAX = 12
DELAY_S_MIN = 0.002
DELAY_S_MAX = 1.0


async def read_to_end(
    client: Client, writer: Writer, start: Position | None, marker: bytes
) -> AsyncIterator[list[Record]]:
    """All records from `start` on that were acknowledged before, in lists. Appends `marker`: whoever reads it has read
    all."""
    end = await writer.append(marker)
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def tell_again() -> None:
        """Nodes that restart meanwhile have forgotten how far it may read, and it would wait for ever."""
        nonlocal timer
        writer.tell_again()
        timer = loop.call_later(DELAY_S_MAX, tell_again)

    timer = loop.call_later(DELAY_S_MAX, tell_again)
    batches = client.read_batches(writer.stream_id, start=start, end=end, follow=True)
    try:
        async with aclosing(batches):  # type: ignore[type-var]  # it is a generator
            async for records in batches:
                yield records
    finally:
        timer.cancel()


class OwnStream:
    """One stream of a partition, for reads of single records."""

    def __init__(self, client: Client, writer: Writer) -> None:
        self.client = client
        self.writer = writer
        self.stream_id = writer.stream_id

    def _in_tail(self, position: Position) -> bool:
        committed = self.writer.committed
        return committed is not None and committed.extent_id == position.extent_id

    async def read_record(self, position: Position) -> bytes | memoryview:
        """The payload of a record that is known to be acknowledged; NotFound if it has left the stream."""
        backoff = Backoff(Delays(DELAY_S_MIN, DELAY_S_MAX))
        for attempt in range(ATTEMPTS_MAX):
            was_in_tail = self._in_tail(position)
            try:
                return (await self.client.read_record(self.stream_id, position, copy=False)).payload
            except (NotFound, OutOfRange) as error:
                if not was_in_tail or attempt == ATTEMPTS_MAX - 1:
                    raise
                last: NeveError = error
            if attempt:  # the first time it mostly has not been told yet; later it may have forgotten
                self.writer.tell_again()
            await asyncio.sleep(backoff.next_s())
        raise last
