"""Spark itself works here: the packages of the extra `spark`, and the Java that `make test` looked for."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_local_spark_counts_rows(tmp_path: Path) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[1]")
        .appName("neve-smoke")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(tmp_path))
        .config("spark.sql.warehouse.dir", str(tmp_path / "warehouse"))
        .getOrCreate()
    )
    try:
        assert spark.range(1000).selectExpr("sum(id) AS total").collect()[0]["total"] == 499_500
    finally:
        spark.stop()
