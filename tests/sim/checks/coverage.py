"""What stories came to: kinds of trouble, events of the log, errors, methods. What never happened was never tested."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from neve.proto import errors
from neve.proto.method import Method
from tests.sim.network.frames import FrameDecoder


@dataclass(slots=True)
class Coverage:
    faults: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)  # the first word of a log line is its event's name
    errors: Counter[str] = field(default_factory=Counter)  # by class
    told: Counter[str] = field(default_factory=Counter)  # errors that users were told, by kind of user and class
    moments: Counter[str] = field(default_factory=Counter)  # messages for which trouble has waited
    methods: Counter[str] = field(default_factory=Counter)  # that were answered, and not with an error

    def add(self, other: Coverage) -> None:
        self.faults.update(other.faults)
        self.events.update(other.events)
        self.errors.update(other.errors)
        self.told.update(other.told)
        self.moments.update(other.moments)
        self.methods.update(other.methods)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what is logged, which errors are made and which methods answered, from now on."""
        handler = _Events(self.events)
        log = logging.getLogger("neve")
        level = log.level
        log.addHandler(handler)
        log.setLevel(logging.INFO if level == logging.NOTSET else min(level, logging.INFO))
        count = self.errors

        def new(cls: type[errors.NeveError], *_: Any, **__: Any) -> errors.NeveError:
            count[cls.__name__] += 1
            return Exception.__new__(cls)

        def answered(method: Method[Any, Any]) -> None:
            self.methods[method_name(method)] += 1

        errors.NeveError.__new__ = new  # type: ignore[assignment]
        FrameDecoder.on_reply = answered
        try:
            yield
        finally:
            del errors.NeveError.__new__
            FrameDecoder.on_reply = None
            log.removeHandler(handler)
            log.setLevel(level)


class _Events(logging.Handler):
    def __init__(self, count: Counter[str]) -> None:
        super().__init__(logging.INFO)
        self._count = count

    def emit(self, record: logging.LogRecord) -> None:
        self._count[record.getMessage().partition(" ")[0]] += 1


def method_name(method: Method[Any, Any]) -> str:
    """`ExtentNode.AppendBlock`"""
    return f"{method.service.rpartition('.')[2]}.{method.name}"


def all_errors() -> list[str]:
    """Every class of the taxonomy that has a code."""

    def below(cls: type[errors.NeveError]) -> Iterator[type[errors.NeveError]]:
        for child in cls.__subclasses__():
            yield child
            yield from below(child)

    return sorted({cls.__name__ for cls in below(errors.NeveError) if "code" in vars(cls)})
