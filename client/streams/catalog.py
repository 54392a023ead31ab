"""What the client knows of streams and extents: asked from any manager, kept while it is of use.

Invariants: what is kept may be old: a replica's refusal, or the end of what is known, has it asked for again;
            never older than what this client has seen before (`revision_min`);
            bounded: the least recently used extents are forgotten.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping

from neve.client.manager_link import ManagerLink
from neve.client.pages import PAGE, pages
from neve.client.streams.types import Extent, Stream
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NotFound

EXTENTS_CACHED_MAX = 10_000


class Catalog:
    def __init__(self, link: ManagerLink) -> None:
        self._link = link
        self._extents: OrderedDict[int, Extent] = OrderedDict()

    async def stream(self, stream: int | str, *, with_extents: bool = False) -> Stream:
        """By id or by name; NotFound if there is none."""
        request = sm.DescribeStreamsRequest(
            stream_ids=[stream] if isinstance(stream, int) else [],
            names=[stream] if isinstance(stream, str) else [],
            with_extents=with_extents,
            revision_min=self._link.revision_seen,
        )
        reply = await self._link.ask(methods.STREAM_MANAGER_DESCRIBE_STREAMS, request)
        self._link.note_revision(reply.revision)
        if not reply.streams:
            raise NotFound(kind="stream", name=str(stream))
        for info in reply.extents:
            self.note(info)
        return Stream.of(reply.streams[0])

    async def streams(self, labels: Mapping[str, str] | None) -> AsyncIterator[Stream]:
        """All streams that have these labels, page by page, as of one revision."""
        request = sm.ListStreamsRequest(limit=PAGE, labels=labels)
        ask = functools.partial(self._link.ask, methods.STREAM_MANAGER_LIST_STREAMS)
        async for info in pages(ask, request, items="streams", after="after_stream_id"):
            yield Stream.of(info)

    async def extent(self, extent_id: int, *, refresh: bool = False) -> Extent:
        """An extent's replicas and end; NotFound if metadata does not have it."""
        if not refresh and (known := self._extents.get(extent_id)) is not None:
            self._extents.move_to_end(extent_id)
            return known
        request = sm.DescribeExtentsRequest(extent_ids=[extent_id], revision_min=self._link.revision_seen)
        reply = await self._link.ask(methods.STREAM_MANAGER_DESCRIBE_EXTENTS, request)
        self._link.note_revision(reply.revision)
        for info in reply.extents:
            if info.extent_id == extent_id:
                return self.note(info)
        self._extents.pop(extent_id, None)
        raise NotFound(kind="extent", name=str(extent_id))

    def known(self, extent_id: int) -> Extent | None:
        """What is known of an extent without asking."""
        return self._extents.get(extent_id)

    def note(self, info: sm.ExtentInfo) -> Extent:
        extent = Extent.of(info)
        self._extents[extent.id] = extent
        self._extents.move_to_end(extent.id)
        while len(self._extents) > EXTENTS_CACHED_MAX:
            self._extents.popitem(last=False)
        return extent
