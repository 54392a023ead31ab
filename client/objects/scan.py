"""Scans: the objects of a key range, in the order of their keys, across partitions.

Invariants: each page says how far it went, and the next one begins after that: a split, a move or a dead server in
            between neither hides nor repeats a key that existed all the time (scenario T51);
            one page is fetched while the one before it is consumed, no more;
            the pages of one partition are of one snapshot, for as long as its server keeps that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from neve.client.objects.core_routing import Region, ScanCursor
from neve.client.objects.options import KeyValueOptions
from neve.client.objects.router import Router
from neve.client.objects.types import Object, ObjectInfo, checked_object, info_from
from neve.proto import methods
from neve.proto import partition_server_pb2 as ps
from neve.proto.errors import NeveError, NotFound, ProtocolViolation

REPLY_OVERHEAD_BYTES = 1 << 20  # the metadata of a page's objects, beside its values


class Page(NamedTuple):
    """One page of a scan. `objects` is empty for a scan without values."""

    objects: list[Object]
    infos: list[ObjectInfo]


class Scan:
    """One scan. `limit`: how many objects to return at most; None for no limit."""

    def __init__(
        self,
        router: Router,
        cursor: ScanCursor,
        *,
        limit: int | None,
        with_values: bool,
        timeout_s: float,
        options: KeyValueOptions,
        get_large: Callable[[bytes, float], Awaitable[Object]],
    ) -> None:
        self._router = router
        self._get_large = get_large
        self._cursor = cursor
        self._left = limit
        self._with_values = with_values
        self._timeout_s = timeout_s
        self._options = options

    async def pages(self) -> AsyncIterator[Page]:
        ahead = None if self._over else asyncio.ensure_future(self._next())
        try:
            while ahead is not None:
                page = await ahead
                ahead = None if self._over else asyncio.ensure_future(self._next())
                if page.infos:
                    yield page
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    @property
    def _over(self) -> bool:
        return self._cursor.done or self._left == 0

    async def _next(self) -> Page:
        """Fetch the next page within the timeout of one operation, retrying if servers fail."""
        cursor, options = self._cursor, self._options
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        limit = options.scan_page_keys_max if self._left is None else min(self._left, options.scan_page_keys_max)
        asked: list[tuple[Region, bytes]] = []

        def request(region: Region, version: int) -> ps.ScanRequest:
            end = cursor.end_within(region)
            asked[:] = [(region, end)]
            return ps.ScanRequest(
                partition_id=region.partition_id,
                regions_version=version,
                start=cursor.start,
                end=end,
                limit=limit,
                continuation=cursor.continuation_for(region),
                with_values=self._with_values,
                max_bytes=options.scan_page_bytes_max,
            )

        try:
            reply = await self._router.call(
                cursor.start,
                methods.PARTITION_SERVER_SCAN,
                request,
                deadline_s=deadline_s,
                reply_bytes_max=options.scan_page_bytes_max + REPLY_OVERHEAD_BYTES,
            )
        except NeveError as error:
            if isinstance(error, NotFound) and cursor.continuation:
                cursor.forget_snapshot()  # the server has dropped the snapshot: continue by key
                return Page([], [])
            raise
        (region, end) = asked[0]
        message = reply.message
        infos = [info_from(each, each.key) for each in message.infos]
        cursor.advance(region, end, [info.key for info in infos], message.continuation)
        if self._left is not None:
            if len(infos) > self._left:
                raise ProtocolViolation(detail=f"a scan with limit {limit} returned {len(infos)} keys")
            self._left -= len(infos)
        if not self._with_values:
            return Page([], infos)
        left_out = {infos[number].key for number in message.left_out if number < len(infos)}
        objects: list[Object] = []
        for each in _objects(infos, reply.attachment, left_out):
            if isinstance(each, Object):
                objects.append(each)
                continue
            with contextlib.suppress(NotFound):  # it was deleted in the meantime
                objects.append(await self._get_large(each.key, self._timeout_s))
        return Page(objects, infos)


def _objects(infos: list[ObjectInfo], payload: memoryview, left_out: set[bytes]) -> list[Object | ObjectInfo]:
    """Return the objects of a page in order; the info alone where the value was left out."""
    objects: list[Object | ObjectInfo] = []
    at = 0
    for info in infos:
        if info.key in left_out:
            objects.append(info)
            continue
        end = at + info.size_bytes
        if end > len(payload):
            raise ProtocolViolation(detail=f"the value of {info.key!r} ends at {end}, the payload at {len(payload)}")
        objects.append(checked_object(info, bytes(payload[at:end])))
        at = end
    return objects
