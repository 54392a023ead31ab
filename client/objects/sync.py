"""The key-value client for programs without asyncio: the same methods, called without `await`, from any thread.

    with SyncKeyValueClient(["127.0.0.1:3701"]) as kv:
        kv.put(b"greeting", b"hello")
        print(kv.get(b"greeting").value)

Invariants: one event loop in a thread of its own does all the work, as in streams/sync.py; operations of several
            threads share frames; nothing is decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from neve.client.objects.client import KeyValueClient
from neve.client.objects.options import DEFAULT_KV_OPTIONS, KeyValueOptions
from neve.client.objects.transfer import ObjectStream
from neve.client.objects.types import Delete, Object, ObjectInfo, Put
from neve.client.streams.sync import LoopThread, SyncTwin
from neve.proto.crc import Buffer
from neve.rpc.tls import TlsFiles


class SyncObjectStream:
    """A streamed get. Iterate over its chunks once, or call `read` for all bytes."""

    def __init__(self, thread: LoopThread, stream: ObjectStream) -> None:
        self._thread = thread
        self._stream = stream
        self.info = stream.info
        self.offset = stream.offset
        self.length = stream.length

    def __iter__(self) -> Iterator[bytes]:
        return self._thread.iterate(self._stream.__aiter__())

    def read(self) -> bytes:
        """Return all bytes."""
        return b"".join(self)


class SyncKeyValueClient(SyncTwin[KeyValueClient]):
    """The synchronous twin of `KeyValueClient`, with the same arguments and methods."""

    def __init__(
        self,
        managers: Sequence[str],
        *,
        cluster: str = "main",
        token: str = "",
        tls: TlsFiles | None = None,
        options: KeyValueOptions = DEFAULT_KV_OPTIONS,
    ) -> None:
        super().__init__(lambda: KeyValueClient(managers, cluster=cluster, token=token, tls=tls, options=options))

    def get(self, key: Buffer, **how: Any) -> Object:
        """Like `KeyValueClient.get`; the methods below correspond to it in the same way."""
        return self._thread.run(self._client.get(key, **how))

    def head(self, key: Buffer, **how: Any) -> ObjectInfo:
        return self._thread.run(self._client.head(key, **how))

    def put(self, key: Buffer, value: Buffer, **how: Any) -> ObjectInfo:
        return self._thread.run(self._client.put(key, value, **how))

    def delete(self, key: Buffer, **how: Any) -> bool:
        return self._thread.run(self._client.delete(key, **how))

    def batch(self, operations: Sequence[Put | Delete], **how: Any) -> list[ObjectInfo]:
        return self._thread.run(self._client.batch(operations, **how))

    def scan(self, **how: Any) -> Iterator[ObjectInfo]:
        """Close the iterator or read it to its end."""
        return self._thread.iterate(self._client.scan(**how))

    def scan_objects(self, **how: Any) -> Iterator[Object]:
        return self._thread.iterate(self._client.scan_objects(**how))

    def put_stream(self, key: Buffer, chunks: Iterable[Buffer], **how: Any) -> ObjectInfo:
        """Like `KeyValueClient.put_stream`. Reads the source in another thread, one chunk a time, so it may block."""
        pieces = iter(chunks)
        end: Any = object()  # a unique sentinel: with None, a source that yields None would end the object early

        async def source() -> AsyncIterator[Buffer]:
            loop = asyncio.get_running_loop()
            while (piece := await loop.run_in_executor(None, next, pieces, end)) is not end:
                yield piece

        return self._thread.run(self._client.put_stream(key, source(), **how))

    def get_stream(self, key: Buffer, **how: Any) -> SyncObjectStream:
        return SyncObjectStream(self._thread, self._thread.run(self._client.get_stream(key, **how)))
