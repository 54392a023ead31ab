"""How the key-value layer is used in a story: clients that work on few keys and on many.

    Hot keys    got, put, deleted, compared and swapped, uploaded in parts, in batches with conditions and without, in
                calls of their own, many at a time on one key, and in scans: every answer goes into a history
    Journal     keys that are put once: what was acknowledged is in every scan from then on, and at the end
    Twins       two keys that only batches touch: both are as one of them left them, or both are not there
    Fleeting    keys with a time to live: there until it is over, and not longer

Values are below and above what is kept apart from the tables, and larger than one record.

Invariants: every value is unique, and says whose it is; whatever a client asks for is noted before it is asked;
            a client that ends is followed by another process, until the story is over.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from neve.client.objects.client import KeyValueClient
from neve.client.objects.options import KeyValueOptions
from neve.client.objects.types import Object
from neve.proto import partition_manager_pb2 as pm
from neve.proto.errors import NeveError, NotFound
from tests.history.history import Operation, Recorder, RecordingClient
from tests.history.workload import Journal
from tests.sim.partitions import PartitionCluster, SimKeyValue
from tests.sim.processes.client import Killed
from tests.sim.processes.manager import wall_ms
from tests.sim.troubles.troubles import Scene
from tests.sim.uses import uploads as kv_uploads
from tests.sim.uses.object_operators import Operators
from tests.sim.uses.single_objects import SingleCalls
from tests.sim.uses.uploads import Uploading

HOT_KEYS = (b"apple", b"cherry", b"grape", b"kiwi", b"melon", b"pear", b"quince", b"tomato")
TWINS = (b"kiwi.1", b"kiwi.2")
SIZES_BYTES = (10, 10, 120, 260, 260, 900, 4000)
TTLS_S = (0.4, 2.0, 6.0)
ATTEMPT_TIMEOUTS_S = (0.5, 3.0, 9.0)  # some wait for a server that hangs until others have long been told by the next
MERGE_S = 6.0
REPLACED_LOOK_S = 0.05
REPLACED_LOOKS = 400  # more than a lease, and what it takes to notice its end
LATE_READS = 6
READS_MAX = 40  # under way, of one reader
WALL_MARGIN_MS = 2

CHUNK_BYTES = 700  # of a streamed put
CONDITIONS = 0.5  # of the batches have some

HOT_MIX = ("get", "get", "get", "put", "put", "put", "delete", "if_absent", "if_version", "if_version", "batch")
SINGLE_MIX = ("get", "head", "delete")
MIX = (
    *["hot"] * 12,
    *["journal"] * 4,
    *["fleeting"] * 2,
    *["single"] * 2,
    *["rush"] * 2,
    *["upload"] * 2,
    "stream",
    "scan",
    "twins",
)


class TellingRecorder(Recorder):
    """Has what clients are told judged."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self._scene = scene

    def failed(self, operation: Operation, error: NeveError) -> None:
        super().failed(operation, error)
        self._scene.told(operation.client, error)


class KeyValueUsers:
    """All of a story's; they end when `over` is set."""

    def __init__(self, scene: Scene, partitions: PartitionCluster, *, options: KeyValueOptions) -> None:
        self.over = False
        self.recorder = TellingRecorder(scene)
        self.journal = Journal(lambda error: scene.told("kv", error))
        self.fleeting: dict[bytes, bytes] = {}
        self.clocks_are_right = True  # otherwise nobody knows when a time to live is over
        self.scans = 0
        self._scene = scene
        self._partitions = partitions
        self._options = options
        self._expiries_ms: dict[bytes, int] = {}
        self._names = 0
        self._values = 0
        self._version = 0  # the last that anybody was told
        self._rng = random.Random(scene.rng.getrandbits(64))  # of its own: what is used must not shift the troubles
        self.operators = Operators(scene, partitions, self._rng, is_over=lambda: self.over, wrong=self.wrong)
        self._uploading = Uploading(
            self.recorder, self._rng, self.wrong, scene.told, self.operators.reshape, self.operators.give_back
        )

    def begin(self, *, clients: int, workers: int, readers: int, operators: int) -> None:
        for _ in range(clients):
            self._scene.spawn(self._use(workers))
        for _ in range(readers):
            self._scene.spawn(self._read(READS_MAX))
        for _ in range(operators):
            self._scene.spawn(self.operators.run())

    # --- clients ---------------------------------------------------------------------------------------------

    async def _use(self, workers: int) -> None:
        """One process after the other."""
        while not self.over:
            client = await self.connected("kv")
            if client is not None:
                count = self._rng.choice((10, 40, 1000))
                await asyncio.gather(*(self._work(client, f"{client.name}.{n}", count) for n in range(workers)))
                client.kill()
            await asyncio.sleep(self._rng.uniform(0.0, 1.0))

    async def _read(self, reads_max: int) -> None:
        """A process that reads only, is patient, and does not wait for one answer before it asks again: what a server
        says that has hung, or that has been replaced unknowingly, is heard by somebody who has not learnt better."""
        client = await self.connected("reader-kv", patience_s=max(ATTEMPT_TIMEOUTS_S))
        if client is None:
            return
        reading: dict[asyncio.Task[None], None] = {}  # in order: a set's would differ from process to process

        async def read(name: str) -> None:
            with suppress(Killed):
                await client.run(RecordingClient(client.kv, self.recorder, name=name).get(self._rng.choice(HOT_KEYS)))

        for number in itertools.count():
            await asyncio.sleep(self._rng.uniform(0.05, 0.25))
            if self.over or not client.running:
                break
            if len(reading) < reads_max:
                task = asyncio.get_running_loop().create_task(read(f"{client.name}.{number}"))
                reading[task] = None
                task.add_done_callback(reading.pop)
        await asyncio.gather(*reading)

    async def see_merged(self, left: pm.RegionRecord, right: pm.RegionRecord) -> None:
        """A merge, with somebody who knows the old map and reads by it while another one writes by the new one."""
        merged = asyncio.Event()

        async def merge() -> None:
            self.operators.merge_pair(left, right, then=lambda _: merged.set())
            with suppress(TimeoutError):
                await asyncio.wait_for(merged.wait(), MERGE_S)

        await self._see_changed(right, merge)

    async def see_replaced(self, region: pm.RegionRecord) -> None:
        """A partition whose server is being replaced, with somebody who knows the old one and still reaches it while
        another one writes by way of the new one."""

        async def replace() -> None:
            for _ in range(REPLACED_LOOKS):
                await asyncio.sleep(REPLACED_LOOK_S)
                if self._partitions.region(region.start).server_id != region.server_id:
                    break

        await self._see_changed(region, replace)

    async def _see_changed(self, region: pm.RegionRecord, change: Callable[[], Awaitable[None]]) -> None:
        """Its keys are read by the map as it was before the change, also after somebody has written by the new one."""
        keys = [key for key in HOT_KEYS if region.start <= key and (not region.end or key < region.end)]
        reader = await self.connected("reader-kv", patience_s=min(ATTEMPT_TIMEOUTS_S)) if keys else None
        if reader is None:
            await change()
            return
        key = self._rng.choice(keys)
        reading = RecordingClient(reader.kv, self.recorder, name=reader.name)
        with suppress(Killed):
            await reader.run(reading.get(key))
            await change()
            await self._put_by_another(key)
            for _ in range(LATE_READS):
                how = self._rng.choice(("get", "get", "head", "scan"))
                if how == "scan":  # of this region alone: what another one answers would bring a newer map
                    await reader.run(reading.scan([key], start=region.start, end=region.end))
                else:
                    await reader.run(getattr(reading, how)(key))
                await asyncio.sleep(self._rng.uniform(0.02, 0.1))
        reader.kill()

    async def _put_by_another(self, key: bytes) -> None:
        writer = await self.connected("kv")
        if writer is not None:
            writing = RecordingClient(writer.kv, self.recorder, name=writer.name)
            await writer.run(writing.put(key, self._value(key)))
            writer.kill()

    async def connected(self, role: str, *, patience_s: float | None = None) -> SimKeyValue | None:
        """A new process of that kind; None if it could not connect."""
        self._names += 1
        patience_s = self._rng.choice(ATTEMPT_TIMEOUTS_S) if patience_s is None else patience_s
        options = dataclasses.replace(self._options, attempt_timeout_s=patience_s)
        client = self._partitions.new_client(f"{role}{self._names}", options)
        self._scene.set_far(client.name)
        try:
            await client.run(client.kv.open())
        except (NeveError, Killed) as error:
            self._scene.told(client.name, error)
            client.kill()
            return None
        return client

    async def _work(self, client: SimKeyValue, name: str, count: int) -> None:
        kv = RecordingClient(client.kv, self.recorder, name=name)
        single = RecordingClient(cast(KeyValueClient, SingleCalls(client.kv)), self.recorder, name=name)
        versions: dict[bytes, int] = {}
        uses: dict[str, Callable[[], Awaitable[None]]] = {
            "hot": lambda: self._use_hot(kv, versions),
            "journal": lambda: self._put_once(client.kv),
            "scan": lambda: self._scan(kv),
            "twins": lambda: self._change_twins(kv, versions),
            "single": lambda: self._call_alone(single, versions),
            "rush": lambda: self._rush(kv, versions),
            "stream": lambda: self._stream(kv, versions),
            "upload": lambda: self._upload(client.kv, kv, versions),
            "fleeting": lambda: self._use_fleeting(client.kv),
        }

        async def step() -> None:
            await uses[self._rng.choice(MIX)]()

        for _ in range(count):
            if self.over or not client.running:
                return
            try:
                await client.run(step())
            except Killed:
                return
            await asyncio.sleep(self._rng.choice((0.0, 0.02, 0.1, 0.5)))

    def _value(self, key: bytes, size_bytes: int | None = None) -> bytes:
        self._values += 1
        value = b"%s #%d " % (key, self._values)
        size_bytes = self._rng.choice(SIZES_BYTES) if size_bytes is None else size_bytes
        return value + b"." * (size_bytes - len(value))

    async def _use_hot(self, kv: RecordingClient, versions: dict[bytes, int]) -> None:
        rng = self._rng
        key = rng.choice(HOT_KEYS)
        how = rng.choice(HOT_MIX)
        if how == "get":
            await kv.get(key)
        elif how == "delete":
            await kv.delete(key, if_version=versions.get(key) if rng.random() < 0.3 else None)
        elif how == "batch":
            await self._batch(kv, rng.sample(self._neighbours(key), 2), versions)
        else:
            expected = versions.get(key) if how == "if_version" else None
            version = await kv.put(key, self._value(key), if_absent=how == "if_absent", if_version=expected)
            self._note(versions, key, version)

    def _note(self, versions: dict[bytes, int], key: bytes, version: int | None) -> None:
        if version:
            versions[key] = self._version = version

    def _neighbours(self, key: bytes) -> Sequence[bytes]:
        """Keys of one partition, as far as there are: a batch has no others."""
        region = self._partitions.region(key)
        found = [each for each in HOT_KEYS if self._partitions.region(each).partition_id == region.partition_id]
        return found if len(found) > 1 and self._rng.random() < 0.9 else HOT_KEYS

    async def _batch(self, kv: RecordingClient, keys: Sequence[bytes], versions: dict[bytes, int]) -> None:
        rng = self._rng
        values = {each: None if rng.random() < 0.2 else self._value(each) for each in keys}
        await self._conditional(kv, values, versions)

    async def _conditional(
        self, kv: RecordingClient, values: dict[bytes, bytes | None], versions: dict[bytes, int]
    ) -> None:
        """On all, some or none of the keys: what was last heard of them, which may be old, or that they are new."""
        rng, expected = self._rng, {}
        if rng.random() < CONDITIONS:
            for key, value in values.items():
                if key in versions and rng.random() < 0.7:
                    expected[key] = versions[key]
                elif value is not None and rng.random() < 0.4:
                    expected[key] = 0
        for key, version in (await kv.batch(values, expected=expected) or {}).items():
            self._note(versions, key, version)

    async def _call_alone(self, kv: RecordingClient, versions: dict[bytes, int]) -> None:
        key, how = self._rng.choice(HOT_KEYS), self._rng.choice(SINGLE_MIX)
        if how == "get":
            await kv.get(key)
        elif how == "head":
            self._note(versions, key, await kv.head(key))
        else:
            await kv.delete(key, if_version=versions.get(key) if self._rng.random() < 0.5 else None)

    async def _rush(self, kv: RecordingClient, versions: dict[bytes, int]) -> None:
        """Several writes of one key at once: what they find is not acknowledged yet, and their answers rest on it. The
        next versions can be guessed, as everybody's follow each other."""
        key, ahead = self._rng.choice(HOT_KEYS), self._rng.randint(1, 3)

        async def put(**condition: Any) -> None:
            self._note(versions, key, await kv.put(key, self._value(key), **condition))

        ways: list[Callable[[], Awaitable[None]]] = [
            put,
            lambda: kv.delete(key),
            lambda: put(if_absent=True),
            lambda: put(if_version=self._version + ahead),
            lambda: kv.delete(key, if_version=self._version + ahead),
        ]
        first, *others = self._rng.choices(ways, k=3)
        await asyncio.gather(self._rng.choice((put, first))(), *(each() for each in others))

    async def _stream(self, kv: RecordingClient, versions: dict[bytes, int]) -> None:
        key = self._rng.choice(HOT_KEYS)
        value = self._value(key, self._rng.choice(kv_uploads.SIZES_BYTES))
        self._note(versions, key, await kv.put(key, value, chunk_bytes=CHUNK_BYTES, **self._condition(key, versions)))

    async def _upload(self, client: KeyValueClient, kv: RecordingClient, versions: dict[bytes, int]) -> None:
        key = self._rng.choice(HOT_KEYS)
        value = self._value(key, self._rng.choice(kv_uploads.SIZES_BYTES))
        conditions = {"if_absent": False, "if_version": None, **self._condition(key, versions)}
        version = await self._uploading.upload(client, kv.name, key, value, **conditions)
        self._note(versions, key, version)
        if version is not None:
            await kv.get(key)  # before somebody puts another object there

    def _condition(self, key: bytes, versions: dict[bytes, int]) -> dict[str, Any]:
        how = self._rng.choice(("", "", "", "if_absent", "if_version"))
        if how == "if_version":
            return {how: versions.get(key)}
        return {how: True} if how else {}

    async def _put_once(self, kv: KeyValueClient) -> None:
        key = b"%c/once/%d" % (self._rng.choice(b"acegikmoqsuwy"), len(self.journal.tried))
        await self.journal.put(kv, key, self._value(key))

    async def _change_twins(self, kv: RecordingClient, versions: dict[bytes, int]) -> None:
        value = None if self._rng.random() < 0.2 else self._value(b"twins")
        await self._conditional(kv, dict.fromkeys(TWINS, value), versions)

    async def _scan(self, kv: RecordingClient) -> None:
        before = set(self.journal.acknowledged)
        found = await kv.scan((*HOT_KEYS, *TWINS))
        if found is not None:
            self.scans += 1
            self.check_scan(found, before)

    def check_scan(self, found: list[Object], before: set[bytes]) -> None:
        """T51: complete, each key once, in order, and nothing that nobody put."""
        keys = [each.info.key for each in found]
        if any(left >= right for left, right in itertools.pairwise(keys)):
            self.wrong(f"a scan is out of order: {keys}")
        if lost := sorted(before.difference(keys)):
            self.wrong(f"a scan left out {len(lost)} keys that were there, {lost[0]!r} for one (T51)")
        for each in found:
            key, value = each.info.key, each.value
            put = self.journal.tried.get(key, self.fleeting.get(key))
            if put != value and not (put is None and key in (*HOT_KEYS, *TWINS)):
                self.wrong(f"a scan has {value[:40]!r} under {key!r}, where {put and put[:40]!r} was put (T49)")

    async def _use_fleeting(self, kv: KeyValueClient) -> None:
        if self._expiries_ms and self._rng.random() < 0.6:
            await self._get_fleeting(kv, self._rng.choice(list(self._expiries_ms)))
            return
        key = b"%c/fleeting/%d" % (self._rng.choice(b"bfjnrvz"), len(self.fleeting))
        value = self.fleeting[key] = self._value(key)
        try:
            info = await kv.put(key, value, ttl_s=self._rng.choice(TTLS_S))
        except NeveError as error:
            self._scene.told("kv", error)
            return
        self._expiries_ms[key] = info.expires_ms

    async def _get_fleeting(self, kv: KeyValueClient, key: bytes) -> None:
        begun_ms = wall_ms()
        try:
            value = (await kv.get(key)).value
        except NotFound:
            value = None
        except NeveError as error:
            self._scene.told("kv", error)
            return
        expires_ms = self._expiries_ms[key]
        if value is not None and value != self.fleeting[key]:
            self.wrong(f"{key!r} has {value[:40]!r}, which nobody put (T49)")
        if not self.clocks_are_right:
            return
        if value is None and wall_ms() < expires_ms - WALL_MARGIN_MS:
            self.wrong(f"{key!r} is gone {expires_ms - wall_ms()} ms before its time")
        if value is not None and begun_ms > expires_ms + WALL_MARGIN_MS:
            self.wrong(f"{key!r} is there {begun_ms - expires_ms} ms after its time")

    def wrong(self, what: str) -> None:
        """Found when it happens: the story fails at its next step."""
        self._scene.cluster.violations.append(f"{asyncio.get_running_loop().time():.3f} {what}")
