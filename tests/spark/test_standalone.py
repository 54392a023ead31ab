"""On a real Spark cluster of two workers, whose Python does not have Neve: the archive brings it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.stream_cluster import StreamCluster
from tests.spark import programs
from tests.spark.conftest import QUICK_JAVA, options_of
from tests.spark.driver import SparkDriver
from tests.spark.held import HeldCall
from tests.spark.standalone import StandaloneCluster, python_without_neve

pytestmark = pytest.mark.slow

RECORDS = 6_000
BATCH = 500


@pytest.fixture(scope="module")
def standalone(module_tmp_path: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(module_tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def spark(standalone: StandaloneCluster) -> Iterator[SparkDriver]:
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        "spark.executor.memory": "600m",
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # both workers are there before the first task
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.sql.shuffle.partitions": "2",
        "spark.speculation": "true",  # T38: a task may run twice
        "spark.speculation.multiplier": "1.1",
    }
    python = python_without_neve(standalone.folder)
    driver = SparkDriver(standalone.url, settings=settings, environment={"PYSPARK_PYTHON": str(python)})
    yield driver
    driver.close()


async def _fill(cluster: StreamCluster) -> None:
    async with cluster.client() as client:
        stream = await client.create_stream(name="events", replicas=3, extent_bytes_max=100_000)
        async with client.writer(stream.id) as writer:
            for start in range(0, RECORDS, BATCH):
                await writer.append_many([f"{number}".encode() * 10 for number in range(start, start + BATCH)])


def test_two_workers_scan_with_the_archive_and_one_of_them_may_die(
    spark: SparkDriver, cluster: StreamCluster, standalone: StandaloneCluster, tmp_path: Path
) -> None:
    asyncio.run(_fill(cluster))
    options = options_of(cluster, stream="events", columns="payload", sliceBytes=30_000)
    places = spark.call(programs.where_tasks_run, options=options)
    assert len(places["executors"]) == 2
    assert all(file.endswith("neve.zip/neve/pipeline/scan/tasks.py") for file in places["files"]), places

    # T36: lose a worker, Java and all, while both of them are in the middle of a task: the result is the same.
    with HeldCall(spark, tmp_path / "held", "blocks", programs.faulty_summary, options=options) as held:
        held.until_reached(2)
        standalone.kill_worker(1)
    seen = held.answer
    assert (seen["rows"], seen["distinct"], seen["revisions"]) == (RECORDS, RECORDS, 1)

    # Jobs go on with the worker that is left.
    words = ["--managers", options["managers"], "--cluster", options["cluster"]]
    collected = spark.call(programs.run_main, module="gc", arguments=[*words, "--grace", "1ms", "--apply", "--json"])
    assert collected["code"] == 0, collected
    assert {row["action"] for row in json.loads(collected["out"])["rows"]} <= {"keep"}
    picture = tmp_path / "usage.png"
    done = spark.call(programs.run_main, module="usage", arguments=[*words, "--picture", str(picture)])
    assert done["code"] == 0, done
    assert f"{RECORDS:,} blocks" in done["out"]
    assert picture.read_bytes().startswith(b"\x89PNG")
