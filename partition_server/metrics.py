"""Prometheus metrics of a partition server: durations of calls, and gauges of its partitions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from neve.partition_server.hosted import Phase, Surroundings
from neve.partition_server.lifecycle import Host
from neve.rpc.call_times import CallTimes

CALL_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class ServerMetrics(CallTimes):
    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Time from having the partition of a call to its answer; of Multi and PutMany, from receiving it."
        super().__init__(registry, "neve_partition_call_seconds", text, buckets_s=CALL_BUCKETS_S)
        self._operations = 0
        self._loop = asyncio.get_running_loop()

    @contextlib.contextmanager
    def timed(self, method: str) -> Iterator[None]:
        begun_s = self._loop.time()
        try:
            yield
        finally:
            self.observe(method, self._loop.time() - begun_s)

    def count_operations(self, count: int) -> None:
        self._operations += count

    def collect(self) -> Iterator[Metric]:
        yield from super().collect()
        yield CounterMetricFamily(
            "neve_partition_multi_operations", "Operations in Multi and PutMany frames.", self._operations
        )


class ServerCollector(Collector):
    """Gauges, computed at each scrape."""

    def __init__(self, host: Host, surroundings: Surroundings) -> None:
        self._host = host
        self._around = surroundings

    def collect(self) -> Iterator[Metric]:
        host, around = self._host, self._around
        by_phase = GaugeMetricFamily("neve_partitions", "Partitions of this server, by phase.", labels=["phase"])
        for phase in Phase:
            count = sum(hosted.phase is phase for hosted in host.hosted.values())
            by_phase.add_metric([phase.value], count)
        yield by_phase
        yield _gauge("neve_partition_map_version", "Version of the newest region map that it knows.", host.version)
        yield _gauge("neve_partition_held_calls", "Calls that wait for a partition to be served.", host.held)
        loads = sum(hosted.loads for hosted in host.hosted.values())
        yield _gauge("neve_partition_loads", "Loads of the partitions that it has now.", loads)
        load_s = max((hosted.load_s for hosted in host.hosted.values()), default=0.0)
        yield _gauge("neve_partition_load_seconds", "The longest last load of its partitions.", load_s)
        memory, cache = around.memory, around.cache
        yield _gauge("neve_partition_memtable_bytes", "Bytes in memtables.", memory.used_bytes)
        yield _gauge("neve_partition_cache_bytes", "Bytes in the block cache.", cache.used_bytes)
        yield CounterMetricFamily("neve_partition_cache_hits", "Blocks found in the cache.", cache.hits)
        yield CounterMetricFamily("neve_partition_cache_misses", "Blocks that had to be read.", cache.misses)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
