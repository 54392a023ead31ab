"""A scan that is under way while a test does something else: its tasks wait until they are told to go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.spark.driver import SparkDriver
from tests.spark.faulty import WAIT, fault

REACH_TIMEOUT_S = 120.0


class HeldCall:
    """Calls `function` of the driver. In the context, tasks that give `rows` have begun, and none of them has ended."""

    def __init__(
        self, spark: SparkDriver, folder: Path, rows: str, function: Callable[..., Any], **arguments: Any
    ) -> None:
        folder.mkdir()
        self._folder = folder
        self._answers: list[Any] = []
        self._errors: list[BaseException] = []
        planted = fault(rows, WAIT, folder=folder)

        def run() -> None:
            try:
                self._answers.append(spark.call(function, planted=planted, **arguments))
            except BaseException as error:  # noqa: BLE001  # raised where the answer is asked for
                self._errors.append(error)

        self._thread = threading.Thread(target=run)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.until_reached(1)
        except AssertionError:
            self.__exit__(None, None, None)
            raise
        return self

    def until_reached(self, count: int) -> None:
        """Wait until so many tasks have begun."""
        deadline_s = time.monotonic() + REACH_TIMEOUT_S
        while len(list(self._folder.glob("reached-*"))) < count:
            said = self._errors or self._answers
            assert self._thread.is_alive(), f"it ended before {count} tasks were there: {said}"
            assert time.monotonic() < deadline_s, f"there are no {count} tasks"
            time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        (self._folder / "go").touch()
        self._thread.join()

    @property
    def answer(self) -> Any:
        """After the context."""
        if self._errors:
            raise self._errors[0]
        return self._answers[0]
