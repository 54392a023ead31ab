"""An extent node in the simulation: the real store, copier, servicer and registrar on a simulated machine.

    node = SimNode(network, node_id=1, managers=["manager1:3401"])
    await node.start(); node.kill(); await node.start(); node.power_cut(); node.pause(); node.resume(); node.wipe()
    await node.stop()

Invariants: each start is a new process on the same machine; what an earlier one left behind can change nothing;
            everything of a node is drawn from the seed of the network.
"""

from __future__ import annotations

import asyncio
import copyreg
import dataclasses
import functools
import io
import math
import pickle
import random
import threading
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from prometheus_client import CollectorRegistry

from neve.extent_node.config import Location
from neve.extent_node.disk.disk import Marks, format_disk
from neve.extent_node.disk.file_system import FileSystem
from neve.extent_node.journal.folder import format_journal, read_journal_label, slot_path
from neve.extent_node.journal.format import Record, crc_seed, find_records
from neve.extent_node.metrics import NodeMetrics
from neve.extent_node.registration import Registrar, WireManagerLink, registration_request
from neve.extent_node.servicer import ExtentNodeServicer
from neve.extent_node.store.config import DiskConfig, StoreConfig
from neve.extent_node.store.copier import Copier
from neve.extent_node.store.scrubber import Scrubber
from neve.extent_node.store.storage import Storage
from neve.proto import common_pb2, methods
from neve.proto import stream_manager_pb2 as sm
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Service
from tests.sim.disks.disk import SimFileSystem
from tests.sim.disks.nodes import PowerCutMode
from tests.sim.network.network import SimNetwork
from tests.sim.processes.processes import Clock, Killed, Process, ProcessFileSystem, lasting

CLUSTER = "test"
PORT = 3501
JOURNAL = "/journal"
JOURNAL_SEGMENT_BYTES = 64 << 10
WALL_EPOCH_MS = 1_700_000_000_000  # what a node's clock says at virtual second 0
HEARTBEAT_S = 1.0
DRAIN_S = 5.0
REPORT_INTERVAL_S = 10.0
TRASH_S = 3.0  # in the trash: so short that a story sees it emptied
PURGE_INTERVAL_S = 4.0


def disk_uuid(node_id: int, number: int = 0, *, making: int = 0) -> str:
    """`making`: how often the disk was replaced. The first eight bytes tell disks apart."""
    return str(uuid.UUID(int=node_id << 64 | number << 112 | making << 104 | 1))


def _journal_uuid(node_id: int, *, making: int = 0) -> uuid.UUID:
    return uuid.UUID(int=node_id << 64 | making << 32 | 0xFFFF)


@functools.cache
def _formatted(node_id: int, disks: int) -> SimFileSystem:
    """Formatting takes longer than most stories do: done once, then copied."""
    fs = SimFileSystem(random.Random(node_id))
    journal_uuid = format_journal(
        fs,
        JOURNAL,
        cluster=CLUSTER,
        node_id=node_id,
        journal_uuid=_journal_uuid(node_id),
        segment_bytes=JOURNAL_SEGMENT_BYTES,
    )
    for number in range(disks):
        format_disk(
            fs,
            f"/disk{number}",
            cluster=CLUSTER,
            node_id=node_id,
            disk_uuid=uuid.UUID(disk_uuid(node_id, number)),
            journal_uuid=journal_uuid,
        )
    return fs


@functools.cache
def _formatted_bytes(node_id: int, disks: int) -> bytes:
    """Reading it back is many times faster than a deep copy."""
    fs = _formatted(node_id, disks)
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream)
    pickler.dispatch_table = copyreg.dispatch_table | {type(fs._faults._mutex): lambda _: (threading.RLock, ())}
    pickler.dump(fs)
    return stream.getvalue()


def _new_disks(node_id: int, disks: int) -> SimFileSystem:
    fs = pickle.loads(_formatted_bytes(node_id, disks))
    assert isinstance(fs, SimFileSystem)
    return fs


class SimNode:
    """One machine, and at most one node process on it."""

    def __init__(
        self,
        network: SimNetwork,
        *,
        node_id: int,
        managers: Sequence[str],
        disks: int = 1,
        location: Location | None = None,
        scrub_interval_s: float = 0.0,
        **changes: Any,
    ) -> None:
        self.node_id = node_id
        self.disks = disks
        self.host = f"node{node_id}"
        self.address = f"{self.host}:{PORT}"
        self.fs = _new_disks(node_id, disks)
        self.fs.rng.seed(network.rng.getrandbits(64))
        self.journal_uuid = _journal_uuid(node_id)
        self.given_up: list[str] = []  # disks that were lost: what the journal has of them is not kept
        self._makings = 0  # of disks and journals in the place of others
        self.process: Process | None = None
        self.serving = False  # it has started, and all that its journal had is in its files
        self._cache_losses: list[tuple[float, str]] = []  # when, and the disk; "": all, its power was cut
        self.gone = False  # for ever
        self.skew_ms = 0  # how wrong its clock is
        self.clock = Clock()
        self.left: list[str] = []  # tasks that were not over when it had stopped, and to whom it was connected
        self.left_open: list[str] = []  # files that it had open then
        self.repairs: list[Callable[[], Coroutine[Any, Any, None]]] = []  # what must be done before all is well again
        self._network = network
        self._tasks: list[asyncio.Task[None]] = []
        self._managers = managers
        self._location = location or Location()
        self._scrub_interval_s = scrub_interval_s
        self._rng = random.Random(network.rng.getrandbits(64))
        settings: dict[str, Any] = {
            "preallocate_bytes": 64 << 10,  # appends that go to the journal may be late in their files
            "marks": Marks(high=1.1, low=1.0),
            "trash_delay_s": TRASH_S,
            "purge_interval_s": PURGE_INTERVAL_S,
            **changes,
        }
        self._config = StoreConfig(
            cluster=CLUSTER,
            node_id=node_id,
            disks=tuple(DiskConfig(f"/disk{number}", disk_uuid(node_id, number)) for number in range(disks)),
            journal_folder=JOURNAL,
            **settings,
        )

    @property
    def running(self) -> bool:
        return self.process is not None

    async def start(self) -> None:
        """Until it serves. Errors of the start, such as a refused disk, are raised and leave no process; `Killed`, if
        somebody else has ended it meanwhile."""
        assert self.process is None, f"{self.host} runs"
        process = self.process = Process(self.host, clock=self.clock)
        try:
            await process.spawn(self._start(process))
        except BaseException as error:
            if process.killed and isinstance(error, asyncio.CancelledError):
                raise Killed(self.host) from None
            self.kill()
            raise

    async def _start(self, process: Process) -> None:
        rng = random.Random(self._rng.getrandbits(64))
        fs = cast(FileSystem, ProcessFileSystem(self.fs, process))
        self.store = Storage(self._config, fs, pool=None, rng=rng, wall_clock_ms=self.wall_ms)
        await self.store.start(give_up_disks=self.given_up)
        channels = self._channels = ChannelPool(
            lambda address: self._network.channel(self.host, address, cluster=CLUSTER)
        )
        registration = registration_request(
            cluster=CLUSTER,
            node_id=self.node_id,
            wire_address=self.address,
            grpc_address="",
            location=self._location,
            version=common_pb2.Version(protocol=1, build="sim"),
            process_id=rng.getrandbits(63),
        )
        self.registrar = Registrar(
            WireManagerLink(channels, self._managers),
            self.store.inventory,
            registration=registration,
            copies=lambda: self.copier.statuses(),
            load=sm.NodeLoad,
            heartbeat_s=HEARTBEAT_S,
            report_interval_s=REPORT_INTERVAL_S,
            rng=rng,
        )
        self.copier = Copier(
            self.store,
            channels,
            tasks_max=4,
            bytes_per_s_max=0,
            rng=rng,
            on_bad=self.registrar.report_bad,
            reporter=self.host,
        )
        servicer = ExtentNodeServicer(
            self.store,
            self.copier,
            NodeMetrics(CollectorRegistry()),
            cluster=CLUSTER,
            node_id=self.node_id,
            read_bytes_max=self._config.read_bytes_max,
        )
        services = [Service(methods.EXTENT_NODE, servicer)]
        self.server = self._network.serve(self.address, services, cluster=CLUSTER)
        self.serving = True
        self._tasks = []
        if self._managers:
            self._tasks.append(lasting(process.spawn(self.registrar.run(), name=f"{self.host} registrar")))
        if self._scrub_interval_s:
            scrubber = Scrubber(
                self.store,
                bytes_per_s=0,
                on_bad=self.registrar.report_bad,
                rng=rng,
                round_interval_s=self._scrub_interval_s,
                reporter=self.host,
            )
            self._tasks.append(lasting(process.spawn(scrubber.run(), name=f"{self.host} scrubber")))

    async def stop(self) -> None:
        """SIGTERM. What it leaves behind is in `left` and `left_open`."""
        process = self.process
        assert process is not None
        await process.run(self._stop())
        if self.process is process:
            self.left, self.left_open = await process.left(), [*self.fs.opened().values()]
            self.left += self._network.held_by(self.host)
            process.stopped = True
            if self.process is process:
                self.kill()

    async def _stop(self) -> None:
        """In the order of extent_node/server.py."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.serving = False
        await self.server.stop(DRAIN_S)
        await self.copier.stop()
        await self.store.stop(clean=True)
        await self._channels.close()

    def wall_ms(self) -> int:
        return WALL_EPOCH_MS + int(asyncio.get_running_loop().time() * 1000) + self.skew_ms

    async def repair(self) -> None:
        """Put right what was done to its disks."""
        for repair in [*self.repairs]:
            await repair()
        self.repairs.clear()

    # --- trouble ---------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL: the page cache stays."""
        self._end()
        self.fs.crash()

    def power_cut(self, mode: PowerCutMode = "lose_all") -> None:
        """The machine loses power: what was not synced may be gone."""
        self._end()
        self.note_cache_lost()
        self.fs.power_cut(mode)

    def note_cache_lost(self, folder: str = "") -> None:
        """What was not synced, of this disk or of all, may be gone from now on."""
        self._cache_losses.append((asyncio.get_running_loop().time(), folder))

    def has_lost_cache(self, extent_id: int, *, since_s: float, until_s: float = math.inf) -> bool:
        """Whether its replica of this extent may have lost what was not synced, between these virtual times."""
        return any(
            since_s <= at_s <= until_s and (not folder or self._may_be_on(folder, extent_id))
            for at_s, folder in self._cache_losses
        )

    def _may_be_on(self, folder: str, extent_id: int) -> bool:
        """A replica stays on its disk. One that is on none may have been anywhere."""
        found = [
            number for number in range(self.disks) if self.fs.stat(self.extent_path(extent_id, number)) is not None
        ]
        return not found or folder in [f"/disk{number}" for number in found]

    def pause(self) -> None:
        """SIGSTOP."""
        assert self.process is not None
        self._network.pause(self.host)
        self.process.pause()

    def resume(self) -> None:
        assert self.process is not None
        self._network.resume(self.host)  # first: a process reads what has come before it runs its late timers
        self.process.resume()

    def wipe(self) -> None:
        """The disks are replaced by empty ones, formatted as new disks of this node. The process must not run."""
        assert self.process is None
        self.fs = _new_disks(self.node_id, len(self._config.disks))

    def replace_disk(self, number: int) -> None:
        """The folder, which is empty, is made a new disk, with an uuid of its own. The process must not run."""
        assert self.process is None
        self._makings += 1
        disks = [*self._config.disks]
        self.given_up.append(disks[number].expected_uuid)
        disks[number] = DiskConfig(f"/disk{number}", disk_uuid(self.node_id, number, making=self._makings))
        format_disk(
            self.fs,
            disks[number].folder,
            cluster=CLUSTER,
            node_id=self.node_id,
            disk_uuid=uuid.UUID(disks[number].expected_uuid),
            journal_uuid=str(self.journal_uuid),
        )
        self._config = dataclasses.replace(self._config, disks=tuple(disks))

    def renew_journal(self) -> None:
        """Another one in place of one that is lost, as `--format-journal` makes it. The process must not run."""
        assert self.process is None
        self._makings += 1
        self.journal_uuid = _journal_uuid(self.node_id, making=self._makings)
        self.fs.wipe(JOURNAL)
        format_journal(
            self.fs,
            JOURNAL,
            cluster=CLUSTER,
            node_id=self.node_id,
            journal_uuid=self.journal_uuid,
            segment_bytes=JOURNAL_SEGMENT_BYTES,
            in_use=True,
        )

    def extent_path(self, extent_id: int, disk: int = 0) -> str:
        return f"/disk{disk}/extents/{extent_id & 0xFF:02x}/{extent_id:016x}.ext"

    def peek(self, extent_id: int, offset: int, size_bytes: int) -> bytes | None:
        """Bytes of a replica as its file has them; None if there is no such file."""
        for number in range(self.disks):
            found = self.fs.peek(self.extent_path(extent_id, number), offset, size_bytes)
            if found is not None:
                return found
        return None

    def stored(self, extent_id: int, offset: int, size_bytes: int) -> bytes | None:
        """Bytes that were acknowledged: as the file has them, and behind its end as the journal has them, on stable
        storage; what is missing there is missing here. Without sync nothing is in the journal."""
        found = self.peek(extent_id, offset, size_bytes)
        if found is None or len(found) == size_bytes:
            return found
        for record, content in self._journaled(extent_id):
            start = offset + len(found) - record.offset
            if 0 <= start < record.payload_bytes:
                at = record.payload_position
                found += content[at + start : at + record.payload_bytes]
        return found[:size_bytes]

    def _journaled(self, extent_id: int) -> list[tuple[Record, bytes]]:
        """Records of the extent that a power cut would leave, each with its segment."""
        seed = crc_seed(self.journal_uuid.bytes)
        found = []
        for slot in range(read_journal_label(self.fs, JOURNAL).slots):
            content = self.fs.durable_content(slot_path(JOURNAL, slot))
            records = find_records(content, 0, seed)
            found += [(record, content) for record in records if not record.is_end and record.extent_id == extent_id]
        return sorted(found, key=lambda each: each[0].lsn)

    def deferred_bytes(self, extent_id: int) -> bytes:
        """What a process that runs has not written to the replica's file yet."""
        found = self.store.state.replicas.get(extent_id) if self.serving else None
        return b"".join(found.deferred) if found is not None else b""

    def _end(self) -> None:
        if self.process is None:
            return
        process, self.process = self.process, None
        self.serving = False
        process.kill()
        self._network.crash(self.host, gone=True)
