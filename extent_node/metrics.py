"""A node's Prometheus metrics: the store's counters and gauges, read at each scrape, and histograms of call times.

Counting on the hot path is a plain addition in the store's `Counters`. While blocks are appended, nothing here runs but
one observation per call, which is a bisection and two additions.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from neve.extent_node.store.storage import Storage
from neve.proto import extent_node_pb2 as pb
from neve.rpc.wire.server import WireServer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LATENCY_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Times(Collector):
    """A histogram of durations. prometheus_client's own takes a lock for each of its counters."""

    __slots__ = ("_name", "_text", "counts", "sum_s")

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self.counts = [0] * (len(LATENCY_BUCKETS_S) + 1)  # of each bucket alone; the last one has no upper bound
        self.sum_s = 0.0
        registry.register(self)

    def observe(self, took_s: float) -> None:
        self.counts[bisect_left(LATENCY_BUCKETS_S, took_s)] += 1
        self.sum_s += took_s

    def collect(self) -> Iterator[Metric]:
        up_to, buckets = 0, []
        for bound, count in zip((*map(str, LATENCY_BUCKETS_S), "+Inf"), self.counts, strict=True):
            up_to += count
            buckets.append((bound, up_to))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self.sum_s)


class NodeMetrics:
    """Histograms of the handlers. Each node has its own `registry`, so that several nodes fit into one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.append_s = Times(
            "neve_node_append_seconds", "Time from receiving an AppendBlock call to its answer.", registry
        )
        self.read_s = Times(
            "neve_node_read_seconds",
            "Time from receiving a ReadBlock call that does not follow to its answer.",
            registry,
        )


class StoreCollector(Collector):
    """Converts counters and gauges into metrics at each scrape.

    `counters` are dataclasses of numbers, by the name of the part that counts: "node", "copy", "scrub".
    """

    def __init__(self, storage: Storage, wire: WireServer, counters: Mapping[str, DataclassInstance]) -> None:
        self._storage = storage
        self._wire = wire
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        for part, counters in self._counters.items():
            for field in dataclasses.fields(counters):
                value = getattr(counters, field.name)
                if isinstance(value, int):
                    text = f"Count of {field.name.replace('_', ' ')} ({part}) since the process started."
                    yield CounterMetricFamily(f"neve_{part}_{field.name}", text, value=value)
        store = self._storage.state
        yield GaugeMetricFamily("neve_node_dirty_bytes", "Bytes written and not yet synced.", store.dirty.bytes_now)
        yield GaugeMetricFamily(
            "neve_node_journal_failed",
            "1 when the journal takes nothing more.",
            float(bool(store.journal.failed)),
        )
        yield GaugeMetricFamily("neve_node_connections", "Open wire connections.", len(self._wire.connections))
        yield GaugeMetricFamily(
            "neve_node_request_bytes", "Bytes of wire requests that are not answered yet.", self._wire.request_bytes
        )
        capacity = GaugeMetricFamily("neve_disk_capacity_bytes", "Size of the disk.", labels=["disk"])
        free = GaugeMetricFamily("neve_disk_free_bytes", "Free bytes of the disk.", labels=["disk"])
        extents = GaugeMetricFamily("neve_disk_extents", "Replicas on the disk.", labels=["disk"])
        writable = GaugeMetricFamily("neve_disk_writable", "1 when the disk takes appends.", labels=["disk"])
        for disk in self._storage.inventory.disks():
            label = [disk.disk_uuid]
            capacity.add_metric(label, disk.capacity_bytes)
            free.add_metric(label, disk.free_bytes)
            extents.add_metric(label, disk.extents)
            writable.add_metric(label, float(disk.state == pb.DiskInfo.WRITABLE))
        yield from (capacity, free, extents, writable)
