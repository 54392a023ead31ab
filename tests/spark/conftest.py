"""One Spark session for all tests of a process, one cluster of processes for each module: both are slow to start."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.stream_cluster import CLUSTER, StreamCluster
from tests.spark.driver import SparkDriver
from tests.spark.faulty import ATTEMPTS

# A task may fail twice. Java compiles little and shuffles are small: the queries are few and short.
MASTER = f"local[2,{ATTEMPTS}]"
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.driver.extraJavaOptions": QUICK_JAVA}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkDriver]:
    driver = SparkDriver(MASTER, settings=SETTINGS)
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def cluster(module_tmp_path: Path) -> Iterator[StreamCluster]:
    made = StreamCluster(module_tmp_path, managers=1, nodes=4)
    asyncio.run(made.__aenter__())
    yield made
    made.close()


def options_of(cluster: StreamCluster, **more: object) -> dict[str, str]:
    """Of `spark.read.format("neve")`."""
    said = {"managers": ",".join(cluster.addresses), "cluster": CLUSTER, **more}
    return {name: str(value) for name, value in said.items()}


def disks_of(cluster: StreamCluster) -> str:
    return str(cluster.folder / "node*" / "disk1")
