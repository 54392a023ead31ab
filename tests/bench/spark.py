"""Spark's scans beside a plain loop over the client in one process, and beside a raw read of the same files.

A stream of 1 KiB records on one replica, in sealed extents, its disks on this machine; Spark is local[2]. The scan of
metadata reads indexes, the scan with payloads checks every CRC and hands every byte to Spark; both are aggregated
there. What any query costs, however small, has a row of its own. Then the cost of a GiB, in time and in processor time,
and the peak of memory of Spark's processes beside files, over 1 and over 16 extents of a GiB; with --grow also over 2,
4 and 8, and for metadata, too; with --speed nothing of it, which takes 5 GiB of disk instead of 17.

    python -m tests.bench.spark --quick
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import psutil

from tests.bench import harness, processes
from tests.bench.harness import Plan, Settings
from tests.bench.limits import MIB
from tests.bench.node import Rows
from tests.bench.node_rows.samples import Together
from tests.bench.processes import Child
from tests.bench.report import Quantity, at_least, at_most
from tests.bench.stream_rows import cluster as stream_cluster
from tests.cluster.etcd import EtcdCluster
from tests.spark import programs
from tests.spark.driver import SparkDriver

CLUSTER = "bench"
RECORD_BYTES = 1024
FILL_TIMEOUT_S = 1800.0
READ_TIMEOUT_S = 1200.0
MEMORY_EVERY_S = 0.1
CHUNK_BYTES = 4 * MIB
FULL_SHARE = 0.9  # of an extent's size: the last one, and one whose writer ended, are left out

LEAST_BYTES = 2_000 * RECORD_BYTES

METADATA_MIN, PAYLOAD_MIN = 4.0, 1.5
NAMES = {False: "metadata-only scan", True: "payload scan"}
LINEAR_MAX, FLAT_MAX = 1.25, 1.25
GROWTH = {
    "time": LINEAR_MAX,
    "processor time": LINEAR_MAX,
    "memory of Python": FLAT_MAX,
    "memory with Java": FLAT_MAX,
}


class SparkBench:
    def __init__(
        self, spark: SparkDriver, client: Child, manager: str, folder: Path, stream_id: int, extent_bytes: int
    ) -> None:
        self._spark = spark
        self._client = client
        self._manager = manager
        self._folder = folder
        self._stream_id = stream_id
        self._files = sorted(folder.glob("node*/disk*/extents/*/*.ext"))
        said = {"managers": manager, "cluster": CLUSTER, "disks": str(folder / "node*" / "disk*")}
        self._options = {**said, "stream": str(stream_id)}
        listed = {**self._options, "rows": "extents"}
        found = spark.call(programs.rows, options=listed, columns=["extent_id", "length"], order="extent_id")
        self._ids: list[int] = [extent_id for extent_id, length in found if length > FULL_SHARE * extent_bytes]

    def loop(self, extents: int) -> Quantity:
        order = {"case": "loop", "manager": self._manager, "cluster": CLUSTER, "extents": extents}
        rate = self._client.ask({**order, "stream_id": self._stream_id}, timeout_s=READ_TIMEOUT_S)
        return Quantity(rate, "rows/s")

    def raw(self, extents: int) -> Quantity:
        """As many rows as the bytes of these files are, by reading them and nothing else."""
        wanted = {f"{extent_id:016x}.ext" for extent_id in self._ids[:extents]}
        size_bytes = 0
        begun_s = time.perf_counter()
        for path in self._files:
            if path.name in wanted:
                with path.open("rb", buffering=0) as file:
                    while chunk := file.read(CHUNK_BYTES):
                        size_bytes += len(chunk)
        return Quantity(size_bytes / (RECORD_BYTES + 8) / (time.perf_counter() - begun_s), "rows/s")

    def scan(self, extents: int, *, payload: bool) -> dict[str, Quantity]:
        """Rows a second; time and processor time for each GiB; the peak of memory of Python's processes, and of all."""
        options = {key: value for key, value in self._options.items() if key != "stream"}
        options["extents"] = ",".join(map(str, self._ids[:extents]))
        before_s = _cpu_s()
        with _Peak() as peak:
            begun_s = time.perf_counter()
            seen: dict[str, Any] = self._spark.call(
                programs.scan_all, timeout_s=READ_TIMEOUT_S, options=options, payload=payload
            )
            took_s = time.perf_counter() - begun_s
        gib = seen["rows"] * (RECORD_BYTES + 8) / (1 << 30)
        assert seen["bytes"] == seen["rows"] * RECORD_BYTES, seen
        return {
            "rate": Quantity(seen["rows"] / took_s, "rows/s"),
            "time": Quantity(took_s / gib, "s/GiB"),
            "processor time": Quantity((_cpu_s() - before_s) / gib, "s/GiB"),
            "memory of Python": Quantity(peak.python_bytes / MIB, "MiB"),
            "memory with Java": Quantity(peak.bytes / MIB, "MiB"),
        }

    def least(self, stream_id: int) -> Quantity:
        """What a query takes that has next to nothing to read."""
        options = {**self._options, "stream": str(stream_id)}
        begun_s = time.perf_counter()
        self._spark.call(programs.scan_all, timeout_s=READ_TIMEOUT_S, options=options, payload=False)
        return Quantity(time.perf_counter() - begun_s, "s")


class _Peak:
    """Of memory that is not a file's: of Spark's Python processes, and of all of its processes."""

    def __init__(self) -> None:
        self.bytes = self.python_bytes = 1
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._ends.wait(MEMORY_EVERY_S):
            used = {False: 0, True: 0}
            for process, is_java in _spark_processes():
                with contextlib.suppress(psutil.Error):  # it has ended
                    memory = process.memory_info()
                    used[is_java] += memory.rss - memory.shared
            self.python_bytes = max(self.python_bytes, used[False])
            self.bytes = max(self.bytes, sum(used.values()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


def _spark_processes() -> Iterator[tuple[psutil.Process, bool]]:
    """Processes below this one that are Java's (True), or Spark's Python."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            is_java = bool(words) and words[0].endswith("java")
            if is_java or any("pyspark" in word for word in words):
                yield process, is_java


def _cpu_s() -> float:
    """Processor time that Spark's processes have used so far, with what they waited for of theirs that have ended."""
    total_s = 0.0
    for process, _ in _spark_processes():
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


@contextmanager
def prepare(settings: Settings, *, grow: bool = False, speed: bool = False) -> Iterator[Plan]:
    extent_bytes = settings.pick(1 << 30, quick=64 * MIB)
    sizes = settings.pick((1, 2, 4, 8, 16), quick=(1, 2, 4, 8))
    middle = sizes[2]
    largest = middle if speed else sizes[-1]
    rows = Rows()
    with ExitStack() as stack:
        spark = SparkDriver()
        stack.callback(spark.close)
        spark.call(programs.total, count=1000)  # Java and its Python are there before anything is measured
        etcd = stack.enter_context(EtcdCluster())
        folder = settings.directory / CLUSTER
        cluster = stack.enter_context(stream_cluster.start(folder, CLUSTER, etcd.endpoints))
        client = stack.enter_context(processes.start("tests.bench.spark_client"))
        order = {"case": "fill", "manager": cluster.manager, "cluster": CLUSTER, "record_bytes": RECORD_BYTES}
        size = {"size_bytes": (largest + 1) * extent_bytes, "extent_bytes": extent_bytes}
        stream_id = int(client.ask({**order, **size}, timeout_s=FILL_TIMEOUT_S))
        size["size_bytes"] = LEAST_BYTES
        least_id = int(client.ask({**order, **size}, timeout_s=FILL_TIMEOUT_S))
        bench = SparkBench(spark, client, cluster.manager, folder, stream_id, extent_bytes)
        for payload in (False, True):
            bench.scan(middle, payload=payload)  # Java has compiled it, and its heap is as large as it becomes
        _speed(rows, bench, middle)
        rows.measure(f"a query of {LEAST_BYTES // RECORD_BYTES:,} rows", partial(bench.least, least_id))
        if not speed:
            _growth(rows, bench, sizes if grow else (sizes[0], sizes[-1]), extent_bytes, payload=True)
        if grow:
            _growth(rows, bench, sizes, extent_bytes, payload=False)
        yield rows.plan()


def _speed(rows: Rows, bench: SparkBench, extents: int) -> None:
    loop = rows.measure("a plain loop over the client", lambda: bench.loop(extents))
    raw = rows.measure("a raw read of the same files", lambda: bench.raw(extents))
    rows.compare(raw, loop)
    for payload, least in ((False, METADATA_MIN), (True, PAYLOAD_MIN)):
        take: Callable[[], Quantity] = partial(_rate, bench, extents, payload)
        scan = rows.measure(NAMES[payload], take)
        rows.compare(scan, loop, at_least(least))
        rows.compare(scan, raw, name=f"{scan}, beside the raw read")


def _rate(bench: SparkBench, extents: int, payload: bool) -> Quantity:
    return bench.scan(extents, payload=payload)["rate"]


def _growth(rows: Rows, bench: SparkBench, counts: Sequence[int], extent_bytes: int, *, payload: bool) -> None:
    """Each size against the smallest."""
    runs = {count: Together(partial(bench.scan, count, payload=payload)) for count in counts}
    for what, bound in GROWTH.items():
        names = []
        for count in counts:
            name = f"{NAMES[payload]} of {count * extent_bytes / (1 << 30):g} GiB: {what}"
            names.append(rows.measure(name, partial(runs[count].take, what)))
        for name in names[1:]:
            rows.compare(name, names[0], at_most(bound))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--grow", action="store_true")
    how.add_argument("--speed", action="store_true")
    mine, rest = parser.parse_known_args(arguments)
    return harness.main("spark", __doc__, partial(prepare, grow=mine.grow, speed=mine.speed), rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
