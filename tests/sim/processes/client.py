"""A program that uses Neve, in the simulation: the real client as a process, whose appends go into the ledger.

    client = await cluster.client("writer")
    writer = await client.writer(stream_id)
    await writer.append(); writer.submit(); await writer.flush(); await writer.close()
    client.pause(); client.resume(); client.kill()

Invariants: whatever a client does it does as its process: a story that pauses it stops all of that, at once;
            a killed one never comes back: start another one, under another name.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from neve.client.manager_link import ManagerLink
from neve.client.streams.client import Client
from neve.client.streams.options import ClientOptions
from neve.client.streams.types import Position, Record
from neve.client.streams.writer import Writer
from neve.meta.memory.client import MemoryClient
from neve.proto.errors import Overloaded
from neve.rpc.limits import Limits
from neve.rpc.pool import ChannelPool
from tests.sim.checks.ledger import Attempt, Ledger, Session, Sighting
from tests.sim.checks.watched_store import WatchedStore
from tests.sim.network.network import SimNetwork
from tests.sim.processes.manager import META_TIMEOUT_S, meta_plan
from tests.sim.processes.node import CLUSTER
from tests.sim.processes.processes import Killed, Process

T = TypeVar("T")

# Small, so that a few records fill frames and extents; and quick, since every heartbeat of a cluster costs real time.
OPTIONS = ClientOptions(
    call_timeout_s=20.0,
    attempt_timeout_s=5.0,
    frame_bytes=2000,
    writer_bytes_max=50_000,
    buffer_bytes_max=200_000,
    block_payload_bytes_max=1000,
    read_bytes=3000,
    read_first_bytes=1000,
    append_timeout_s=0.5,
    roll_timeout_s=60.0,
    read_timeout_s=2.0,
    follow_wait_s=1.0,
    lease_ttl_s=4,
    lock_timeout_s=20.0,
    avoid_node_s=10.0,
    limits=Limits(dead_peer_s=6.0, keepalive_s=4.0, connect_timeout_s=0.5, handshake_timeout_s=0.5),
)


class SimClient:
    def __init__(
        self,
        network: SimNetwork,
        etcd: WatchedStore,
        ledger: Ledger,
        *,
        name: str,
        managers: Sequence[str],
        options: ClientOptions = OPTIONS,
    ) -> None:
        self.name = name
        self.process = Process(name)
        self.ledger = ledger
        self.left: list[str] = []  # tasks that were not over when it was closed
        self._etcd = etcd
        rng = random.Random(network.rng.getrandbits(64))
        self.meta: MemoryClient = etcd.connect(
            self.process, plan=meta_plan(random.Random(rng.getrandbits(64))), call_timeout_s=META_TIMEOUT_S
        )
        self._network = network
        limits = options.limits
        self.neve = Client(
            managers,
            cluster=CLUSTER,
            meta=self.meta,
            channels=ChannelPool(lambda address: network.channel(name, address, cluster=CLUSTER, limits=limits)),
            rng=rng,
            options=options,
        )

    @property
    def running(self) -> bool:
        return not self.process.killed

    async def open(self) -> None:
        await self.run(self.neve.open())

    async def close(self) -> None:
        """What it has left is looked at whether or not it could say how all has ended."""
        if not self.running:
            return
        try:
            await self.run(self.neve.close())
        finally:
            if self.running:
                self.left = [*await self.process.left(), *self._network.held_by(self.name)]
                self.process.stopped = not self.process.killed
                self.kill()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this as the process."""
        return await self.process.run(work)

    # --- trouble ---------------------------------------------------------------------------------------------

    def kill(self) -> None:
        if self.process.killed:
            return
        self.meta.disconnect()
        self.process.kill()
        self._network.crash(self.name, gone=True)

    def pause(self, *, buffered: bool = False) -> None:
        """SIGSTOP. `buffered`: what is sent to it waits in its own buffers, not on the way."""
        self.process.pause()
        self._network.pause(self.name, buffered=buffered)

    def resume(self) -> None:
        self._network.resume(self.name)  # first: a process reads what has come before it runs its late timers
        self.process.resume()

    # --- use -------------------------------------------------------------------------------------------------

    async def writer(self, stream_id: int, **how: Any) -> SimWriter:
        """Opened, by its own process."""
        session = self.ledger.begin(stream_id, self.name, lives=lambda: self.running)

        async def open_it() -> Writer:
            writer = self.neve.writer(stream_id, owner=self.name, **how)
            await writer.open()
            self.ledger.opened(
                session,
                writer.token,
                over=writer.token in self._etcd.over,
                found=writer.committed,
                revision=self._etcd.key_space.revision,
            )
            return writer

        return SimWriter(self, session, await self.run(open_it()))

    async def read(self, stream_id: int, *, start: Position | None = None) -> list[Record]:
        """All that there is now; it goes into the ledger."""
        sighting = self.ledger.see(stream_id, self.name, from_start=start is None)
        await self.run(self._read(stream_id, sighting, start=start, follow=False))
        return sighting.records

    def follow(self, stream_id: int) -> tuple[Sighting, asyncio.Task[None]]:
        """Read on and on, until it is cancelled, fails, or the stream ends."""
        sighting = self.ledger.see(stream_id, self.name, from_start=True)
        return sighting, self.process.spawn(self._read(stream_id, sighting, start=None, follow=True))

    async def _read(self, stream_id: int, sighting: Sighting, *, start: Position | None, follow: bool) -> None:
        self._watch_revision(sighting)
        records = self.neve.read(stream_id, start=start, follow=follow)
        try:
            async with aclosing(records):  # type: ignore[type-var]
                async for record in records:
                    sighting.records.append(record)
                    sighting.last_s = asyncio.get_running_loop().time()
        except asyncio.CancelledError:
            if follow and self.running:
                self.ledger.on_left(sighting)
            raise
        self.ledger.on_read(sighting)

    def _watch_revision(self, sighting: Sighting) -> None:
        """The first answer to a reading is the stream's list: nothing that it asks for later is older."""
        link = self.neve._link

        def note(revision: int) -> None:
            ManagerLink.note_revision(link, revision)
            if sighting.revision is None:
                sighting.revision = link.revision_seen

        link.note_revision = note  # type: ignore[method-assign]


class SimWriter:
    """A writer whose appends are on the ledger."""

    def __init__(self, client: SimClient, session: Session, writer: Writer) -> None:
        self.client = client
        self.session = session
        self.writer = writer

    def submit(self, size_bytes: int = 0) -> Attempt:
        """One append, without waiting; an error of the writer itself is raised, and the append was never made."""
        assert not self.client.process.paused, "a stopped process makes no calls"
        attempt = self.client.ledger.attempt(self.session, size_bytes)
        self.client.process.enter(self._submit, attempt)
        return attempt

    def _submit(self, attempt: Attempt) -> asyncio.Future[Position]:
        future = self.writer.submit(attempt.payload)
        self.client.ledger.made(self.session, attempt, future)
        return future

    async def append(self, size_bytes: int = 0) -> Position:
        """One append, acknowledged."""
        attempt = self.client.ledger.attempt(self.session, size_bytes)

        async def do() -> Position:
            try:
                future = self._submit(attempt)
            except Overloaded:  # wait for room
                future = asyncio.ensure_future(self.writer.append(attempt.payload))
                attempt.seen_late = True
                self.client.ledger.made(self.session, attempt, future)
            return await future

        return await self.client.run(do())

    async def append_some(self, count: int, size_bytes: int = 0) -> list[Position]:
        return [await self.append(size_bytes) for _ in range(count)]

    async def flush(self) -> None:
        await self.client.run(self.writer.flush())

    async def close(self) -> None:
        await self.client.run(self.writer.close())

    async def abort(self) -> None:
        await self.client.run(self.writer.abort())


__all__ = ["OPTIONS", "Killed", "SimClient", "SimWriter"]
