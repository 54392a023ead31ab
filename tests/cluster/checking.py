"""A writer that knows what was acknowledged to it, and the check that all of that is in the stream, once and in order.

A record is `<writer>/<number>/<padding>`. Numbers count up, over all openings of the stream by that writer. What was
acknowledged must be there exactly once, at the position that was told; what has an unknown outcome may be there once;
any order but the order of appending is wrong, and so is a writer that comes again after its successor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from neve.client.streams.client import Client
from neve.client.streams.types import Position
from neve.proto.errors import NeveError

log = logging.getLogger(__name__)

PADDING = b"." * 600
INFLIGHT = 8
PAUSE_S = 0.004  # between appends: steady, not as fast as it goes
REOPEN_PAUSE_S = 0.2


@dataclass(slots=True)
class Written:
    """What one writer knows of its records."""

    name: str
    acknowledged: dict[int, Position] = field(default_factory=dict)
    unknown: dict[int, str] = field(default_factory=dict)  # the error of each
    openings: int = 0
    next_number: int = 0
    killed: bool = False  # it could not say of every record what became of it


def payload_of(name: str, number: int) -> bytes:
    return f"{name}/{number}/".encode() + PADDING


class CheckingWriter:
    """Appends steadily until it is stopped; opens the stream again when its writer is over."""

    def __init__(self, client: Client, stream_id: int, name: str, *, reopens: bool = True) -> None:
        self._client = client
        self._stream_id = stream_id
        self._reopens = reopens
        self._stopping = asyncio.Event()
        self.written = Written(name)

    async def run(self) -> None:
        while not self._stopping.is_set():
            try:
                async with self._client.writer(self._stream_id) as writer:
                    self.written.openings += 1
                    async with asyncio.TaskGroup() as group:
                        slots = asyncio.Semaphore(INFLIGHT)
                        while not self._stopping.is_set() and writer.error is None:
                            await slots.acquire()
                            number, self.written.next_number = self.written.next_number, self.written.next_number + 1
                            try:  # submitted in the order of their numbers, awaited side by side
                                pending = writer.submit(payload_of(self.written.name, number))
                            except NeveError as error:
                                self.written.unknown[number] = str(error)
                                break
                            group.create_task(self._settle(number, pending, slots))
                            await asyncio.sleep(PAUSE_S)
            except NeveError as error:
                log.info("checking_writer_ended name=%s error=%s", self.written.name, error)
                await asyncio.sleep(REOPEN_PAUSE_S)
            if not self._reopens:
                return

    async def _settle(self, number: int, pending: asyncio.Future[Position], slots: asyncio.Semaphore) -> None:
        try:
            self.written.acknowledged[number] = await pending
        except NeveError as error:
            self.written.unknown[number] = str(error)
        finally:
            slots.release()

    def stop(self) -> None:
        self._stopping.set()

    async def until_acknowledged(self, more: int) -> None:
        """Wait until `more` records than now are acknowledged."""
        goal = len(self.written.acknowledged) + more
        while len(self.written.acknowledged) < goal:
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def writing(client: Client, stream_id: int, name: str = "w") -> AsyncIterator[CheckingWriter]:
    """A checking writer while the context lasts; it has stopped, with nothing pending, when it ends."""
    writer = CheckingWriter(client, stream_id, name)
    task = asyncio.ensure_future(writer.run())
    try:
        yield writer
    except BaseException:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    writer.stop()
    await task


async def check_stream(client: Client, stream_id: int, *written: Written) -> int:
    """Read everything and compare; how many records the stream has. `written` is in the order of the writers' turns."""
    order = [each.name for each in written]
    turn = 0
    by_name = {each.name: each for each in written}
    seen: dict[str, dict[int, Position]] = {each.name: {} for each in written}
    last: dict[str, int] = {each.name: -1 for each in written}
    count = 0
    async for record in client.read(stream_id):
        count += 1
        payload = bytes(record.payload)
        name, number_text, padding = payload.split(b"/", 2)
        number, known = int(number_text), by_name[name.decode()]
        assert order.index(known.name) >= turn, f"{known.name}/{number} comes after {order[turn]}: it was not fenced"
        turn = order.index(known.name)
        assert padding == PADDING, f"{record.position}: not what was written"
        assert number not in seen[known.name], f"{known.name}/{number} is there twice: {record.position}"
        assert number > last[known.name], f"{known.name}/{number} comes after {last[known.name]}"
        told = number in known.acknowledged or number in known.unknown
        assert told or known.killed, f"{known.name}/{number} was never appended"
        seen[known.name][number], last[known.name] = record.position, number
    for each in written:
        lost = [number for number in each.acknowledged if number not in seen[each.name]]
        assert lost == [], (
            f"{each.name}: {len(lost)} of {len(each.acknowledged)} acknowledged records are lost: {lost[:9]}"
        )
        moved = [number for number, at in each.acknowledged.items() if seen[each.name][number] != at]
        assert moved == [], f"{each.name}: not at the position that was told: {moved[:9]}"
    return count
