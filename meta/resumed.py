"""The rest of a coroutine that was stepped once, for a task to go on with.

Whoever takes a coroutine's first step itself saves a task where that step is the last one, and a turn of the loop
otherwise.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Final, TypeVar

T = TypeVar("T")

_NOTHING: Final = object()


class Resumed(Coroutine[Any, Any, T]):
    """The rest of a coroutine that was stepped once and waits for something: give it to a task.

    A coroutine of ours around it would do the same, but not if the task is cancelled before it starts: then the one
    inside would never hear of it, and what it holds would not be let go.
    """

    __slots__ = ("_waits_for", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def send(self, value: Any) -> Any:
        if self._waits_for is not _NOTHING:
            waits_for, self._waits_for = self._waits_for, _NOTHING
            return waits_for
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        self._waits_for = _NOTHING
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise AssertionError("it is for a task, not to be awaited")
