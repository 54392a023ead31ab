"""What tests have the Spark driver do. Each function gets the session, and returns what JSON can carry."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from neve.pipeline import source
from tests.spark import faulty

Options = dict[str, str]


def load(spark: SparkSession, options: Options) -> DataFrame:
    return spark.read.format("neve").options(**options).load()


def total(spark: SparkSession, count: int) -> int:
    return int(spark.range(count).agg(F.sum("id")).collect()[0][0])


def rows(
    spark: SparkSession, options: Options, columns: list[str], where: str = "", order: str = ""
) -> list[list[Any]]:
    """The rows, payloads as text."""
    frame = load(spark, options)
    if where:
        frame = frame.filter(where)
    if order:
        frame = frame.orderBy(*order.split(","))
    return [[_plain(value) for value in row] for row in frame.select(*columns).collect()]


def _plain(value: Any) -> Any:
    return bytes(value).decode("latin-1") if isinstance(value, (bytes, bytearray)) else value


def summary(spark: SparkSession, options: Options, where: str = "true") -> dict[str, Any]:
    """Of a scan of blocks: how many rows, distinct ones, bytes and revisions there are, and in how many tasks."""
    frame = load(spark, options).filter(where).withColumn("task", F.spark_partition_id())
    row = frame.agg(
        F.count("*").alias("rows"),
        F.countDistinct("extent_id", "offset").alias("distinct"),
        F.sum("length").alias("bytes"),
        F.countDistinct("revision").alias("revisions"),
        F.countDistinct("task").alias("tasks"),
    ).collect()[0]
    return row.asDict()


def filtered_rows_of_scan(spark: SparkSession, options: Options, where: str) -> dict[str, int]:
    """How many rows a filter admits, and how many of them the scan itself gave to Spark."""
    frame = load(spark, options).filter(where)
    admitted = frame.count()
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return {"rows": admitted, "filters_left": plan.count("Filter (")}


def follow(spark: SparkSession, options: Options, checkpoint: str, query: str, **how: str) -> dict[str, Any]:
    """What there is now of a stream, in micro-batches; goes on where the checkpoint says."""
    table = f"{query}_rows"
    started = (
        spark.readStream.format("neve")
        .options(**options)
        .options(**how)
        .load()
        .writeStream.format("parquet")
        .option("path", f"{checkpoint}/{table}")
        .option("checkpointLocation", f"{checkpoint}/offsets")
        .trigger(availableNow=True)
        .start()
    )
    started.awaitTermination()
    found = spark.read.parquet(f"{checkpoint}/{table}")
    row = found.agg(F.count("*").alias("rows"), F.countDistinct("extent_id", "offset").alias("distinct")).collect()[0]
    return {**row.asDict(), "batches": sum(1 for progress in started.recentProgress if progress.numInputRows)}


def run_main(spark: SparkSession, module: str, arguments: list[str]) -> dict[str, Any]:
    """A job as its command line runs it, on this session: exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = importlib.import_module(f"neve.pipeline.{module}").main(arguments)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def run_with_password(spark: SparkSession, module: str, arguments: list[str], password: str) -> dict[str, Any]:
    with mock.patch.dict(os.environ, {"NEVE_ETCD_PASSWORD": password}):
        return run_main(spark, module, arguments)


def run_faulty(spark: SparkSession, module: str, arguments: list[str], planted: dict[str, Any]) -> dict[str, Any]:
    """As `run_main`, with a fault of `tests.spark.faulty` in the scans of the job."""
    with faults_in_scans(spark, planted):
        return run_main(spark, module, arguments)


@contextlib.contextmanager
def faults_in_scans(spark: SparkSession, planted: dict[str, Any]) -> Iterator[None]:
    with mock.patch.object(source, "NeveDataSource", faulty.source_with(planted)):
        source.register(spark)
        yield
    source.register(spark)


def faulty_summary(spark: SparkSession, options: Options, planted: dict[str, Any]) -> dict[str, Any]:
    with faults_in_scans(spark, planted):
        return summary(spark, options)


def parquet(spark: SparkSession, path: str, columns: list[str]) -> list[list[Any]]:
    return [[_plain(value) for value in row] for row in spark.read.parquet(path).select(*columns).collect()]


def where_tasks_run(spark: SparkSession, options: Options) -> dict[str, list[str]]:
    """Which executors have read something, and which files they had our code from."""

    def look(rows: Any) -> Any:
        import os

        from neve.pipeline.scan import tasks

        if any(True for _ in rows):
            yield os.getcwd(), tasks.__file__

    places = load(spark, options).select("extent_id").rdd.mapPartitions(look).distinct().collect()
    return {"executors": sorted({place for place, _ in places}), "files": sorted({file for _, file in places})}


def scan_all(spark: SparkSession, options: Options, payload: bool) -> dict[str, int]:
    """Every row, and with payloads every byte, through Spark."""
    columns = "length,payload" if payload else "extent_id,offset,length"
    size = F.octet_length("payload") if payload else F.col("length")
    frame = load(spark, {**options, "columns": columns})
    row = frame.agg(F.count("*").alias("rows"), F.sum(size).alias("bytes")).collect()[0]
    return {"rows": int(row["rows"]), "bytes": int(row["bytes"] or 0)}
