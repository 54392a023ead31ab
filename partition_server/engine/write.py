"""A pending write, from its call to its acknowledgement. Each waiting caller has a future of its own.

Invariants: it is answered once, when its record and the writes that its condition rests on are acknowledged;
            a cancelled caller cancels only its wait: the record stays in the log;
            a group of puts that one caller sent together is acknowledged as one, with an answer for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from neve.partition_server.engine.entry import GONE, PUT, Entry, Info
from neve.partition_server.engine.memtable import Memtable
from neve.partition_server.log.log_format import Caller
from neve.proto.errors import NeveError

Outcome = tuple[Info, ...]  # a put: one; a delete: one if the object existed; a batch: one for each operation


def remembered(entries: Sequence[Entry]) -> Outcome:
    """Return what is remembered of a write's answer.

    For a batch this is a single Info: its first seq, its length and its time. The rest comes from the repeated call
    (`operations.expanded`).
    """
    first = entries[0]
    if len(entries) > 1:
        return (Info(first.seq, len(entries), first.modified_ms, 0, 0),)
    return (first.info() if first.kind == PUT else GONE,)


class Write:
    __slots__ = ("caller", "done", "entries", "error", "memtable", "outcome", "rests_on", "waiters")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.entries: list[Entry] = []
        self.memtable: Memtable | None = None  # set at its submission
        self.outcome: Outcome = ()
        self.rests_on: list[Write] = []  # unacknowledged writes that its condition was checked against
        self.waiters: list[asyncio.Future[Outcome]] = []
        self.done = False
        self.error: NeveError | None = None

    def wait(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Outcome]:
        """Return a new future for one waiting caller."""
        future: asyncio.Future[Outcome] = loop.create_future()
        if self.done:
            self._settle(future)
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
            self._settle(future)
        self.waiters.clear()

    def _settle(self, future: asyncio.Future[Outcome]) -> None:
        if future.done():
            return
        if self.error is None:
            future.set_result(self.outcome)
        else:
            # A copy for each caller: raising one object several times would mix the tracebacks.
            future.set_exception(type(self.error)(**self.error.facts()))  # type: ignore[arg-type]
            future.exception()  # marks it as seen, since its caller may have been cancelled


class PutGroup(Write):
    """Puts that were submitted together. The outcome has one Info for each, in order."""

    __slots__ = ("_members", "call_ids")

    def __init__(self, caller: Caller, call_ids: Sequence[int]) -> None:
        super().__init__(caller)
        self.call_ids = call_ids  # of the caller's client; empty if the results are not remembered
        self._members: dict[int, Write] = {}

    def member(self, call_id: int) -> Write:
        """Return one of its writes alone, for a repeated call."""
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
