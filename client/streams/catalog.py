"""The client's cache of stream and extent metadata, filled by any manager.

Invariants: an entry may be out of date. When a replica refuses a call, or a reader reaches the known end, the client
            fetches it again;
            a reply is never older than what this client has seen before (`revision_min`);
            the cache is bounded: it evicts the least recently used extents.
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
    """Reads streams and extents from the managers, and caches extents."""

    def __init__(self, link: ManagerLink) -> None:
        self._link = link
        self._extents: OrderedDict[int, Extent] = OrderedDict()

    async def stream(self, stream: int | str, *, with_extents: bool = False) -> Stream:
        """Fetch a stream by id or name. Raises NotFound if there is none."""
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
        """Iterate over all streams that have these labels, in pages, as of one revision."""
        request = sm.ListStreamsRequest(limit=PAGE, labels=labels)
        ask = functools.partial(self._link.ask, methods.STREAM_MANAGER_LIST_STREAMS)
        async for info in pages(ask, request, items="streams", after="after_stream_id"):
            yield Stream.of(info)

    async def extent(self, extent_id: int, *, refresh: bool = False) -> Extent:
        """Return an extent's replicas and length, cached unless `refresh`. Raises NotFound if metadata lacks it."""
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
        """Return the cached extent, without a call."""
        return self._extents.get(extent_id)

    def note(self, info: sm.ExtentInfo) -> Extent:
        """Cache an extent that a reply contained."""
        extent = Extent.of(info)
        self._extents[extent.id] = extent
        self._extents.move_to_end(extent.id)
        while len(self._extents) > EXTENTS_CACHED_MAX:
            self._extents.popitem(last=False)
        return extent
