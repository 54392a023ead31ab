"""The key-value client: objects under byte keys. One for a process, for any number of operations at a time.

    async with KeyValueClient(["127.0.0.1:3701"]) as kv:
        info = await kv.put(b"greeting", b"hello")
        print((await kv.get(b"greeting")).value)
        await kv.put(b"greeting", b"again", if_version=info.version)   # ConditionFailed if somebody was faster
        async for each in kv.scan(prefix=b"greet"):
            print(each.key, each.size_bytes)

Invariants: an operation is executed once, however often it has to be sent; it ends within its time; one that ends with
            an error whose `outcome_unknown` is set may have been executed, all others were not;
            operations that are under way at the same time may be executed in any order: await one before the next
            where their order matters;
            memory is bounded: what finds no room waits.
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
    """`managers` are wire addresses of partition managers; one that answers is enough. `channels` and `rng` are for
    simulations."""

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
            raise InvalidArgument(what="managers", detail="a list of addresses is needed, not one text")
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
        """Reach a manager and learn the map. `async with` does it."""
        try:
            await self.regions.load(self.options.operation_timeout_s)
        except BaseException:
            await self.close()
            raise
        self._dispatcher = Dispatcher(self._channels, self._router, self._admission.call, options=self.options)
        return self

    async def close(self) -> None:
        """Disconnect. What is under way ends with ShuttingDown, or Cancelled if it may have been executed."""
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
        """An object, or `length` bytes of it from `offset` on; NotFound if there is none.

        With `version`, ConditionFailed if the object has another one. A range is cut at the object's end.
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
        """In ranges; from the beginning again if the object changes meanwhile, within the time that there is."""
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
        """What is known of an object; NotFound if there is none."""
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
        """Store an object, durably on all replicas when this returns. `value` must not change until then.

        `if_absent` and `if_version` are conditions: ConditionFailed, with the version that was found, if they are not
        met. With `ttl_s` the object is gone after so many seconds.
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
        """Delete an object; whether there was one. With `if_version`, ConditionFailed if it has another version."""
        key = checked_key(key)
        result, _ = await self._perform(
            dispatch.DELETE, key, expected=condition(if_version=if_version), timeout_s=timeout_s
        )
        return bool(result.existed)

    async def batch(self, operations: Sequence[Put | Delete], *, timeout_s: float | None = None) -> list[ObjectInfo]:
        """All or nothing, within one partition: keys of several partitions are refused. One info for each operation."""
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
        """What is known of all objects with start <= key < end that begin with `prefix`, in the order of their keys.

        Complete, also while partitions split or move: each key that is there from the beginning to the end of the scan
        comes once. `timeout_s` is for each page.
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
        """As `scan`, with the values."""
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
        """Store what an iterable (asynchronous or not) of bytes gives, of any size. `timeout_s` is for each part.

        The object appears when all of it is there. If its partition moves meanwhile, NotFound for the upload: begin
        again from the source.
        """
        key = checked_key(key)
        expected = condition(if_absent=if_absent, if_version=if_version)
        ttl_ms = checked_ttl_ms(ttl_s)
        self._ready()
        async with aclosing(parts_of(chunks, self.options.part_bytes)) as parts:  # type: ignore[type-var]
            first = await anext(parts, b"")
            if len(first) < self.options.part_bytes:  # all of it: a put like any other
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
        # By a number out of all rows: it is not a write yet, and no later one waits for it.
        begun_by = CallId(client_id=self._admission.client_id, call_id=self._rng.getrandbits(63) | 1)
        await upload.begin(begun_by, condition=expected, ttl_ms=ttl_ms)
        try:
            await upload.part(first)
            async for part in parts:
                await upload.part(part)
            # Numbered only now: the numbers of writes wait for the oldest one, and this one took its time.
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
        """An object of any size, as it comes: `async for chunk in await kv.get_stream(key)`.

        All chunks are of one version: ConditionFailed, from the iteration, if the object changes meanwhile.
        """
        key = checked_key(key)
        if offset < 0:
            raise InvalidArgument(what="offset", detail=f"{offset} is below 0")
        if length is not None and length < 1:
            raise InvalidArgument(what="length", detail=f"{length} is below 1; leave it out for all")
        if version is not None and not 1 <= version <= VERSION_MAX:
            raise InvalidArgument(what="version", detail=f"{version} is no version: those are above 0")
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
        """One small operation, by way of a frame."""
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
