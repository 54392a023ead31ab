"""The storage engine of one partition, without anything in front of it: puts, gets, scans, flush, merge, load, memory.

    python -m tests.bench.engine                      half a million small keys
    python -m tests.bench.engine --keys 10000000      as many as you like

One cluster of etcd, a manager and three nodes, synced appends. The partition runs in this process, as in a server. It
prints what it measured, in its order; `--json FILE` writes it. A watcher notes for how long the loop was held at most,
since background work shares it with calls.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import uvloop

from neve.client import Client
from neve.client.streams.options import ClientOptions
from neve.client.streams.writer_group import WriterGroup
from neve.partition_server import python_gc as garbage
from neve.partition_server.engine.config import READ_BYTES, EngineConfig
from neve.partition_server.engine.engine import Partition, PartitionStreams, Puts
from neve.partition_server.engine.memory import MemoryBudget
from neve.partition_server.engine.puts import Results
from neve.partition_server.tables.block_cache import BlockCache
from neve.proto import partition_manager_pb2 as pm
from neve.proto.errors import NotFound
from neve.rpc.limits import MIB
from tests.bench.harness import Progress
from tests.bench.stream_rows import cluster as stream_cluster
from tests.cluster.etcd import EtcdCluster

GROUP = 128  # puts that come together, as in a frame of the key-value client
GROUPS_IN_FLIGHT = 8
CACHE_BYTES = 64 * MIB
MEMORY_BYTES = 256 * MIB
VALUE_BYTES = 100
LEASE_TTL_S = 300  # a long run may be stopped for a while and go on


def small_key(number: int) -> bytes:
    """Spread, so that keys do not come in order: 16 bytes."""
    return b"%016x" % (number * 0x9E3779B97F4A7C15 & (1 << 64) - 1)


class Report:
    def __init__(self) -> None:
        self.rows: dict[str, float] = {}

    def add(self, name: str, value: float, unit: str) -> None:
        self.rows[f"{name} [{unit}]"] = value
        print(f"  {name:<58} {value:>14,.1f} {unit}", flush=True)

    def memory(self, when: str) -> None:
        status = Path("/proc/self/status").read_text()
        resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        self.add(f"resident memory {when}", resident / 1024, "MiB")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.add(f"peak memory {when}", peak / 1024, "MiB")


class LoopWatch:
    """How long the loop was held at most since it was last asked: by processor time of its thread, since on a busy
    machine the time on the clock tells of the others."""

    def __init__(self) -> None:
        self._worst_s = 0.0
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            before_s = time.thread_time()
            await asyncio.sleep(0)
            self._worst_s = max(self._worst_s, time.thread_time() - before_s)
            await asyncio.sleep(0.0005)

    def worst_ms(self) -> float:
        worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s * 1000

    def stop(self) -> None:
        self._task.cancel()


class Bench:
    def __init__(self, client: Client, region: pm.RegionRecord, report: Report) -> None:
        self._client = client
        self._region = region
        self._report = report
        self._group: WriterGroup | None = None

    async def load(self) -> Partition:
        region = self._region
        self._group = await self._client.writer_group(
            (region.log_stream_id, region.row_stream_id, region.meta_stream_id)
        ).open()
        log, row, meta = self._group.writers
        return await Partition.load(
            region,
            PartitionStreams(log, row, meta, self._client, self._group.ensure),
            config=EngineConfig(),
            clock=lambda: int(time.time() * 1000),
            rng=random.Random(1),
            cache=BlockCache(CACHE_BYTES),
            memory=MemoryBudget(MEMORY_BYTES),
        )

    async def drop(self, partition: Partition) -> None:
        """As a crash does, but for the lock, whose lease one would have to wait for."""
        await partition.close()
        assert self._group is not None
        await self._group.abort()

    async def puts(self, partition: Partition, first: int, count: int, value: bytes) -> float:
        """Puts a second: some groups in flight, each as large as a frame of a client."""
        began_s = time.perf_counter()
        pending: deque[asyncio.Future[Results]] = deque()
        progress = Progress("engine", sys.stderr)
        for at in range(first, first + count, GROUP):
            numbers = range(at, min(at + GROUP, first + count))
            puts = Puts([small_key(number) for number in numbers], [value] * len(numbers), (), 0, 0, numbers)
            pending.append(partition.start_puts(puts))
            if len(pending) >= GROUPS_IN_FLIGHT:
                await pending.popleft()
                progress.show(at - first, count, "puts")
        while pending:
            await pending.popleft()
        progress.clear()
        return count / (time.perf_counter() - began_s)

    async def gets(self, partition: Partition, keys: list[bytes]) -> float:
        """Microseconds a get, one after the other."""
        began_s = time.perf_counter()
        for key in keys:
            await partition.get(key)
        return (time.perf_counter() - began_s) * 1e6 / len(keys)

    async def run(self, keys: int) -> None:
        report = self._report
        rng = random.Random(2)
        watch = LoopWatch()
        partition = await self.load()
        report.add("puts of 1 KiB", await self.puts(partition, keys, 30_000, bytes(1024)), "puts/s")
        report.add("loop held at most, while putting", watch.worst_ms(), "ms")
        value = random.Random(3).randbytes(VALUE_BYTES // 2) * 2
        report.add(f"puts of {VALUE_BYTES} B, {keys} keys", await self.puts(partition, 0, keys, value), "puts/s")
        report.add("loop held at most, while putting and flushing", watch.worst_ms(), "ms")
        report.memory("after the puts")
        await self.drop(partition)

        began_s = time.perf_counter()
        partition = await self.load()
        took_s = time.perf_counter() - began_s
        replayed = sum(map(len, partition._store.view.memtables))
        report.add("load after a crash", took_s, "s")
        report.add("entries in memory after it", replayed, "entries")
        report.add("loop held at most, while loading", watch.worst_ms(), "ms")

        entries = sum(len(memtable) for memtable in partition._store.view.memtables)
        began_s = time.perf_counter()
        await partition.flush()
        if entries:
            report.add("flush", (time.perf_counter() - began_s) * 1e6 / entries, "µs/entry")
        report.add("tables", len(partition._store.view.tables), "tables")
        sample = [small_key(rng.randrange(keys)) for _ in range(3000)]
        report.add("get, cold, one at a time", await self.gets(partition, sample), "µs")
        report.add("get, again", await self.gets(partition, sample), "µs")
        began_s = time.perf_counter()
        for number in range(3000):
            try:
                await partition.get(b"nobody%010d" % number)
            except NotFound:
                continue
        report.add("get of what is not there", (time.perf_counter() - began_s) * 1e6 / 3000, "µs")
        watch.worst_ms()
        table_entries = sum(table.footer.entries for table in partition._store.view.tables)
        began_s = time.perf_counter()
        await partition.compact(full=True)
        report.add("merge of all tables", (time.perf_counter() - began_s) * 1e6 / table_entries, "µs/entry")
        report.add("loop held at most, while merging", watch.worst_ms(), "ms")
        began_s = time.perf_counter()
        found, continuation = 0, b""
        while found < min(keys, 200_000):
            page = await partition.scan(limit=1000, continuation=continuation)
            found += len(page.infos)
            continuation = page.continuation
            if not continuation:
                break
        report.add("scan", found / (time.perf_counter() - began_s), "keys/s")
        report.add(
            "get, one table, cold",
            await self.gets(partition, [small_key(rng.randrange(keys)) for _ in range(3000)]),
            "µs",
        )
        table = partition._store.view.tables[0]
        report.add("index and filters in memory", table.memory_bytes / table.footer.entries, "B/entry")
        report.add("stored, of each raw byte", table.size_bytes / max(1, table.footer.raw_bytes), "B")
        report.memory("at the end")
        await self.drop(partition)
        began_s = time.perf_counter()
        partition = await self.load()
        report.add("load of tables alone", time.perf_counter() - began_s, "s")
        await self.drop(partition)
        watch.stop()


@asynccontextmanager
async def region_on(client: Client) -> AsyncIterator[pm.RegionRecord]:
    ids = [(await client.create_stream(replicas=3, lock="partition/1")).id for _ in range(3)]
    yield pm.RegionRecord(
        format=1, partition_id=1, version=1, log_stream_id=ids[0], row_stream_id=ids[1], meta_stream_id=ids[2]
    )


async def measure(manager: str, cluster: str, report: Report, keys: int) -> None:
    options = ClientOptions(lease_ttl_s=LEASE_TTL_S, read_bytes=READ_BYTES)
    async with Client([manager], cluster=cluster, options=options) as client, region_on(client) as region:
        await Bench(client, region, report).run(keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", action="store_true", help="of this process, to standard output")
    arguments = parser.parse_args()
    garbage.tune()  # as a server does
    folder = Path(tempfile.mkdtemp(prefix="neve-bench-"))
    report = Report()
    try:
        with ExitStack() as stack:
            endpoints = stack.enter_context(EtcdCluster()).endpoints
            cluster = stack.enter_context(stream_cluster.start(folder / "main", "bench", endpoints))
            work = measure(cluster.manager, cluster.name, report, arguments.keys)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                if arguments.profile:
                    import cProfile

                    profile = cProfile.Profile()
                    profile.runcall(runner.run, work)
                    profile.print_stats("tottime")
                else:
                    runner.run(work)
    finally:
        shutil.rmtree(folder)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report.rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
