"""A Spark session for the jobs: on the master that the user names, with Neve's code on its workers.

Invariants: without Java, the error says what to install, before Spark is started;
            Spark is started before anything here uses gRPC, whose threads do not survive the fork that starts Java;
            a session that was there before (a notebook's) is used and left running.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from neve.client.command.failures import CommandFailed
from neve.pipeline import package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER_DEFAULT = "local[*]"
_LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}

JAVA_HINT = (
    "Spark needs Java 17 or newer, and there is none: install it (Debian, Ubuntu: apt install openjdk-17-jre-headless; "
    "Fedora: dnf install java-17-openjdk-headless; macOS: brew install openjdk@17), or set JAVA_HOME to where it is"
)
SPARK_HINT = "this needs PySpark and PyArrow: pip install 'neve[spark]'"


def check_installed(environment: Mapping[str, str] = os.environ) -> None:
    """CommandFailed, with what to install, unless Spark can be started here."""
    for module in ("pyspark", "pyarrow"):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise CommandFailed(SPARK_HINT) from error
    home = environment.get("JAVA_HOME", "")
    if home:
        if not os.access(Path(home) / "bin" / "java", os.X_OK):
            raise CommandFailed(f"JAVA_HOME is {home}, and there is no bin/java in it. {JAVA_HINT}")
    elif shutil.which("java", path=environment.get("PATH", "")) is None:
        raise CommandFailed(JAVA_HINT)


@contextlib.contextmanager
def open_session(
    master: str, name: str, *, settings: Mapping[str, str] | None = None, progress: bool = False
) -> Iterator[SparkSession]:
    """A session with the data source registered; stopped at the end unless it was running before."""
    check_installed()
    from pyspark.sql import SparkSession

    from neve.pipeline.source import PUSH_DOWN, register

    before = SparkSession.getActiveSession()
    if before is not None:
        register(before)
        yield before
        return
    local = master.startswith("local")
    if local:  # workers here need what this Python has installed; other machines have their own
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="neve-spark-") as folder:
        builder = SparkSession.builder.master(master).appName(name)
        conf = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "true" if progress else "false",
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
            "spark.log.level": "ERROR",
            PUSH_DOWN: "true",
            **(_LOOPBACK if local else {}),
            **(settings or {}),
        }
        for key, value in conf.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        try:
            if not local:
                spark.sparkContext.addPyFile(str(package.build(Path(folder) / package.ARCHIVE)))
            register(spark)
            yield spark
        finally:
            spark.stop()
