"""The samples of the node's benchmark, as `node` puts them into its plan: what to ask of which node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from neve.client.streams.options import DEFAULT_OPTIONS
from neve.client.streams.reading.read_race import with_headers
from neve.rpc.limits import Limits
from neve.rpc.wire.buffers import POOL_BYTES_MAX, STREAM_CHUNK_BYTES
from tests.bench import limits
from tests.bench.limits import KIB, MIB, megabytes_per_second, microseconds
from tests.bench.node_rows import disk as node_disk
from tests.bench.node_rows import process as node_process
from tests.bench.node_rows.process import NodeProcess
from tests.bench.processes import Child
from tests.bench.report import Quantity

SMALL_BYTES = 1 * KIB
LARGE_BYTES = 1 * MIB
FRAME_BYTES = 1 * MIB
WINDOW = 16  # frames
# Of how many extents a frame carries an append. One frame of 512 leaves the node idle while the next one is made.
FRAME_EXTENTS = 64

READ_BYTES = with_headers(DEFAULT_OPTIONS.read_bytes)  # of one ReadBlock call, as the client asks for them
RANDOM_READ_BYTES = 4 * KIB

# A thousand writers offer 250 MiB together, more than the node's bound: so that the bound is what counts.
WRITER_BLOCK_BYTES = 64 * KIB
WRITER_WINDOW = 4
WRITER_LIMITS = Limits(server_bytes_max=64 * MIB, connection_bytes_max=1 * MIB)
WRITER_EXTENT_BYTES = 64 * MIB

ASK_TIMEOUT_S = 300.0  # for a sample and what it prepares


class NodeBench:
    """Orders to the client process, about one node."""

    def __init__(self, client: Child, node: NodeProcess) -> None:
        self._client = client
        self.node = node

    def ask(self, case: str, **arguments: Any) -> float:
        order = {"case": case, "address": self.node.address, **arguments}
        value = self._client.ask(order, timeout_s=ASK_TIMEOUT_S)
        self.node.empty_trash()
        return value

    def append(self, *, block_bytes: int, total_bytes: int) -> Quantity:
        limits.claim_free_pages(size_bytes=total_bytes)
        rate = self.ask(
            "append", block_bytes=block_bytes, frame_bytes=FRAME_BYTES, window=WINDOW, total_bytes=total_bytes
        )
        return megabytes_per_second(rate, 1.0)

    def append_latency(self, *, sync: bool, duration_s: float) -> Quantity:
        return microseconds(self.ask("latency", block_bytes=SMALL_BYTES, sync=sync, duration_s=duration_s))

    def echo_latency(self, *, duration_s: float) -> Quantity:
        return microseconds(self.ask("echo_latency", block_bytes=SMALL_BYTES, duration_s=duration_s))

    def synced_appends(self, *, extents: int, frame_extents: int = FRAME_EXTENTS, duration_s: float) -> Quantity:
        rate = self.ask(
            "synced_appends",
            extents=extents,
            block_bytes=SMALL_BYTES,
            frame_extents=frame_extents,
            duration_s=duration_s,
        )
        return Quantity(rate, "appends/s")


class SealedExtents:
    """Two sealed extents of a node that keeps one of them open: large blocks to read through, small ones at random."""

    def __init__(self, bench: NodeBench, *, large_bytes: int, small_bytes: int) -> None:
        self._bench = bench
        self._large_bytes = large_bytes
        self._small_bytes = small_bytes
        self._large_id = int(bench.ask("make_sealed", size_bytes=large_bytes, block_bytes=LARGE_BYTES))
        self._small_id = int(bench.ask("make_sealed", size_bytes=small_bytes, block_bytes=RANDOM_READ_BYTES))
        self.path = bench.node.extent_path(self._large_id)

    def read_through(self, *, total_bytes: int) -> Quantity:
        """Of an extent that was read before."""
        self._read(self._large_id, passes=1)
        return self._read(self._large_id, passes=max(1, total_bytes // self._large_bytes))

    def read_first_time(self) -> Quantity:
        """Of an extent that the node has to open, map and touch."""
        self._read(self._small_id, passes=1)
        return self._read(self._large_id, passes=1)

    def read_small_blocks(self, *, total_bytes: int) -> Quantity:
        self._read(self._small_id, passes=1)
        return self._read(self._small_id, passes=max(1, total_bytes // self._small_bytes))

    def _read(self, extent_id: int, *, passes: int) -> Quantity:
        rate = self._bench.ask("read_through", extent_id=extent_id, read_bytes=READ_BYTES, passes=passes)
        return megabytes_per_second(rate, 1.0)

    def read_at_random(self, *, window: int, duration_s: float) -> Quantity:
        rate = self._bench.ask(
            "random_reads",
            extent_id=self._small_id,
            size_bytes=self._small_bytes,
            block_bytes=RANDOM_READ_BYTES,
            window=window,
            duration_s=duration_s,
        )
        return Quantity(rate, "reads/s")


class Together:
    """Several quantities of one run, for as many measures: who is asked first in a round runs it for all."""

    def __init__(self, run: Callable[[], dict[str, Quantity]]) -> None:
        self._run = run
        self._kept: dict[str, Quantity] = {}

    def take(self, name: str) -> Quantity:
        if name not in self._kept:
            self._kept = self._run()
        return self._kept.pop(name)


def start_up(folder: Path) -> dict[str, Quantity]:
    """A node that starts with what is in its folder, and then stops cleanly."""
    with node_process.start(folder) as node:
        return {"s": Quantity(node.started_s, "s"), "rss": Quantity(node.rss_bytes() / MIB, "MiB")}


def writers_bound(writers: int) -> Quantity:
    """What the configuration allows so many connections, as rpc/limits.py adds it up: requests that wait, pooled
    buffers, and one that is being filled for each connection."""
    bound_bytes = WRITER_LIMITS.server_bytes_max + POOL_BYTES_MAX + writers * STREAM_CHUNK_BYTES
    return Quantity(bound_bytes / MIB, "MiB")


def growth_under_writers(client: Child, folder: Path, *, writers: int, duration_s: float) -> dict[str, Quantity]:
    """How much a node grew at its peak since nobody was connected: at first, and when as much was written again.

    A new process each time: memory that was once taken is seldom given back.
    """
    settings = {
        "listen.limits.server_bytes_max": str(WRITER_LIMITS.server_bytes_max),
        "listen.limits.connection_bytes_max": str(WRITER_LIMITS.connection_bytes_max),
        "store.preallocate_bytes": "0",  # 8 MiB for each writer, and no matter of memory
    }
    with node_process.start(folder, settings) as node:
        bench = NodeBench(client, node)
        idle_bytes = node.rss_bytes()
        bench.ask("connect_writers", count=writers, extent_bytes_max=WRITER_EXTENT_BYTES)
        grown_bytes = []
        for _ in range(2):
            node.forget_peak()
            bench.ask("write", block_bytes=WRITER_BLOCK_BYTES, window=WRITER_WINDOW, duration_s=duration_s)
            grown_bytes.append(node.rss_peak_bytes() - idle_bytes)
        bench.ask("disconnect_writers")
    node_disk.remove_extents(folder)
    first, later = (Quantity(size_bytes / MIB, "MiB") for size_bytes in grown_bytes)
    return {"first": first, "later": later}
