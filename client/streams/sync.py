"""The stream client for programs without asyncio: the same methods, called without `await`, from any thread.

    with SyncClient(["127.0.0.1:3401"]) as neve:
        stream = neve.create_stream(name="events", replicas=3)
        with neve.writer(stream.id) as writer:
            position = writer.append(b"hello")
        for record in neve.read(stream.id, start=position):
            print(record.position, record.payload)

Invariants: one event loop in a thread of its own does all the work. A call blocks until its result is there; Ctrl-C
            ends the call;
            an iterator fetches at most RECORDS_PER_HOP records or BYTES_PER_HOP ahead of its consumer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

import uvloop

from neve.client.streams.admin import Admin
from neve.client.streams.client import Client
from neve.client.streams.options import DEFAULT_OPTIONS, ClientOptions
from neve.client.streams.types import Position, Record, Stream
from neve.client.streams.writer import Writer, WriterStats
from neve.meta.etcd.config import EtcdAccess
from neve.proto.crc import Buffer
from neve.proto.errors import ShuttingDown
from neve.rpc.tls import TlsFiles

T = TypeVar("T")

# A switch between threads costs about 50 µs, so many records share one. A follower gets what has arrived, at once.
RECORDS_PER_HOP = 256
BYTES_PER_HOP = 4 << 20


class LoopThread:
    """An event loop in a daemon thread, which ends with `stop` or with the process."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="neve-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and block until it is done. An interrupt, such as Ctrl-C, cancels it."""
        if not self._thread.is_alive():
            work.close()
            raise ShuttingDown(detail="this client was closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:  # only `stop` cancels tasks of this loop
            raise ShuttingDown(detail="this client was closed by another thread") from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        if not self._thread.is_alive():
            return
        self.run(self._end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_tasks(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    def iterate(self, records: AsyncIterator[T]) -> Iterator[T]:
        """Iterate over an asynchronous iterator, fetching its items in batches."""
        some = _Batches(records)
        try:
            while batch := self.run(some.next()):
                yield from batch
        finally:
            if self._thread.is_alive():
                self.run(some.close())


class _Batches:
    """The items of an asynchronous iterator, in batches. A task collects them, a bounded number ahead of `next`."""

    def __init__(self, items: AsyncIterator[Any]) -> None:
        self._items = items
        self._ready: list[Any] = []
        self._ready_bytes = 0
        self._changed = asyncio.Event()  # made in any thread, but used only on the loop
        self._task: asyncio.Task[None] | None = None

    async def next(self) -> list[Any]:
        """Return at least one item, or none at the end. An error is raised after the items before it."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._gather())
        while not self._ready and not self._task.done():
            self._changed.clear()
            await self._changed.wait()
        batch, self._ready, self._ready_bytes = self._ready, [], 0
        self._changed.set()
        if not batch:
            self._task.result()  # raises the error that ended the task
        return batch

    async def _gather(self) -> None:
        try:
            async for item in self._items:
                self._ready.append(item)
                self._ready_bytes += len(item.payload) if isinstance(item, Record) else 0
                self._changed.set()
                while len(self._ready) >= RECORDS_PER_HOP or self._ready_bytes >= BYTES_PER_HOP:
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            self._changed.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        close = getattr(self._items, "aclose", None)
        if close is not None:
            await close()


class SyncWriter:
    """The synchronous twin of `Writer`. `SyncClient.writer` makes it, `with` opens it. Threads may share it."""

    def __init__(self, thread: LoopThread, make: Callable[[], Writer]) -> None:
        self._thread = thread
        self._make = make
        self._writer: Writer | None = None

    def open(self) -> Self:
        """Take the lock, fence older owners and find the end of the stream."""

        async def do() -> Writer:
            return await self._make().open()

        self._writer = self._thread.run(do())
        return self

    def append(self, payload: Buffer) -> Position:
        """Append one record and return its position, once it is acknowledged."""
        return self._thread.run(self._open_writer.append(payload))

    def append_many(self, payloads: Iterable[Buffer]) -> Sequence[Position]:
        """Append a list of records, acknowledged together. Faster than single appends, which each switch threads."""
        return self._thread.run(self._open_writer.append_many(payloads))

    def submit(self, payload: Buffer) -> concurrent.futures.Future[Position]:
        """Append one record and return a future of its position. Blocks only while the writer's buffer is full."""
        writer = self._open_writer
        done: concurrent.futures.Future[Position] = concurrent.futures.Future()

        async def begin() -> None:
            await writer.ready(len(payload))
            pending = writer.submit(payload)
            pending.add_done_callback(lambda future: _copy_outcome(future, done))

        self._thread.run(begin())
        return done

    def flush(self) -> None:
        """Block until every earlier append is acknowledged."""
        self._thread.run(self._open_writer.flush())

    def close(self) -> None:
        """Flush and release the lock. Raises AppendOutcomeUnknown if an append was not acknowledged."""
        if self._writer is not None:
            self._thread.run(self._writer.close())

    @property
    def stats(self) -> WriterStats:
        return self._open_writer.stats

    @property
    def token(self) -> int:
        return self._open_writer.token

    @property
    def _open_writer(self) -> Writer:
        if self._writer is None:
            raise ShuttingDown(detail="this writer is not open")
        return self._writer

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._writer is not None:
            self._thread.run(self._writer.__aexit__(kind, error, None))


def _copy_outcome(future: asyncio.Future[Position], done: concurrent.futures.Future[Position]) -> None:
    if future.cancelled():
        done.cancel()
    elif (error := future.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(future.result())


class SyncAdmin:
    """The synchronous twin of `Admin`: its coroutines block, and its asynchronous iterators become lists."""

    def __init__(self, thread: LoopThread, admin: Admin) -> None:
        self._thread = thread
        self._admin = admin

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._admin, name)

        def call(*arguments: Any, **named: Any) -> Any:
            answer = method(*arguments, **named)
            if isinstance(answer, AsyncIterator):
                return list(self._thread.iterate(answer))
            return self._thread.run(answer)

        return call


class _AsyncClient(Protocol):
    async def open(self) -> Any: ...

    async def close(self) -> None: ...


C = TypeVar("C", bound=_AsyncClient)


class SyncTwin(Generic[C]):
    """A client that runs in a thread of its own. The thread ends with the client, also when a step fails."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._thread = LoopThread()

        async def made() -> C:  # creates the client on the loop that it will use
            return make()

        try:
            self._client = self._thread.run(made())
        except BaseException:
            self._thread.stop()
            raise

    def open(self) -> Self:
        """Connect. `with` calls this."""
        try:
            self._thread.run(self._client.open())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def close(self) -> None:
        """Close the client and end its thread."""
        try:
            self._thread.run(self._client.close())
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncClient(SyncTwin[Client]):
    """The synchronous twin of `Client`, with the same arguments and methods."""

    def __init__(
        self,
        managers: Sequence[str],
        *,
        cluster: str = "main",
        token: str = "",
        tls: TlsFiles | None = None,
        etcd: EtcdAccess | None = None,
        options: ClientOptions = DEFAULT_OPTIONS,
    ) -> None:
        super().__init__(lambda: Client(managers, cluster=cluster, token=token, tls=tls, etcd=etcd, options=options))
        self.admin = SyncAdmin(self._thread, self._client.admin)

    def create_stream(self, **how: Any) -> Stream:
        """Like `Client.create_stream`."""
        return self._thread.run(self._client.create_stream(**how))

    def stream(self, id_or_name: int | str) -> Stream:
        return self._thread.run(self._client.stream(id_or_name))

    def streams(self, labels: Mapping[str, str] | None = None) -> Iterator[Stream]:
        return self._thread.iterate(self._client.streams(labels))

    def truncate(self, stream_id: int, before: Position) -> Stream:
        return self._thread.run(self._client.truncate(stream_id, before))

    def punch(self, stream_id: int, extent_ids: Iterable[int]) -> Stream:
        return self._thread.run(self._client.punch(stream_id, extent_ids))

    def seal(self, stream_id: int) -> Stream:
        return self._thread.run(self._client.seal(stream_id))

    def delete(self, stream_id: int) -> None:
        self._thread.run(self._client.delete(stream_id))

    def read(
        self,
        stream_id: int,
        *,
        start: Position | None = None,
        follow: bool = False,
        end: Position | None = None,
        copy: bool = True,
    ) -> Iterator[Record]:
        """Like `Client.read`. Close the iterator or read it to its end; a followed stream ends only when sealed."""
        return self._thread.iterate(self._client.read(stream_id, start=start, follow=follow, end=end, copy=copy))

    def read_record(self, stream_id: int, position: Position, *, copy: bool = True) -> Record:
        return self._thread.run(self._client.read_record(stream_id, position, copy=copy))

    def writer(
        self,
        stream_id: int,
        *,
        sync: bool | None = None,
        takeover: bool = False,
        lock_timeout_s: float | None = None,
        owner: str = "",
    ) -> SyncWriter:
        """Like `Client.writer`; `with` opens it."""
        return SyncWriter(
            self._thread,
            lambda: self._client.writer(
                stream_id, sync=sync, takeover=takeover, lock_timeout_s=lock_timeout_s, owner=owner
            ),
        )
