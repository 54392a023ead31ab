"""The key-value client: objects under byte keys. A process needs one, for any number of concurrent operations.

    async with KeyValueClient(["127.0.0.1:3701"]) as kv:
        info = await kv.put(b"greeting", b"hello")
        print((await kv.get(b"greeting")).value)
        await kv.put(b"greeting", b"again", if_version=info.version)   # ConditionFailed if it has changed since
        async for each in kv.scan(prefix=b"greet"):
            print(each.key, each.size_bytes)

Invariants: an operation is executed once, however often it is sent, and ends within its timeout. An operation that
            raises an error with `outcome_unknown` set may have been executed; with any other error it was not;
            concurrent operations may be executed in any order: await one before the next where order matters;
            memory is bounded: operations wait when the buffer is full.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

from neve.client.manager_link import ManagerLink
from neve.client.objects import dispatch
from neve.client.objects.admission import Admission
from neve.client.objects.core_routing import Region, ScanCursor
from neve.client.objects.dispatch import Dispatcher, Operation
from neve.client.objects.options import DEFAULT_KV_OPTIONS, KeyValueOptions
from neve.client.objects.regions import RegionCache
from neve.client.objects.router import Router
from neve.client.objects.scan import Scan
from neve.client.objects.transfer import Chunks, ObjectStream, RangeReader, Upload, parts_of
from neve.client.objects.types import (
    BATCH_OPERATIONS_MAX,
    VALUE_BYTES_MAX,
    VERSION_MAX,
    Delete,
    Object,
    ObjectInfo,
    Put,
    checked_key,
    checked_object,
    checked_ttl_ms,
    checked_value,
    condition,
    info_from,
    show_key,
)
from neve.client.streams.options import ClientOptions
from neve.proto import methods
from neve.proto import partition_server_pb2 as ps
from neve.proto.common_pb2 import CallId
from neve.proto.crc import Buffer
from neve.proto.errors import (
    ConditionFailed,
    InvalidArgument,
    NotFound,
    ProtocolViolation,
    ShuttingDown,
    TooLarge,
)
from neve.rpc.pool import ChannelPool
from neve.rpc.tls import TlsFiles
from neve.rpc.wire.client import WireChannel


class KeyValueClient:
    """A connection to the key-value store of one cluster.

    `managers` are wire addresses of partition managers; one that replies is enough. `token` and `tls` authenticate the
    client. `channels` and `rng` are for simulations.
    """

    def __init__(
        self,
        managers: Sequence[str],
        *,
        cluster: str = "main",
        token: str = "",
        tls: TlsFiles | None = None,
        options: KeyValueOptions = DEFAULT_KV_OPTIONS,
        channels: ChannelPool | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if isinstance(managers, str):
            raise InvalidArgument(what="managers", detail="expected a list of addresses, not a string")
        self.options = options
        self._rng = rng or random.SystemRandom()
        self._channels = channels or ChannelPool(
            lambda address: WireChannel(
                address, cluster=cluster, limits=options.limits, token=token, tls=tls, agent="neve.client kv"
            )
        )
        link_options = ClientOptions(
            call_timeout_s=options.operation_timeout_s,
            attempt_timeout_s=options.map_timeout_s,
            retry_delay_s_min=options.retry_delay_s_min,
            retry_delay_s_max=options.retry_delay_s_max,
            limits=options.limits,
        )
        link = ManagerLink(self._channels, managers, options=link_options, rng=self._rng, kind="partition manager")
        self._admission = Admission(self._rng.getrandbits(64) or 1, options)
        self.regions = RegionCache(link, timeout_s=options.map_timeout_s)
        self._router = Router(self._channels, self.regions, options=options, rng=self._rng)
        self._dispatcher: Dispatcher | None = None
        self._closed = False

    async def open(self) -> Self:
        """Connect to a manager and read the region map. `async with` calls this."""
        try:
            await self.regions.load(self.options.operation_timeout_s)
        except BaseException:
            await self.close()
            raise
        self._dispatcher = Dispatcher(self._channels, self._router, self._admission.call, options=self.options)
        return self

    async def close(self) -> None:
        """Disconnect. Pending operations raise ShuttingDown, or Cancelled if they may have been executed."""
        if self._closed:
            return
        self._closed = True
        self._admission.close()
        self._router.close()
        if self._dispatcher is not None:
            self._dispatcher.close()
        await self.regions.close()
        await self._channels.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- objects ---------------------------------------------------------------------------------------------

    async def get(
        self,
        key: Buffer,
        *,
        offset: int = 0,
        length: int | None = None,
        version: int | None = None,
        timeout_s: float | None = None,
    ) -> Object:
        """Return an object, or `length` bytes of it from `offset` on.

        Raises NotFound if there is none, and with `version` ConditionFailed if the object has another version. A range
        that extends beyond the object's end is shortened.
        """
        key = checked_key(key)
        if version is None and (offset or length is not None):
            return await self._get_large(key, timeout_s, offset=offset, length=length)
        if version is not None:
            stream = await self.get_stream(key, offset=offset, length=length, version=version, timeout_s=timeout_s)
            return Object(stream.info, await stream.read())
        try:
            result, payload = await self._perform(dispatch.GET, key, timeout_s=timeout_s)
        except TooLarge:
            return await self._get_large(key, timeout_s)
        except NotFound:
            raise NotFound(kind="object", name=show_key(key)) from None
        info = info_from(result.info, key)
        if len(payload) != info.size_bytes:
            return await self._get_large(key, timeout_s)
        return checked_object(info, bytes(payload))

    async def _get_large(
        self, key: bytes, timeout_s: float | None, *, offset: int = 0, length: int | None = None
    ) -> Object:
        """Read the object in ranges. If it changes meanwhile, start again, until the timeout."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s(timeout_s)
        while True:
            left_s = max(0.001, deadline_s - loop.time())
            stream = await self.get_stream(key, offset=offset, length=length, timeout_s=left_s)
            try:
                value = await stream.read()
            except ConditionFailed:
                if loop.time() >= deadline_s:
                    raise
                continue
            whole = len(value) == stream.info.size_bytes
            return checked_object(stream.info, value) if whole else Object(stream.info, value)

    async def head(self, key: Buffer, *, timeout_s: float | None = None) -> ObjectInfo:
        """Return an object's metadata. Raises NotFound if there is none."""
        key = checked_key(key)
        try:
            result, _ = await self._perform(dispatch.HEAD, key, timeout_s=timeout_s)
        except NotFound:
            raise NotFound(kind="object", name=show_key(key)) from None
        return info_from(result.info, key)

    async def put(
        self,
        key: Buffer,
        value: Buffer,
        *,
        ttl_s: float | None = None,
        if_absent: bool = False,
        if_version: int | None = None,
        timeout_s: float | None = None,
    ) -> ObjectInfo:
        """Store an object. When this returns, it is durable on all replicas. `value` must not change until then.

        `if_absent` and `if_version` are conditions. Raises ConditionFailed, with the version found, if one is not met.
        With `ttl_s` the object expires after that many seconds.
        """
        key, value = checked_key(key), checked_value(value)
        expected = condition(if_absent=if_absent, if_version=if_version)
        ttl_ms = checked_ttl_ms(ttl_s)
        if len(value) < self.options.alone_bytes_min:
            answer = await self._perform(
                dispatch.PUT, key, value=value, expected=expected, ttl_ms=ttl_ms, timeout_s=timeout_s
            )
            return info_from(answer[0].info, key) if expected is not None else answer

        def request(region: Region, version: int) -> ps.PutRequest:
            return ps.PutRequest(
                call=self._admission.call(ticket.call_id),
                partition_id=region.partition_id,
                regions_version=version,
                key=key,
                condition=expected,
                ttl_ms=ttl_ms,
            )

        deadline_s = asyncio.get_running_loop().time() + self._timeout_s(timeout_s)
        ticket = await self._admission.enter(len(key) + len(value), deadline_s, write=True)
        try:
            reply = await self._router.call(
                key, methods.PARTITION_SERVER_PUT, request, deadline_s=deadline_s, attachment=[value]
            )
        finally:
            self._admission.leave(ticket)
        return info_from(reply.message.info, key)

    async def delete(self, key: Buffer, *, if_version: int | None = None, timeout_s: float | None = None) -> bool:
        """Delete an object; returns whether it existed. With `if_version`, ConditionFailed for another version."""
        key = checked_key(key)
        result, _ = await self._perform(
            dispatch.DELETE, key, expected=condition(if_version=if_version), timeout_s=timeout_s
        )
        return bool(result.existed)

    async def batch(self, operations: Sequence[Put | Delete], *, timeout_s: float | None = None) -> list[ObjectInfo]:
        """Execute all operations or none; returns one info for each. All keys must be in one partition.

        Raises InvalidArgument if the keys are in several partitions, and ConditionFailed if a condition is not met.
        """
        if not 1 <= len(operations) <= BATCH_OPERATIONS_MAX:
            raise InvalidArgument(
                what="operations", detail=f"{len(operations)}; a batch has 1 to {BATCH_OPERATIONS_MAX}"
            )
        listed, values = [], []
        for each in operations:
            message = ps.BatchOperation(key=checked_key(each.key))
            if isinstance(each, Put):
                value = checked_value(each.value)
                expected = condition(if_absent=each.if_absent, if_version=each.if_version)
                message.ttl_ms, message.value_bytes = checked_ttl_ms(each.ttl_s), len(value)
                values.append(value)
            else:
                expected = condition(if_version=each.if_version)
                message.delete = True
            if expected is not None:
                message.condition.CopyFrom(expected)
            listed.append(message)
        size_bytes = sum(map(len, values))
        if size_bytes > VALUE_BYTES_MAX:
            raise TooLarge(what="batch", size_bytes=size_bytes, limit_bytes=VALUE_BYTES_MAX)
        keys = [message.key for message in listed]
        if len(set(keys)) != len(keys):
            raise InvalidArgument(what="operations", detail="two of them have the same key")

        def request(region: Region, version: int) -> ps.BatchRequest:
            for key in keys:
                if not region.holds(key):
                    detail = f"{show_key(keys[0])} and {show_key(key)} are in different partitions"
                    raise InvalidArgument(what="operations", detail=detail)
            return ps.BatchRequest(
                call=self._admission.call(ticket.call_id),
                partition_id=region.partition_id,
                regions_version=version,
                operations=listed,
            )

        deadline_s = asyncio.get_running_loop().time() + self._timeout_s(timeout_s)
        ticket = await self._admission.enter(size_bytes + sum(map(len, keys)), deadline_s, write=True)
        try:
            reply = await self._router.call(
                keys[0],
                methods.PARTITION_SERVER_BATCH,
                request,
                deadline_s=deadline_s,
                attachment=values,
                reply_bytes_max=4096 + 64 * len(keys) + sum(map(len, keys)),
            )
        finally:
            self._admission.leave(ticket)
        infos = reply.message.infos
        if len(infos) != len(keys):
            raise ProtocolViolation(detail=f"{len(infos)} infos for {len(keys)} operations")
        return [info_from(info, key) for info, key in zip(infos, keys, strict=True)]

    # --- ranges of keys --------------------------------------------------------------------------------------

    async def scan(
        self,
        *,
        prefix: Buffer = b"",
        start: Buffer = b"",
        end: Buffer = b"",
        limit: int | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[ObjectInfo]:
        """Iterate over the metadata of objects with start <= key < end that begin with `prefix`, in key order.

        The scan is complete even if partitions split or move: each key that exists during the whole scan is returned
        exactly once. `timeout_s` applies to each page.
        """
        scan = self._scan(prefix, start, end, limit, timeout_s, with_values=False)
        async with aclosing(scan.pages()) as pages:  # type: ignore[type-var]
            async for page in pages:
                for info in page.infos:
                    yield info

    async def scan_objects(
        self,
        *,
        prefix: Buffer = b"",
        start: Buffer = b"",
        end: Buffer = b"",
        limit: int | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Object]:
        """Like `scan`, with the values."""
        scan = self._scan(prefix, start, end, limit, timeout_s, with_values=True)
        async with aclosing(scan.pages()) as pages:  # type: ignore[type-var]
            async for page in pages:
                for each in page.objects:
                    yield each

    def _scan(
        self,
        prefix: Buffer,
        start: Buffer,
        end: Buffer,
        limit: int | None,
        timeout_s: float | None,
        *,
        with_values: bool,
    ) -> Scan:
        self._ready()
        if limit is not None and limit < 0:
            raise InvalidArgument(what="limit", detail=f"{limit} is below 0")
        cursor = ScanCursor.over(prefix=bytes(prefix), start=bytes(start), end=bytes(end))
        return Scan(
            self._router,
            cursor,
            limit=limit,
            with_values=with_values,
            timeout_s=self._timeout_s(timeout_s),
            options=self.options,
            get_large=self._get_large,
        )

    # --- large values ----------------------------------------------------------------------------------------

    async def put_stream(
        self,
        key: Buffer,
        chunks: Chunks,
        *,
        ttl_s: float | None = None,
        if_absent: bool = False,
        if_version: int | None = None,
        timeout_s: float | None = None,
    ) -> ObjectInfo:
        """Store the bytes of an iterable (asynchronous or not), of any size. `timeout_s` applies to each part.

        The object appears when all parts are stored. Raises NotFound for the upload if the partition moves meanwhile;
        then start again from the beginning of the source.
        """
        key = checked_key(key)
        expected = condition(if_absent=if_absent, if_version=if_version)
        ttl_ms = checked_ttl_ms(ttl_s)
        self._ready()
        async with aclosing(parts_of(chunks, self.options.part_bytes)) as parts:  # type: ignore[type-var]
            first = await anext(parts, b"")
            if len(first) < self.options.part_bytes:  # all bytes fit: an ordinary put
                return await self.put(
                    key, first, ttl_s=ttl_s, if_absent=if_absent, if_version=if_version, timeout_s=timeout_s
                )
            return await self._upload(key, first, parts, expected, ttl_ms, self._timeout_s(timeout_s))

    async def _upload(
        self,
        key: bytes,
        first: bytes,
        parts: AsyncIterator[bytes],
        expected: ps.Condition | None,
        ttl_ms: int,
        timeout_s: float,
    ) -> ObjectInfo:
        upload = Upload(self._router, key, timeout_s=timeout_s)
        # A random call id, outside the window of writes: the begin is no write, so no later write waits for it.
        begun_by = CallId(client_id=self._admission.client_id, call_id=self._rng.getrandbits(63) | 1)
        await upload.begin(begun_by, condition=expected, ttl_ms=ttl_ms)
        try:
            await upload.part(first)
            async for part in parts:
                await upload.part(part)
            # Numbered only now: the window moves with its oldest write, and the parts took a while.
            deadline_s = asyncio.get_running_loop().time() + timeout_s
            ticket = await self._admission.enter(0, deadline_s, write=True)
            try:
                return await upload.complete(lambda: self._admission.call(ticket.call_id))
            finally:
                self._admission.leave(ticket)
        except BaseException as error:
            if not getattr(error, "outcome_unknown", False):
                await asyncio.shield(upload.abort())
            raise

    async def get_stream(
        self,
        key: Buffer,
        *,
        offset: int = 0,
        length: int | None = None,
        version: int | None = None,
        timeout_s: float | None = None,
    ) -> ObjectStream:
        """Return a stream of an object of any size: `async for chunk in await kv.get_stream(key)`.

        All chunks are of one version: the iteration raises ConditionFailed if the object changes meanwhile. Raises
        NotFound if there is no object.
        """
        key = checked_key(key)
        if offset < 0:
            raise InvalidArgument(what="offset", detail=f"{offset} is below 0")
        if length is not None and length < 1:
            raise InvalidArgument(what="length", detail=f"{length} is below 1; omit it to read to the end")
        if version is not None and not 1 <= version <= VERSION_MAX:
            raise InvalidArgument(what="version", detail=f"{version} is not a version: expected a number above 0")
        self._ready()
        reader = RangeReader(self._router, key, timeout_s=self._timeout_s(timeout_s), options=self.options)
        try:
            return await reader.open(offset=offset, length=length, version=version or 0)
        except NotFound:
            raise NotFound(kind="object", name=show_key(key)) from None

    # --- inside ------------------------------------------------------------------------------------------------

    def _timeout_s(self, timeout_s: float | None) -> float:
        if timeout_s is None:
            return self.options.operation_timeout_s
        if not timeout_s > 0:
            raise InvalidArgument(what="timeout_s", detail=f"{timeout_s} is not above 0")
        return timeout_s

    def _ready(self) -> Dispatcher:
        if self._dispatcher is None or self._closed:
            raise ShuttingDown(detail="this client is not open")
        return self._dispatcher

    async def _perform(
        self,
        kind: int,
        key: bytes,
        *,
        value: Buffer = b"",
        expected: ps.Condition | None = None,
        ttl_ms: int = 0,
        timeout_s: float | None,
    ) -> dispatch.Answer:
        """Perform one small operation, in a frame with others."""
        dispatcher = self._ready()
        timeout_s = self._timeout_s(timeout_s)
        loop = asyncio.get_running_loop()
        write = kind == dispatch.PUT or kind == dispatch.DELETE
        ticket = self._admission.try_enter(len(key) + len(value), write=write)
        if ticket is None:
            begun_s = loop.time()
            ticket = await self._admission.enter(len(key) + len(value), begun_s + timeout_s, write=write)
            timeout_s = max(0.001, timeout_s - (loop.time() - begun_s))
        try:
            self._ready()
            return await dispatcher.perform(
                Operation(kind, key, loop.create_future(), timeout_s, value, expected, ttl_ms, ticket.call_id)
            )
        finally:
            self._admission.leave(ticket)
