"""Partitions in a dict, behind the real protos: what the client and the gateway are tested against.

    cluster = ScriptedCluster()
    cluster.serve_on(network)                       # or: await cluster.serve_on_wire()
    cluster.split(b"m"); cluster.move(partition_id, server_id); cluster.fail_next(...)

It keeps the promises of proto/partition_server.proto (once-only calls, conditions, versions, WrongServer outside of a
partition's range, scans that say how far they went), and it can be told to break down in between.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from neve.client.objects.core_routing import key_after, smaller_end
from neve.proto import errors, methods
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_server_pb2 as ps
from neve.proto.crc import crc32c
from neve.proto.method import Method
from neve.rpc.service import Call, Service
from neve.rpc.wire.server import WireServer
from tests.sim.network.network import SimNetwork

CLUSTER = "test"
MANAGER = "pm1:3701"
GET_REPLY_BYTES_MAX = 1 << 20
SERVER_METHODS: list[Method[Any, Any]] = [
    methods.PARTITION_SERVER_GET,
    methods.PARTITION_SERVER_PUT,
    methods.PARTITION_SERVER_DELETE,
    methods.PARTITION_SERVER_HEAD,
    methods.PARTITION_SERVER_BATCH,
    methods.PARTITION_SERVER_SCAN,
    methods.PARTITION_SERVER_MULTI,
    methods.PARTITION_SERVER_PUT_MANY,
    methods.PARTITION_SERVER_BEGIN_UPLOAD,
    methods.PARTITION_SERVER_UPLOAD_PART,
    methods.PARTITION_SERVER_COMPLETE_UPLOAD,
    methods.PARTITION_SERVER_ABORT_UPLOAD,
]


@dataclasses.dataclass(slots=True)
class Stored:
    info: ps.ObjectInfo
    value: bytes


@dataclasses.dataclass(slots=True)
class Session:
    """Results of one client's calls, as the partition's log would rebuild them."""

    completed_below: int = 0
    results: dict[int, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True, eq=False)
class Partition:
    partition_id: int
    start: bytes
    end: bytes
    server_id: int
    version: int
    objects: dict[bytes, Stored] = dataclasses.field(default_factory=dict)
    sessions: dict[int, Session] = dataclasses.field(default_factory=dict)
    seq: int = 0
    uploads: dict[int, tuple[ps.BeginUploadRequest, bytearray]] = dataclasses.field(default_factory=dict)
    unavailable: bool = False  # between two servers

    def holds(self, key: bytes) -> bool:
        return self.start <= key and (not self.end or key < self.end)


class ScriptedCluster:
    def __init__(self, *, servers: int = 2, split_keys: tuple[bytes, ...] = ()) -> None:
        self.version = 1
        bounds = [b"", *split_keys, b""]
        self.partitions = [
            Partition(number + 1, bounds[number], bounds[number + 1], number % servers + 1, 1)
            for number in range(len(bounds) - 1)
        ]
        self._ids = len(self.partitions)
        self.servers = {number: Server(self, number) for number in range(1, servers + 1)}
        self.addresses = {number: f"ps{number}:3801" for number in self.servers}
        self.manager = Manager(self)
        self.wall_ms: Callable[[], int] = lambda: 1_700_000_000_000
        self._wire: list[WireServer] = []
        self.executed: list[tuple[int, int]] = []  # (client, call) of every write that was carried out

    # --- serving ---------------------------------------------------------------------------------------------

    def serve_on(self, network: SimNetwork) -> None:
        network.serve(MANAGER, [Service([methods.PARTITION_MANAGER_LIST_REGIONS], self.manager)], cluster=CLUSTER)
        for number, server in self.servers.items():
            network.serve(self.addresses[number], [Service(SERVER_METHODS, server)], cluster=CLUSTER)

    async def serve_on_wire(self) -> str:
        """The manager's address."""
        front = WireServer([Service([methods.PARTITION_MANAGER_LIST_REGIONS], self.manager)], cluster=CLUSTER)
        self._wire.append(front)
        manager = await front.start("127.0.0.1", 0)
        for number, server in self.servers.items():
            door = WireServer([Service(SERVER_METHODS, server)], cluster=CLUSTER)
            self._wire.append(door)
            self.addresses[number] = await door.start("127.0.0.1", 0)
        return manager

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop(1.0) for server in self._wire))

    # --- what happens to partitions ----------------------------------------------------------------------------

    def split(self, middle: bytes) -> None:
        left = self.partition(middle)
        assert left.start < middle
        self.version += 1
        self._ids += 1
        right = Partition(self._ids, middle, left.end, left.server_id, self.version)
        right.seq = left.seq
        right.objects = {key: value for key, value in left.objects.items() if key >= middle}
        right.sessions = {
            client: dataclasses.replace(session, results=dict(session.results))
            for client, session in left.sessions.items()
        }
        left.objects = {key: value for key, value in left.objects.items() if key < middle}
        left.end, left.version = middle, self.version
        self.partitions.append(right)
        self.partitions.sort(key=lambda partition: partition.start)

    def merge(self, boundary: bytes) -> None:
        right = self.partition(boundary)
        assert right.start == boundary
        left = self.partitions[self.partitions.index(right) - 1]
        self.version += 1
        left.objects.update(right.objects)
        for client, session in right.sessions.items():
            mine = left.sessions.setdefault(client, Session())
            mine.results.update(session.results)
            mine.completed_below = max(mine.completed_below, session.completed_below)
        left.end, left.version, left.seq = right.end, self.version, max(left.seq, right.seq)
        self.partitions.remove(right)

    def move(self, partition: Partition, server_id: int) -> None:
        self.version += 1
        partition.server_id, partition.version = server_id, self.version
        partition.uploads.clear()

    def partition(self, key: bytes) -> Partition:
        return next(each for each in self.partitions if each.holds(key))

    def value(self, key: bytes) -> bytes | None:
        stored = self.partition(key).objects.get(key)
        return None if stored is None else stored.value


class Manager:
    def __init__(self, cluster: ScriptedCluster) -> None:
        self._cluster = cluster
        self.asked = 0
        self.fail: errors.NeveError | None = None
        self.stale: pm.ListRegionsReply | None = None  # what it answers while it has not heard of a change

    async def list_regions(self, request: pm.ListRegionsRequest, call: Call) -> pm.ListRegionsReply:
        self.asked += 1
        if self.fail is not None:
            raise self.fail
        if self.stale is not None:
            return self.stale
        cluster = self._cluster
        while cluster.version < request.version_min:
            await asyncio.sleep(0.01)
        after = [each for each in cluster.partitions if not request.after_key or each.start > request.after_key]
        shown = after[: request.limit] if request.limit else after
        return pm.ListRegionsReply(
            version=cluster.version,
            more=len(shown) < len(after),
            regions=[
                pm.Region(
                    partition_id=each.partition_id,
                    start=each.start,
                    end=each.end,
                    server_id=each.server_id,
                    address=cluster.addresses[each.server_id] if each.server_id else "",
                    version=each.version,
                )
                for each in shown
            ],
        )


class Server:
    """One partition server."""

    def __init__(self, cluster: ScriptedCluster, server_id: int) -> None:
        self._cluster = cluster
        self._server_id = server_id
        self.fail_before: list[errors.NeveError | None] = []  # for the next calls, before they are executed
        self.fail_after: list[errors.NeveError | None] = []  # the same, after they were executed
        self.frames: list[ps.MultiRequest] = []
        self.put_frames: list[ps.PutManyRequest] = []
        self.calls: list[str] = []
        self.scan_limit_max = 1000
        self.delay_s = 0.0
        self.before_page: Callable[[ps.ScanRequest], None] = lambda request: None
        self.multi_reply_bytes_max = 4 << 20
        self.after_head: Callable[[bytes], None] = lambda key: None

    # --- helpers ---------------------------------------------------------------------------------------------

    async def _begin(self, name: str) -> None:
        self.calls.append(name)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        error = self.fail_before.pop(0) if self.fail_before else None
        if error is not None:
            raise error

    def _end(self) -> None:
        error = self.fail_after.pop(0) if self.fail_after else None
        if error is not None:
            raise error

    def _find(self, key: bytes) -> Partition:
        if not 1 <= len(key) <= 4096:
            raise errors.InvalidArgument(what="key")
        partition = self._cluster.partition(key)
        if partition.server_id != self._server_id or partition.unavailable:
            raise errors.WrongServer(partition_id=partition.partition_id, regions_version=self._cluster.version)
        return partition

    def _newest(self, partition: Partition, key: bytes) -> Stored | None:
        stored = partition.objects.get(key)
        if stored is not None and stored.info.expires_ms and stored.info.expires_ms <= self._cluster.wall_ms():
            return None
        return stored

    def _check(self, partition: Partition, key: bytes, condition: ps.Condition) -> None:
        stored = self._newest(partition, key)
        found = stored.info.version if stored is not None else 0
        expected = condition.WhichOneof("expected")
        if (expected == "absent" and found) or (expected == "version" and found != condition.version):
            raise errors.ConditionFailed(version=found)

    def _once(self, partition: Partition, client_id: int, call_id: int, below: int, do: Callable[[], Any]) -> Any:
        session = partition.sessions.setdefault(client_id, Session())
        session.completed_below = max(session.completed_below, below)
        for old in [each for each in session.results if each < session.completed_below]:
            del session.results[old]
        if call_id < session.completed_below:
            raise errors.InvalidArgument(what="call", detail="it has ended already")
        if call_id not in session.results:
            try:
                session.results[call_id] = do()
            except errors.NeveError as error:
                session.results[call_id] = error
                raise
            self._cluster.executed.append((client_id, call_id))
        result = session.results[call_id]
        if isinstance(result, errors.NeveError):
            raise result
        return result

    def put_now(self, key: bytes, value: bytes) -> None:
        """Behind everybody's back."""
        self._put(self._cluster.partition(key), key, value, ps.Condition(), 0)

    def _put(
        self, partition: Partition, key: bytes, value: bytes, condition: ps.Condition, ttl_ms: int
    ) -> ps.ObjectInfo:
        self._check(partition, key, condition)
        partition.seq += 1
        now_ms = self._cluster.wall_ms()
        info = ps.ObjectInfo(
            key=key,
            version=partition.seq,
            size_bytes=len(value),
            modified_ms=now_ms,
            expires_ms=now_ms + ttl_ms if ttl_ms else 0,
            value_crc32c=crc32c(value),
        )
        partition.objects[key] = Stored(info, value)
        return info

    def _delete(self, partition: Partition, key: bytes, condition: ps.Condition) -> bool:
        self._check(partition, key, condition)
        partition.seq += 1
        existed = self._newest(partition, key) is not None
        partition.objects.pop(key, None)
        return existed

    def _stored(self, key: bytes) -> Stored:
        stored = self._newest(self._find(key), key)
        if stored is None:
            raise errors.NotFound(kind="object", name=repr(key))
        return stored

    # --- the rpcs --------------------------------------------------------------------------------------------

    async def get(self, request: ps.GetRequest, call: Call) -> ps.GetReply:
        await self._begin("get")
        stored = self._stored(request.key)
        if request.version and stored.info.version != request.version:
            raise errors.ConditionFailed(version=stored.info.version)
        length = min(request.length or len(stored.value), GET_REPLY_BYTES_MAX)
        call.attach(stored.value[request.offset : request.offset + length])
        return ps.GetReply(info=stored.info)

    async def head(self, request: ps.HeadRequest, call: Call) -> ps.HeadReply:
        await self._begin("head")
        return ps.HeadReply(info=self._stored(request.key).info)

    async def put(self, request: ps.PutRequest, call: Call) -> ps.PutReply:
        await self._begin("put")
        partition = self._find(request.key)
        value = bytes(call.attachment)
        info = self._once(
            partition,
            request.call.client_id,
            request.call.call_id,
            request.call.completed_below,
            lambda: self._put(partition, request.key, value, request.condition, request.ttl_ms),
        )
        self._end()
        return ps.PutReply(info=info)

    async def delete(self, request: ps.DeleteRequest, call: Call) -> ps.DeleteReply:
        await self._begin("delete")
        partition = self._find(request.key)
        return ps.DeleteReply(
            existed=self._once(
                partition,
                request.call.client_id,
                request.call.call_id,
                request.call.completed_below,
                lambda: self._delete(partition, request.key, request.condition),
            )
        )

    async def batch(self, request: ps.BatchRequest, call: Call) -> ps.BatchReply:
        await self._begin("batch")
        partition = self._find(request.operations[0].key)
        if not all(partition.holds(each.key) for each in request.operations):
            raise errors.WrongServer(partition_id=partition.partition_id, regions_version=self._cluster.version)
        payload = bytes(call.attachment)

        def do() -> list[ps.ObjectInfo]:
            for each in request.operations:
                self._check(partition, each.key, each.condition)
            infos, at = [], 0
            for each in request.operations:
                if each.delete:
                    self._delete(partition, each.key, ps.Condition())
                    infos.append(ps.ObjectInfo(key=each.key))
                else:
                    value = payload[at : at + each.value_bytes]
                    at += each.value_bytes
                    infos.append(self._put(partition, each.key, value, ps.Condition(), each.ttl_ms))
            return infos

        reply = ps.BatchReply(
            infos=self._once(partition, request.call.client_id, request.call.call_id, request.call.completed_below, do)
        )
        self._end()
        return reply

    async def put_many(self, request: ps.PutManyRequest, call: Call) -> ps.PutManyReply:
        await self._begin("put_many")
        self.put_frames.append(request)
        reply = ps.PutManyReply()
        at = 0
        for number, key in enumerate(request.keys):
            value = bytes(call.attachment[at : at + request.value_bytes[number]])
            at += len(value)
            ttl_ms = request.ttl_ms[number] if request.ttl_ms else 0
            call_id, below = request.call_ids[number], request.call.completed_below
            info = ps.ObjectInfo()
            try:
                partition = self._find(key)
                do = functools.partial(self._put, partition, key, value, ps.Condition(), ttl_ms)
                info = self._once(partition, request.call.client_id, call_id, below, do)
            except errors.NeveError as error:
                reply.failures.add(index=number, error=errors.to_message(error))
            reply.versions.append(info.version)
            reply.modified_ms.append(info.modified_ms)
            reply.value_crc32c.append(info.value_crc32c)
        self._end()
        return reply

    async def multi(self, request: ps.MultiRequest, call: Call) -> ps.MultiReply:
        await self._begin("multi")
        self.frames.append(request)
        payload = bytes(call.attachment)
        reply = ps.MultiReply()
        at = sent_bytes = 0
        for operation in request.operations:
            value = payload[at : at + operation.value_bytes]
            at += operation.value_bytes
            result = reply.results.add()
            try:
                sent_bytes = self._operation(request, operation, value, result, call, sent_bytes)
            except errors.NeveError as error:
                result.error.CopyFrom(errors.to_message(error))
        self._end()
        return reply

    def _operation(
        self,
        request: ps.MultiRequest,
        operation: ps.MultiOperation,
        value: bytes,
        result: ps.MultiResult,
        call: Call,
        sent_bytes: int,
    ) -> int:
        key = operation.key
        below = request.call.completed_below
        kinds = ps.MultiOperation.Kind
        if operation.kind == kinds.GET:
            stored = self._stored(key)
            if sent_bytes + len(stored.value) > self.multi_reply_bytes_max:
                raise errors.TooLarge(what="value")
            call.attach(stored.value)
            result.info.CopyFrom(stored.info)
            result.value_bytes = len(stored.value)
            return sent_bytes + len(stored.value)
        if operation.kind == kinds.HEAD:
            result.info.CopyFrom(self._stored(key).info)
            self.after_head(key)
            return sent_bytes
        partition = self._find(key)
        client_id, call_id = request.call.client_id, operation.call_id
        if operation.kind == kinds.PUT:
            result.info.CopyFrom(
                self._once(
                    partition,
                    client_id,
                    call_id,
                    below,
                    lambda: self._put(partition, key, value, operation.condition, operation.ttl_ms),
                )
            )
        else:
            result.existed = self._once(
                partition, client_id, call_id, below, lambda: self._delete(partition, key, operation.condition)
            )
        return sent_bytes

    async def scan(self, request: ps.ScanRequest, call: Call) -> ps.ScanReply:
        await self._begin("scan")
        self.before_page(request)
        partition = self._cluster.partition(request.start)
        reaches = not partition.end or (request.end and request.end <= partition.end)
        if partition.server_id != self._server_id or not reaches:
            raise errors.WrongServer(partition_id=partition.partition_id, regions_version=self._cluster.version)
        start = key_after(request.continuation) if request.continuation else request.start
        end = smaller_end(request.end, partition.end)
        keys = sorted(key for key in partition.objects if key >= start and (not end or key < end))
        limit = min(request.limit or self.scan_limit_max, self.scan_limit_max)
        shown = [key for key in keys[:limit] if self._newest(partition, key) is not None]
        reply = ps.ScanReply(infos=[partition.objects[key].info for key in shown])
        if len(keys) > limit:
            reply.continuation = keys[limit - 1]
        if request.with_values:
            large = [len(partition.objects[key].value) > request.max_bytes for key in shown]
            reply.left_out.extend(number for number, is_large in enumerate(large) if is_large)
            values = [partition.objects[key].value for key in shown]
            call.attach(*(value for value, is_large in zip(values, large, strict=True) if not is_large))
        return reply

    async def begin_upload(self, request: ps.BeginUploadRequest, call: Call) -> ps.BeginUploadReply:
        await self._begin("begin_upload")
        partition = self._find(request.key)
        self._check(partition, request.key, request.condition)
        again = [
            number
            for number, (begun, _) in partition.uploads.items()
            if request.call.client_id and begun.call == request.call and begun.key == request.key
        ]
        upload_id = again[0] if again else max(partition.uploads, default=0) + 1
        partition.uploads.setdefault(upload_id, (request, bytearray()))
        self._end()
        return ps.BeginUploadReply(upload_id=upload_id)

    def _upload(self, key: bytes, upload_id: int) -> tuple[Partition, ps.BeginUploadRequest, bytearray]:
        partition = self._find(key)
        if upload_id not in partition.uploads:
            raise errors.NotFound(kind="upload", name=str(upload_id))
        return partition, *partition.uploads[upload_id]

    async def upload_part(self, request: ps.UploadPartRequest, call: Call) -> ps.UploadPartReply:
        await self._begin("upload_part")
        _, _, held = self._upload(request.key, request.upload_id)
        if request.offset == len(held):
            held += call.attachment
        elif request.offset + len(call.attachment) > len(held):
            raise errors.InvalidArgument(what="offset", detail=f"{request.offset}, the upload has {len(held)}")
        self._end()
        return ps.UploadPartReply(end=request.offset + len(call.attachment))

    async def complete_upload(self, request: ps.CompleteUploadRequest, call: Call) -> ps.PutReply:
        await self._begin("complete_upload")
        partition = self._find(request.key)

        def do() -> ps.ObjectInfo:
            _, begun, held = self._upload(request.key, request.upload_id)
            if len(held) != request.size_bytes or crc32c(bytes(held)) != request.value_crc32c:
                raise errors.InvalidArgument(what="size_bytes")
            info = self._put(partition, request.key, bytes(held), begun.condition, begun.ttl_ms)
            del partition.uploads[request.upload_id]
            return info

        info = self._once(partition, request.call.client_id, request.call.call_id, request.call.completed_below, do)
        self._end()
        return ps.PutReply(info=info)

    async def abort_upload(self, request: ps.AbortUploadRequest, call: Call) -> ps.AbortUploadReply:
        await self._begin("abort_upload")
        self._find(request.key).uploads.pop(request.upload_id, None)
        return ps.AbortUploadReply()
