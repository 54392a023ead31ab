"""Reads a stream that this process writes: to its very end, and at positions that were just acknowledged.

Nodes serve readers only up to `committed`. They receive it shortly after the append and forget it when they restart;
then the writer publishes it again. Other readers may miss the last records for a moment, but an owner must not: a load
that missed one would lose a write.

Invariants: `read_to_end` returns every record that was acknowledged before, by any owner;
            a record of the tail that is not readable yet is waited for, up to a limit; a removed one is not.
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
    """Iterate over lists of all records from `start` on that were acknowledged before.

    Appends `marker`, which shows that everything before it was read.
    """
    end = await writer.append(marker)
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def tell_again() -> None:
        """A node that restarted has forgotten `committed`, and the read would wait for ever."""
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
        """Return the payload of an acknowledged record. Raises NotFound if it has left the stream."""
        backoff = Backoff(Delays(DELAY_S_MIN, DELAY_S_MAX))
        for attempt in range(ATTEMPTS_MAX):
            was_in_tail = self._in_tail(position)
            try:
                return (await self.client.read_record(self.stream_id, position, copy=False)).payload
            except (NotFound, OutOfRange) as error:
                if not was_in_tail or attempt == ATTEMPTS_MAX - 1:
                    raise
                last: NeveError = error
            if attempt:  # at first `committed` has usually just not arrived yet; later the node may have forgotten it
                self.writer.tell_again()
            await asyncio.sleep(backoff.next_s())
        raise last
