"""The audit log, `neve.audit`: one line for every mutation, whatever its outcome.

Invariants: a line is written in the loop turn in which the mutation ended, or in the next one;
            lines are in the order in which mutations ended, and none is dropped: `flush` writes the rest.

The lines of one turn are written together, because a line on its own takes 9 µs, a tenth of an allocation. If the
process logs plain text to a single handler, as servers do, they are one log record, and each line starts with that
handler's prefix. With JSON or further handlers, each line is a record of its own.
"""

from __future__ import annotations

import asyncio
import logging

from neve.stream_manager.metadata.records import Replay

audit = logging.getLogger("neve.audit")

LINE = "mutation method=%s by=%s peer=%s call=%x/%d streams=%s extents=%s node=%d outcome=%s"
_MARK = "\0"


# Of one mutation: method, principal, peer, client id, call id, its replay record and its outcome.
Entry = tuple[str, str, str, int, int, Replay | None, str]


def line(entry: Entry) -> str:
    method, principal, peer, client_id, call_id, known, outcome = entry
    if known is None:
        return LINE % (method, principal or "-", peer, client_id, call_id, "-", "-", 0, outcome)
    return LINE % (
        method,
        principal or "-",
        peer,
        client_id,
        call_id,
        ",".join(map(str, known.stream_ids)),
        ",".join(map(str, known.extent_ids)),
        known.node_id,
        outcome,
    )


class AuditLog:
    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._loop = asyncio.get_running_loop()

    def note(self, entry: Entry) -> None:
        if not self._entries:
            self._loop.call_soon(self.flush)
        self._entries.append(entry)

    def flush(self) -> None:
        entries, self._entries = self._entries, []
        if not entries or not audit.isEnabledFor(logging.INFO):
            return
        beginning = _line_beginning() if len(entries) > 1 else None
        if beginning is None:
            for entry in entries:
                audit.info("%s", line(entry))
        else:
            audit.info("%s", f"\n{beginning}".join([line(entry) for entry in entries]))


def _line_beginning() -> str | None:
    """The text that the only handler puts before a message; None if there are more handlers or it also appends text."""
    root = logging.getLogger()
    if audit.handlers or not audit.propagate or logging.getLogger("neve").handlers or len(root.handlers) != 1:
        return None
    record = audit.makeRecord(audit.name, logging.INFO, "", 0, _MARK, (), None)
    formatted = root.handlers[0].format(record)
    return formatted[: -len(_MARK)] if formatted.endswith(_MARK) else None
