"""A store on a simulated machine, and short words for what a writer and a manager say to it.

Used by test_store*.py, test_crash*.py and test_state_machine.py. One `Machine` lives through crashes and power cuts;
each process on it is one `run` of a coroutine on a fresh deterministic loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
import threading
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from neve.extent_node.disk.disk import Marks, format_disk
from neve.extent_node.disk.file_system import FileSystem
from neve.extent_node.journal.folder import format_journal
from neve.extent_node.store import append as store_append
from neve.extent_node.store import control as store_control
from neve.extent_node.store.config import DiskConfig, StoreConfig
from neve.extent_node.store.read import ReadResult
from neve.extent_node.store.storage import Storage
from neve.proto import common_pb2, errors
from neve.proto import extent_node_pb2 as pb
from neve.proto.blocks import encode_block
from tests.sim import loop as sim_loop
from tests.sim.disks.disk import SimFileSystem, SimulatedCrash

T = TypeVar("T")

CLUSTER, NODE_ID = "test", 7
JOURNAL = "/journal"
TOKEN, EVERSION = 10, 1
EXTENT_BYTES_MAX = 1 << 20
SEGMENT_BYTES = 32 << 10
WATCH_S = 0.5
LOG_LINES_KEPT = 100
REAL_LIMIT_S = 120.0  # of one process, which takes milliseconds: a store that waits for ever is an error, not a hang
FOLDERS_KEPT = 16  # extent ids below this, and those that are equal to one of them in the last byte


def disk_uuid(number: int) -> str:
    return str(uuid.UUID(int=(number + 1) << 64 | 0xD15C))


def config_for(disks: int = 1, *, root: str = "", **changes: Any) -> StoreConfig:
    config = StoreConfig(
        cluster=CLUSTER,
        node_id=NODE_ID,
        disks=tuple(DiskConfig(f"{root}/disk{number}", disk_uuid(number)) for number in range(disks)),
        journal_folder=root + JOURNAL,
        preallocate_bytes=16 << 10,
        marks=Marks(high=1.1, low=1.0),
    )
    return replace(config, **changes)


def format_all(fs: FileSystem, disks: int = 1, *, segment_bytes: int = SEGMENT_BYTES, root: str = "") -> None:
    journal_uuid = format_journal(
        fs,
        root + JOURNAL,
        cluster=CLUSTER,
        node_id=NODE_ID,
        journal_uuid=uuid.UUID(int=99),
        segment_bytes=segment_bytes,
    )
    for number in range(disks):
        format_disk(
            fs,
            f"{root}/disk{number}",
            cluster=CLUSTER,
            node_id=NODE_ID,
            disk_uuid=uuid.UUID(disk_uuid(number)),
            journal_uuid=journal_uuid,
        )


def make_store(fs: FileSystem, config: StoreConfig, seed: int = 0) -> Storage:
    return Storage(config, fs, pool=None, rng=random.Random(seed), wall_clock_ms=lambda: 1_700_000_000_000)


class Machine:
    """A simulated machine with formatted disks."""

    def __init__(self, disks: int = 1, *, seed: int = 0, segment_bytes: int = SEGMENT_BYTES, **changes: Any) -> None:
        self.fs = SimFileSystem(random.Random(seed))
        self.config = config_for(disks, **changes)
        self.processes = 0
        format_all(self.fs, disks, segment_bytes=segment_bytes)
        for number in range(disks):
            keep_few_folders(self.fs, f"/disk{number}/extents")

    def clone(self) -> Machine:
        """The same machine in the same state, to see what else could become of it."""
        while len(self.fs.log) > LOG_LINES_KEPT:
            self.fs.log.popleft()
        mutex = self.fs._faults._mutex
        return copy.deepcopy(self, {id(mutex): threading.RLock()})

    def run(self, work: Callable[[Storage], Coroutine[Any, Any, T]], *, give_up_disks: Sequence[str] = ()) -> T:
        """One process: start a store, do the work, and end without a word, as a killed process does."""

        async def process() -> T:
            self.processes += 1
            store = make_store(self.fs, self.config, seed=self.processes)
            await store.start(give_up_disks=give_up_disks)
            return await work(store)

        return sim_loop.run(self._until_stopped(process()), real_limit_s=REAL_LIMIT_S)

    async def _until_stopped(self, process: Coroutine[Any, Any, T]) -> T:
        """A process that has ended waits for nothing: whichever task met the end, all of them are over."""
        task = asyncio.ensure_future(process)
        while not task.done():
            await asyncio.wait([task], timeout=WATCH_S)
            if not task.done() and self.fs._faults._stopped:
                raise SimulatedCrash("the process has ended")
        return task.result()

    def take_disk_away(self, number: int) -> None:
        """It is not mounted: its folder is not there."""
        self.fs.rename(f"/disk{number}", f"/away{number}")
        self.fs.fsync_dir("/")

    def bring_disk_back(self, number: int) -> None:
        self.fs.rename(f"/away{number}", f"/disk{number}")
        self.fs.fsync_dir("/")

    def restart(self, work: Callable[[Storage], Coroutine[Any, Any, T]]) -> T:
        """A new process after the old one was killed."""
        self.fs.crash()
        return self.run(work)


def keep_few_folders(fs: SimFileSystem, extents: str) -> None:
    """Tests use small ids: without the other folders a start costs a tenth, and there are thousands of them."""
    for number in range(FOLDERS_KEPT, 256):
        fs.remove_dir(f"{extents}/{number:02x}")
    fs.fsync_dir(extents)


# --- the writer ----------------------------------------------------------------------------------------------


def block_of(text: str | bytes, size_bytes: int = 0) -> bytes:
    payload = text.encode() if isinstance(text, str) else text
    return encode_block(payload.ljust(size_bytes, b"."))


def segment(
    extent_id: int,
    offset: int,
    blocks: Iterable[bytes],
    *,
    token: int = TOKEN,
    eversion: int = EVERSION,
    committed: int = 0,
    no_sync: bool = False,
) -> tuple[pb.Segment, bytes]:
    made = list(blocks)
    message = pb.Segment(
        extent_id=extent_id,
        eversion=eversion,
        token=token,
        offset=offset,
        committed=committed,
        no_sync=no_sync,
        block_sizes=[len(block) for block in made],
    )
    return message, b"".join(made)


def _name_replica(store: Storage, message: pb.Segment) -> None:
    """About every other segment names its replica, as a client's do: so both ways to decide on an append are taken."""
    if message.offset % 2 == 0 and not message.HasField("replica"):
        with contextlib.suppress(errors.NeveError):
            message.replica.CopyFrom(describe(store, message.extent_id).replica)


async def append_all(store: Storage, *segments: tuple[pb.Segment, bytes]) -> list[pb.SegmentResult]:
    for message, _ in segments:
        _name_replica(store, message)
    attachment = memoryview(b"".join(body for _, body in segments))
    messages = [message for message, _ in segments]
    return list((await store_append.append(store.state, messages, attachment, brief=False)).results)


async def append(store: Storage, extent_id: int, offset: int, *blocks: bytes, **how: Any) -> pb.SegmentResult:
    """One segment; raises its error."""
    (result,) = await append_all(store, segment(extent_id, offset, blocks, **how))
    if result.HasField("error"):
        raise errors.from_message(result.error)
    return result


async def tell_committed(store: Storage, extent_id: int, committed: int, *, token: int = TOKEN) -> None:
    await append(store, extent_id, 0, committed=committed, token=token)


# --- the manager ---------------------------------------------------------------------------------------------


async def create(
    store: Storage, extent_id: int, *, disk: int | None = None, eversion: int = EVERSION
) -> common_pb2.Replica:
    request = pb.CreateExtentRequest(extent_id=extent_id, eversion=eversion, extent_bytes_max=EXTENT_BYTES_MAX)
    if disk is not None:
        request.replica.disk_uuid = disk_uuid(disk)
    return await store_control.create(store.state, request)


async def raise_token(store: Storage, extent_id: int, token: int, *, eversion: int = EVERSION) -> pb.LengthAnswer:
    return await store_control.raise_token(
        store.state, pb.RaiseTokenRequest(extent_id=extent_id, eversion=eversion, token=token)
    )


async def fence(store: Storage, extent_id: int, *, token: int = 0, eversion: int = EVERSION) -> pb.LengthAnswer:
    return await store_control.fence(store.state, pb.FenceRequest(extent_id=extent_id, eversion=eversion, token=token))


async def seal(
    store: Storage, extent_id: int, length: int, *, eversion: int = EVERSION + 1, digest: bytes = b""
) -> pb.SealExtentReply:
    wanted = common_pb2.Seal(length=length, eversion=eversion, digest=digest)
    return await store_control.seal(store.state, pb.SealExtentRequest(extent_id=extent_id, seal=wanted))


async def delete(store: Storage, extent_id: int, *, eversion: int = EVERSION + 5) -> bool:
    return await store_control.delete(store.state, pb.DeleteExtentRequest(extent_id=extent_id, eversion=eversion))


# --- the reader ----------------------------------------------------------------------------------------------


async def read(store: Storage, extent_id: int, offset: int = 0, **how: Any) -> ReadResult:
    return await store.reader.read(pb.ReadBlockRequest(extent_id=extent_id, offset=offset, **how))


async def read_bytes(store: Storage, extent_id: int, offset: int = 0, **how: Any) -> bytes:
    return b"".join(bytes(piece) for piece in (await read(store, extent_id, offset, **how)).payload)


async def error_of(work: Awaitable[Any]) -> type[BaseException] | None:
    """The class of the NeveError that it raises, None if it does not."""
    try:
        await work
    except errors.NeveError as error:
        return type(error)
    return None


def describe(store: Storage, extent_id: int) -> pb.ReplicaInfo:
    return store.inventory.describe(pb.DescribeReplicaRequest(extent_id=extent_id))
