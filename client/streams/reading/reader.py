"""The reader of a stream: reads its extents in order, and follows its end if requested.

Invariants: a reader gets nothing beyond `committed` or the seal: nodes send no more, and for a sealed extent metadata
            has the final length (guarantee G4);
            a record is returned once, also if it spans extents or if replicas fail during the read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from neve.client.streams.catalog import Catalog
from neve.client.streams.core.reader import RecordAssembler, start_of
from neve.client.streams.options import ClientOptions
from neve.client.streams.reading.extent_reader import ExtentReader
from neve.client.streams.types import Position, Record, Stream
from neve.meta.core_retry import Backoff
from neve.proto.blocks import BlockType
from neve.proto.errors import NeveError, NotFound


class Reader:
    """Reads streams for one client; any number of reads may run at a time."""

    def __init__(self, catalog: Catalog, extents: ExtentReader, *, options: ClientOptions) -> None:
        self._catalog = catalog
        self._extents = extents
        self._options = options

    async def read(
        self, stream_id: int, *, start: Position | None, follow: bool, end: Position | None, copy: bool
    ) -> AsyncIterator[Record]:
        """Iterate over the records from `start` to `end` or the present end; with `follow`, until the stream ends."""
        batches = self.read_batches(stream_id, start=start, follow=follow, end=end, copy=copy)
        async with aclosing(batches):  # type: ignore[type-var]  # it is a generator
            async for records in batches:
                for record in records:
                    yield record

    async def read_batches(
        self, stream_id: int, *, start: Position | None, follow: bool, end: Position | None, copy: bool
    ) -> AsyncIterator[list[Record]]:
        """The same in non-empty lists of the records that arrived together."""
        stream = await self._catalog.stream(stream_id, with_extents=True)
        if not stream.extent_ids:
            return
        extent_id = stream.extent_ids[start_of(stream.extent_ids, start, stream_id=stream_id)]
        offset = start.offset if start is not None else 0
        assembler = RecordAssembler(record_bytes_max=self._options.record_bytes_max)
        while True:
            stop = end.offset if end is not None and end.extent_id == extent_id else None
            sealed = False
            try:
                async with aclosing(self._extents.chunks(extent_id, offset, follow=follow, stop=stop)) as chunks:
                    async for chunk in chunks:
                        blocks = chunk.blocks
                        if stop is not None and blocks and blocks[-1].offset >= stop:
                            blocks = [block for block in blocks if block.offset < stop]
                        records = assembler.push_all(extent_id, blocks, copy=copy)
                        if records:
                            yield records
                        if stop is not None and chunk.end >= stop:
                            return
                        offset, sealed = chunk.end, chunk.sealed
            except NotFound as error:
                raise await self._missing_extent_error(stream_id, Position(extent_id, offset), error) from error
            if stop is not None and (sealed or offset >= stop):
                return
            if sealed:
                successor = await self._successor(stream, extent_id, offset, follow=follow)
                if successor is None:
                    return
                stream, extent_id = successor
                offset = 0
                if extent_id in stream.after_hole:
                    assembler.begin_anew()
            elif not (await self._catalog.extent(extent_id, refresh=True)).sealed:
                return  # the present end; otherwise it was sealed meanwhile, perhaps with more records

    async def read_record(self, stream_id: int, position: Position, *, copy: bool) -> Record:
        """Return the one record that begins at `position`. Raises NotFound if none does."""
        block = await self._extents.block(position)
        if block is not None and block.type == BlockType.FULL:
            payload = bytes(block.payload) if copy else block.payload
            return Record(position, payload, Position(position.extent_id, block.end))
        if block is None or block.type == BlockType.FIRST:
            records = self.read(stream_id, start=position, follow=False, end=None, copy=copy)
            async with aclosing(records):  # type: ignore[type-var]  # it is a generator
                async for record in records:
                    if record.position == position:
                        return record
                    break
        raise NotFound(kind="record", name=str(position), detail="no complete record begins there")

    async def _successor(
        self, stream: Stream, extent_id: int, offset: int, *, follow: bool
    ) -> tuple[Stream, int] | None:
        """Return the extent after a sealed one; None at the end of the stream, unless it is followed and unsealed."""
        backoff = Backoff(self._options.retry_delays)
        while True:
            at = start_of(stream.extent_ids, Position(extent_id, offset), stream_id=stream.id) + 1
            if at < len(stream.extent_ids):
                return stream, stream.extent_ids[at]
            known_version = stream.version
            stream = await self._catalog.stream(stream.id, with_extents=True)
            if stream.version == known_version and (stream.sealed or not follow):
                return None
            if stream.version == known_version:  # seal and link are one transaction, so this manager lags behind
                await asyncio.sleep(backoff.next_s())

    async def _missing_extent_error(self, stream_id: int, position: Position, error: NotFound) -> NeveError:
        """Metadata no longer has the extent: return NotFound for the position if it has left the stream."""
        stream = await self._catalog.stream(stream_id)
        try:
            start_of(stream.extent_ids, position, stream_id=stream_id)
        except NotFound as cut:
            return cut
        return error
