"""How streams are used in a story: writers, readers, and operators who change streams as wholes.

    Writers    open a stream, append, leave it or die; others take it over
    Readers    read it from its start, or follow it
    Operators  truncate and punch, create and delete, seal, split and merge

Invariants: whatever is asked for goes into the ledger before it is asked: its outcome may be unknown for ever;
            a user that fails tries again as another process, until the story is over.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from neve.client.streams.types import Position, Stream
from neve.proto import methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import NeveError, StreamSealed
from tests.sim import raw
from tests.sim.processes.client import Killed, SimClient, SimWriter
from tests.sim.troubles.troubles import Kind, Scene

SPLIT_TIMEOUT_S = 30.0
DELETED_S = 1.0  # an append that is taken is acknowledged by then, without trouble


class Users:
    """All of a story's users; they end when `over` is set."""

    def __init__(self, scene: Scene) -> None:
        self.over = False
        self._scene = scene
        self._used: list[int] = []  # streams that have writers
        self._sealed = False  # one of them

    @property
    def _rng(self) -> random.Random:
        return self._scene.rng

    async def begin(self) -> None:
        shape = self._scene.shape
        for _ in range(shape.streams):
            stream = await self._scene.cluster.create_stream(
                replicas=3, sync=shape.sync, extent_bytes_max=shape.extent_bytes
            )
            self._use(stream.id)
        for _ in range(shape.operators):
            self._scene.spawn(self._operate())

    def kinds(self) -> Sequence[Kind]:
        return (
            Kind("stream taken over", self.take_over, sharp=True),
            Kind("stream sealed", self.seal, sharp=True),
        )

    def seal(self) -> bool:
        """An operator seals a stream that is in use; its users go on with another one."""
        if self.over or self._sealed or not self._used:
            return False
        self._sealed = True
        stream_id = self._used.pop(self._rng.randrange(len(self._used)))
        self._scene.say(f"stream {stream_id} is sealed for ever")
        self._scene.spawn(self._seal(stream_id))
        return True

    async def _seal(self, stream_id: int) -> None:
        client = await self._scene.new_client("operator")
        if client is None:
            return
        self._scene.cluster.ledger.sealed[stream_id] = None
        try:
            await client.run(client.neve.seal(stream_id))
            self._use((await self._new_stream(client)).id)
        except (NeveError, Killed) as error:
            self._scene.told(client.name, error)
        client.kill()

    def take_over(self, stream_id: int = 0) -> bool:
        """Somebody opens a stream at once, this one or any, whoever has it."""
        ledger = self._scene.cluster.ledger
        streams = [each for each in ledger.streams if each not in ledger.deleted and stream_id in (0, each)]
        if self.over or not streams:
            return False
        stream_id = self._rng.choice(streams)
        self._scene.say(f"stream {stream_id} is taken over {self._make_silent(stream_id)}")
        self._scene.spawn(self._rival(stream_id))
        return True

    def _make_silent(self, stream_id: int) -> str:
        """Why somebody takes it over: its owner does not answer, or hears nothing, or there is no reason."""
        scene = self._scene
        opened = [session for session in scene.cluster.ledger.sessions_of(stream_id) if session.token]
        owner = scene.cluster.clients[max(opened, key=lambda each: each.token).owner] if opened else None
        if owner is None or not owner.running or owner.process.paused:
            return "from nobody"
        how = self._rng.choice(("stopped", "deaf", "well"))
        if how == "stopped":
            owner.pause(buffered=self._rng.random() < 0.5)
            scene.for_a_while(lambda: owner.resume() if owner.running and owner.process.paused else None)
        elif how == "deaf":
            owner.meta.interrupt_watches(self._rng.choice((0.5, 3.0)))
        return f"from {owner.name}, which is {how}"

    def wait_for(self, stream_id: int) -> None:
        """Somebody opens a stream as soon as nobody has it."""
        if not self._is_over(stream_id):
            self._scene.spawn(self._rival(stream_id, takeover=False))

    async def _rival(self, stream_id: int, *, takeover: bool = True) -> None:
        client = await self._scene.new_client("rival")
        if client is None:
            return
        try:
            writer = await client.writer(stream_id, takeover=takeover, lock_timeout_s=10.0)
            how = "taken over" if takeover else "waited for"
            self._scene.say(f"{client.name} has {how} stream {stream_id} token={writer.session.token}")
            for _ in range(self._rng.choice((0, 1, 5, 15))):
                await self._append(writer)
            if self._rng.random() < 0.5:
                await writer.close()
        except (NeveError, Killed) as error:
            self._scene.told(client.name, error)
        if client.running and self._rng.random() < 0.5:
            client.kill()

    def _use(self, stream_id: int) -> None:
        self._used.append(stream_id)
        for _ in range(self._scene.shape.writers):
            self._scene.spawn(self._write(stream_id))
        for _ in range(self._scene.shape.readers):
            self._scene.spawn(self._read(stream_id))

    def _is_over(self, stream_id: int) -> bool:
        return self.over or stream_id in self._scene.cluster.ledger.deleted

    # --- writers ---------------------------------------------------------------------------------------------

    async def _write(self, stream_id: int) -> None:
        while not self._is_over(stream_id):
            client = await self._scene.new_client("writer")
            if client is not None:
                openings = (2, 5) if self._scene.shape.restless else (1, 2, 2)
                for _ in range(self._rng.choice(openings)):  # the same process may open it again, whatever happened
                    if not client.running or client.process.paused or self._is_over(stream_id):
                        break
                    try:
                        await self._write_as(client, stream_id)
                    except StreamSealed as error:
                        self._scene.told(client.name, error)
                        client.kill()
                        return
                    except (NeveError, Killed) as error:
                        self._scene.told(client.name, error)
                if client.running and self._rng.random() < 0.7:  # others stay, and do not know that they are over
                    client.kill()
            await asyncio.sleep(self._rng.uniform(0.0, 2.0))

    async def _write_as(self, client: SimClient, stream_id: int) -> None:
        restless = self._scene.shape.restless
        takeover = self._rng.random() < 0.4
        sync = False if self._scene.shape.mixed and self._rng.random() < 0.5 else None
        timeout_s = self._rng.choice((1.0, 10.0))
        writer = await client.writer(stream_id, takeover=takeover, lock_timeout_s=timeout_s, sync=sync)
        writer.session.weak = sync is False
        self._scene.say(f"{client.name} has opened stream {stream_id} token={writer.session.token}")
        for _ in range(self._rng.choice((1, 3, 5) if restless else (5, 20, 40))):
            if self._is_over(stream_id):
                break
            await self._append(writer)
            await asyncio.sleep(self._rng.choice((0.0, 0.02, 0.1, 0.5)))
        how = self._rng.random()
        if how < (0.2 if restless else 0.5):
            await writer.close()
        elif how < (0.9 if restless else 0.75):
            self._submit_some(writer)  # and what becomes of them nobody will know
            await asyncio.sleep(self._rng.choice((0.0002, 0.002, 0.05)))
            await writer.abort()

    async def _append(self, writer: SimWriter) -> None:
        size_bytes = self._rng.choice((0, 60, 300, 900, 2500))
        how = self._rng.random()
        alone, apart = (0.1, 0.8) if self._scene.shape.hasty else (0.4, 0.6)
        if how < alone:
            await writer.append(size_bytes)
            return
        if how < apart:  # one after the other, without waiting for any
            for _ in range(self._rng.randint(2, 12)):
                self._submit_some(writer, size_bytes % 1000, count_max=1)
                await asyncio.sleep(self._rng.choice((0.002, 0.02, 0.05)))
        else:
            self._submit_some(writer, size_bytes)
        if self._rng.random() < 0.5:
            await writer.flush()

    def _submit_some(self, writer: SimWriter, size_bytes: int = 300, *, count_max: int = 8) -> None:
        for _ in range(self._rng.randint(1, count_max)):
            if writer.client.process.paused or not writer.client.running:
                break
            writer.submit(size_bytes)

    # --- readers ---------------------------------------------------------------------------------------------

    async def _read(self, stream_id: int) -> None:
        while not self._is_over(stream_id):
            client = await self._scene.new_client("reader")
            if client is None:
                await asyncio.sleep(1.0)
                continue
            try:
                if self._rng.random() < 0.5:
                    await client.read(stream_id)
                else:
                    _, task = client.follow(stream_id)
                    await asyncio.wait([task], timeout=self._rng.uniform(0.5, 8.0))
                    task.cancel()
                    await asyncio.wait([task], timeout=30.0)
                    if task.done() and not task.cancelled():
                        task.result()
            except (NeveError, Killed) as error:
                self._scene.told(client.name, error)
            client.kill()
            await asyncio.sleep(self._rng.uniform(0.0, 2.0))

    # --- operators -------------------------------------------------------------------------------------------

    async def _operate(self) -> None:
        while not self.over:
            await asyncio.sleep(self._rng.uniform(0.5, 4.0))
            client = await self._scene.new_client("operator")
            if client is None:
                continue
            order = self._rng.choice(
                (self._truncate, self._punch, self._fleeting, self._split_and_merge, self._ask_twice)
            )
            try:
                await order(client)
            except (NeveError, Killed) as error:
                self._scene.told(client.name, error)
            client.kill()

    def _extents(self) -> tuple[int, tuple[int, ...]]:
        """A stream, and its extents but the tail."""
        streams = self._scene.cluster.stored_state().streams
        known = [each for each in streams.values() if each.stream_id in self._scene.cluster.ledger.streams]
        if not known:
            return 0, ()
        stream = self._rng.choice(known)
        return stream.stream_id, stream.extent_ids[:-1]

    def _note_removed(self, stream_id: int, extent_ids: tuple[int, ...]) -> None:
        self._scene.cluster.ledger.removed.setdefault(stream_id, set()).update(extent_ids)

    async def _truncate(self, client: SimClient) -> None:
        stream_id, extent_ids = self._extents()
        if not extent_ids:
            return
        at = self._rng.randrange(len(extent_ids))
        self._note_removed(stream_id, extent_ids[:at])
        self._scene.say(f"{client.name} truncates stream {stream_id} before extent {extent_ids[at]}")
        await client.run(client.neve.truncate(stream_id, Position(extent_ids[at], 0)))

    async def _punch(self, client: SimClient) -> None:
        stream_id, extent_ids = self._extents()
        if not extent_ids:
            return
        chosen = tuple(self._rng.sample(extent_ids, self._rng.randint(1, min(2, len(extent_ids)))))
        self._note_removed(stream_id, chosen)
        self._scene.say(f"{client.name} punches {chosen} out of stream {stream_id}")
        await client.run(client.neve.punch(stream_id, chosen))

    async def _new_stream(self, client: SimClient) -> Stream:
        shape = self._scene.shape
        stream = await client.run(
            client.neve.create_stream(replicas=3, sync=shape.sync, extent_bytes_max=shape.extent_bytes)
        )
        self._scene.cluster.ledger.streams[stream.id] = None
        return stream

    async def _ask_twice(self, client: SimClient) -> None:
        """For a stream, by one call: that is one stream, however often it is asked for and whoever leads (26)."""
        link = client.neve._link
        request = sm.CreateStreamRequest(call=link.next_call())
        asked = client.run(link.order(methods.STREAM_MANAGER_CREATE_STREAM, request))
        first = (await asked).stream.stream_id
        self._scene.cluster.ledger.streams[first] = None
        await asyncio.sleep(self._rng.choice((0.0, 0.5)))
        if not client.running:  # killed meanwhile: what it did now, nobody would ever end
            raise Killed(client.name)
        again = client.run(link.order(methods.STREAM_MANAGER_CREATE_STREAM, request))
        second = (await again).stream.stream_id
        if second != first:
            self._scene.cluster.violations.append(f"one call made the streams {first} and {second} (26)")

    async def _fleeting(self, client: SimClient) -> None:
        """A stream that is made, written, sealed perhaps, and deleted."""
        stream = await self._new_stream(client)
        self._scene.say(f"{client.name} makes stream {stream.id}")
        writer = await client.writer(stream.id)
        await writer.append_some(self._rng.randint(1, 5), 300)
        if self._rng.random() < 0.5:
            self._scene.cluster.ledger.sealed[stream.id] = None
            await client.run(client.neve.seal(stream.id))
        self._scene.cluster.ledger.deleted[stream.id] = None
        other = await self._scene.new_client("operator") if self._rng.random() < 0.5 else None
        if other is None:
            self._scene.say(f"{client.name} deletes stream {stream.id}")
            await client.run(client.neve.delete(stream.id))
        else:
            await self._delete_from(other, writer)

    async def _delete_from(self, client: SimClient, writer: SimWriter) -> None:
        """The writer does not hear of it; a stream that is gone takes nothing from it any more (23)."""
        stream_id = writer.session.stream_id
        self._scene.say(f"{client.name} deletes stream {stream_id}, which {writer.client.name} has open")
        try:
            await client.run(client.neve.delete(stream_id))
            if writer.client.running and not writer.client.process.paused:
                late = writer.submit(300)
                late.barred = True
                assert late.future is not None
                await asyncio.wait([late.future], timeout=DELETED_S)
        except (NeveError, Killed) as error:
            self._scene.told(client.name, error)
        client.kill()

    async def _split_and_merge(self, client: SimClient) -> None:
        """A stream gets a twin, both go on, and are joined again; wherever that ends, all are proper streams."""
        stream = await self._new_stream(client)
        writer = await client.writer(stream.id)
        await writer.append_some(self._rng.randint(1, 4), 300)
        twin_id = await client.run(client.neve.admin.alloc_ids())
        if writer.writer.owner is None:  # somebody has taken it over
            return
        ledger = self._scene.cluster.ledger
        ledger.twins[twin_id] = stream.id
        ledger.streams[twin_id] = None
        self._scene.say(f"{client.name} splits stream {stream.id}, the twin is {twin_id}")
        split = sm.SplitStreamsRequest()
        split.streams.add(
            stream_id=stream.id, owner=raw.owner_of(writer), new_stream_id=twin_id, new_lock=f"twin {twin_id}"
        )
        await client.run(client.neve.admin.split_streams(split, timeout_s=SPLIT_TIMEOUT_S))
        twin = await client.writer(twin_id)
        await twin.append_some(self._rng.randint(1, 3), 300)
        await writer.append_some(1, 300)
        if self._rng.random() < 0.3:
            return
        await twin.flush()
        await writer.flush()
        await client.read(twin_id)  # what is read of it must be in the other one then
        if writer.writer.owner is None or twin.writer.owner is None:
            return
        ledger.merged[twin_id] = stream.id
        self._scene.say(f"{client.name} merges stream {twin_id} into {stream.id}")
        merge = sm.MergeStreamsRequest()
        merge.streams.add(
            stream_id=stream.id,
            owner=raw.owner_of(writer),
            absorbed_stream_id=twin_id,
            absorbed_owner=raw.owner_of(twin),
        )
        await client.run(client.neve.admin.merge_streams(merge, timeout_s=SPLIT_TIMEOUT_S))
        await writer.append_some(3, 300)  # it has not heard of the merge: refused, for its next extent is not its own
