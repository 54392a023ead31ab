"""Deliberate bugs that lose nothing and leave something behind: descriptors, tasks of processes that have stopped,
memory, connections, files; and a disk that nobody uses again.

Invariants: as in bugs.py: nothing outside of a bug's context is changed.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from neve.extent_node.disk.disk import Disk, DiskState
from neve.extent_node.store.open_files import SealedFiles
from neve.extent_node.store.replica import NO_FD, Replica
from neve.meta.lease import Lease
from neve.rpc.pool import ChannelPool
from neve.stream_manager.term.hold_ups import Problems
from neve.stream_manager.term.leader import Term
from tests.sim.bugs.bugs import bug

LATE_S = 3600.0


@bug("a sealed replica keeps its descriptor", origin="leaks", shows=r"descriptor \d+")
def _never_closed(change: Any) -> None:
    """The descriptor of a replica is forgotten when it is sealed or deleted, and not closed."""

    def wrong(self: Any) -> None:
        self.closing = self.pins > 0
        if not self.closing:
            self.fd = NO_FD

    change(Replica, "close", wrong)


@bug("a deleted extent stays mapped", origin="leaks", shows=r"descriptor \d+", suits=lambda shape: shape.operators > 0)
def _stays_mapped(change: Any) -> None:
    """What is deleted goes from the list of open files without being closed."""

    def wrong(self: Any, found: Any) -> None:
        self._open.pop(found, None)

    change(SealedFiles, "forget", wrong)


@bug("a term's work outlives it", origin="leaks", shows=r"and has left: ")
def _outlives_its_term(change: Any) -> None:
    """A manager that stops leading leaves a task behind."""
    stopped = Term.stopped

    async def wrong(self: Any) -> None:
        await stopped(self)
        self.left_behind = asyncio.get_running_loop().create_task(asyncio.sleep(LATE_S))

    change(Term, "stopped", wrong)


@bug("a lease's renewal outlives it", origin="leaks", shows=r"and has left: .*lease-")
def _renews_on(change: Any) -> None:
    """The task that renews a lease finds out by itself, in its time, that the lease was given up."""

    def wrong(self: Any, reason: str) -> None:
        if not self.lost.is_set():
            self._timer.cancel()
            self.lost.set(reason)

    change(Lease, "_lose", wrong)


@bug("a replica that was looked at stays pinned", origin="leaks", shows=r"descriptor \d+")
def _stays_pinned(change: Any) -> None:
    """A read that fails does not give its descriptor back."""
    unpin = Replica.unpin
    reads = [0]

    def wrong(self: Any) -> None:
        reads[0] += 1
        if reads[0] % 50:
            unpin(self)

    change(Replica, "unpin", wrong)


@bug(
    "what was in the way is never forgotten",
    origin="leaks",
    shows=r"Problems._problems",
    needs=("node killed", "power cut everywhere"),
)
def _keeps_problems(change: Any) -> None:
    """The leader keeps what held an extent up after it is over."""
    change(Problems, "solved", lambda self, extent_id: None)


@bug("a pool forgets its channels", origin="leaks", shows=r"and has left: ")
def _open_channels(change: Any) -> None:
    """Who closes all channels of a process closes none."""

    async def wrong(self: Any) -> None:
        self._channels.clear()

    change(ChannelPool, "close", wrong)


# --- on disks -------------------------------------------------------------------------------------------------


@bug("a deleted extent's index stays", origin="leaks", shows=r"\.idx on node")
def _index_stays(change: Any) -> None:
    """The extent's file goes to the trash, and its index is left where it was."""

    def wrong(self: Any, extent_id: int, folder_name: str, name: str) -> None:
        folder = os.path.join(self.folder, folder_name)
        self.fs.rename(self.extent_path(extent_id), os.path.join(folder, name))
        self.fs.fsync_dir(folder)
        self.fs.fsync_dir(self.extent_folder(extent_id))

    change(Disk, "_move_aside", wrong)


@bug("the trash is never emptied", origin="leaks", shows=r"/trash/")
def _keeps_trash(change: Any) -> None:
    """What was deleted takes its room for ever."""
    change(Disk, "purge_trash", lambda self, before_ms: 0)


@bug("a full disk stays read-only", origin="T24", needs=("disk full",))
def _full_for_ever(change: Any) -> None:
    """A disk that was full once takes no appends any more, whatever room there is."""
    note_usage = Disk.note_usage

    def wrong(self: Any, usage: Any) -> None:
        state, reason = self.state, self.reason
        note_usage(self, usage)
        if state is DiskState.READ_ONLY:
            self.state, self.reason = state, reason

    change(Disk, "note_usage", wrong)
