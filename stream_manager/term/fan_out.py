"""Concurrent calls to several nodes, without tasks.

Invariants: every call takes its first step, which sends it, before the first reply is awaited;
            an error of `proto.errors` is a result like others; when the caller is cancelled, or a call fails with any
            other error, the remaining calls are cancelled;
            a call has no task of its own: `proto.coroutine_driver` says what it must not use.
Note:       A task costs more than the rest of a small call, and an allocation makes nine calls.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from neve.proto.coroutine_driver import CoroutineDriver
from neve.proto.errors import NeveError

T = TypeVar("T")


def answer_of(call: CoroutineDriver[T]) -> T | NeveError:
    """The reply of a call that has ended, or its error. An error that is a bug is raised."""
    assert call.ended
    error = call.error
    if error is None:
        return call.result  # type: ignore[return-value]
    if isinstance(error, NeveError):
        return error
    raise error


async def fan_out(works: Iterable[Coroutine[Any, Any, T]]) -> list[T | NeveError]:
    """Return all answers, in order."""
    calls: list[CoroutineDriver[T]] = []
    try:
        for work in works:
            calls.append(CoroutineDriver(work))  # noqa: PERF401 - those that began must be known if a later one fails
        answers: list[T | NeveError] = []
        for call in calls:
            if not call.ended:
                await call.when_ended()
            answers.append(answer_of(call))
        return answers
    except BaseException:
        for call in calls:
            call.cancel()
        raise
