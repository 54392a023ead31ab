"""The store: all replicas of a node, behind one door. The server's handlers call it, nothing else of the engine.

    store = Store(config, fs, pool=pool, rng=rng, wall_clock_ms=clock)
    await store.start()
    reply = await store.append(request.segments, call.attachment)
    await store.stop(clean=True)

Invariants: every answer rests on what is durable where the protocol says so; see the module of each operation;
            requests raise errors of proto.errors, never OSError;
            memory, descriptors, threads and waiting calls are bounded by StoreConfig.
Not here:   RPC, copying from other nodes, when to scrub; metrics read `counters` and the gauges below.
"""

from __future__ import annotations

import asyncio
import bisect
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from neve.extent_node import core, store_append, store_control
from neve.extent_node.bandwidth import Pacer
from neve.extent_node.disk import DiskState, short_id
from neve.extent_node.fs import FileSystem
from neve.extent_node.kernel_sync import KernelSync
from neve.extent_node.replica import Replica
from neve.extent_node.store_append import PendingAppend
from neve.extent_node.store_audit import Audit, audit
from neve.extent_node.store_checkpoint import run_checkpointer, run_housekeeping
from neve.extent_node.store_config import Counters, DiskConfig, StoreConfig
from neve.extent_node.store_copy import Copies
from neve.extent_node.store_files import SealedFiles
from neve.extent_node.store_read import IndexResult, RangeResult, Reader, ReadResult
from neve.extent_node.store_start import start, stop_cleanly
from neve.extent_node.store_state import StoreState
from neve.extent_node.store_verify import verify_all
from neve.extent_node.threads import Threads
from neve.proto import common_pb2
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import NeveError

_DISK_STATES = {
    DiskState.WRITABLE: pb.DiskInfo.WRITABLE,
    DiskState.READ_ONLY: pb.DiskInfo.READ_ONLY,
    DiskState.OFFLINE: pb.DiskInfo.OFFLINE,
}


class Store:
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
        """`pool` runs what blocks; None: the loop's own. `rng` draws incarnations: in production a SystemRandom.
        `kernel_sync`: only with the real file system, whose descriptors the kernel knows."""
        self._state = StoreState(config, fs, pool=pool, kernel_sync=kernel_sync, rng=rng, wall_clock_ms=wall_clock_ms)
        self._files = SealedFiles(self._state)
        self._reader = Reader(self._state, self._files)
        self.copies = Copies(self._state, self._files)  # for the copier
        self._daemons: set[asyncio.Task[Any]] = set()
        self._verifier: asyncio.Task[None] | None = None
        self._ids_sorted: list[int] = []

    # --- life ------------------------------------------------------------------------------------------------

    async def start(self, *, give_up_disks: Sequence[str] = ()) -> None:
        """Open disks and journal, replay, then serve. Raises what says why the node cannot run at all:
        `store_start.NoUsableDisk`, `journal_label.JournalRefused`, or OSError. `give_up_disks`: by uuid, or its first
        half; what the journal still has for them is given up."""
        await start(self._state, give_up_disks={short_id(disk) for disk in give_up_disks})
        self._verifier = self._state.spawn(verify_all(self._state))
        self._daemons = {
            self._verifier,
            self._state.spawn(run_checkpointer(self._state)),
            self._state.spawn(run_housekeeping(self._state)),
        }

    async def verified(self) -> None:
        """Wait until every replica was looked at after an unclean stop."""
        if self._verifier is not None:
            await asyncio.wait([self._verifier])

    async def stop(self, *, clean: bool = True) -> None:
        """Take no more requests, finish those begun, and, if `clean`, sync everything and say so durably."""
        self._state.stopping = True
        self._state.dirty.stop()
        await self._state.join(self._daemons)
        for task in self._daemons:
            task.cancel()
        if self._daemons:
            await asyncio.wait(self._daemons)
        await self._state.join(set())
        if clean:
            await stop_cleanly(self._state)
        self._close()

    def _close(self) -> None:
        self._files.close_all()
        for found in self._state.replicas.values():
            found.close()
        for disk in self._state.disks.values():
            disk.close()
        self._state.journal.close()

    # --- requests --------------------------------------------------------------------------------------------

    async def create(self, request: pb.CreateExtentRequest) -> common_pb2.Replica:
        self._state.check_running()
        return await self._state.order(store_control.create(self._state, request))

    def append_now(
        self, segments: Sequence[pb.Segment], attachment: memoryview, *, brief: bool = False
    ) -> pb.AppendBlockReply | PendingAppend | None:
        """The answer, or what it comes from; None if that takes a wait, and `append` does it."""
        if self._state.stopping or self._state.dirty.must_wait:
            return None
        return store_append.begin_append(self._state, segments, attachment, brief=brief)

    def append(
        self, segments: Sequence[pb.Segment], attachment: memoryview, *, brief: bool = False
    ) -> Awaitable[pb.AppendBlockReply]:
        """One result for each segment, in their order; if `brief`, and all are taken, that alone."""
        return store_append.append(self._state, segments, attachment, brief=brief)

    def read_now(self, request: pb.ReadBlockRequest) -> ReadResult | None:
        """The answer if it can be given without waiting for anything; else None, and `read` waits."""
        self._state.check_running()
        return self._reader.read_now(request)

    async def read(self, request: pb.ReadBlockRequest) -> ReadResult:
        self._state.check_running()
        return await self._reader.read(request)

    async def follow(self, request: pb.ReadBlockRequest) -> None:
        """Wait for something to read at the request's offset, for up to its `wait_ms`."""
        self._state.check_running()
        await self._reader.follow(request)

    async def read_range(self, request: pb.ReadRangeRequest) -> RangeResult:
        self._state.check_running()
        return await self._reader.read_range(request)

    async def read_index(self, request: pb.ReadIndexRequest) -> IndexResult:
        self._state.check_running()
        return await self._reader.read_index(request)

    async def raise_token(self, request: pb.RaiseTokenRequest) -> pb.LengthAnswer:
        self._state.check_running()
        return await self._state.order(store_control.raise_token(self._state, request))

    async def fence(self, request: pb.FenceRequest) -> pb.LengthAnswer:
        self._state.check_running()
        return await self._state.order(store_control.fence(self._state, request))

    async def seal(self, request: pb.SealExtentRequest) -> pb.SealExtentReply:
        self._state.check_running()
        return await self._state.order(store_control.seal(self._state, request))

    async def delete(self, request: pb.DeleteExtentRequest) -> bool:
        """Whether there was a replica."""
        self._state.check_running()
        found = self._state.replicas.get(request.extent_id)
        deleted = await self._state.order(store_control.delete(self._state, request))
        if deleted and found is not None:
            self._files.forget(found)
        return deleted

    async def quarantine(self, extent_id: int, *, incarnation: int, reason: str) -> bool:
        """Move aside a replica that turned out wrong; whether it was there. For the scrubber and the copier."""
        self._state.check_running()
        found = self._state.replicas.get(extent_id)
        moved = await self._state.order(store_control.quarantine(self._state, extent_id, incarnation, reason))
        if moved and found is not None:
            self._files.forget(found)
        return moved

    async def audit(self, extent_id: int, *, pacer: Pacer) -> Audit:
        """Read a replica as it is on the disk and say what is wrong with it. For the scrubber and the copier."""
        self._state.check_running()
        return await audit(self._state, extent_id, pacer)

    # --- what is here ----------------------------------------------------------------------------------------

    def describe(self, request: pb.DescribeReplicaRequest) -> pb.ReplicaInfo:
        state = core.present(
            self._state.existing(request.extent_id), wanted=request.replica, extent_id=request.extent_id
        )
        if isinstance(state, NeveError):
            raise state
        return self._info(self._state.replicas[request.extent_id])

    def list(self, *, after_extent_id: int, limit: int, unsealed_only: bool) -> tuple[Sequence[pb.ReplicaInfo], bool]:
        """Replicas by extent id, and whether there are more."""
        replicas = self._state.replicas
        if self._state.names_changed:  # sorting 100,000 ids takes 20 ms: not for every page of a list
            self._state.names_changed = False
            self._ids_sorted = sorted(replicas)
        chosen: list[pb.ReplicaInfo] = []
        for extent_id in self._ids_sorted[bisect.bisect_right(self._ids_sorted, after_extent_id) :]:
            found = replicas[extent_id]
            if unsealed_only and found.state.seal is not None:
                continue
            if len(chosen) == limit:
                return chosen, True
            chosen.append(self._info(found))
        return chosen, False

    def _info(self, found: Replica) -> pb.ReplicaInfo:
        info = core.replica_info(found.state)
        if not found.verified and found.state.seal is None:
            info.kind = pb.LengthAnswer.UNSPECIFIED  # nobody has looked at its bytes since the unclean stop
        return info

    def disks(self) -> Sequence[pb.DiskInfo]:
        """State and usage of each disk that is used, and of folders that were refused, as offline."""
        infos = [
            pb.DiskInfo(
                disk_uuid=disk.uuid,
                state=_DISK_STATES[disk.state],
                capacity_bytes=disk.usage.capacity_bytes,
                free_bytes=disk.usage.free_bytes,
                extents=disk.extents,
                reason=disk.reason,
            )
            for disk in self._state.disks.values()
        ]
        by_folder = {disk.folder: disk.expected_uuid for disk in self._state.config.disks}
        for folder, reason in self._state.refused:
            infos.append(
                pb.DiskInfo(
                    disk_uuid=by_folder.get(folder, ""), state=pb.DiskInfo.OFFLINE, reason=f"{folder}: {reason}"
                )
            )
        return infos

    @property
    def counters(self) -> Counters:
        return self._state.counters

    @property
    def dirty_bytes(self) -> int:
        return self._state.dirty.bytes_now

    @property
    def journal_failed(self) -> str:
        """Why the journal takes nothing more; empty while it does."""
        return self._state.journal.failed


__all__ = ["Counters", "DiskConfig", "ReadResult", "Store", "StoreConfig"]
