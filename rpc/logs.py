"""Logging of a server process: one line for each event, as text or as JSON.

Every message of Neve has the form `event_name key=value …`. In JSON the event is a field of its own, to be counted.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Logging:
    """Table [log] of every server."""

    json: bool = False
    level: str = "INFO"

    def __post_init__(self) -> None:
        if self.level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise ValueError(f"level must be DEBUG, INFO, WARNING or ERROR, not {self.level!r}")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "event": message.partition(" ")[0],
            "message": message,
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def set_up_logging(*, as_json: bool, level: str) -> None:
    """Log to stderr. Call it once in a process."""
    # No format of ours shows these, so logging need not collect them: see "Optimization" in Python's logging HOWTO.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
