"""The lint of metrics finds what promtool would find."""

from __future__ import annotations

import pytest

from tests.cluster.metrics_lint import check_metrics

GOOD = """\
# HELP neve_node_appends_total Appends since the process started.
# TYPE neve_node_appends_total counter
neve_node_appends_total 5.0
# HELP neve_disk_free_bytes Free bytes of the disk.
# TYPE neve_disk_free_bytes gauge
neve_disk_free_bytes{disk="a"} 7.0
# HELP neve_node_read_seconds Time of a read.
# TYPE neve_node_read_seconds histogram
neve_node_read_seconds_bucket{le="+Inf"} 1.0
neve_node_read_seconds_count 1.0
neve_node_read_seconds_sum 0.5
"""


def test_good_metrics_pass() -> None:
    assert check_metrics(GOOD) == []


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("neve_node_appends_total", "neve_node_appends", "ends in _total"),
        ("Free bytes of the disk.", "", "no help text"),
        ("neve_disk_free_bytes", "neve_disk_free_mb", "base unit"),
        ("neve_disk_free_bytes", "neve_disk_Free_bytes", "lower case"),
        ("neve_disk_free_bytes", "disk_free_bytes", "not neve_"),
        ("neve_disk_free_bytes", "neve_disk_free_total", "must not end like"),
        ("gauge", "untyped", "no type"),
        ("neve_disk_free_bytes", "neve_disk_gauge_bytes", "a type"),
        ("neve_disk_free_bytes", "neve_node_appends_total", "declared twice"),
        ('{disk="a"}', '{Disk="a"}', "label Disk"),
        ('{disk="a"} 7.0', '{disk="a"} 7.0\nneve_disk_free_bytes{disk="a"} 8.0', "a series is there twice"),
        ("0.5\n", "0.5", "no end"),
    ],
)
def test_each_fault_is_found(before: str, after: str, words: str) -> None:
    assert any(words in wrong for wrong in check_metrics(GOOD.replace(before, after)))
