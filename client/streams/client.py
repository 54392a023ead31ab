"""The stream client. A process needs one for any number of streams, readers and writers.

    async with Client(["127.0.0.1:3401"]) as neve:
        stream = await neve.create_stream(name="events", replicas=3)
        async with neve.writer(stream.id) as writer:
            position = await writer.append(b"hello")
        async for record in neve.read(stream.id, start=position):
            print(record.position, record.payload)

Invariants: a client has one lease. For each lock it has at most one writer or writer group; it refuses a second one
            unless that one takes over;
            the client itself puts a writer's lock into the metadata store (protocol rule 1);
            closing the client ends everything that it started.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

from neve.client.etcd_link import connect_etcd
from neve.client.freed_memory import keep_freed_memory
from neve.client.manager_link import ManagerLink
from neve.client.streams.admin import Admin
from neve.client.streams.catalog import Catalog
from neve.client.streams.core.writer import WriterCore
from neve.client.streams.options import DEFAULT_OPTIONS, ClientOptions
from neve.client.streams.reading.extent_reader import ExtentReader
from neve.client.streams.reading.reader import Reader
from neve.client.streams.reading.replica_history import NodeHistory
from neve.client.streams.sending.budget import Budget
from neve.client.streams.sending.node_sender import NodeSenders
from neve.client.streams.types import Position, Record, Stream
from neve.client.streams.writer import Opened, Writer
from neve.client.streams.writer_group import WriterGroup
from neve.client.streams.writer_tail import WriterTail
from neve.meta.etcd.config import EtcdAccess
from neve.meta.lease import Lease
from neve.meta.lock import Lock, acquire_lock
from neve.meta.store import MetaStore
from neve.proto import common_pb2, methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import (
    InvalidArgument,
    LockHeld,
    NeveError,
    ShuttingDown,
    StreamSealed,
    WrongCluster,
)
from neve.proto.stream_policy import StreamPolicy
from neve.rpc.pool import ChannelPool
from neve.rpc.tls import TlsFiles
from neve.rpc.wire.client import WireChannel

log = logging.getLogger(__name__)


class Client:
    """A connection to one Neve cluster: creates, reads, writes, seals and deletes streams.

    `managers` are wire addresses; one that replies is enough, and the client learns the others from it. `token` and
    `tls` authenticate the client. `etcd` has the TLS files and the user of a secured etcd.

    Locks are kept in the metadata store. Unless `meta` is a connection to it, the client gets the endpoints from a
    manager and connects when it first opens a writer. `meta`, `channels` and `rng` are for simulations.
    """

    def __init__(
        self,
        managers: Sequence[str],
        *,
        cluster: str = "main",
        token: str = "",
        tls: TlsFiles | None = None,
        etcd: EtcdAccess | None = None,
        meta: MetaStore | None = None,
        options: ClientOptions = DEFAULT_OPTIONS,
        channels: ChannelPool | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if isinstance(managers, str):
            raise InvalidArgument(what="managers", detail="expected a list of addresses, not a string")
        self.cluster = cluster
        self.options = options
        self._rng = rng or random.SystemRandom()
        self._etcd = etcd or EtcdAccess()
        self._meta = meta
        self._own_meta: MetaStore | None = None
        self._channels = channels or ChannelPool(
            lambda address: WireChannel(
                address, cluster=cluster, limits=options.limits, token=token, tls=tls, agent="neve.client"
            )
        )
        self._link = ManagerLink(self._channels, managers, options=options, rng=self._rng)
        self._described: sm.DescribeClusterReply | None = None
        self._writers: dict[str, Writer | WriterGroup] = {}  # open or being opened, by lock
        self._lease: Lease | None = None
        self._meta_lock = asyncio.Lock()
        self._budget = Budget(options.buffer_bytes_max)
        self._opened = self._closed = False
        self.admin = Admin(self._link)

    async def open(self) -> Self:
        """Connect to a manager and check that it belongs to `cluster`. `async with` calls this.

        Raises WrongCluster if it belongs to another one, and InvalidArgument if the client is open already.
        """
        if self._closed:
            raise self._not_open_error()
        if self._opened:
            raise InvalidArgument(what="client", detail="it is already open")
        loop = asyncio.get_running_loop()
        if self.options.keep_freed_memory:
            keep_freed_memory(self.options.buffer_bytes_max)
        self._senders = NodeSenders(self._channels, self.options)
        self._history = NodeHistory(loop.time, window_s=self.options.avoid_node_s)
        self._catalog = Catalog(self._link)
        self._extents = ExtentReader(self._channels, self._link, self._catalog, options=self.options, rng=self._rng)
        self._reader = Reader(self._catalog, self._extents, options=self.options)
        self._opened = True
        try:
            await self._describe()
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Flush and close all writers, release their locks and disconnect. Errors of the writers are only logged."""
        if self._closed:
            return
        self._closed = True
        ends = await asyncio.gather(*(writer.close() for writer in self._writers.values()), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                log.warning("writer_closed_with error=%s", end)
        if self._opened:
            await self._extents.close()
            self._senders.close()
        if self._lease is not None and self._lease.alive():
            try:
                await self._lease.revoke()
            except NeveError as error:
                log.info("lease_not_revoked error=%s", error)  # it expires
        if self._own_meta is not None:
            await self._own_meta.close()
        await self._channels.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        """Raise before sending a request: a manager could carry it out, and this client could not return the reply."""
        if not self._opened or self._closed:
            raise self._not_open_error()

    def _not_open_error(self) -> ShuttingDown:
        if self._closed:
            return ShuttingDown(detail="this client is closed; create a new one")
        return ShuttingDown(detail="this client is not open; use `async with` or await open()")

    # --- streams ---------------------------------------------------------------------------------------------

    async def create_stream(
        self,
        *,
        name: str = "",
        replicas: int = 0,
        sync: bool = True,
        extent_bytes_max: int = 0,
        labels: Mapping[str, str] | None = None,
        placement: str = "",
        strict: bool = False,
        lock: str = "",
    ) -> Stream:
        """Create a stream and return it.

        An option that is 0 or "" takes the cluster's default. A `name`, if given, is unique: AlreadyExists if another
        stream has it. Streams with the same `lock` have one owner together; by default each stream has its own lock.
        With `sync`, an append is acknowledged when it is durable on every replica. `strict` and `placement` say how
        nodes are chosen.
        """
        self._check_open()
        policy = StreamPolicy(
            replicas=replicas, sync=sync, extent_bytes_max=extent_bytes_max, placement=placement, strict=strict
        )
        request = sm.CreateStreamRequest(name=name, policy=policy.message(), labels=dict(labels or {}), lock=lock)
        reply = await self._link.order(methods.STREAM_MANAGER_CREATE_STREAM, request)
        self._catalog.note(reply.tail)
        return self._stream_of(reply.stream)

    async def stream(self, id_or_name: int | str) -> Stream:
        """Return the stream with this id or name. Raises NotFound if there is none."""
        self._check_open()
        return await self._catalog.stream(id_or_name)

    def streams(self, labels: Mapping[str, str] | None = None) -> AsyncIterator[Stream]:
        """Iterate over all streams that have these labels."""
        self._check_open()
        return self._catalog.streams(labels)

    async def truncate(self, stream_id: int, before: Position, *, owner: common_pb2.Owner | None = None) -> Stream:
        """Remove every extent before the one of `before`, and return the stream. Records in that extent stay readable.

        The call is made on behalf of `owner`, or else of this client's open writer of the stream; the manager checks
        that this owner still holds the lock. If there is neither, the manager truncates the stream without that check,
        as for an operator.
        """
        self._check_open()
        owner = owner or await self._owner_of(stream_id)
        request = sm.TruncateStreamRequest(stream_id=stream_id, owner=owner, before_extent_id=before.extent_id)
        return self._stream_of((await self._link.order(methods.STREAM_MANAGER_TRUNCATE_STREAM, request)).stream)

    async def punch(
        self, stream_id: int, extent_ids: Iterable[int], *, owner: common_pb2.Owner | None = None
    ) -> Stream:
        """Remove whole extents from any place in the stream except its tail. `owner`: as in `truncate`."""
        self._check_open()
        owner = owner or await self._owner_of(stream_id)
        request = sm.PunchHolesRequest(stream_id=stream_id, owner=owner, extent_ids=list(extent_ids))
        return self._stream_of((await self._link.order(methods.STREAM_MANAGER_PUNCH_HOLES, request)).stream)

    async def seal(self, stream_id: int) -> Stream:
        """Seal the stream: it takes no more appends. Flushes and ends this client's writer of the stream first."""
        self._check_open()
        request = sm.SealStreamRequest(stream_id=stream_id, owner=await self._owner_of(stream_id))
        writer = self._writer_of(stream_id)
        if writer is None or writer.owner is None:
            return await self._seal(request)
        request.extent_id, request.acknowledged_end = await writer.freeze()
        try:
            stream = await self._seal(request)
        except BaseException as error:  # a cancelled caller too: the writer is frozen and can append nothing more
            await writer.abort(error if isinstance(error, NeveError) else None)
            raise
        await writer.abort(StreamSealed(stream_id=stream_id))
        return stream

    async def _seal(self, request: sm.SealStreamRequest) -> Stream:
        timeout_s = self.options.roll_timeout_s
        return self._stream_of(
            (await self._link.order(methods.STREAM_MANAGER_SEAL_STREAM, request, timeout_s=timeout_s)).stream
        )

    async def delete(self, stream_id: int) -> None:
        """Delete the stream, and end this client's writer of it.

        Its extents are deleted when no other stream refers to them.
        """
        self._check_open()
        request = sm.DeleteStreamRequest(stream_id=stream_id, owner=await self._owner_of(stream_id))
        await self._link.order(methods.STREAM_MANAGER_DELETE_STREAM, request, timeout_s=self.options.roll_timeout_s)
        writer = self._writer_of(stream_id)
        if writer is not None:
            await writer.abort()

    # --- reading ---------------------------------------------------------------------------------------------

    async def read(
        self,
        stream_id: int,
        *,
        start: Position | None = None,
        follow: bool = False,
        end: Position | None = None,
        copy: bool = True,
    ) -> AsyncIterator[Record]:
        """Iterate over the records from `start` (default: the stream's start) to before `end` (default: the end now).

        With `follow`, the iteration continues with new records as they are acknowledged, until the stream is sealed.
        Records acknowledged within the last milliseconds may not be readable yet, unless their writer has flushed or
        has appended again since.

        `copy=False` returns large payloads as views. A view keeps the memory of a whole reply alive.

        Raises NotFound if the extent of `start` is no longer in the stream.
        """
        self._check_open()
        batches = self._reader.read_batches(stream_id, start=start, follow=follow, end=end, copy=copy)
        async with aclosing(batches):  # type: ignore[type-var]  # it is a generator
            async for records in batches:
                for record in records:
                    yield record

    def read_batches(
        self,
        stream_id: int,
        *,
        start: Position | None = None,
        follow: bool = False,
        end: Position | None = None,
        copy: bool = True,
    ) -> AsyncIterator[list[Record]]:
        """Like `read`, but in lists of the records that arrived together: faster for millions of small records."""
        self._check_open()
        return self._reader.read_batches(stream_id, start=start, follow=follow, end=end, copy=copy)

    async def read_record(self, stream_id: int, position: Position, *, copy: bool = True) -> Record:
        """Return the one record at `position`, which an append or a read has returned."""
        self._check_open()
        return await self._reader.read_record(stream_id, position, copy=copy)

    # --- writing ---------------------------------------------------------------------------------------------

    def writer(
        self,
        stream_id: int,
        *,
        sync: bool | None = None,
        takeover: bool = False,
        lock_timeout_s: float | None = None,
        owner: str = "",
    ) -> Writer:
        """Return a writer for the stream, which `async with` opens.

        Opening takes the stream's lock, fences older owners and finds the end of the stream. While another live owner
        holds the lock, opening waits up to `lock_timeout_s` and then raises LockHeld; with `takeover` it deposes that
        owner at once. Opening raises StreamSealed for a sealed stream.

        `sync` overrides the stream's policy: without sync, an acknowledged append is in the page cache of all replicas.
        `owner` is a name for this writer that people see.
        """

        async def opener(writer: Writer, core: WriterCore) -> Opened:
            stream = await self._appendable(stream_id)
            lock = await self._take_lock(
                stream.lock, writer, takeover=takeover, lock_timeout_s=lock_timeout_s, owner=owner
            )
            try:
                tail = await self._open_tail(writer, core, stream, lock, sync=sync)
            except BaseException:
                try:
                    await lock.release()
                finally:
                    self._forget_writer(writer)
                raise
            return Opened(lock, tail)

        share = self._budget.share(self.options.writer_bytes_max)
        return Writer(stream_id, opener=opener, on_closed=self._forget_writer, share=share, options=self.options)

    def writer_group(
        self,
        stream_ids: Sequence[int],
        *,
        sync: bool | None = None,
        lock_timeout_s: float | None = None,
        owner: str = "",
    ) -> WriterGroup:
        """Return writers for streams that have the same lock, which `async with` opens.

        The group takes the lock once. All its writers have the same token and end together. Opening raises
        InvalidArgument if the streams have different locks. `lock_timeout_s`, `sync` and `owner`: as for `writer`.
        """
        if not stream_ids or len(set(stream_ids)) < len(stream_ids):
            raise InvalidArgument(what="stream_ids", detail="expected at least one id, each of them once")

        async def maker(group: WriterGroup) -> tuple[Lock, list[Writer]]:
            streams = [await self._appendable(stream_id) for stream_id in stream_ids]
            locks = {stream.lock for stream in streams}
            if len(locks) > 1:
                detail = f"they have different locks: {', '.join(sorted(locks))}"
                raise InvalidArgument(what="stream_ids", detail=detail)
            name = streams[0].lock
            lock = await self._take_lock(name, group, takeover=False, lock_timeout_s=lock_timeout_s, owner=owner)
            return lock, [self._writer_under(lock, stream, group, sync=sync) for stream in streams]

        return WriterGroup(stream_ids, maker=maker, on_closed=self._forget_writer)

    def _writer_under(self, lock: Lock, stream: Stream, group: WriterGroup, *, sync: bool | None) -> Writer:
        async def opener(writer: Writer, core: WriterCore) -> Opened:
            return Opened(lock, await self._open_tail(writer, core, stream, lock, sync=sync), shared=True)

        return Writer(
            stream.id,
            opener=opener,
            on_closed=lambda writer: None,
            share=self._budget.share(self.options.writer_bytes_max),
            options=self.options,
            on_ended=group.on_writer_ended,
        )

    async def _appendable(self, stream_id: int) -> Stream:
        self._check_open()
        stream = await self._catalog.stream(stream_id)
        if stream.sealed:
            raise StreamSealed(stream_id=stream.id)
        return stream

    async def _take_lock(
        self, name: str, holder: Writer | WriterGroup, *, takeover: bool, lock_timeout_s: float | None, owner: str
    ) -> Lock:
        owner = owner or f"{platform.node()}:{os.getpid()}"
        mine = self._writers.get(name)
        if mine is not None:  # both would use our lease, so the lock could be taken; the other writer must end first
            if not takeover:
                raise LockHeld(lock=name, owner=owner, detail="by another writer of this client")
            await mine.abort()
        self._writers[name] = holder
        try:
            return await acquire_lock(
                await self.metadata(),
                name,
                owner,
                await self.lease(),
                root=(await self._describe()).meta_root.encode(),
                takeover=takeover,
                timeout_s=self.options.lock_timeout_s if lock_timeout_s is None else lock_timeout_s,
            )
        except BaseException:
            self._forget_writer(holder)
            raise

    async def _open_tail(
        self, writer: Writer, core: WriterCore, stream: Stream, lock: Lock, *, sync: bool | None
    ) -> WriterTail:
        tail = WriterTail(
            core,
            stream_id=stream.id,
            lock=lock,
            no_sync=not (stream.sync if sync is None else sync),
            link=self._link,
            senders=self._senders,
            history=self._history,
            options=self.options,
            rng=self._rng,
            on_acknowledged=writer.on_acknowledged,
            on_unknown=writer.on_unknown,
            on_settled=writer.on_settled,
            on_end=writer.on_end,
        )
        await tail.open()
        return tail

    def _forget_writer(self, writer: Writer | WriterGroup) -> None:
        for lock, known in list(self._writers.items()):
            if known is writer:
                del self._writers[lock]

    def _writer_of(self, stream_id: int) -> Writer | None:
        for holder in self._writers.values():
            for writer in holder.writers if isinstance(holder, WriterGroup) else (holder,):
                if writer.stream_id == stream_id:
                    return writer
        return None

    async def _owner_of(self, stream_id: int) -> common_pb2.Owner | None:
        """The owner to name when we change a stream: our writer's, if we have one."""
        writer = self._writer_of(stream_id)
        return writer.owner if writer is not None else None

    # --- the cluster -----------------------------------------------------------------------------------------

    async def _describe(self) -> sm.DescribeClusterReply:
        if self._described is None:
            request = sm.DescribeClusterRequest()
            reply = await self._link.ask(methods.STREAM_MANAGER_DESCRIBE_CLUSTER, request)
            if self.cluster and reply.cluster != self.cluster:
                raise WrongCluster(expected=reply.cluster, got=self.cluster)
            self._link.learn(reply.managers, reply.leader.address)
            self._described = reply
        return self._described

    async def metadata(self) -> MetaStore:
        """Return the connection to the metadata store. Closing the client closes it, unless it was passed in."""
        if self._meta is not None:
            return self._meta
        async with self._meta_lock:
            if self._own_meta is None:
                described = await self._describe()
                self._own_meta = await connect_etcd(self._etcd, described.meta_endpoints, described.meta_root.encode())
            return self._own_meta

    async def lease(self) -> Lease:
        """Return the lease of this client's locks, or a new one if it was lost. Other keys may expire with it."""
        meta = await self.metadata()
        async with self._meta_lock:
            if self._lease is None or not self._lease.alive():
                self._lease = await meta.grant_lease(self.options.lease_ttl_s)
            return self._lease

    def _stream_of(self, info: sm.StreamInfo) -> Stream:
        self._link.note_revision(info.mod_revision)
        return Stream.of(info)
