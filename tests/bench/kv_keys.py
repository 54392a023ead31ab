"""Many small keys through the key-value client: load, point reads, a scan, and kill -9 of a server under it all.

    python -m tests.bench.kv_keys                       one million keys
    python -m tests.bench.kv_keys --keys 10000000       needs some 15 GB of disk and a quarter of an hour

Neve as `neve up` starts it: an etcd, a manager of each kind, three nodes, two partition servers with two ranges each;
values of 100 bytes, synced on three replicas. It prints what it measured, in its order; `--json FILE` writes it.
Memory is what the kernel says of each process (VmHWM, its peak, and VmRSS). At the end one partition server is killed
right after more puts: how long each of its ranges did not answer is its lease, and the load by the other server, which
the server's log has with the number of records that it replayed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from neve.client import KeyValueClient
from neve.client.command.core_statistics import Histogram
from neve.client.objects.options import KeyValueOptions
from tests.bench.engine import VALUE_BYTES, Report, small_key
from tests.bench.harness import Progress
from tests.cluster.local_cluster import LocalCluster

PROCESSES = ("--nodes", "3", "--managers", "1", "--partition-managers", "1", "--partition-servers", "2")
SPLIT_KEYS = "4,8,c"  # quarters of hexadecimal
LEASE_TTL_S = 10  # of a partition server, the default
SETTINGS = (f"pserver.lease_ttl_s={LEASE_TTL_S}",)
OPERATION_TIMEOUT_S = 600.0  # a long run may be stopped for a while and go on
WORKERS = 1024
GETS = 100_000
SCANNED_MAX = 1_000_000
REPLAYED = 100_000  # keys that are put once more before the kill
RANGES = (b"1", b"5", b"9", b"d")  # a key in each
LOADED = re.compile(r"partition_loaded partition_id=(\d+) .*replayed=(\d+) .*seconds=([\d.]+)")


def memory_mib(pid: int) -> dict[str, float]:
    """VmHWM and VmRSS of a process; nothing if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return {}
    fields = (line.split() for line in lines if line.startswith(("VmHWM", "VmRSS")))
    return {name.rstrip(":"): int(kib) / 1024 for name, kib, _ in fields}


class Bench:
    def __init__(self, cluster: LocalCluster, kv: KeyValueClient, keys: int, report: Report) -> None:
        self._cluster = cluster
        self._kv = kv
        self._keys = keys
        self._report = report
        self._rng = random.Random(1)
        self._value = random.Random(2).randbytes(VALUE_BYTES // 2) * 2

    async def _many(
        self, count: int, workers: int, what: str, one: Callable[[int], Awaitable[object]], first: int = 0
    ) -> float:
        """Operations a second."""
        numbers = iter(range(first, first + count))
        progress = Progress("kv_keys", sys.stderr)

        async def work() -> None:
            for number in numbers:
                await one(number)
                if not number % 1000:
                    progress.show(number - first, count, what)

        begun_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(work())
        progress.clear()
        return count / (time.perf_counter() - begun_s)

    async def _put(self, number: int) -> None:
        await self._kv.put(small_key(number), self._value)

    async def _get(self, _: int) -> None:
        found = await self._kv.get(small_key(self._rng.randrange(self._keys)))
        assert found.value == self._value, found

    def _memory(self, when: str) -> None:
        pids = self._cluster.facts["pids"]
        for name in ("pserver1", "pserver2", "node1"):
            mib = memory_mib(pids[name])
            if mib:  # otherwise it was killed
                self._report.add(f"memory of {name} {when}, peak", mib["VmHWM"], "MiB")
                self._report.add(f"memory of {name} {when}", mib["VmRSS"], "MiB")

    async def run(self) -> None:
        report, keys = self._report, self._keys
        report.add(f"puts of {keys} keys", await self._many(keys, WORKERS, "puts", self._put), "puts/s")
        self._memory("after the puts")
        report.add("gets of random keys, 1024 at a time", await self._many(GETS, WORKERS, "gets", self._get), "gets/s")
        await self._one_at_a_time()
        await self._scan()
        self._memory("after the reads")
        await self._kill()
        self._memory("at the end")

    async def _one_at_a_time(self) -> None:
        histogram = Histogram()
        for _ in range(3000):
            begun_ns = time.perf_counter_ns()
            await self._get(0)
            histogram.record(time.perf_counter_ns() - begun_ns)
        for share in (0.5, 0.99):
            self._report.add(f"one get at a time, p{share * 100:.0f}", histogram.quantile(share) / 1000, "µs")

    async def _scan(self) -> None:
        begun_s = time.perf_counter()
        last, count = b"", 0
        async for info in self._kv.scan(limit=min(self._keys, SCANNED_MAX)):
            assert info.key > last, (info.key, last)
            last = info.key
            count += 1
        took_s = time.perf_counter() - begun_s
        assert count == min(self._keys, SCANNED_MAX), count
        self._report.add(f"scan of {count} keys", count / took_s, "keys/s")

    async def _kill(self) -> None:
        """Of one server, with puts that were acknowledged a moment ago."""
        report = self._report
        log = self._cluster.data / "logs" / "pserver2.log"
        known = len(LOADED.findall(log.read_text(errors="replace")))
        count = min(self._keys, REPLAYED)
        await self._many(count, WORKERS, "puts again", self._put)
        killed_s = time.perf_counter()
        os.kill(self._cluster.facts["pids"]["pserver1"], signal.SIGKILL)
        gaps_s = await asyncio.gather(*(self._answers_after(prefix, killed_s) for prefix in RANGES))
        report.add("kill -9 of a server: longest time until a range took puts", max(gaps_s), "s")
        loads = LOADED.findall(log.read_text(errors="replace"))[known:]
        report.add("ranges that the other one loaded", len(loads), "ranges")
        for partition_id, replayed, seconds in loads:
            report.add(f"load of range {partition_id}", float(seconds), "s")
            report.add(f"records that it replayed, range {partition_id}", int(replayed), "records")
        missing = 0
        numbers = [self._rng.randrange(count) for _ in range(5000)]
        for number in numbers:
            missing += (await self._kv.get(small_key(number))).value != self._value
        report.add("wrong values among 5000 of the last puts", missing, "values")

    async def _answers_after(self, prefix: bytes, killed_s: float) -> float:
        """The longest time without an answer to a put in this range, from the kill on."""
        longest_s, last_s = 0.0, killed_s
        while time.perf_counter() - killed_s < LEASE_TTL_S + 10 or not longest_s:
            await self._kv.put(prefix + b"/after the kill", self._value, timeout_s=120.0)
            now_s = time.perf_counter()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s
            await asyncio.sleep(0.01)
        return longest_s


async def measure(cluster: LocalCluster, keys: int, report: Report) -> None:
    options = KeyValueOptions(operation_timeout_s=OPERATION_TIMEOUT_S)
    managers, name = cluster.facts["partition_managers"], cluster.facts["cluster"]
    async with KeyValueClient(managers, cluster=name, options=options) as kv:
        await Bench(cluster, kv, keys, report).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="neve-bench-"))
    report = Report()
    try:
        with (
            LocalCluster(folder / "neve", *PROCESSES, "--split-keys", SPLIT_KEYS, settings=SETTINGS) as cluster,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(measure(cluster, arguments.keys, report))
    finally:
        shutil.rmtree(folder)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report.rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
