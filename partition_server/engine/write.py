"""A write under way: from its call to its acknowledgement. Everybody who waits for it has a future of their own.

Invariants: it is answered once, when its record is acknowledged and what its condition rested on is, too;
            a caller that goes away takes nothing with it: the record stays in the log.
            many puts of one caller that came together are one group: acknowledged as one, each with its own answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from neve.partition_server.engine.entry import GONE, PUT, Entry, Info
from neve.partition_server.engine.memtable import Memtable
from neve.partition_server.log.log_format import Caller
from neve.proto.errors import NeveError

Outcome = tuple[Info, ...]  # of a put: one; of a delete: one, if there was something; of a batch: one an operation


def remembered(entries: Sequence[Entry]) -> Outcome:
    """What is kept of a write's answer. Of a batch one Info, however long it is: its first seq, how many there are, and
    when. The rest comes again with the call that is repeated (`operations.expanded`)."""
    first = entries[0]
    if len(entries) > 1:
        return (Info(first.seq, len(entries), first.modified_ms, 0, 0),)
    return (first.info() if first.kind == PUT else GONE,)


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


class PutGroup(Write):
    """Puts that are under way together: the outcome has one Info for each, in their order."""

    __slots__ = ("_members", "call_ids")

    def __init__(self, caller: Caller, call_ids: Sequence[int]) -> None:
        super().__init__(caller)
        self.call_ids = call_ids  # of the caller's client; empty: nobody's that is to be remembered
        self._members: dict[int, Write] = {}

    def member(self, call_id: int) -> Write:
        """One of them alone, for a call that came again."""
        found = self._members.get(call_id)
        if found is None:
            found = self._members[call_id] = Write(replace(self.caller, call_id=call_id))
        return found

    def finish(self, error: NeveError | None = None) -> None:
        super().finish(error)
        for call_id, write in self._members.items():
            if error is None:
                write.outcome = (self.outcome[self.call_ids.index(call_id)],)
            write.finish(error)
        self._members.clear()
