"""A client and a cluster of one etcd, one manager and three nodes, all processes, beside the limits of the same run.

Every stream has three replicas, and the client library is used as a program would use it. Appends that are not synced
go to the nodes' page cache: samples stay below the bytes at which a node begins to write back, and find free pages that
no hypervisor has taken back (`limits.claim_free_pages`). Reads are of sealed
extents in the page cache, and the client checks every block; its cache is off.

    python -m tests.bench.stream --quick
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench import harness, limits, processes
from tests.bench.baselines import bare_writes, tcp_pair
from tests.bench.baselines.bare_writes import BareWrites
from tests.bench.baselines.tcp_pair import TcpPair
from tests.bench.harness import Plan, Settings
from tests.bench.limits import KIB, MIB, megabytes_per_second, microseconds
from tests.bench.node import FDATASYNC_FACTOR, ONE_BY_ONE, PING_PONG_FACTOR, RANDOM_READ_WINDOW, Rows
from tests.bench.node_rows import disk as node_disk
from tests.bench.node_rows.samples import Together
from tests.bench.processes import Child
from tests.bench.report import Quantity, at_least, at_most
from tests.bench.stream_rows import cluster as stream_cluster
from tests.bench.stream_rows.cluster import NODES, BenchCluster
from tests.bench.stream_rows.writes import WARM_UP_BYTES
from tests.cluster.etcd import EtcdCluster

LARGE_BYTES = 1 * MIB
SMALL_BYTES = 1 * KIB
RANDOM_READ_BYTES = 4 * KIB

FEW_STREAMS, MANY_STREAMS = 64, 512
MANY_STREAMS_BYTES_PER_S = 48 * MIB  # more than they ever append, of each replica

ASK_TIMEOUT_S = 600.0  # for a sample and what it prepares


class StreamBench:
    """Orders to the client's process, about one cluster."""

    def __init__(self, client: Child, cluster: BenchCluster, *, deletes: bool = True) -> None:
        self._client = client
        self._cluster = cluster
        self._deletes = deletes

    def ask(self, case: str, **arguments: Any) -> float:
        order = {"case": case, "manager": self._cluster.manager, "cluster": self._cluster.name, **arguments}
        return self._client.ask(order, timeout_s=ASK_TIMEOUT_S)

    def keep(self) -> None:
        """What was made by now stays."""
        self._cluster.keep()

    def append(self, *, total_bytes: int) -> dict[str, Quantity]:
        as_found = self._claim_pages(total_bytes)
        self._cluster.touch_scratch()
        before_s = self._cpu_s()
        rate = self.ask("append", block_bytes=LARGE_BYTES, total_bytes=total_bytes, delete=self._deletes)
        cpu = cpu_of_1_mib(self._cpu_s() - before_s, WARM_UP_BYTES + total_bytes)
        if self._deletes:
            self._cluster.collect()
        return {"rate": megabytes_per_second(rate, 1.0), "cpu": cpu, "as found": as_found}

    def append_small(self, case: str, *, total_bytes: int) -> Quantity:
        self._claim_pages(total_bytes)
        rate = self.ask(case, block_bytes=SMALL_BYTES, total_bytes=total_bytes)
        return self._collected(megabytes_per_second(rate, 1.0))

    def latency(self, *, sync: bool, duration_s: float) -> Quantity:
        took_s = self.ask("latency", block_bytes=SMALL_BYTES, sync=sync, duration_s=duration_s)
        return self._collected(microseconds(took_s))

    def many_streams(self, streams: int, *, duration_s: float) -> Quantity:
        """Every fourth append of 1 KiB begins a page, in each replica's file."""
        self._claim_pages(int(duration_s * MANY_STREAMS_BYTES_PER_S))
        return Quantity(
            self.ask("many_streams", streams=streams, block_bytes=SMALL_BYTES, duration_s=duration_s), "appends/s"
        )

    def make_sealed(self, *, size_bytes: int, block_bytes: int) -> int:
        return int(self.ask("make_sealed", size_bytes=size_bytes, block_bytes=block_bytes))

    def read_through(self, stream_id: int, *, total_bytes: int) -> dict[str, Quantity]:
        """The reader has a core, and the nodes have the others: so have the two ends of the C pair, which never sleep
        for long enough to be put on one."""
        with processes.apart(self._client.pid, self._cluster.node_pids):
            return self.read_through_anywhere(stream_id, total_bytes=total_bytes)

    def read_through_anywhere(self, stream_id: int, *, total_bytes: int) -> dict[str, Quantity]:
        """The same, wherever the scheduler puts them."""
        before_s = self._cpu_s()
        rate = self.ask("read_through", stream_id=stream_id, passes=1)
        cpu = cpu_of_1_mib(self._cpu_s() - before_s, total_bytes)
        return {"rate": megabytes_per_second(rate, 1.0), "cpu": cpu}

    def random_reads(self, stream_id: int, *, window: int, duration_s: float) -> Quantity:
        return Quantity(self.ask("random_reads", stream_id=stream_id, window=window, duration_s=duration_s), "reads/s")

    def _claim_pages(self, total_bytes: int) -> Quantity:
        """For every replica's copy."""
        return limits.claim_free_pages(size_bytes=NODES * (WARM_UP_BYTES + total_bytes))

    def _cpu_s(self) -> float:
        """Of the client and all nodes."""
        return self._client.cpu_s() + self._cluster.cpu_s()

    def _collected(self, quantity: Quantity) -> Quantity:
        if self._deletes:
            self._cluster.collect()
        return quantity


def cpu_of_1_mib(cpu_s: float, total_bytes: float) -> Quantity:
    """The kernel counts ticks: what took less than one may have taken none."""
    return microseconds(max(cpu_s, 1 / os.sysconf("SC_CLK_TCK")) * MIB / total_bytes)


def tcp_bandwidth(pair: TcpPair, *, duration_s: float) -> dict[str, Quantity]:
    """The limit, and what 1 MiB takes of both ends' processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    rate = limits.tcp_bandwidth(pair, duration_s=duration_s)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"rate": rate, "cpu": cpu_of_1_mib(cpu_s, rate.value * 1e6 * duration_s)}


def fdatasync_each_at_nodes(directory: Path, *, duration_s: float) -> Quantity:
    """Appends to three replicas when each is synced by itself: a bare loop for each node, all at once, one disk."""
    with ThreadPoolExecutor(NODES) as threads:
        loop = partial(
            node_disk.fdatasync_each, directory, files=FEW_STREAMS, block_bytes=SMALL_BYTES, duration_s=duration_s
        )
        rates = [future.result().value for future in [threads.submit(loop) for _ in range(NODES)]]
    return Quantity(sum(rates) / len(rates), "appends/s")


@contextmanager
def prepare(settings: Settings) -> Iterator[Plan]:
    rows = Rows()
    pair = tcp_pair.build(settings.directory)
    limit_s = settings.pick(1.0, quick=0.3)
    together = Together(lambda: tcp_bandwidth(pair, duration_s=limit_s))
    tcp = rows.measure(limits.tcp_name(pair), lambda: together.take("rate"))
    tcp_cpu = rows.measure("processor time of 1 MiB, loopback TCP", lambda: together.take("cpu"))
    ping_pong = rows.measure(limits.ping_pong_name(pair), lambda: limits.tcp_ping_pong(pair, duration_s=limit_s))
    with ExitStack() as stack:
        endpoints = stack.enter_context(EtcdCluster()).endpoints
        client = stack.enter_context(processes.start("tests.bench.stream_rows.client"))
        main = StreamBench(
            client, stack.enter_context(stream_cluster.start(settings.directory / "main", "bench", endpoints))
        )
        large_bytes = settings.pick(192 * MIB, quick=64 * MIB)  # with all else, below the node's dirty_bytes_soft
        cached = stack.enter_context(
            stream_cluster.start(settings.directory / "cached", "cached", endpoints, scratch_bytes=2 * large_bytes)
        )
        _reads(rows, settings, main, tcp, tcp_cpu)
        one_by_one = StreamBench(
            client,
            stack.enter_context(
                stream_cluster.start(settings.directory / "one_by_one", "one_by_one", endpoints, settings=ONE_BY_ONE)
            ),
        )
        _many_streams(rows, settings, main, one_by_one)
        main.keep()
        over_cached = StreamBench(client, cached, deletes=False)
        _appends(rows, settings, main, over_cached, large_bytes, tcp, tcp_cpu)
        bare = stack.enter_context(bare_writes.start(settings.directory / "bare", nodes=NODES))
        _one_at_a_time(rows, settings, main, bare, ping_pong)
        yield rows.plan()


def _appends(
    rows: Rows,
    settings: Settings,
    main: StreamBench,
    cached: StreamBench,
    large_bytes: int,
    tcp: str,
    tcp_cpu: str,
) -> None:
    small_bytes = settings.pick(128 * MIB, quick=32 * MIB)
    together = Together(lambda: main.append(total_bytes=large_bytes))
    large = rows.measure("append 1 MiB, no sync", lambda: together.take("rate"))
    large_cpu = rows.measure("processor time of 1 MiB, appended", lambda: together.take("cpu"))
    rows.measure("fresh memory, as the machine has it", lambda: together.take("as found"))
    over_cached = rows.measure(
        "append 1 MiB, no sync, over cached pages", lambda: cached.append(total_bytes=large_bytes)["rate"]
    )
    many = rows.measure(
        "append_many of 1 KiB, no sync", lambda: main.append_small("append_many", total_bytes=small_bytes)
    )
    futures = rows.measure(
        "append 1 KiB, a future each, no sync", lambda: main.append_small("submit", total_bytes=small_bytes)
    )
    for name, rate in (("appends of 1 KiB by append_many", many), ("appends of 1 KiB, a future each", futures)):
        rows.derive(name, "appends/s", lambda rate: rate * 1e6 / SMALL_BYTES, rate)
    # Three copies to fresh pages cost the kernel more than all else; what that takes away has its own target below.
    rows.compare(over_cached, tcp, at_least(0.11))
    rows.compare(large, tcp)
    rows.compare(large, over_cached, at_least(0.8), name="append 1 MiB, no sync, fresh against cached pages")
    rows.compare(many, large, at_least(0.65))
    rows.compare(futures, many, at_least(0.6))
    rows.compare(large_cpu, tcp_cpu)


def _one_at_a_time(rows: Rows, settings: Settings, main: StreamBench, loops: BareWrites, ping_pong: str) -> None:
    """Beside the least that Python takes for it: loops that write what they get to a file, without any protocol."""
    duration_s = settings.pick(1.0, quick=0.3)
    syncs = settings.pick(200, quick=50)
    fdatasync = rows.measure(
        "fdatasync 4 KiB, fallocated", lambda: limits.fdatasync_fallocated(settings.directory, count=syncs)
    )
    unsynced = rows.measure(
        "one append of 1 KiB, no sync, p50", lambda: main.latency(sync=False, duration_s=duration_s)
    )
    bare = rows.measure(
        f"1 KiB to {NODES} bare loops at once, p50", lambda: microseconds(loops.p50_s(duration_s=duration_s))
    )
    synced = rows.measure("one append of 1 KiB, sync, p50", lambda: main.latency(sync=True, duration_s=duration_s))
    allowed = rows.derive(
        f"{PING_PONG_FACTOR:g} × ping-pong + {FDATASYNC_FACTOR:g} × fdatasync",
        "µs",
        lambda ping_pong, fdatasync: PING_PONG_FACTOR * ping_pong + FDATASYNC_FACTOR * fdatasync,
        ping_pong,
        fdatasync,
    )
    rows.compare(unsynced, ping_pong, at_most(PING_PONG_FACTOR))
    rows.compare(unsynced, bare, name="one append of 1 KiB, no sync, against bare loops")
    rows.compare(bare, ping_pong)
    rows.compare(synced, allowed, at_most(1))


def _many_streams(rows: Rows, settings: Settings, main: StreamBench, one_by_one: StreamBench) -> None:
    """Synced appends, one in flight for each stream: journals against an fdatasync for each append and replica.

    As in the node's benchmark, the targets are gains over the same cluster without its journals; bare loops without
    any network stand beside them.
    """
    duration_s = settings.pick(2.0, quick=0.5)
    targets = {FEW_STREAMS: at_least(5), MANY_STREAMS: at_least(8)}
    directory = settings.directory
    bare = rows.measure(
        f"{NODES} loops of 1 KiB and fdatasync, {FEW_STREAMS} files each",
        lambda: fdatasync_each_at_nodes(directory, duration_s=duration_s),
    )
    single = rows.measure(
        f"one loop of 1 KiB and fdatasync, {FEW_STREAMS} files",
        lambda: node_disk.fdatasync_each(directory, files=FEW_STREAMS, block_bytes=SMALL_BYTES, duration_s=duration_s),
    )
    for count in settings.pick((FEW_STREAMS, MANY_STREAMS), quick=(FEW_STREAMS,)):  # to open hundreds takes a while
        for bench in (main, one_by_one):
            bench.many_streams(count, duration_s=0.1)  # opens them
        what = f"{count} streams, 1 KiB, sync, one in flight each"
        name = rows.measure(what, partial(main.many_streams, count, duration_s=duration_s))
        each = rows.measure(
            f"{what}, fdatasync for each, one by one", partial(one_by_one.many_streams, count, duration_s=duration_s)
        )
        rows.compare(name, each, targets[count])
        rows.compare(name, bare, name=f"{what}, against {NODES} loops")
        rows.compare(name, single, name=f"{what}, against one loop")


def _reads(rows: Rows, settings: Settings, main: StreamBench, tcp: str, tcp_cpu: str) -> None:
    large_bytes = settings.pick(1024 * MIB, quick=128 * MIB)
    small_bytes = settings.pick(256 * MIB, quick=32 * MIB)
    duration_s = settings.pick(1.0, quick=0.4)
    large_id = main.make_sealed(size_bytes=large_bytes, block_bytes=LARGE_BYTES)
    small_id = main.make_sealed(size_bytes=small_bytes, block_bytes=RANDOM_READ_BYTES)
    together = Together(lambda: main.read_through(large_id, total_bytes=large_bytes))
    through = rows.measure(f"sealed {large_bytes // MIB} MiB, read through", lambda: together.take("rate"))
    through_cpu = rows.measure("processor time of 1 MiB, read", lambda: together.take("cpu"))
    anywhere = rows.measure(
        f"sealed {large_bytes // MIB} MiB, read through, on any core",
        lambda: main.read_through_anywhere(large_id, total_bytes=large_bytes)["rate"],
    )
    rows.compare(through, tcp, at_least(0.5))
    rows.compare(anywhere, tcp)
    rows.compare(through_cpu, tcp_cpu)
    small = rows.measure(
        f"sealed {small_bytes // MIB} MiB of 4 KiB records, read through",
        lambda: main.read_through(small_id, total_bytes=small_bytes)["rate"],
    )
    rows.compare(small, tcp)
    one = rows.measure(
        "random 4 KiB reads, one at a time", lambda: main.random_reads(small_id, window=1, duration_s=duration_s)
    )
    many = rows.measure(
        f"random 4 KiB reads, {RANDOM_READ_WINDOW} in flight",
        lambda: main.random_reads(small_id, window=RANDOM_READ_WINDOW, duration_s=duration_s),
    )
    rows.compare(many, one, at_least(4))


if __name__ == "__main__":
    sys.exit(harness.main("stream", __doc__, prepare))
