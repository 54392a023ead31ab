"""Reads values, from the entry itself or from the log records that its parts name.

Invariants: a byte range reads only the parts that it needs;
            a part's description is checked against its record.
"""

from __future__ import annotations

import asyncio

from neve.partition_server.engine.entry import Entry, Part
from neve.partition_server.log.stream_io import OwnStream
from neve.proto.errors import Internal

PARTS_AT_ONCE = 8

Pieces = list[memoryview]


class Values:
    def __init__(self, log: OwnStream) -> None:
        self._log = log

    async def read(self, entry: Entry, offset: int = 0, length: int | None = None) -> Pieces:
        """Return the bytes of [offset, offset + length) as consecutive views."""
        end = entry.size_bytes if length is None else min(offset + length, entry.size_bytes)
        if offset >= end:
            return []
        if entry.parts is None:
            return [memoryview(entry.data)[entry.value_at + offset : entry.value_at + end]]
        wanted: list[tuple[Part, int, int]] = []
        at = 0
        for part in entry.parts:
            first, last = max(offset - at, 0), min(end - at, part.length)
            if first < last:
                wanted.append((part, first, last))
            at += part.length
        if len(wanted) == 1:
            return [await self._part(*wanted[0])]
        pieces: Pieces = []
        for at in range(0, len(wanted), PARTS_AT_ONCE):
            pieces += await asyncio.gather(*(self._part(*each) for each in wanted[at : at + PARTS_AT_ONCE]))
        return pieces

    async def _part(self, part: Part, first: int, last: int) -> memoryview:
        payload = await self._log.read_record(part.position)
        if len(payload) < part.at + part.length:
            raise Internal(
                detail=f"the log record at {part.position} has {len(payload)} bytes, but a value refers to {part}"
            )
        return memoryview(payload)[part.at + first : part.at + last]
