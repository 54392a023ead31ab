"""A watch on etcd that recovers by itself: it reconnects, resumes and, after a compaction, lists again.

Invariants: every change from `start_revision` on is delivered once and in order, or a `Resync` covers it;
            all events of one revision are in one batch, even if etcd split them over several messages;
            read-ahead is bounded: at the bound the stream is dropped, and resumed when there is room.

Three defects of etcd releases shape this module:
- A watch that starts exactly at the compacted revision misses that revision's deletes (before 3.4.36 and 3.5.18:
  the tombstones are gone). So we watch from the revision *before* the first one wanted, and drop known events.
- A watcher that does not read may silently lose events when its history is compacted (before 3.4.31 and 3.5.13). So
  we read ahead, and end the stream rather than let it fill up in the server.
- A progress *request* may be answered ahead of events (before 3.4.25 and 3.5.8). So we use only the periodic
  notifications, which are sent in order with the events.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Any

import grpc

from neve.meta.etcd import codec
from neve.meta.etcd.connections import END_OF_STREAM, EtcdLink, Member, was_cancelled
from neve.meta.etcd.errors import translate
from neve.meta.store import Event, Listing, Resync, Watch, WatchBatch, WatchItem
from neve.meta.txn import KeyRange
from neve.proto import etcd_pb2 as pb
from neve.proto.errors import MetaError, MetaUnavailable, NeveError

log = logging.getLogger(__name__)

# The reasons that etcd gives for cancelling a watch that its user, or its token, may not have. Before 3.5.6 it always
# gives the first.
_REFUSALS = (
    "permission denied",
    "invalid auth token",
    "revision of auth store is old",
    "user name is empty",
)
AHEAD_ITEMS_MAX = 1_000
AHEAD_BYTES_MAX = 32 * 1024 * 1024


class BatchAssembler:
    """Assembles etcd's messages into whole revisions. No I/O.

    `next_revision` is the first revision that is not complete yet, from which to resume.
    """

    def __init__(self, start_revision: int) -> None:
        self.next_revision = start_revision
        self._partial: list[Event] = []

    def stream_started(self, *, next_revision: int | None = None) -> None:
        """A new stream begins. It repeats an incomplete revision from that revision's beginning."""
        self._partial = []
        if next_revision is not None:
            self.next_revision = next_revision

    def feed(self, events: Sequence[Event], *, fragment: bool) -> list[WatchBatch]:
        """The batches that this message completes. `fragment`: the message continues in the next one."""
        self._partial += [event for event in events if event.kv.mod_revision >= self.next_revision]
        if not self._partial:
            return []
        last_revision = self._partial[-1].kv.mod_revision
        # In a fragment only the last revision can continue; the revisions before it are whole.
        whole = [event for event in self._partial if not fragment or event.kv.mod_revision < last_revision]
        self._partial = self._partial[len(whole) :]
        batches = [
            WatchBatch(revision, tuple(group))
            for revision, group in groupby(whole, key=lambda event: event.kv.mod_revision)
        ]
        if batches:
            self.next_revision = batches[-1].revision + 1
        return batches

    def progressed(self, revision: int) -> None:
        """etcd has reported that all events up to `revision` were delivered."""
        self.next_revision = max(self.next_revision, revision + 1)


class EtcdWatch(Watch):
    """The watch. `relist` reads the whole range after a compaction; `probe` reads a key to test our permission."""

    def __init__(
        self,
        link: EtcdLink,
        keys: KeyRange,
        *,
        start_revision: int,
        relist: Callable[[], Awaitable[Listing]],
        probe: Callable[[], Awaitable[object]],
        on_close: Callable[[EtcdWatch], None],
    ) -> None:
        self._link = link
        self._keys = keys
        self._relist = relist
        self._probe = probe
        self._on_close = on_close
        self._assembler = BatchAssembler(start_revision)
        self._ahead: deque[WatchItem] = deque()
        self._ahead_bytes = 0
        self._failed: BaseException | None = None
        self._closed = False
        self._failures = 0  # consecutive streams that delivered nothing
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._pump(), name="etcd-watch")
        self._task.add_done_callback(self._on_pump_done)

    async def __anext__(self) -> WatchItem:
        while not self._ahead:
            if self._closed:
                raise StopAsyncIteration
            if self._failed is not None:
                raise self._failed
            self._filled.clear()
            await self._filled.wait()
        item = self._ahead.popleft()
        self._ahead_bytes -= _size_bytes(item)
        if not self._is_full():
            self._drained.set()
        return item

    async def close(self) -> None:
        self._closed = True
        self._ahead.clear()
        self._filled.set()
        self._on_close(self)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _is_full(self) -> bool:
        return len(self._ahead) >= AHEAD_ITEMS_MAX or self._ahead_bytes >= AHEAD_BYTES_MAX

    def _push(self, item: WatchItem) -> None:
        self._ahead.append(item)
        self._ahead_bytes += _size_bytes(item)
        self._filled.set()

    def _on_pump_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._failed = task.exception()
        elif not self._closed:
            self._closed = True  # its loop ends
        self._filled.set()

    async def _pump(self) -> None:
        """Read one stream after another until closed. Raises only permanent errors."""
        while True:
            member = self._link.first_member()
            try:
                await self._stream(member)
            except MetaError as error:
                self._failures += 1
                self._link.pass_over(member, f"watch: {error}")
            await self._link.pause(self._failures)
            while self._is_full():
                self._drained.clear()
                await self._drained.wait()

    async def _stream(self, member: Member) -> None:
        """Read one stream until it fails (an error), its history is compacted, or there is no more room."""
        config = self._link.config
        if not await member.connected(config.connect_timeout_s):
            raise MetaUnavailable(detail=f"cannot connect to etcd at {member.address}")
        token = await self._link.login(member)
        self._assembler.stream_started()
        call = member.watch.Watch(metadata=self._link.metadata())
        try:
            async with asyncio.timeout(config.attempt_timeout_s):
                await call.write(self._request())
                response = await call.read()
            while response is not END_OF_STREAM:
                if response.canceled:
                    await self._cancelled_by_etcd(response, member, token)
                    return
                self._failures = 0
                self._take(response)
                if self._is_full():
                    return
                response = await call.read()
            raise MetaUnavailable(detail=f"{member.address} ended the watch's stream")
        except TimeoutError:
            raise MetaUnavailable(detail=f"{member.address} did not begin the watch in time") from None
        except grpc.aio.AioRpcError as error:
            raise await self._stream_error(error, member, token) from error
        except asyncio.InvalidStateError as error:  # gRPC raises it for a write to a stream that has ended
            raise MetaUnavailable(detail=f"{member.address} ended the watch's stream: {error}") from error
        except asyncio.CancelledError:
            if was_cancelled():
                raise
            raise MetaUnavailable(detail="the stream was closed under the watch") from None
        finally:
            call.cancel()

    async def _stream_error(self, error: grpc.aio.AioRpcError, member: Member, token: str) -> NeveError:
        translated = translate(error.code(), error.details() or "", write=False)
        if error.code() is grpc.StatusCode.UNAUTHENTICATED and self._link.config.user:
            await self._link.renew_token(member, stale=token)
            return MetaUnavailable(detail=f"the token had expired: {translated}")
        return translated

    def _request(self) -> Any:
        create = pb.WatchCreateRequest(
            key=self._keys.start,
            range_end=self._keys.end,
            start_revision=max(1, self._assembler.next_revision - 1),
            progress_notify=True,
            fragment=True,
        )
        return pb.WatchRequest(create_request=create)

    def _take(self, response: Any) -> None:
        events = [codec.event(message) for message in response.events]
        for batch in self._assembler.feed(events, fragment=response.fragment):
            self._push(batch)
        # The header of a message with events has etcd's revision, which may be beyond the events.
        if not response.events and not response.created and not response.fragment:
            self._assembler.progressed(response.header.revision)

    async def _cancelled_by_etcd(self, response: Any, member: Member, token: str) -> None:
        if response.compact_revision:
            listing = await self._relist()
            log.info("watch_resync start=%r revision=%d", self._keys.start, listing.revision)
            self._assembler.stream_started(next_revision=listing.revision + 1)
            self._push(Resync(listing.revision, listing.kvs))
            return
        reason = response.cancel_reason
        if self._link.config.user and any(part in reason for part in _REFUSALS):
            # An expired token may look like a missing permission. A read of the same keys with a new token
            # distinguishes the two: it raises `PermissionDenied` if the permission is missing.
            await self._link.renew_token(member, stale=token)
            await self._probe()
            raise MetaUnavailable(detail=f"the watch's token had expired: {reason}")
        denied = "permission denied" in reason
        code = grpc.StatusCode.PERMISSION_DENIED if denied else grpc.StatusCode.UNKNOWN
        raise translate(code, f"etcd cancelled the watch: {reason}", write=False)


def _size_bytes(item: WatchItem) -> int:
    kvs = item.kvs if isinstance(item, Resync) else [event.kv for event in item.events]
    return sum(len(kv.key) + len(kv.value) for kv in kvs)
