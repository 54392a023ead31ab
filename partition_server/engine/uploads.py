"""Uploads: objects that arrive in parts. Each part goes into the log; the object appears when it is complete.

Invariants: the parts of an upload are in order, without gaps; a repeated part is recognised by its offset;
            nothing is visible, and no record names the parts, before the upload is complete with the right checksum;
            an upload ends when its partition is unloaded; its parts then belong to nothing. Bounded in number and idle
            time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from neve.partition_server.engine.entry import Part
from neve.partition_server.engine.operations import check_ttl, check_value
from neve.partition_server.engine.shared import Store
from neve.partition_server.engine.write import Outcome
from neve.partition_server.engine.writes import Writes
from neve.partition_server.log.log_format import Caller
from neve.proto.crc import Buffer, crc32c
from neve.proto.errors import InvalidArgument, NotFound, Overloaded


@dataclass(slots=True)
class Upload:
    id: int
    key: bytes
    expected: int | None
    ttl_ms: int
    begun_by: Caller
    used_s: float
    size_bytes: int = 0
    crc: int = 0
    parts: list[Part] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one part at a time


class Uploads:
    def __init__(self, store: Store, writes: Writes) -> None:
        self._store = store
        self._writes = writes
        self._uploads: dict[int, Upload] = {}

    def begin(self, key: bytes, *, expected: int | None, ttl_ms: int, caller: Caller) -> int:
        store = self._store
        store.check_key(key)
        store.check_writable()
        check_ttl(ttl_ms)
        for upload in self._uploads.values():
            if caller.client_id and upload.begun_by == caller and upload.key == key:
                return upload.id  # a repeated call
        if len(self._uploads) >= store.config.uploads_max:
            raise Overloaded(what="uploads", detail=f"{len(self._uploads)} are in progress")
        upload = Upload(store.rng.getrandbits(63) + 1, key, expected, ttl_ms, caller, store.loop.time())
        self._uploads[upload.id] = upload
        return upload.id

    async def part(self, upload_id: int, key: bytes, *, offset: int, payload: Buffer) -> int:
        """Append a part, and return the end of the upload so far."""
        check_value(payload)
        upload = self._find(upload_id, key)
        async with upload.lock:
            self._find(upload_id, key)  # it may have ended while this call waited
            upload.used_s = self._store.loop.time()
            if offset + len(payload) <= upload.size_bytes:
                return upload.size_bytes  # a repeated part
            if offset != upload.size_bytes:
                detail = f"{offset}: the upload has {upload.size_bytes} bytes; parts must be in order"
                raise InvalidArgument(what="offset", detail=detail)
            parts = await self._writes.write_parts(key, payload, upload_id=upload_id, offset=offset)
            if self._uploads.get(upload_id) is not upload:
                self._writes.release_parts(None, parts)
                raise NotFound(kind="upload", name=f"{upload_id:016x}", detail="it has ended in the meantime")
            upload.parts += parts
            upload.size_bytes += len(payload)
            upload.crc = crc32c(payload, upload.crc)
            upload.used_s = self._store.loop.time()
            return upload.size_bytes

    async def complete(self, upload_id: int, key: bytes, *, size_bytes: int, crc: int, caller: Caller) -> Outcome:
        """Make the object. A repeated call gets its first answer, also after a load, because the log remembers it."""
        store = self._store
        store.check_key(key)
        store.check_writable()
        known = store.sessions.known(caller, store.wall_ms())
        if known is not None:
            return await known.wait(store.loop)
        upload = self._find(upload_id, key)
        async with upload.lock:
            known = store.sessions.known(caller, store.wall_ms())
            if known is not None:
                return await known.wait(store.loop)
            self._find(upload_id, key)
            if (size_bytes, crc) != (upload.size_bytes, upload.crc):
                detail = (
                    f"{upload.size_bytes} bytes with checksum {upload.crc:08x} came, not {size_bytes} and {crc:08x}"
                )
                raise InvalidArgument(what="size_bytes, value_crc32c", detail=detail)
            outcome = await self._writes.put_parts(
                key,
                tuple(upload.parts),
                expected=upload.expected,
                ttl_ms=upload.ttl_ms,
                crc=upload.crc,
                size_bytes=upload.size_bytes,
                caller=caller,
            )
            self._end(upload)
            return outcome

    def abort(self, upload_id: int, key: bytes) -> None:
        """End an upload. An unknown one has ended already."""
        self._store.check_key(key)
        upload = self._uploads.get(upload_id)
        if upload is not None and upload.key == key:
            self._end(upload)

    def expire(self) -> None:
        now_s = self._store.loop.time()
        for upload in list(self._uploads.values()):
            if not upload.lock.locked() and now_s - upload.used_s > self._store.config.upload_idle_s:
                self._end(upload)

    def _end(self, upload: Upload) -> None:
        if self._uploads.pop(upload.id, None) is not None:
            self._writes.release_parts(None, tuple(upload.parts))

    def _find(self, upload_id: int, key: bytes) -> Upload:
        upload = self._uploads.get(upload_id)
        if upload is None or upload.key != key:
            detail = "it has ended, or the partition was loaded again; start over"
            raise NotFound(kind="upload", name=f"{upload_id:016x}", detail=detail)
        return upload
