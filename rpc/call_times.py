"""The durations of a server's calls by method, for Prometheus. One observation is a bisection and two additions."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

SLOW_CALL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class _Durations:
    """One method's histogram, as a list and a sum. prometheus_client's own takes longer than a whole read."""

    __slots__ = ("counts", "sum_s")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        self.sum_s = 0.0


class CallTimes(Collector):
    """The histograms of one server. `registry` is the server's own, so that a process may have several servers."""

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, *, buckets_s: Sequence[float] = SLOW_CALL_BUCKETS_S
    ) -> None:
        self._name = name
        self._text = text
        self._buckets_s = buckets_s
        self._by_method: dict[str, _Durations] = {}
        registry.register(self)

    def observe(self, method: str, duration_s: float) -> None:
        found = self._by_method.get(method)
        if found is None:
            found = self._by_method[method] = _Durations(len(self._buckets_s))
        found.counts[bisect.bisect_left(self._buckets_s, duration_s)] += 1
        found.sum_s += duration_s

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=["method"])
        bounds = [*map(str, self._buckets_s), "+Inf"]
        for method, found in self._by_method.items():
            buckets = list(zip(bounds, itertools.accumulate(found.counts), strict=True))
            family.add_metric([method], buckets=buckets, sum_value=found.sum_s)
        yield family
