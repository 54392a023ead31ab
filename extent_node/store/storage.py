"""A node's storage: its replicas, disks and journal. Owns the parts that do the work, and starts and stops them.

    storage = Storage(config, fs, pool=pool, rng=rng, wall_clock_ms=clock)
    await storage.start()
    reply = await append.append(storage.state, request.segments, call.attachment, brief=request.brief)
    result = await storage.reader.read(request)
    await storage.stop()

Invariants: a reply relies only on durable state where the protocol says so; see the module of each operation;
            requests raise errors of proto.errors, never OSError;
            memory, descriptors, threads and waiting calls are bounded by StoreConfig.
Not here:   the operations: append.py, read.py, control.py (the manager's orders), copy.py, audit.py and inventory.py;
            rpcs; copying from other nodes (copier.py); when to scrub (scrubber.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from neve.extent_node.disk.disk import short_id
from neve.extent_node.disk.file_system import FileSystem
from neve.extent_node.disk.kernel_sync import KernelSync
from neve.extent_node.disk.threads import Threads
from neve.extent_node.store.checkpoint import run_checkpointer, run_housekeeping
from neve.extent_node.store.config import StoreConfig
from neve.extent_node.store.copy import Copies
from neve.extent_node.store.inventory import Inventory
from neve.extent_node.store.read import Reader
from neve.extent_node.store.start import start, stop_cleanly
from neve.extent_node.store.state import StoreState
from neve.extent_node.store.verify import verify_all


class Storage:
    def __init__(
        self,
        config: StoreConfig,
        fs: FileSystem,
        *,
        pool: Executor | Threads | None,
        rng: random.Random,
        wall_clock_ms: Callable[[], int],
        kernel_sync: KernelSync | None = None,
    ) -> None:
        """`pool` runs blocking calls; None: the loop's own. `rng` draws incarnations: in production a SystemRandom.

        `kernel_sync`: only with the real file system, whose descriptors the kernel knows.
        """
        self.state = StoreState(config, fs, pool=pool, kernel_sync=kernel_sync, rng=rng, wall_clock_ms=wall_clock_ms)
        self.reader = Reader(self.state)
        self.inventory = Inventory(self.state)
        self.copies = Copies(self.state)  # for the copier
        self._daemons: set[asyncio.Task[Any]] = set()
        self._verifier: asyncio.Task[None] | None = None

    async def start(self, *, give_up_disks: Sequence[str] = ()) -> None:
        """Open disks and journal, replay, then serve.

        Raises `NoUsableDisk`, `JournalRefused` or OSError if the node cannot run. `give_up_disks`: uuids, or their
        first halves, of disks whose journal records are dropped.
        """
        await start(self.state, give_up_disks={short_id(disk) for disk in give_up_disks})
        self._verifier = self.state.spawn(verify_all(self.state))
        self._daemons = {
            self._verifier,
            self.state.spawn(run_checkpointer(self.state)),
            self.state.spawn(run_housekeeping(self.state)),
        }

    async def verified(self) -> None:
        """Wait until every replica was verified after an unclean stop."""
        if self._verifier is not None:
            await asyncio.wait([self._verifier])

    async def stop(self, *, clean: bool = True) -> None:
        """Refuse new requests, finish running ones, and, if `clean`, sync everything and record that durably."""
        self.state.stopping = True
        self.state.dirty.stop()
        await self.state.join(self._daemons)
        for task in self._daemons:
            task.cancel()
        if self._daemons:
            await asyncio.wait(self._daemons)
        await self.state.join(set())
        if clean:
            await stop_cleanly(self.state)
        self._close()

    def _close(self) -> None:
        self.state.sealed_files.close_all()
        for replica in self.state.replicas.values():
            replica.close()
        for disk in self.state.disks.values():
            disk.close()
        self.state.journal.close()
