"""Dispatch of small operations: those for one server within one turn of the loop share a frame.

Invariants: reads and writes have separate frames, so that no read waits for a sync; so have puts without conditions,
            whose frames need no message for each put;
            each operation is answered once, with its own result or its own copy of an error;
            a repeated write keeps its call id. Frames to a server are bounded in number, bytes and operations;
            operations without room wait and fill the next frame, or go to another server if a newer map says so;
            an operation ends at its deadline, wherever it is.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from neve.client.objects.core_routing import (
    RegionMap,
    attempt_timeout_s,
    map_version_wanted,
    may_have_moved,
    may_heal,
)
from neve.client.objects.options import KeyValueOptions
from neve.client.objects.router import Router, closed, no_server, out_of_time
from neve.client.objects.types import ObjectInfo, new_info
from neve.proto import common_pb2, methods
from neve.proto import partition_server_pb2 as ps
from neve.proto.coroutine_driver import OnDone
from neve.proto.crc import Buffer
from neve.proto.errors import DeadlineExceeded, InvalidArgument, NeveError, ProtocolViolation, from_message
from neve.rpc.pool import ChannelPool
from neve.rpc.service import Begun, Reply
from neve.rpc.wire.deadlines import Deadlines

Kind = ps.MultiOperation.Kind
GET, PUT, DELETE, HEAD = Kind.GET, Kind.PUT, Kind.DELETE, Kind.HEAD
_NAMES: dict[int, str] = {GET: "get", PUT: "put", DELETE: "delete", HEAD: "head"}

# (MultiResult, the value of a get as a memoryview); of a put without a condition its ObjectInfo, which its lane makes.
Answer = Any


@dataclasses.dataclass(slots=True, eq=False)
class Operation:
    """A pending operation. `future` gets the answer; `call_id` is 0 for reads."""

    kind: int
    key: bytes
    future: asyncio.Future[Answer]
    timeout_s: float
    value: Buffer = b""
    condition: ps.Condition | None = None
    ttl_ms: int = 0
    call_id: int = 0
    attempts: int = 0
    timeouts: int = 0  # attempts that timed out
    last: NeveError | None = None
    maybe: bool = False  # an attempt may have been executed
    sent: bool = False  # an attempt is in flight


@dataclasses.dataclass(slots=True, eq=False)
class _OperationFrame:
    operations: list[Operation]
    over: bool = False


# Operations to retry together, by the code of their error and the map version that the next attempt needs.
_Again = dict[tuple[int, int], tuple[NeveError, list[Operation]]]


class ServerLane:
    """Sends operations of one kind to one server, in frames."""

    def __init__(self, dispatcher: Dispatcher, address: str) -> None:
        self._dispatcher = dispatcher
        self._address = address
        self._queue: deque[Operation] = deque()
        self._frames: dict[_OperationFrame, Begun] = {}
        self._woken = False
        self._closed = False

    def add(self, operation: Operation) -> None:
        self._queue.append(operation)
        self._wake()

    def take_moved(self, key_map: RegionMap) -> list[Operation]:
        """Remove queued operations that this map gives to another server: this one may hang, and each frame is slow."""
        kept: deque[Operation] = deque()
        moved: list[Operation] = []
        for operation in self._queue:
            region = key_map.find(operation.key)
            stays = region is not None and region.address == self._address
            (kept if stays else moved).append(operation)
        self._queue = kept
        return moved

    def _wake(self) -> None:
        """Send on the loop's next turn, after callers that were answered in this one could add operations."""
        if not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._woken = False
        options = self._dispatcher.options
        while self._queue and len(self._frames) < options.frames_in_flight_max and not self._closed:
            operations = self._cut(options.frame_operations_max, options.frame_bytes_max)
            if operations:
                self._send(operations)

    def _cut(self, operations_max: int, bytes_max: int) -> list[Operation]:
        queue = self._queue
        taken: list[Operation] = []
        size_bytes = 0
        while queue and len(taken) < operations_max:
            operation = queue[0]
            if operation.future.done():  # cancelled or timed out in the queue
                queue.popleft()
                continue
            size_bytes += len(operation.value) + len(operation.key)
            if taken and size_bytes > bytes_max:
                break
            taken.append(queue.popleft())
        return taken

    def _send(self, operations: list[Operation]) -> None:
        for operation in operations:
            operation.sent = True
        frame = _OperationFrame(operations)
        begun = self._begin(operations, functools.partial(self._done, frame))
        if not frame.over:
            self._frames[frame] = begun

    def _begin(self, operations: list[Operation], on_done: OnDone[Reply[Any]]) -> Begun:
        dispatcher = self._dispatcher
        request = ps.MultiRequest(call=dispatcher.call(0), regions_version=dispatcher.router.cache.map.version)
        add = request.operations.add
        values: list[Buffer] = []
        for operation in operations:
            value = operation.value
            message = add(kind=operation.kind, key=operation.key, call_id=operation.call_id, value_bytes=len(value))
            if operation.condition is not None:
                message.condition.CopyFrom(operation.condition)
            if operation.ttl_ms:
                message.ttl_ms = operation.ttl_ms
            if value:
                values.append(value)
        return dispatcher.channels.channel(self._address).begin(
            methods.PARTITION_SERVER_MULTI,
            request,
            on_done,
            timeout_s=dispatcher.timeout_s(operations),
            attachment=values,
            reply_bytes_max=dispatcher.options.reply_bytes_max if operations[0].kind == GET else 4096,
        )

    def _answered(self, operations: list[Operation], reply: Reply[Any]) -> None:
        self._dispatcher.answered(operations, reply)

    def _done(self, frame: _OperationFrame, reply: Reply[Any] | None, error: BaseException | None) -> None:
        frame.over = True
        operations = frame.operations
        self._frames.pop(frame, None)
        if error is not None:
            if isinstance(error, asyncio.CancelledError):  # by `close`
                self._dispatcher.end(operations)
                return
            if not isinstance(error, NeveError):
                self._dispatcher.fail(operations, error)
                return
            self._dispatcher.failed(operations, error)
        else:
            assert reply is not None
            self._answered(operations, reply)
        if self._queue:
            self._wake()

    def close(self) -> None:
        self._closed = True
        for begun in [*self._frames.values()]:
            begun.cancel()
        self._dispatcher.end(self._queue)
        self._queue.clear()


class PutLane(ServerLane):
    """Sends puts without conditions, in columns."""

    def _begin(self, operations: list[Operation], on_done: OnDone[Reply[Any]]) -> Begun:
        dispatcher = self._dispatcher
        values = [operation.value for operation in operations]
        request = ps.PutManyRequest(
            call=dispatcher.call(0),
            regions_version=dispatcher.router.cache.map.version,
            keys=[operation.key for operation in operations],
            call_ids=[operation.call_id for operation in operations],
            value_bytes=list(map(len, values)),
        )
        ttls_ms = [operation.ttl_ms for operation in operations]
        if any(ttls_ms):
            request.ttl_ms.extend(ttls_ms)
        return dispatcher.channels.channel(self._address).begin(
            methods.PARTITION_SERVER_PUT_MANY,
            request,
            on_done,
            timeout_s=dispatcher.timeout_s(operations),
            attachment=values,
            reply_bytes_max=1024 + 32 * len(values),
        )

    def _answered(self, operations: list[Operation], reply: Reply[Any]) -> None:
        self._dispatcher.puts_answered(operations, reply.message)


class Dispatcher:
    """All lanes of a client, and the retries of its operations."""

    def __init__(
        self,
        channels: ChannelPool,
        router: Router,
        call: Callable[[int], common_pb2.CallId],
        *,
        options: KeyValueOptions,
    ) -> None:
        self.channels = channels
        self.router = router
        self.options = options
        self.call = call  # makes the call id of a request from a number
        self._reads: dict[str, ServerLane] = {}
        self._writes: dict[str, ServerLane] = {}
        self._puts: dict[str, ServerLane] = {}
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._deadlines: Deadlines[Operation] = Deadlines(self._loop, self._expired)
        self._waiting: dict[Operation, None] = {}  # operations between two attempts
        self._map = router.cache.map  # the map by which the lanes were last filled

    def timeout_s(self, operations: Sequence[Operation]) -> float:
        """Return the timeout of a frame with these operations."""
        timeouts = max([operation.timeouts for operation in operations])
        return attempt_timeout_s(self.options.attempt_timeout_s, timeouts)

    async def perform(self, operation: Operation) -> Answer:
        """Send the operation, with retries, and wait for its answer."""
        bucket = self._deadlines.add(operation, self._loop.time() + operation.timeout_s)
        try:
            self._route(operation)
            return await operation.future
        finally:
            self._deadlines.remove(operation, bucket)

    def close(self) -> None:
        self._closed = True
        for lane in [*self._reads.values(), *self._writes.values(), *self._puts.values()]:
            lane.close()
        self.end(list(self._waiting))
        self._deadlines.close()

    # --- answers -----------------------------------------------------------------------------------------------

    def answered(self, operations: Sequence[Operation], reply: Reply[ps.MultiReply]) -> None:
        results = reply.message.results
        payload = reply.attachment
        if len(results) != len(operations):
            detail = f"{len(results)} results for {len(operations)} operations"
            self.failed(operations, ProtocolViolation(detail=detail))
            return
        at = 0
        again: _Again = {}
        for operation, result in zip(operations, results, strict=True):
            end = at + result.value_bytes
            if not operation.future.done():
                if result.HasField("error"):
                    self._refused(operation, from_message(result.error), again)
                elif end > len(payload):
                    detail = f"a value ends at {end}, beyond the payload of {len(payload)}"
                    operation.future.set_exception(ProtocolViolation(detail=detail))
                else:
                    operation.future.set_result((result, payload[at:end]))
            at = end
        for error, some in again.values():
            self._again(some, error)

    def puts_answered(self, operations: Sequence[Operation], reply: ps.PutManyReply) -> None:
        versions, modified_ms, crcs = list(reply.versions), list(reply.modified_ms), list(reply.value_crc32c)
        if {len(versions), len(modified_ms), len(crcs)} != {len(operations)}:
            detail = f"{len(versions)} versions for {len(operations)} puts"
            self.failed(operations, ProtocolViolation(detail=detail))
            return
        errors = {failure.index: from_message(failure.error) for failure in reply.failures}
        again: _Again = {}
        for number, operation in enumerate(operations):
            future = operation.future
            if future.done():
                continue
            if versions[number]:
                modified, ttl_ms = modified_ms[number], operation.ttl_ms
                expires_ms = modified + ttl_ms if ttl_ms else 0
                fields = (operation.key, versions[number], len(operation.value), modified, expires_ms, crcs[number])
                future.set_result(new_info(ObjectInfo, fields))
            else:
                error = errors.get(number) or ProtocolViolation(detail=f"neither version nor error for put {number}")
                self._refused(operation, error, again)
        for error, some in again.values():
            self._again(some, error)

    def _refused(self, operation: Operation, error: NeveError, again: _Again) -> None:
        """The server refused one operation: retry it or fail it."""
        if may_heal(error) and not self._closed:
            version = map_version_wanted(error, self.router.cache.map.version)
            again.setdefault((error.code, version), (error, []))[1].append(operation)
            return
        if operation.maybe and isinstance(error, InvalidArgument):
            # Its call id was forgotten: an earlier attempt may have been executed.
            error = out_of_time(_NAMES[operation.kind], operation.timeout_s, error, maybe=True)
        operation.future.set_exception(error)

    def failed(self, operations: Sequence[Operation], error: NeveError) -> None:
        """The whole frame has failed."""
        if self._closed:
            self.end(operations)
        elif may_heal(error):
            self._again(operations, error)
        else:
            self.fail(operations, error)

    def end(self, operations: Iterable[Operation]) -> None:
        """The client is closed: fail these operations."""
        for operation in operations:
            if not operation.future.done():
                operation.future.set_exception(closed(maybe=operation.maybe or operation.sent))

    def fail(self, operations: Sequence[Operation], error: BaseException) -> None:
        for operation in operations:
            if not operation.future.done():
                copied = type(error)(**error.facts()) if isinstance(error, NeveError) else error  # type: ignore[arg-type]
                operation.future.set_exception(copied)

    # --- attempts ----------------------------------------------------------------------------------------------

    def _route(self, operation: Operation) -> None:
        key_map = self.router.cache.map
        region = key_map.find(operation.key)
        if region is None or not region.address:
            self._again([operation], no_server(key_map, region))
            return
        if operation.kind == PUT and operation.condition is None:
            lanes: dict[str, ServerLane] = self._puts
            kind: type[ServerLane] = PutLane
        else:
            lanes, kind = self._writes if operation.call_id else self._reads, ServerLane
        lane = lanes.get(region.address)
        if lane is None:
            lane = lanes[region.address] = kind(self, region.address)
        lane.add(operation)

    def _again(self, operations: Sequence[Operation], error: NeveError) -> None:
        """Retry after a pause, and with a newer map if there may be one."""
        wanted = map_version_wanted(error, self.router.cache.map.version)
        attempts = 0
        kept = []
        for operation in operations:
            if operation.future.done():
                continue
            operation.sent = False
            operation.attempts += 1
            operation.timeouts += isinstance(error, DeadlineExceeded)
            operation.last = error
            operation.maybe = operation.maybe or error.outcome_unknown
            attempts = max(attempts, operation.attempts)
            self._waiting[operation] = None
            kept.append(operation)
        if not kept:
            return
        refresh = may_have_moved(error)
        pause_s = 0.0 if wanted and attempts == 1 else self.router.pause_s(attempts)
        if pause_s:
            self._loop.call_later(pause_s, self._resume, kept, refresh, wanted)
        else:
            self._resume(kept, refresh, wanted)

    def _resume(self, operations: list[Operation], refresh: bool, wanted: int) -> None:
        if refresh and not self._closed:
            refreshing = self.router.cache.refresh_soon(wanted)
            refreshing.add_done_callback(lambda _: self._reroute(operations))
        else:
            self._reroute(operations)

    def _reroute(self, operations: list[Operation]) -> None:
        key_map = self.router.cache.map
        if key_map is not self._map and not self._closed:
            self._map = key_map
            for lane in [*self._reads.values(), *self._writes.values(), *self._puts.values()]:
                for operation in lane.take_moved(key_map):
                    if not operation.future.done():
                        self._route(operation)
        for operation in operations:
            self._waiting.pop(operation, None)
            if self._closed:
                self.end([operation])
            elif not operation.future.done():
                self._route(operation)

    def _expired(self, operation: Operation) -> None:
        if not operation.future.done():
            error = out_of_time(
                _NAMES[operation.kind],
                operation.timeout_s,
                operation.last,
                maybe=operation.maybe or operation.sent,
            )
            operation.future.set_exception(error)
