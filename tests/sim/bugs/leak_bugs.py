"""Deliberate bugs that lose nothing and leave something behind: descriptors, and tasks of processes that have stopped.

Invariants: as in bugs.py: nothing outside of a bug's context is changed.
Neighbours: bugs.py has what a bug is, leaks.py finds these, hunt.py plays stories.
"""

from __future__ import annotations

import asyncio
from typing import Any

from neve.extent_node.replica import NO_FD, Replica
from neve.extent_node.store_files import SealedFiles
from neve.meta.lease import Lease
from neve.stream_manager.leader import Term
from tests.sim.bugs.bugs import bug

LATE_S = 3600.0


@bug("a sealed replica keeps its descriptor", origin="leaks")
def _never_closed(change: Any) -> None:
    """The descriptor of a replica is forgotten when it is sealed or deleted, and not closed."""

    def wrong(self: Any) -> None:
        self.closing = self.pins > 0
        if not self.closing:
            self.fd = NO_FD

    change(Replica, "close", wrong)


@bug("a deleted extent stays mapped", origin="leaks", suits=lambda shape: shape.operators > 0)
def _stays_mapped(change: Any) -> None:
    """What is deleted goes from the list of open files without being closed."""

    def wrong(self: Any, found: Any) -> None:
        self._open.pop(found, None)

    change(SealedFiles, "forget", wrong)


@bug("a term's work outlives it", origin="leaks")
def _outlives_its_term(change: Any) -> None:
    """A manager that stops leading leaves a task behind."""
    stopped = Term.stopped

    async def wrong(self: Any) -> None:
        await stopped(self)
        self.left_behind = asyncio.get_running_loop().create_task(asyncio.sleep(LATE_S))

    change(Term, "stopped", wrong)


@bug("a lease's renewal outlives it", origin="leaks")
def _renews_on(change: Any) -> None:
    """The task that renews a lease finds out by itself, in its time, that the lease was given up."""

    def wrong(self: Any, reason: str) -> None:
        if not self.lost.is_set():
            self._timer.cancel()
            self.lost.set(reason)

    change(Lease, "_lose", wrong)
