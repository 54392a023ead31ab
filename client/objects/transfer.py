"""Transfer of values larger than one call: uploads in parts, and reads of one version in ranges.

Invariants: a streamed put appears as a whole or not at all. Its parts are sent one after another, so memory holds one
            part and the next chunk of the source;
            the ranges of a streamed get are of one version: if the object changes, the reader gets ConditionFailed,
            never a mix of versions;
            an upload that is not completed is aborted, or expires at its server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from neve.client.objects.core_routing import Region
from neve.client.objects.options import KeyValueOptions
from neve.client.objects.router import Router
from neve.client.objects.types import ObjectInfo, info_from
from neve.proto import common_pb2, methods
from neve.proto import partition_server_pb2 as ps
from neve.proto.crc import Buffer, crc32c
from neve.proto.errors import ConditionFailed, InvalidArgument, NeveError, ProtocolViolation

log = logging.getLogger(__name__)

Chunks = AsyncIterable[Buffer] | Iterable[Buffer]
REPLY_OVERHEAD_BYTES = 4096
ABORT_TIMEOUT_S = 5.0


async def parts_of(chunks: Chunks, part_bytes: int) -> AsyncIterator[bytes]:
    """Split the bytes into parts of `part_bytes`; the last may be shorter. No bytes make no part."""
    held = bytearray()
    async for chunk in _asynchronous(chunks):
        if not isinstance(chunk, (bytes, bytearray, memoryview)):
            raise InvalidArgument(what="chunks", detail=f"a chunk must be bytes, not {type(chunk).__name__}")
        view = memoryview(chunk).cast("B")
        while view:
            taken = view[: part_bytes - len(held)]
            held += taken
            view = view[len(taken) :]
            if len(held) == part_bytes:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)


async def _asynchronous(chunks: Chunks) -> AsyncIterator[Buffer]:
    if isinstance(chunks, AsyncIterable):
        async for chunk in chunks:
            yield chunk
    else:
        if isinstance(chunks, (bytes, bytearray, memoryview, str)):
            raise InvalidArgument(what="chunks", detail="expected an iterable of bytes; for a single value use put")
        for chunk in chunks:
            yield chunk


class Upload:
    """One streamed put."""

    def __init__(self, router: Router, key: bytes, *, timeout_s: float) -> None:
        self._router = router
        self._key = key
        self._timeout_s = timeout_s
        self._upload_id = 0
        self._end = 0
        self._crc = 0

    def _deadline_s(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout_s

    async def begin(self, call: common_pb2.CallId, *, condition: ps.Condition | None, ttl_ms: int) -> None:
        """Begin the upload. `call` is the same in all attempts, as a server keeps few uploads, for long."""

        def request(region: Region, version: int) -> ps.BeginUploadRequest:
            return ps.BeginUploadRequest(
                call=call,
                partition_id=region.partition_id,
                regions_version=version,
                key=self._key,
                condition=condition,
                ttl_ms=ttl_ms,
            )

        method = methods.PARTITION_SERVER_BEGIN_UPLOAD
        reply = await self._router.call(self._key, method, request, deadline_s=self._deadline_s())
        self._upload_id = reply.message.upload_id

    async def part(self, payload: bytes) -> None:
        """Send the next part."""

        def request(region: Region, version: int) -> ps.UploadPartRequest:
            return ps.UploadPartRequest(upload_id=self._upload_id, key=self._key, offset=self._end)

        reply = await self._router.call(
            self._key,
            methods.PARTITION_SERVER_UPLOAD_PART,
            request,
            deadline_s=self._deadline_s(),
            attachment=[payload],
        )
        end = self._end + len(payload)
        if reply.message.end != end:
            raise ProtocolViolation(detail=f"the upload ends at {reply.message.end}, not {end}")
        self._end = end
        self._crc = crc32c(payload, self._crc)

    async def complete(self, call: Callable[[], common_pb2.CallId]) -> ObjectInfo:
        """Make the object. `call` returns the same number in all attempts, so that it is made once."""

        def request(region: Region, version: int) -> ps.CompleteUploadRequest:
            return ps.CompleteUploadRequest(
                call=call(),
                upload_id=self._upload_id,
                key=self._key,
                size_bytes=self._end,
                value_crc32c=self._crc,
            )

        method = methods.PARTITION_SERVER_COMPLETE_UPLOAD
        reply = await self._router.call(self._key, method, request, deadline_s=self._deadline_s())
        return info_from(reply.message.info, self._key)

    async def abort(self) -> None:
        """Try to abort the upload. If that fails, it expires at its server."""

        def request(region: Region, version: int) -> ps.AbortUploadRequest:
            return ps.AbortUploadRequest(upload_id=self._upload_id, key=self._key)

        deadline_s = asyncio.get_running_loop().time() + ABORT_TIMEOUT_S
        try:
            await self._router.call(self._key, methods.PARTITION_SERVER_ABORT_UPLOAD, request, deadline_s=deadline_s)
        except NeveError as error:
            log.info("upload_not_aborted upload_id=%x error=%s", self._upload_id, error)


@dataclass(frozen=True, slots=True)
class ObjectStream:
    """A streamed get: an object's metadata and its bytes as they arrive. Iterate once.

    `offset` and `length` are the range of all chunks together: the whole object, or the requested range.
    """

    info: ObjectInfo
    offset: int
    length: int
    _first: bytes
    _read: Callable[[int, int], AsyncIterator[bytes]]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._first:
            async with contextlib.aclosing(
                self._read(self.offset + len(self._first), self.offset + self.length)
            ) as rest:  # type: ignore[type-var]
                yield self._first
                async for chunk in rest:
                    yield chunk

    async def read(self) -> bytes:
        """Return all bytes, in memory."""
        return b"".join([chunk async for chunk in self])


class RangeReader:
    """Reads ranges of one object."""

    def __init__(self, router: Router, key: bytes, *, timeout_s: float, options: KeyValueOptions) -> None:
        self._router = router
        self._key = key
        self._timeout_s = timeout_s
        self._options = options

    async def range(self, offset: int, length: int, version: int) -> tuple[ObjectInfo, memoryview]:
        """Read as much of the range as one reply can carry. `length` 0: to the end; `version` 0: the newest."""

        def request(region: Region, map_version: int) -> ps.GetRequest:
            return ps.GetRequest(
                partition_id=region.partition_id,
                regions_version=map_version,
                key=self._key,
                offset=offset,
                length=length,
                version=version,
            )

        reply = await self._router.call(
            self._key,
            methods.PARTITION_SERVER_GET,
            request,
            deadline_s=asyncio.get_running_loop().time() + self._timeout_s,
            reply_bytes_max=(length or self._options.part_bytes) + REPLY_OVERHEAD_BYTES,
        )
        info = info_from(reply.message.info, self._key)
        wanted = max(0, info.size_bytes - offset)
        wanted = min(wanted, length) if length else wanted
        if len(reply.attachment) > wanted or (wanted and not reply.attachment):
            raise ProtocolViolation(detail=f"the reply has {len(reply.attachment)} bytes of {wanted} requested")
        return info, reply.attachment

    async def open(self, *, offset: int, length: int | None, version: int) -> ObjectStream:
        """Read the first part, and return the stream of all parts."""
        options = self._options
        first_bytes = options.first_part_bytes if length is None else min(length, options.first_part_bytes)
        info, first = await self.range(offset, first_bytes, version)
        whole = max(0, info.size_bytes - offset)
        length = whole if length is None else min(whole, length)
        return ObjectStream(info, offset, length, bytes(first), lambda start, end: self._rest(start, end, info.version))

    async def _rest(self, start: int, end: int, version: int) -> AsyncIterator[bytes]:
        """Iterate over [start, end) in parts, fetching one while the one before it is consumed."""
        at = start
        ahead = self._ahead(at, end, version)
        try:
            while ahead is not None:
                _, part = await ahead
                at += len(part)
                ahead = self._ahead(at, end, version)
                yield bytes(part)
        except ConditionFailed as error:
            detail = f"the object changed while it was read (it was version {version})"
            raise ConditionFailed(version=error.version, detail=detail) from error
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    def _ahead(self, at: int, end: int, version: int) -> asyncio.Task[tuple[ObjectInfo, memoryview]] | None:
        if at >= end:
            return None
        return asyncio.ensure_future(self.range(at, min(end - at, self._options.part_bytes), version))
