"""Spark itself works here: the packages of the extra `spark`, and the Java that `make test` looked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own: pyspark forks to start Java, and the fork of a process that has used gRPC may not survive.
PROGRAM = """
import sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .appName("neve-smoke")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.local.dir", sys.argv[1])
    .config("spark.sql.warehouse.dir", sys.argv[1] + "/warehouse")
    .getOrCreate()
)
print("total", spark.range(1000).selectExpr("sum(id) AS total").collect()[0]["total"])
spark.stop()
"""


@pytest.mark.slow
def test_a_local_spark_counts_rows(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == 0, result.stderr
    assert "total 499500" in result.stdout
