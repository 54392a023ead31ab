"""A write under way: from its call to its acknowledgement. Everybody who waits for it has a future of their own.

Invariants: it is answered once, when its record is acknowledged and what its condition rested on is, too;
            a caller that goes away takes nothing with it: the record stays in the log.
Neighbours: writes.py makes them, sessions.py finds repeated ones.
"""

from __future__ import annotations

import asyncio

from neve.partition_server.entry import Entry, Info
from neve.partition_server.log_format import Caller
from neve.partition_server.memtable import Memtable
from neve.proto.errors import NeveError

Outcome = tuple[Info, ...]  # of a put: one; of a delete: one, if there was something; of a batch: one an operation


class Write:
    __slots__ = ("caller", "done", "entries", "error", "memtable", "outcome", "rests_on", "waiters")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.entries: list[Entry] = []
        self.memtable: Memtable | None = None  # from its submission on
        self.outcome: Outcome = ()
        self.rests_on: list[Write] = []  # what its condition was decided on, and was not acknowledged then
        self.waiters: list[asyncio.Future[Outcome]] = []
        self.done = False
        self.error: NeveError | None = None

    def wait(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Outcome]:
        """A future of its own for each who waits."""
        future: asyncio.Future[Outcome] = loop.create_future()
        if self.done:
            self._tell(future)
        else:
            self.waiters.append(future)
        return future

    def finish(self, error: NeveError | None = None) -> None:
        if self.done:
            return
        self.done = True
        self.error = error
        self.rests_on.clear()
        for future in self.waiters:
            self._tell(future)
        self.waiters.clear()

    def _tell(self, future: asyncio.Future[Outcome]) -> None:
        if future.done():
            return
        if self.error is None:
            future.set_result(self.outcome)
        else:
            # A copy for each: tracebacks would mix.
            future.set_exception(type(self.error)(**self.error.facts()))  # type: ignore[arg-type]
            future.exception()  # seen: a caller that has gone away need not hear of it
