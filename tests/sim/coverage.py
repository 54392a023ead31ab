"""What stories came to: kinds of trouble, events of the log, errors. A fault that never happened was never tested.

Neighbours: stories.py counts; __main__.py adds up and shows; test_random.py fails where a kind is missing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from neve.proto import errors


@dataclass(slots=True)
class Coverage:
    faults: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)  # the first word of a log line is its event's name
    errors: Counter[str] = field(default_factory=Counter)  # by class
    moments: Counter[str] = field(default_factory=Counter)  # messages for which trouble has waited

    def add(self, other: Coverage) -> None:
        self.faults.update(other.faults)
        self.events.update(other.events)
        self.errors.update(other.errors)
        self.moments.update(other.moments)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what is logged and which errors are made, from now on."""
        handler = _Events(self.events)
        log = logging.getLogger("neve")
        level = log.level
        log.addHandler(handler)
        log.setLevel(logging.INFO if level == logging.NOTSET else min(level, logging.INFO))
        count = self.errors

        def new(cls: type[errors.NeveError], *_: Any, **__: Any) -> errors.NeveError:
            count[cls.__name__] += 1
            return Exception.__new__(cls)

        errors.NeveError.__new__ = new  # type: ignore[assignment]
        try:
            yield
        finally:
            del errors.NeveError.__new__
            log.removeHandler(handler)
            log.setLevel(level)


class _Events(logging.Handler):
    def __init__(self, count: Counter[str]) -> None:
        super().__init__(logging.INFO)
        self._count = count

    def emit(self, record: logging.LogRecord) -> None:
        self._count[str(record.msg).partition(" ")[0]] += 1


def all_errors() -> list[str]:
    """Every class of the taxonomy that has a code."""

    def below(cls: type[errors.NeveError]) -> Iterator[type[errors.NeveError]]:
        for child in cls.__subclasses__():
            yield child
            yield from below(child)

    return sorted({cls.__name__ for cls in below(errors.NeveError) if "code" in vars(cls)})
