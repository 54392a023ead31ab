"""The interface of a loaded partition, between serving (hosted, servicer) and storage (engine).

Invariants: the lock is checked right before every answer to a read or write (protocol rule 2);
            when `failed` is done, the partition is unusable and the server loads it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from neve.client.streams.types import Position
from neve.partition_server.engine.entry import Info
from neve.partition_server.engine.operations import Operation
from neve.partition_server.engine.puts import Puts, Results
from neve.partition_server.engine.values import Pieces
from neve.proto import common_pb2
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_server_pb2 as ps
from neve.proto.crc import Buffer
from neve.proto.errors import NeveError

StreamEnd = common_pb2.StreamEnd
Admit = Callable[[int], Awaitable[None] | None]  # called with the size of a value before it is read


class ScanPage(Protocol):
    @property
    def infos(self) -> Sequence[ps.ObjectInfo]: ...
    @property
    def values(self) -> Sequence[Buffer]: ...
    @property
    def continuation(self) -> bytes: ...
    @property
    def left_out(self) -> Sequence[int]: ...


class Engine(Protocol):
    @property
    def failed(self) -> asyncio.Future[NeveError]: ...

    async def get(
        self,
        key: bytes,
        *,
        offset: int = 0,
        length: int = 0,
        version: int = 0,
        admit: Admit | None = None,
    ) -> tuple[ps.ObjectInfo, Pieces]: ...
    async def head(self, key: bytes) -> ps.ObjectInfo: ...
    async def put(
        self,
        key: bytes,
        value: Buffer,
        *,
        condition: ps.Condition | None = None,
        ttl_ms: int = 0,
        call: common_pb2.CallId | None = None,
    ) -> ps.ObjectInfo: ...
    def start_put(
        self,
        key: bytes,
        value: Buffer,
        *,
        condition: ps.Condition | None = None,
        ttl_ms: int = 0,
        call: common_pb2.CallId | None = None,
    ) -> asyncio.Future[tuple[Info, ...]]: ...
    def start_puts(self, puts: Puts) -> asyncio.Future[Results]: ...
    async def delete(
        self, key: bytes, *, condition: ps.Condition | None = None, call: common_pb2.CallId | None = None
    ) -> bool: ...
    async def batch(
        self, operations: Sequence[Operation], *, call: common_pb2.CallId | None = None
    ) -> list[ps.ObjectInfo]: ...
    async def scan(
        self,
        *,
        prefix: bytes,
        start: bytes,
        end: bytes,
        limit: int,
        continuation: bytes,
        with_values: bool,
        max_bytes: int,
    ) -> ScanPage: ...

    async def begin_upload(
        self, key: bytes, *, condition: ps.Condition | None, ttl_ms: int, call: common_pb2.CallId | None
    ) -> int: ...
    async def upload_part(self, upload_id: int, key: bytes, *, offset: int, payload: Buffer) -> int: ...
    async def complete_upload(
        self,
        upload_id: int,
        key: bytes,
        *,
        size_bytes: int,
        value_crc32c: int,
        call: common_pb2.CallId | None,
    ) -> ps.ObjectInfo: ...
    async def abort_upload(self, upload_id: int, key: bytes) -> None: ...

    async def flush(self) -> None: ...
    async def compact(self, full: bool) -> None: ...
    async def reclaim(self, extent_ids: Sequence[int]) -> tuple[Sequence[int], Sequence[int], int]: ...
    def middle_key(self) -> bytes | None: ...
    async def freeze(self) -> tuple[StreamEnd, StreamEnd, StreamEnd]: ...
    async def flush_and_freeze(self) -> tuple[StreamEnd, StreamEnd, StreamEnd, Position]: ...
    def state(self) -> ps.PartitionState: ...
    def load_now(self) -> pm.PartitionLoad: ...
    async def close(self) -> None: ...
