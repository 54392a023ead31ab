"""On a real Spark cluster of two workers, whose Python does not have Neve: the archive brings it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.stream_cluster import StreamCluster
from tests.spark import programs
from tests.spark.conftest import options_of
from tests.spark.driver import SparkDriver
from tests.spark.standalone import StandaloneCluster, python_without_neve

# Not part of `make test`: alone it takes three minutes on two cores, and much longer beside other tests.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("NEVE_SPARK_STANDALONE") != "1", reason="a cluster of two Spark workers: NEVE_SPARK_STANDALONE=1"
    ),
]

RECORDS = 40_000


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("standalone")) as made:
        yield made


@pytest.fixture(scope="module")
def spark(standalone: StandaloneCluster) -> Iterator[SparkDriver]:
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "600m",
        "spark.speculation": "true",  # T38: a task may run twice
        "spark.speculation.multiplier": "1.1",
    }
    python = python_without_neve(standalone.folder)
    driver = SparkDriver(standalone.url, settings=settings, environment={"PYSPARK_PYTHON": str(python)})
    yield driver
    driver.close()


async def _fill(cluster: StreamCluster) -> None:
    async with cluster.client() as client:
        stream = await client.create_stream(name="events", replicas=3, extent_bytes_max=400_000)
        async with client.writer(stream.id) as writer:
            for start in range(0, RECORDS, 2_000):
                await writer.append_many([f"{number}".encode() * 10 for number in range(start, start + 2_000)])


def test_two_workers_scan_with_the_archive_and_one_of_them_may_die(
    spark: SparkDriver, cluster: StreamCluster, standalone: StandaloneCluster
) -> None:
    asyncio.run(_fill(cluster))
    options = options_of(cluster, stream="events", columns="payload", sliceBytes=30_000)
    places = spark.call(programs.where_tasks_run, options=options)
    assert len(places["executors"]) == 2
    assert all(file.endswith("neve.zip/neve/pipeline/tasks.py") for file in places["files"]), places
    seen = spark.call(programs.summary, options=options)
    assert (seen["rows"], seen["distinct"]) == (RECORDS, RECORDS)

    # Lose a worker in the middle of a scan: the result is the same.
    answers: list[dict[str, Any]] = []
    slow = {**options, "batchRows": "50"}
    running = threading.Thread(target=lambda: answers.append(spark.call(programs.slow_summary, options=slow)))
    running.start()
    time.sleep(3)  # it is under way; what is asserted does not depend on how far
    standalone.kill_worker(1)
    running.join()
    [after] = answers
    assert (after["rows"], after["distinct"]) == (RECORDS, RECORDS)


def test_jobs_run_there_too(spark: SparkDriver, cluster: StreamCluster, tmp_path: Path) -> None:
    arguments = ["--managers", options_of(cluster)["managers"], "--cluster", options_of(cluster)["cluster"]]
    picture = tmp_path / "usage.png"
    done = spark.call(programs.run_main, module="usage", arguments=[*arguments, "--picture", str(picture)])
    assert done["code"] == 0, done
    assert "40,000 blocks" in done["out"]
    assert picture.read_bytes().startswith(b"\x89PNG")
