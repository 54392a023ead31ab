"""The data source `neve` with faults in its tasks: they raise, they kill the Python process that they run in, or wait;
or what they read is gone, until as many attempts as a task has have met that.

Each fault comes after a task has given its first batch: what is half read must never be taken for all there is.

Invariants: what a task reads is what the data source reads; a fault is of one kind of rows and of the first attempts;
            nothing waits for ever.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from neve.pipeline.scan import options
from neve.pipeline.scan.options import ScanOptions
from neve.pipeline.source import NeveDataSource, NeveReader, names_of
from neve.proto.errors import NotFound

RAISE, DIE, WAIT, GONE = "raise", "die", "wait", "gone"
ATTEMPTS = 3  # that a task has, by the session's master
ALWAYS = 1 << 30


def fault(rows: str, how: str, *, attempts: int = ALWAYS, folder: Path | str = "") -> dict[str, Any]:
    """Of the first task that gives `rows`, in so many first attempts; all of them wait, and look into `folder`."""
    return {"rows": rows, "how": how, "attempts": attempts, "folder": str(folder)}


class FaultyReader(NeveReader):
    def __init__(self, parsed: ScanOptions, names: tuple[str, ...], planted: dict[str, Any]) -> None:
        super().__init__(parsed, names)
        self.planted = planted

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        context: Any = TaskContext.get()
        found = NeveReader.read(self, partition)
        chosen = self.planted["how"] == "wait" or context.partitionId() == 0
        if self.parsed.rows == self.planted["rows"] and chosen and context.attemptNumber() < self.planted["attempts"]:
            return self._spoilt(found, context)
        return found

    def _spoilt(self, found: Iterator[pa.RecordBatch], context: Any) -> Iterator[pa.RecordBatch]:
        for batch in found:
            yield batch
            break
        match self.planted["how"]:
            case "raise":
                raise RuntimeError("a planted fault")
            case "gone":
                folder = Path(self.planted["folder"])
                if len(list(folder.glob("gone-*"))) < ATTEMPTS:
                    (folder / f"gone-{time.monotonic_ns()}").touch()
                    raise NotFound(kind="extent", name="19")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "wait":
                folder = Path(self.planted["folder"])
                (folder / f"reached-{context.partitionId()}-{os.getpid()}").touch()
                deadline_s = time.monotonic() + 180
                while not (folder / "go").exists():
                    if time.monotonic() > deadline_s:
                        raise RuntimeError("nobody said go")
                    time.sleep(0.05)
        yield from found


class FaultySource(NeveDataSource):
    planted: ClassVar[dict[str, Any]]

    def reader(self, schema: StructType) -> DataSourceReader:
        parsed = options.parse(self.options)
        return FaultyReader(parsed, names_of(schema, parsed), self.planted)


def source_with(planted: dict[str, Any]) -> type[FaultySource]:
    pickling: Any = cloudpickle
    pickling.register_pickle_by_value(sys.modules[__name__])
    return type("PlantedSource", (FaultySource,), {"planted": planted})
