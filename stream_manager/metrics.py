"""What Prometheus sees of a manager: whether it leads, what it holds, how its batches and calls go.

Counting on the way of a call is an addition; gauges are read from the state when Prometheus asks.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from neve.stream_manager import reads
from neve.stream_manager.leader import Term
from neve.stream_manager.manager import Manager
from neve.stream_manager.state import State

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class _Durations:
    """One method's histogram. A list and a sum: prometheus_client's own takes longer than a whole read."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BUCKETS_S) + 1)
        self.sum_s = 0.0


class ManagerMetrics(Collector):
    """`registry` is the manager's own, so that several managers fit into one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._by_method: dict[str, _Durations] = {}
        registry.register(self)

    def observe(self, method: str, duration_s: float) -> None:
        found = self._by_method.get(method)
        if found is None:
            found = self._by_method[method] = _Durations()
        found.counts[bisect.bisect_left(LATENCY_BUCKETS_S, duration_s)] += 1
        found.sum_s += duration_s

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            "neve_manager_call_seconds",
            "Time from receiving a call that changes metadata to its answer.",
            labels=["method"],
        )
        bounds = [*map(str, LATENCY_BUCKETS_S), "+Inf"]
        for method, found in self._by_method.items():
            buckets = list(zip(bounds, itertools.accumulate(found.counts), strict=True))
            family.add_metric([method], buckets=buckets, sum_value=found.sum_s)
        yield family


class ManagerCollector(Collector):
    """Gauges of the term, or of the followed state, at the moment of a scrape. Counters are of the current term."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def collect(self) -> Iterator[Metric]:
        term = self._manager.term
        yield _gauge("neve_manager_leading", "1 while this manager leads.", float(term is not None))
        yield CounterMetricFamily("neve_manager_terms", "Terms that this process has led.", self._manager.terms)
        state = term.state if term is not None else self._manager.follower.state
        if state is not None:
            yield _gauge("neve_manager_revision", "Revision of the metadata in memory.", state.revision)
            yield _gauge("neve_streams", "Streams.", len(state.streams))
            yield _gauge("neve_extents", "Extents.", len(state.extents))
            yield _gauge("neve_open_extents", "Extents that are open.", len(state.open_extents))
            yield _gauge(
                "neve_unconfirmed_extents",
                "Sealed extents that some replica has not confirmed.",
                len(state.unconfirmed_extents),
            )
            yield _gauge("neve_sealed_bytes", "Bytes of sealed extents, one copy counted.", state.sealed_bytes)
            yield _gauge("neve_recovery_tasks", "Recovery tasks.", len(state.tasks))
            yield _gauge(
                "neve_under_replicated_extents",
                "Extents with a replica on a dead node or one that has not confirmed its seal.",
                len(reads.lacking_extents(state)),
            )
            yield _nodes(state, term)
        if term is not None:
            for field in dataclasses.fields(term.batcher.counters):
                text = f"Count of {field.name} (metadata batches) in this term."
                value = getattr(term.batcher.counters, field.name)
                yield CounterMetricFamily(f"neve_manager_batch_{field.name}", text, value=value)
            yield CounterMetricFamily(
                "neve_manager_owner_checks", "Reads that proved owners, in this term.", term.owners.reads
            )
            yield _gauge("neve_manager_requests_in_flight", "Requests in flight.", term.pipeline.in_flight)
            yield _gauge("neve_manager_replay_records", "Calls remembered against repetition.", term.replay.count)


def _nodes(state: State, term: Term | None) -> GaugeMetricFamily:
    """Who is suspect only the leader knows: it hears the heartbeats."""
    counts = {"alive": 0, "suspect": 0, "dead": 0}
    for node in state.nodes.values():
        suspect = term is not None and term.part.seems_down(node.node_id)
        counts["dead" if node.dead else "suspect" if suspect else "alive"] += 1
    text = "Nodes by health; a manager that does not lead counts suspect ones as alive."
    family = GaugeMetricFamily("neve_nodes", text, labels=["health"])
    for health, count in counts.items():
        family.add_metric([health], count)
    return family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
