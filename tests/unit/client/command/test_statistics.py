"""Histogram, intervals and report: exact where they must be, and within 1/128 where they may round."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.client.command.core_statistics import (
    Histogram,
    Recorder,
    Sample,
    bucket_of,
    bucket_top,
    latency_fields,
)

VALUES = st.integers(min_value=0, max_value=10**13)


@given(VALUES)
def test_a_value_is_in_its_bucket_and_the_bucket_is_narrow(value: int) -> None:
    bucket = bucket_of(value)
    assert value <= bucket_top(bucket) <= value + value // 128
    assert bucket_of(bucket_top(bucket)) == bucket
    assert bucket_of(bucket_top(bucket) + 1) == bucket + 1


@given(st.lists(VALUES, min_size=1, max_size=200), st.floats(min_value=0.0, max_value=1.0))
def test_a_quantile_is_not_below_the_true_one_and_hardly_above(values: list[int], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    true = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    assert true <= histogram.quantile(share) <= true + true // 128


@given(st.lists(VALUES, max_size=50), st.lists(VALUES, max_size=50))
def test_merging_is_the_same_as_recording_everything_in_one(left: list[int], right: list[int]) -> None:
    one, other, both = Histogram(), Histogram(), Histogram()
    for value in left:
        one.record(value)
        both.record(value)
    for value in right:
        other.record(value)
        both.record(value)
    one.merge(other)
    assert (one.count, one.total, one.smallest, one.largest) == (both.count, both.total, both.smallest, both.largest)
    assert [one.quantile(n / 20) for n in range(21)] == [both.quantile(n / 20) for n in range(21)]


def test_a_batch_counts_as_often_as_it_has_operations() -> None:
    histogram = Histogram()
    histogram.record(100, times=99)
    histogram.record(200)
    assert (histogram.count, histogram.quantile(0.99), histogram.quantile(1.0), histogram.mean) == (100, 100, 200, 101)


def test_an_empty_histogram_says_nothing() -> None:
    assert Histogram().quantile(0.5) == 0
    assert latency_fields(Histogram()) == {}


def test_memory_does_not_grow_with_what_is_recorded() -> None:
    histogram = Histogram()
    for exponent in range(64):
        for step in range(300):
            histogram.record((1 << exponent) + step * max(1, (1 << exponent) // 300))
    assert len(histogram._counts) <= 64 * 128 + 128


def test_intervals_close_when_time_passes_and_an_idle_one_counts_as_zero() -> None:
    recorder = Recorder(interval_s=1.0)
    recorder.add(Sample(0.2, 1_000_000, 10, 1000))
    recorder.add(Sample(0.9, 3_000_000, 10, 1000))
    before = recorder.last
    assert before is None
    recorder.add(Sample(1.1, 1_000_000, 1, 7))
    last = recorder.last
    assert last is not None
    assert (last.operations, last.size_bytes, last.start_s) == (20, 2000, 0.0)
    recorder.advance(4.5)
    idle = recorder.last
    assert idle is not None
    assert (idle.operations, idle.start_s) == (0, 3.0)
    assert recorder.running.start_s == 4.0


def test_a_sample_that_comes_late_is_not_lost() -> None:
    recorder = Recorder(interval_s=1.0)
    recorder.add(Sample(2.5, 1, 1, 1))
    recorder.add(Sample(0.5, 1, 1, 1))
    assert (recorder.running.operations, recorder.operations) == (2, 2)


def test_an_error_counts_as_an_error_and_not_as_a_latency() -> None:
    recorder = Recorder()
    recorder.add(Sample(0.1, 2_000_000, 1, 50))
    recorder.add(Sample(0.2, 9_000_000_000, 4, 200, "ConnectionLost"))
    recorder.add(Sample(0.3, 9_000_000_000, 1, 50, "LeaseLost"))
    report = recorder.report(2.0)
    assert (report.operations, report.size_bytes, report.errors_total) == (1, 50, 5)
    assert report.errors == {"ConnectionLost": 4, "LeaseLost": 1}
    assert report.latency_ms["max"] == 2.0
    assert report.operations_per_s == 0.5


def test_the_report_of_a_run_in_which_nothing_happened_has_zeros() -> None:
    report = Recorder().report(0.0)
    assert (report.operations_per_s, report.megabytes_per_s, report.latency_ms, report.errors_total) == (0, 0, {}, 0)


def test_the_report_has_rates_and_percentiles_in_its_fields() -> None:
    recorder = Recorder()
    for number in range(1, 1001):
        recorder.add(Sample(number / 1000, number * 1_000_000, 1, 1_000_000))
    fields = recorder.report(1.0).fields()
    assert (fields["operations_per_s"], fields["megabytes_per_s"]) == (1000.0, 1000.0)
    latency = fields["latency_ms"]
    assert isinstance(latency, dict)
    assert set(latency) == {"p50", "p95", "p99", "p99.9", "mean", "max"}
    assert latency["p50"] == pytest.approx(500, rel=1 / 100)
    assert latency["p99.9"] == pytest.approx(999, rel=1 / 100)
    assert latency["max"] == 1000


def test_an_interval_of_no_length_is_refused() -> None:
    with pytest.raises(ValueError, match="interval_s"):
        Recorder(interval_s=0)
