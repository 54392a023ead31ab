"""Clusters of real etcd processes for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.etcd import EtcdCluster


@pytest.fixture
def three_etcds() -> Iterator[EtcdCluster]:
    """A test's own, to kill and to pause."""
    with EtcdCluster(3) as cluster:
        yield cluster
