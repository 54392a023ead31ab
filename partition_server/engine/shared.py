"""The shared state of a loaded partition: its range, streams, memtables, tables and counters.

Invariants: `view` is replaced as a whole, never changed, so a reader that has taken it sees consistent lists of
            memtables and tables;
            a failed partition answers nothing; its owner loads it again;
            a pinned log extent never leaves the stream.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from neve.client.streams.client import Client
from neve.client.streams.types import Position
from neve.client.streams.writer import Writer
from neve.partition_server.engine.config import KEY_BYTES_MAX, EngineConfig
from neve.partition_server.engine.entry import Entry
from neve.partition_server.engine.memory import MemoryBudget, Waiters
from neve.partition_server.engine.memtable import Memtable
from neve.partition_server.engine.sessions import Sessions
from neve.partition_server.log.stream_io import OwnStream
from neve.partition_server.tables.block_cache import BlockCache
from neve.partition_server.tables.merge_pace import Pace
from neve.partition_server.tables.table import Table
from neve.partition_server.tables.table_format import Block
from neve.proto import common_pb2
from neve.proto import partition_manager_pb2 as pm
from neve.proto.errors import (
    Internal,
    InvalidArgument,
    NeveError,
    NotFound,
    NotOwner,
    Overloaded,
    RequestError,
    ShuttingDown,
    TooLarge,
    WrongServer,
)

log = logging.getLogger(__name__)

SESSION_RESULTS_MAX = 16_384  # of one client; client/objects/admission.py stays below it
SESSION_RESULTS_TOTAL_MAX = 50_000  # each manifest contains all; this many take 50 ms to encode
SESSION_IDLE_S = 600.0


@dataclass(frozen=True, slots=True)
class PartitionStreams:
    """The streams of a partition, opened under one lock. `ensure_owner` raises unless the lock is certainly held."""

    log: Writer
    row: Writer
    meta: Writer
    client: Client
    ensure_owner: Callable[[], None]


class View(NamedTuple):
    """The memtables and tables of a partition, newest first. The first memtable is the active one."""

    memtables: tuple[Memtable, ...]
    tables: tuple[Table, ...] = ()


class Pins:
    """Log extents that are needed although no table or memtable refers to them (yet)."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, extent_ids: Iterable[int]) -> None:
        for extent_id in extent_ids:
            self._counts[extent_id] = self._counts.get(extent_id, 0) + 1

    def remove(self, extent_ids: Iterable[int]) -> None:
        for extent_id in extent_ids:
            left = self._counts[extent_id] - 1
            if left:
                self._counts[extent_id] = left
            else:
                del self._counts[extent_id]

    def __contains__(self, extent_id: int) -> bool:
        return extent_id in self._counts

    def __len__(self) -> int:
        return len(self._counts)


@dataclass(slots=True)
class Counters:
    """Counters since the partition was loaded."""

    reads: int = 0
    writes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


class Store:
    def __init__(
        self,
        region: pm.RegionRecord,
        streams: PartitionStreams,
        *,
        config: EngineConfig,
        clock: Callable[[], int],
        rng: random.Random,
        cache: BlockCache[Block],
        memory: MemoryBudget,
    ) -> None:
        self.partition_id = region.partition_id
        self.region = region
        self.start: bytes = region.start
        self.end: bytes = region.end
        self.streams = streams
        self.config = config
        self.wall_ms = clock
        self.rng = rng
        self.cache = cache
        self.memory = memory
        self.log = OwnStream(streams.client, streams.log)
        self.row = OwnStream(streams.client, streams.row)
        self.meta = OwnStream(streams.client, streams.meta)
        self.share = memory.share()
        self.loop = asyncio.get_running_loop()
        self.record_bytes_max = 0  # of a record that is one block; the load sets it and the next one
        self.part_bytes = 0  # of a value that is one record
        self.seq = 0
        self.applied = 0  # acknowledgements so far
        self.snapshot_applied = 0  # of the newest snapshot that is kept
        self.pending: dict[bytes, Entry] = {}  # the newest unacknowledged entry of each key
        self.snapshot_views: Callable[[], Iterable[View]] = tuple  # views that snapshots hold; scans.py sets it
        self.held: list[Memtable] = []  # flushed, needed only by snapshots
        self.unseen: list[Memtable] = []  # flushed and not needed; flusher.py dismantles them
        self.pins = Pins()
        self.counters = Counters()
        self.sessions = Sessions(
            clients_max=config.session_clients_max,
            results_max=SESSION_RESULTS_MAX,
            results_total_max=SESSION_RESULTS_TOTAL_MAX,
            idle_ms=int(SESSION_IDLE_S * 1000),
        )
        self.memtables_made = 0
        self.view = View((self.new_memtable(),))
        self.flushed_seq = 0  # everything up to here is in tables
        self.log_replay_from: Position | None = None  # None: the stream's beginning
        self.rotated_s = self.loop.time()  # when the active memtable was started
        self.log_lengths: dict[int, int] = {}  # of sealed log extents that need no replay
        self._writing: dict[object, int] = {}  # tables being written: the row extent that each began in
        self.committing: dict[object, Sequence[Table]] = {}  # tables named by a manifest that is being written
        self.frozen = False
        self.error: NeveError | None = None
        self.failed: asyncio.Future[NeveError] = self.loop.create_future()  # done when the partition is unusable
        self.work = asyncio.Event()  # there may be background work
        self._stalled = Waiters()
        self.pace = Pace(self.loop)

    def new_memtable(self) -> Memtable:
        self.memtables_made += 1
        return Memtable(self.memtables_made)

    @property
    def active(self) -> Memtable:
        return self.view.memtables[0]

    # --- what is in use --------------------------------------------------------------------------------------

    @contextmanager
    def writing_table(self) -> Iterator[None]:
        """While a table is written, no view has its records: keep the row stream from here on."""
        token = object()
        committed = self.streams.row.committed
        assert committed is not None
        self._writing[token] = committed.extent_id
        try:
            yield
        finally:
            del self._writing[token]

    def row_extents_begun(self) -> set[int]:
        """Extents in which tables being written begin: these and all later ones of the row stream are in use."""
        return set(self._writing.values())

    def log_references(self) -> dict[int, int]:
        """Bytes of values that tables refer to, by log extent."""
        found: dict[int, int] = {}
        for table in self.view.tables:
            for extent_id, size_bytes in table.log_references.items():
                found[extent_id] = found.get(extent_id, 0) + size_bytes
        return found

    def discardable(self) -> dict[int, int]:
        """Unreferenced bytes of log extents that need no replay, which could be reclaimed."""
        references = self.log_references()
        found = {each: length - references.get(each, 0) for each, length in self.log_lengths.items()}
        return {extent_id: size_bytes for extent_id, size_bytes in found.items() if size_bytes > 0}

    # --- room ------------------------------------------------------------------------------------------------

    def note_flushed(self, memtable: Memtable) -> None:
        """The memtable is in a table and has left the view. Its memory is returned when no snapshot needs it."""
        self.held.append(memtable)
        self.share.hold(memtable.memory_bytes)
        self.release_unseen()
        self.memory.spare()

    def release_unseen(self) -> None:
        """Return the memory of memtables that no snapshot needs any more."""
        if not self.held:
            return
        seen = {memtable.number for view in self.snapshot_views() for memtable in view.memtables}
        unseen = [memtable for memtable in self.held if memtable.number not in seen]
        if unseen:
            self.held = [memtable for memtable in self.held if memtable.number in seen]
            self.unseen += unseen
            for memtable in unseen:
                self.share.release(memtable.memory_bytes)
            self.work.set()

    def must_wait(self) -> bool:
        """Whether memory is full, so that writes wait for a flush."""
        if self.memory.full:
            return True
        memtables = self.view.memtables
        config = self.config
        return memtables[0].memory_bytes >= config.memtable_bytes and len(memtables) > config.memtables_closed_max

    def is_behind(self) -> bool:
        """Whether there are more tables than merges should leave."""
        return len(self.view.tables) >= self.config.tables_slow

    async def until_room(self) -> None:
        """Wait for memory. Does not await if there is some."""
        self.check_writable()
        while self.must_wait():
            self.work.set()
            if self.memory.full:
                await self.memory.until_room()
            else:
                await self._stalled.future()
            self.check_writable()

    def unstall(self) -> None:
        """A memtable was flushed or the partition has ended: wake waiting writes."""
        if not self.is_behind() or self.error is not None or self.frozen:
            self.pace.end()
        self._stalled.wake()

    # --- permission ------------------------------------------------------------------------------------------

    def owns(self, key: bytes) -> bool:
        return self.start <= key and (not self.end or key < self.end)

    def check_key(self, key: bytes) -> None:
        if not key:
            raise InvalidArgument(what="key", detail="it is empty")
        if len(key) > KEY_BYTES_MAX:
            raise TooLarge(what="key", size_bytes=len(key), limit_bytes=KEY_BYTES_MAX)
        if not self.owns(key):
            raise WrongServer(partition_id=self.partition_id, regions_version=self.region.version)

    def ended(self) -> WrongServer:
        """The error for callers after this server has lost or closed the partition.

        Another server will serve the key, or this one again. The reason is internal, so only the detail has it.
        """
        detail = f"partition {self.partition_id} has ended here: {self.error}"
        return WrongServer(partition_id=self.partition_id, regions_version=self.region.version, detail=detail)

    def check_readable(self) -> None:
        if self.error is not None:
            raise self.ended()

    def check_writable(self) -> None:
        self.check_readable()
        if self.frozen:
            raise Overloaded(what="partition", detail=f"partition {self.partition_id} is frozen")

    def ensure_owner(self) -> None:
        """Check right before an answer that no other server can serve these keys (protocol rule 2)."""
        try:
            self.streams.ensure_owner()
        except NeveError as error:
            self.fail(error)
            raise self.ended() from error
        self.check_readable()

    def owner(self) -> common_pb2.Owner:
        """The owner to name when our streams are changed.

        Without one, as from a client without a writer, the call would be an operator's, which the stream manager
        executes whichever server has the partition by then.
        """
        self.ensure_owner()
        owner = self.streams.log.owner
        assert owner is not None, "its lock is ours"
        return owner

    def gone(self, error: NotFound) -> NeveError:
        """The error for records missing in our streams: another server has the partition and removed them, or damage.

        Never NotFound, which callers would take for a missing object.
        """
        try:
            self.ensure_owner()
        except NeveError as lost:
            return lost
        return Internal(detail=f"partition {self.partition_id} lacks a part of its streams: {error}")

    @contextmanager
    def noting_ended_streams(self) -> Iterator[None]:
        """Wraps work that writes tables and manifests: if it ended a stream's writer, the partition fails."""
        try:
            yield
        except NeveError:
            for writer in (self.streams.log, self.streams.row, self.streams.meta):
                if writer.error is not None:
                    self.fail(writer.error)
            raise

    def log_refused(self, error: NeveError) -> NeveError:
        """The log's writer has ended, so the partition fails. Returns the error for callers."""
        self.fail(error)
        return error if isinstance(error, RequestError) else self.ended()

    async def log_ready(self, size_bytes: int) -> None:
        """Wait until the log's writer has room for a record of this size."""
        try:
            await self.streams.log.ready(size_bytes)
        except NeveError as error:
            raise self.log_refused(error) from error

    def fail(self, error: NeveError) -> None:
        """A stream or the lock is lost: stop answering."""
        if self.error is not None:
            return
        self.error = error
        log.log(
            logging.INFO if isinstance(error, (ShuttingDown, NotOwner)) else logging.WARNING,
            "partition_failed partition_id=%d error=%s",
            *(self.partition_id, error),
        )
        self.work.set()
        self.unstall()
        if not self.failed.done():
            self.failed.set_result(error)
