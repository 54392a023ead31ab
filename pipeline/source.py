"""`spark.read.format("neve")`: the data source as Spark sees it. docs/spark.md has its options and columns.

Invariants: planning happens once a query, in one process, from one metadata revision; tasks get all they need and ask
            no manager unless a replica fails them;
            a failed task leaves nothing behind, and a task that runs twice gives the same rows (scenario T38).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from neve.pipeline.core import filters as core_filters
from neve.pipeline.core.filters import Condition, Filters
from neve.pipeline.scan import columns, options, planning, tasks, worker
from neve.pipeline.scan.connections import link_for
from neve.pipeline.scan.options import ScanOptions
from neve.pipeline.scan.tasks import ScanTask
from neve.proto.errors import InvalidArgument

FORMAT = "neve"
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make `format("neve")` known to a session, with its filters pushed down. Once for each session."""
    spark.conf.set(PUSH_DOWN, "true")
    spark.dataSource.register(NeveDataSource)


class ScanPartition(InputPartition):
    def __init__(self, task: ScanTask) -> None:
        super().__init__(task)


class NeveDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        parsed = options.parse(self.options)
        return columns.ddl(parsed.rows, default_columns(parsed))

    def reader(self, schema: StructType) -> DataSourceReader:
        parsed = options.parse(self.options)
        return NeveReader(parsed, names_of(schema, parsed))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        from neve.pipeline.scan.follow import NeveStreamReader

        parsed = options.parse(self.options)
        return NeveStreamReader(parsed, names_of(schema, parsed))


def default_columns(parsed: ScanOptions) -> tuple[str, ...]:
    return parsed.columns if parsed.rows == columns.BLOCKS else tuple(columns.SCHEMAS[parsed.rows])


def names_of(schema: StructType, parsed: ScanOptions) -> tuple[str, ...]:
    """The columns of a schema, which may be a user's own; refused if one is not ours."""
    known = columns.SCHEMAS[parsed.rows]
    for field in schema.fields:
        if field.name not in known or field.dataType.simpleString() != known[field.name].spark:
            wanted = known[field.name].spark if field.name in known else f"one of {', '.join(known)}"
            detail = f"{field.name} {field.dataType.simpleString()}: there is {wanted}"
            raise InvalidArgument(what="schema", detail=detail)
    return tuple(schema.fieldNames())


class NeveReader(DataSourceReader):
    def __init__(self, parsed: ScanOptions, names: tuple[str, ...]) -> None:
        self.parsed = parsed
        self.names = names
        self.tests: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        if self.parsed.rows != columns.BLOCKS:
            return filters
        self.tests, left = core_filters.split(filters)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        link = link_for(self.parsed)
        plan = link.run(planning.plan_tasks(link, self.parsed, self.names, Filters(tuple(self.tests))))
        return [ScanPartition(task) for task in plan]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        worker.settle()
        if partition.value is None:  # nothing to read: Spark wants a partition all the same
            return iter(())
        return tasks.read(partition.value, first_attempt=first_attempt())


def first_attempt() -> bool:
    """Whether this task was not tried before."""
    context: Any = TaskContext.get()
    return context is None or context.attemptNumber() == 0
