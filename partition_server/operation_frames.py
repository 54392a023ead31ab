"""Frames of many independent operations. All begin at once, in order; the frame is answered after the last of them.

Invariants: each operation has its own error; the frame itself fails only if it cannot be decoded;
            operations begin in frame order; one whose partition is not served yet begins when it is;
            values without room in the reply are TooLarge and not read: their callers fetch them separately.
Note:       A task for each operation would cost more than the operation.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine
from typing import Any

from neve.partition_server.engine.entry import Info
from neve.partition_server.engine.interface import Engine
from neve.partition_server.lifecycle import Host
from neve.partition_server.metrics import ServerMetrics
from neve.proto import common_pb2
from neve.proto import partition_server_pb2 as ps
from neve.proto.coroutine_driver import CoroutineDriver
from neve.proto.errors import InvalidArgument, TooLarge, to_message
from neve.rpc.service import Buffer, Call

Kind = ps.MultiOperation.Kind
GET, PUT, DELETE, HEAD = Kind.GET, Kind.PUT, Kind.DELETE, Kind.HEAD
OPERATIONS_MAX = 10_000


class Multi:
    def __init__(self, host: Host, metrics: ServerMetrics, *, reply_bytes_max: int) -> None:
        self._host = host
        self._metrics = metrics
        self._reply_bytes_max = reply_bytes_max

    async def run(self, request: ps.MultiRequest, call: Call) -> ps.MultiReply:
        if len(request.operations) > OPERATIONS_MAX:
            detail = f"{len(request.operations)}, at most {OPERATIONS_MAX}"
            raise InvalidArgument(what="operations", detail=detail)
        frame = _MultiFrame(self._host, request, call, reply_bytes_max=self._reply_bytes_max)
        frame.begin()
        self._metrics.count_operations(len(request.operations))
        if frame.left:
            try:
                await frame.done
            finally:
                frame.cancel()
        values = frame.values()
        size_bytes = sum(map(len, values))
        if size_bytes:
            await call.reserve_reply(size_bytes)
            call.attach(*values)
        return ps.MultiReply(results=frame.results)


class _MultiFrame:
    """One request. `left` operations are not answered yet."""

    def __init__(self, host: Host, request: ps.MultiRequest, call: Call, *, reply_bytes_max: int) -> None:
        self._host = host
        self._request = request
        self._call = call
        self._room_bytes = reply_bytes_max
        self._admitted: dict[int, int] = {}  # bytes of values read or being read, by operation
        self._drivers: dict[int, CoroutineDriver[None]] = {}
        self._pieces: dict[int, list[Buffer]] = {}
        self.results: list[ps.MultiResult] = [ps.MultiResult() for _ in request.operations]
        self.left = len(self.results)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        version = self._request.regions_version
        payload = self._call.attachment
        values = _values(self._request, payload)
        for number, operation in enumerate(self._request.operations):
            value = values[number]
            write = operation.kind in (PUT, DELETE)
            try:
                partition = self._host.find(operation.key, regions_version=version, write=write)
                if partition is None:
                    self._start(number, self._later(operation, value, number, version))
                elif operation.kind == PUT:
                    # The most frequent case needs no coroutine.
                    future = self._start_put(partition, operation, value)
                    future.add_done_callback(functools.partial(self._put_done, number))
                else:
                    self._start(number, self._one(partition, operation, value, number))
            except Exception as error:  # noqa: BLE001 - the operation's result; any other exception becomes Internal
                self._fail(number, error)

    def cancel(self) -> None:
        for driver in list(self._drivers.values()):
            driver.cancel()

    def values(self) -> list[Buffer]:
        return [piece for number in sorted(self._pieces) for piece in self._pieces[number]]

    def _start(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        driver = CoroutineDriver(work)
        if not driver.ended:
            self._drivers[number] = driver
        driver.then(functools.partial(self._driver_done, number))

    def _start_put(self, partition: Engine, operation: ps.MultiOperation, value: memoryview) -> asyncio.Future[Any]:
        condition = operation.condition if operation.HasField("condition") else None
        return partition.start_put(
            operation.key, value, condition=condition, ttl_ms=operation.ttl_ms, call=self._call_id(operation)
        )

    def _call_id(self, operation: ps.MultiOperation) -> common_pb2.CallId:
        call = self._request.call
        return common_pb2.CallId(
            client_id=call.client_id if operation.call_id else 0,
            call_id=operation.call_id,
            completed_below=call.completed_below,
        )

    async def _later(self, operation: ps.MultiOperation, value: memoryview, number: int, version: int) -> None:
        partition = await self._host.wait_for(
            operation.key,
            regions_version=version,
            write=operation.kind in (PUT, DELETE),
            deadline_s=self._call.deadline_s,
        )
        if operation.kind == PUT:
            (info,) = await self._start_put(partition, operation, value)
            self.results[number].info.CopyFrom(info.message(operation.key))
        else:
            await self._one(partition, operation, value, number)

    async def _one(self, partition: Engine, operation: ps.MultiOperation, value: memoryview, number: int) -> None:
        result = self.results[number]
        if operation.kind == GET:
            info, pieces = await partition.get(operation.key, admit=functools.partial(self._admit, number))
            self._pieces[number] = list(pieces)
            result.info.CopyFrom(info)
            result.value_bytes = sum(map(len, pieces))
        elif operation.kind == DELETE:
            condition = operation.condition if operation.HasField("condition") else None
            result.existed = await partition.delete(operation.key, condition=condition, call=self._call_id(operation))
        elif operation.kind == HEAD:
            result.info.CopyFrom(await partition.head(operation.key))
        else:
            raise InvalidArgument(what="operations.kind", detail=f"{operation.kind} is not known here")

    def _admit(self, number: int, size_bytes: int) -> None:
        """Reserve room in the reply for a value that is about to be read, replacing the operation's earlier room."""
        room_bytes = self._room_bytes + self._admitted.pop(number, 0)
        self._room_bytes = room_bytes
        if size_bytes > room_bytes:
            raise TooLarge(what="value beside others", size_bytes=size_bytes, limit_bytes=room_bytes)
        self._room_bytes -= size_bytes
        self._admitted[number] = size_bytes

    def _put_done(self, number: int, future: asyncio.Future[tuple[Info, ...]]) -> None:
        if future.cancelled():
            self._fail(number, asyncio.CancelledError())
        elif (error := future.exception()) is not None:
            self._fail(number, error)
        else:
            (info,) = future.result()
            self.results[number].info.CopyFrom(info.message(self._request.operations[number].key))
            self._end()

    def _driver_done(self, number: int, _: None, error: BaseException | None) -> None:
        self._drivers.pop(number, None)
        if error is not None:
            self._fail(number, error)
        else:
            self._end()

    def _fail(self, number: int, error: BaseException) -> None:
        self._room_bytes += self._admitted.pop(number, 0)
        self.results[number].error.CopyFrom(to_message(error))
        self._end()

    def _end(self) -> None:
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(None)


def _values(request: ps.MultiRequest, payload: memoryview) -> list[memoryview]:
    """Return the value of each operation; empty if it has none."""
    found = []
    at = 0
    for operation in request.operations:
        size_bytes = operation.value_bytes if operation.kind == PUT else 0
        found.append(payload[at : at + size_bytes])
        at += size_bytes
    if at != len(payload):
        raise InvalidArgument(what="payload", detail=f"{len(payload)} bytes, the values have {at}")
    return found
