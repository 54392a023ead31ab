"""The extent node as a process: builds store, copier, scrubber, servicer, registration and front doors.

    python -m neve.extent_node --config node.toml
    python -m neve.extent_node --set cluster=main --set 'disks=["/data/d1"]' --set journal=/data/j --set node_id=1

SIGTERM and SIGINT stop it cleanly: it accepts no new calls, finishes running ones, and syncs everything, so that the
next start has nothing to doubt. Exit codes: 0 stopped on request, 1 it could not run, 2 the configuration is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop
from prometheus_client import CollectorRegistry

from neve.extent_node.config import NodeConfig, load
from neve.extent_node.disk.disk import DiskRefused, short_id
from neve.extent_node.disk.file_system import FileSystem, RealFileSystem
from neve.extent_node.disk.kernel_sync import KernelSync, kernel_sync_or_none
from neve.extent_node.disk.prepare import prepare
from neve.extent_node.disk.threads import Threads
from neve.extent_node.journal.folder import SEGMENT_BYTES_DEFAULT, JournalRefused
from neve.extent_node.metrics import NodeMetrics, StoreCollector
from neve.extent_node.registration import (
    ManagerLink,
    Registrar,
    WireManagerLink,
    first_id,
    registration_request,
)
from neve.extent_node.servicer import ExtentNodeServicer
from neve.extent_node.store.config import StoreConfig
from neve.extent_node.store.copier import Copier
from neve.extent_node.store.scrubber import Scrubber
from neve.extent_node.store.start import NoUsableDisk, ShortOfResources
from neve.extent_node.store.storage import Storage
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import InvalidArgument, NeveError
from neve.rpc.command_line import parsed
from neve.rpc.descriptors import raise_descriptor_limit
from neve.rpc.diagnostics import build_version
from neve.rpc.front import run_until_told_to_stop
from neve.rpc.logs import set_up_logging
from neve.rpc.pool import ChannelPool
from neve.rpc.server_process import ServerProcess
from neve.rpc.service import Service

log = logging.getLogger(__name__)

DESCRIPTORS_BESIDE = 256  # for the journal, folders, files being made or copied, and libraries
GC_THRESHOLDS = (50_000, 20, 50)  # the same as the stream manager's
FIRST_ID_TIMEOUT_S = 300.0  # a starting cluster may need that long to elect a manager


class ExtentNode(ServerProcess):
    """One node. It stops in this order: registration and scrubber, front doors, copies, store."""

    kind = "extent_node"
    log_name = "node"

    def __init__(
        self,
        config: NodeConfig,
        store_config: StoreConfig,
        fs: FileSystem,
        *,
        rng: random.Random,
        format_disks: Sequence[str] = (),
        format_journal: bool = False,
        give_up_disks: Sequence[str] = (),
    ) -> None:
        super().__init__(cluster=config.cluster, listen=config.listen, drain_timeout_s=config.drain_timeout_s)
        self._config = config
        self._store_config = store_config
        self._fs = fs
        self._rng = rng
        self._format_disks = format_disks
        self._format_journal = format_journal
        self._give_up_disks = give_up_disks
        self._tasks: list[asyncio.Task[None]] = []
        self.node_id = 0

    async def _start(self) -> None:
        config = self._config
        channels = self._make_channels(config.manager_token)
        link = WireManagerLink(channels, config.managers)
        registration = registration_request(
            cluster=config.cluster,
            node_id=config.node_id,
            wire_address=config.advertise_wire or config.listen.wire,
            grpc_address=config.advertise_grpc or config.listen.grpc,
            location=config.location,
            version=build_version(),
            process_id=self._rng.getrandbits(63),
        )
        self.node_id = await prepare(
            self._fs,
            cluster=config.cluster,
            disk_folders=[str(disk.folder) for disk in config.disks],
            journal_folder=str(config.journal),
            configured_node_id=config.node_id,
            automatic=config.formats_automatically,
            by_operator=self._format_disks,
            format_missing_journal=self._format_journal,
            journal_segment_bytes=SEGMENT_BYTES_DEFAULT,
            fetch_node_id=lambda: first_id(link, registration, rng=self._rng, timeout_s=FIRST_ID_TIMEOUT_S),
            rng=self._rng,
            expected_uuids={str(disk.folder): disk.uuid for disk in config.disks if disk.uuid},
        )
        registration.node_id = self.node_id
        log.info("node_identified node_id=%d", self.node_id)
        await self._start_store()
        await self._start_services(channels, link, registration)

    async def _start_store(self) -> None:
        pool = Threads(self._config.threads, name="store")
        self._exit.callback(pool.shutdown)
        kernel_sync: KernelSync | None = None
        if isinstance(self._fs, RealFileSystem):
            kernel_sync = kernel_sync_or_none(self._config.kernel_syncs_max)
            if kernel_sync is not None:
                self._exit.callback(kernel_sync.close)
        self.storage = Storage(
            replace(self._store_config, node_id=self.node_id),
            self._fs,
            pool=pool,
            rng=self._rng,
            wall_clock_ms=lambda: time.time_ns() // 1_000_000,
            kernel_sync=kernel_sync,
        )
        await self.storage.start(give_up_disks=self._give_up_disks)
        self._exit.push_async_callback(self.storage.stop, clean=True)

    async def _start_services(
        self, channels: ChannelPool, link: ManagerLink, registration: sm.RegisterNodeRequest
    ) -> None:
        config = self._config
        registrar = Registrar(
            link,
            self.storage.inventory,
            registration=registration,
            copies=lambda: copier.statuses(),
            load=self._load,
            heartbeat_s=config.heartbeat_s,
            report_interval_s=config.report_interval_s,
            rng=self._rng,
        )
        reporter = f"node {self.node_id}"
        copier = Copier(
            self.storage,
            channels,
            tasks_max=config.copies_max,
            bytes_per_s_max=config.copy_bytes_per_s_max,
            rng=self._rng,
            on_bad=registrar.report_bad,
            reporter=reporter,
        )
        self._exit.push_async_callback(copier.stop)
        scrubber = Scrubber(
            self.storage,
            bytes_per_s=config.scrub_bytes_per_s,
            on_bad=registrar.report_bad,
            rng=self._rng,
            reporter=reporter,
        )
        registry = CollectorRegistry()
        servicer = ExtentNodeServicer(
            self.storage,
            copier,
            NodeMetrics(registry),
            cluster=config.cluster,
            node_id=self.node_id,
            read_bytes_max=self._store_config.read_bytes_max,
        )
        front = self._make_front(Service(methods.EXTENT_NODE, servicer), registry)
        counters: dict[str, Any] = {
            "node": self.storage.state.counters,
            "copy": copier.counters,
            "scrub": scrubber.counters,
        }
        registry.register(StoreCollector(self.storage, front.wire, counters))
        await self._open(front, advertise=config.advertise_wire)

        registration.wire_address = self.address
        registration.grpc_address = config.advertise_grpc or front.grpc_address
        self._exit.push_async_callback(self._stop_tasks)
        if config.managers:
            self._tasks.append(asyncio.create_task(registrar.run(), name="registrar"))
        if config.scrub_bytes_per_s:
            self._tasks.append(asyncio.create_task(scrubber.run(), name="scrubber"))

    def _agent(self) -> str:
        return f"extent_node {self.node_id}"

    async def _stop_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _load(self) -> sm.NodeLoad:
        return sm.NodeLoad(connections=len(self.front.wire.connections))

    def _facts(self) -> Mapping[str, object]:
        disks = {disk.disk_uuid: disk.reason or "writable" for disk in self.storage.inventory.disks()}
        return {"node_id": self.node_id, "disks": disks}


async def serve(
    config: NodeConfig,
    store_config: StoreConfig,
    *,
    format_disks: Sequence[str],
    format_journal: bool,
    give_up_disks: Sequence[str],
) -> None:
    """Run a node until the process receives a signal to stop."""
    node = ExtentNode(
        config,
        store_config,
        RealFileSystem(),
        rng=random.SystemRandom(),
        format_disks=format_disks,
        format_journal=format_journal,
        give_up_disks=give_up_disks,
    )
    await run_until_told_to_stop(node, on_started=_settle_garbage)


def _settle_garbage() -> None:
    """Tune the garbage collector after the start.

    Objects made by the start stay, so no collection needs to scan them again. A frame of many streams makes thousands
    of objects that live until its sync: with Python's own thresholds each frame has several collections.
    """
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _disk_name(text: str) -> str:
    """Check a disk's uuid, or the first half of one, as the log shows it."""
    short_id(text)  # raises ValueError, which argparse reports
    return text


def _allow_descriptors(config: NodeConfig, store_config: StoreConfig) -> None:
    allowed = raise_descriptor_limit()
    # A connection has a second descriptor once it has sent from a file.
    connections = 2 * config.listen.limits.connections_max
    wanted = store_config.open_replicas_max + store_config.sealed_files_max + connections
    if allowed < wanted + DESCRIPTORS_BESIDE:
        log.warning(
            "descriptors_few allowed=%d wanted=%d: allow more (LimitNOFILE=, ulimit -Hn), or lower "
            "store.open_replicas_max or listen.limits.connections_max",
            allowed,
            wanted + DESCRIPTORS_BESIDE,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="neve-extent-node", description="Run an extent node of Neve.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file; extent_node/config.py lists the keys")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set one key over the file's")
    parser.add_argument(
        "--format-disk", action="append", default=[], metavar="FOLDER", help="make this empty folder a new disk"
    )
    parser.add_argument("--format-journal", action="store_true", help="make a new journal in place of a lost one")
    parser.add_argument(
        "--give-up-disk",
        action="append",
        default=[],
        type=_disk_name,
        metavar="UUID",
        help="drop the journal's records of this disk, because the disk is lost: they are acknowledged bytes that are "
        "nowhere else on this node. If the disk returns, its open replicas are doubtful",
    )
    options = parsed(parser, arguments)
    try:
        config, store_config = load(options.config, options.set)
    except InvalidArgument as error:
        print(f"neve-extent-node: {error}", file=sys.stderr)
        return 2
    set_up_logging(as_json=config.log.json, level=config.log.level)
    _allow_descriptors(config, store_config)
    try:
        uvloop.run(
            serve(
                config,
                store_config,
                format_disks=options.format_disk,
                format_journal=options.format_journal,
                give_up_disks=options.give_up_disk,
            )
        )
    except (DiskRefused, JournalRefused, NoUsableDisk, ShortOfResources, NeveError, TimeoutError, OSError) as error:
        print(f"neve-extent-node: cannot run: {error or type(error).__name__}", file=sys.stderr)
        return 1
    return 0
