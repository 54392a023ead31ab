"""Spark's scans beside a plain loop over the client in one process, and beside a raw read of the same files.

A stream of 1 KiB records on one replica, in sealed extents, its disks on this machine; Spark is local[2]. The scan of
metadata reads indexes, the scan with payloads checks every CRC and hands every byte to Spark; both are aggregated
there. The same is done over 1 and over 16 extents of a GiB, for the cost of a GiB and for the memory of Spark's
processes: what they have beside files, at its peak.

    python -m tests.bench.spark --quick
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tests.bench import harness, processes, stream_cluster
from tests.bench.harness import Plan, Settings
from tests.bench.limits import MIB
from tests.bench.node import Rows
from tests.bench.node_samples import Together
from tests.bench.processes import Child
from tests.bench.report import Quantity, at_least, at_most
from tests.cluster.etcd import EtcdCluster
from tests.spark import programs
from tests.spark.driver import SparkDriver

CLUSTER = "bench"
RECORD_BYTES = 1024
FILL_TIMEOUT_S = 600.0
READ_TIMEOUT_S = 300.0
MEMORY_EVERY_S = 0.1
CHUNK_BYTES = 4 * MIB

METADATA_MIN, PAYLOAD_MIN = 4.0, 1.5
LINEAR_MAX, FLAT_MAX = 1.25, 1.25


class SparkBench:
    def __init__(self, spark: SparkDriver, client: Child, manager: str, folder: Path, stream_id: int) -> None:
        self._spark = spark
        self._client = client
        self._manager = manager
        self._folder = folder
        self._stream_id = stream_id
        self._files = sorted(folder.glob("node*/disk*/extents/*/*.ext"))
        said = {"managers": manager, "cluster": CLUSTER, "disks": str(folder / "node*" / "disk*")}
        self._options = {**said, "stream": str(stream_id)}
        self._ids: list[int] = [
            row[0]
            for row in spark.call(
                programs.rows, options={**self._options, "rows": "extents"}, columns=["extent_id"], order="extent_id"
            )
        ]

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
        """Rows a second, seconds for each GiB, and the peak of memory."""
        options = {key: value for key, value in self._options.items() if key != "stream"}
        options["extents"] = ",".join(map(str, self._ids[:extents]))
        peak = _Peak()
        with peak:
            begun_s = time.perf_counter()
            seen: dict[str, Any] = self._spark.call(programs.scan_all, options=options, payload=payload)
            took_s = time.perf_counter() - begun_s
        gib = seen["rows"] * (RECORD_BYTES + 8) / (1 << 30)
        assert seen["bytes"] == seen["rows"] * RECORD_BYTES, seen
        return {
            "rate": Quantity(seen["rows"] / took_s, "rows/s"),
            "cost": Quantity(took_s / gib, "s/GiB"),
            "memory": Quantity(peak.bytes / MIB, "MiB"),
        }


class _Peak:
    """Of all processes below this one that are Java's or Spark's Python: memory that is not a file's."""

    def __init__(self) -> None:
        self.bytes = 1
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._ends.wait(MEMORY_EVERY_S):
            self.bytes = max(self.bytes, _memory_bytes())

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


def _memory_bytes() -> int:
    total = 0
    for process in psutil.Process().children(recursive=True):
        try:
            words = " ".join(process.cmdline())
            if "java" in words or "pyspark" in words:
                memory = process.memory_info()
                total += memory.rss - memory.shared
        except psutil.Error:
            continue  # it has ended
    return total


@contextmanager
def prepare(settings: Settings) -> Iterator[Plan]:
    extent_bytes = settings.pick(1 << 30, quick=64 * MIB)
    small, middle, large = settings.pick((1, 4, 16), quick=(1, 4, 8))
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
        size = {"size_bytes": (large + 1) * extent_bytes, "extent_bytes": extent_bytes}
        stream_id = int(client.ask({**order, **size}, timeout_s=FILL_TIMEOUT_S))
        bench = SparkBench(spark, client, cluster.manager, folder, stream_id)
        for payload in (False, True):
            bench.scan(middle, payload=payload)  # Java has compiled it, and its heap is as large as it becomes
        _speed(rows, bench, middle)
        _growth(rows, bench, small, large, extent_bytes)
        yield rows.plan()


def _speed(rows: Rows, bench: SparkBench, extents: int) -> None:
    loop = rows.measure("a plain loop over the client", lambda: bench.loop(extents))
    raw = rows.measure("a raw read of the same files", lambda: bench.raw(extents))
    rows.compare(raw, loop)
    for name, payload, least in (("metadata-only scan", False, METADATA_MIN), ("payload scan", True, PAYLOAD_MIN)):
        take: Callable[[], Quantity] = partial(_rate, bench, extents, payload)
        scan = rows.measure(name, take)
        rows.compare(scan, loop, at_least(least))
        rows.compare(scan, raw, name=f"{name}, beside the raw read")


def _rate(bench: SparkBench, extents: int, payload: bool) -> Quantity:
    return bench.scan(extents, payload=payload)["rate"]


def _growth(rows: Rows, bench: SparkBench, small: int, large: int, extent_bytes: int) -> None:
    sizes = {count: f"{count * extent_bytes / (1 << 30):g} GiB" for count in (small, large)}
    runs = {count: Together(partial(bench.scan, count, payload=True)) for count in (small, large)}
    for what, bound in (("cost", LINEAR_MAX), ("memory", FLAT_MAX)):
        names = [
            rows.measure(f"payload scan of {sizes[count]}: {what}", partial(runs[count].take, what))
            for count in (small, large)
        ]
        rows.compare(names[1], names[0], at_most(bound))


if __name__ == "__main__":
    sys.exit(harness.main("spark", __doc__, prepare))
