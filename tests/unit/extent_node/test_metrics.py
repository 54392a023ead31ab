"""The node's own histogram says what prometheus_client's would."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from neve.extent_node.metrics import LATENCY_BUCKETS_S, Times


def test_times_are_exported_as_a_histogram_of_prometheus() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    times = Times("neve_took_seconds", "How long.", ours)
    histogram = Histogram("neve_took_seconds", "How long.", buckets=LATENCY_BUCKETS_S, registry=theirs)
    for took_s in (0.0, LATENCY_BUCKETS_S[0], 0.00011, 0.003, LATENCY_BUCKETS_S[-1], 11.0, 0.003):
        times.observe(took_s)
        histogram.observe(took_s)
    expected = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert generate_latest(ours).decode().splitlines() == expected
    assert expected[-1].startswith("neve_took_seconds_sum")
