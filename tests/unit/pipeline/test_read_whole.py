"""A cluster that changes while a job reads it is read again, not told as a fault; anything else is told at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from neve.client.command.failures import CommandFailed
from neve.pipeline import jobs
from neve.proto.errors import Compacted, Internal, NeveError, NotFound, ReplicaMissing

GONE = NotFound(kind="extent", name="19")
IN_A_TASK = "Job aborted …\n  File x\n{name}: {words}\n\n\tat org.apache.spark.Something"


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(jobs, "READ_PAUSE_S", 0.0)
    steps: list[str] = []
    return SimpleNamespace(progress=SimpleNamespace(step=steps.append), steps=steps)


def _in_a_task(error: NeveError) -> Exception:
    from pyspark.errors import PySparkException

    return PySparkException(IN_A_TASK.format(name=f"neve.proto.errors.{type(error).__name__}", words=error))


OVERTAKEN: list[NeveError] = [
    GONE,
    Compacted(revision_min=7),
    Internal(detail="(3, 0) is not in its stream any more: the partition has changed during the scan"),
]
FAULTS: list[NeveError] = [
    NotFound(kind="stream", name="19"),
    Internal(detail="no such extent as one would want"),
    ReplicaMissing(extent_id=19),
]


@pytest.mark.parametrize("error", OVERTAKEN + [_in_a_task(each) for each in OVERTAKEN])
def test_what_was_deleted_under_the_reading_has_it_read_again(context: Any, error: Exception) -> None:
    errors = [error, error]

    def read() -> str:
        if errors:
            raise errors.pop()
        return "everything"

    assert jobs.read_whole(context, read) == "everything"
    assert len(context.steps) == 2


@pytest.mark.parametrize("error", FAULTS + [_in_a_task(each) for each in FAULTS])
def test_a_fault_is_told_at_once(context: Any, error: Exception) -> None:
    readings = 0

    def read() -> str:
        nonlocal readings
        readings += 1
        raise error

    with pytest.raises(type(error)) as caught:
        jobs.read_whole(context, read)
    assert caught.value is error
    assert readings == 1


def test_a_cluster_that_never_holds_still_is_given_up_with_a_hint(context: Any) -> None:
    readings = 0

    def read() -> str:
        nonlocal readings
        readings += 1
        raise GONE

    with pytest.raises(CommandFailed, match=r"no such extent: 19.*grace_s"):
        jobs.read_whole(context, read)
    assert readings == jobs.READS_MAX
