"""How the key-value layer is used in a story: clients that work on few keys and on many, and operators.

    Hot keys    got, put, deleted, compared and swapped, in batches and in scans: every answer goes into a history
    Journal     keys that are put once: what was acknowledged is in every scan from then on, and at the end
    Twins       two keys that only batches touch: both are as one of them left them, or both are not there
    Fleeting    keys with a time to live: there until it is over, and not longer
    Operators   split, merge and move partitions, compact them, have extents of their logs given back

Values are below and above what is kept apart from the tables, and larger than one record.

Invariants: every value is unique, and says whose it is; whatever a client asks for is noted before it is asked;
            a client that ends is followed by another process, until the story is over.
Neighbours: partition_world.py begins and ends them, kv_checkers.py judges what they were told.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from neve.client.kv_client import KeyValueClient
from neve.client.kv_options import KeyValueOptions
from neve.client.kv_types import Object
from neve.proto import methods
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_server_pb2 as ps
from neve.proto.errors import NeveError, NotFound
from tests.history.history import Recorder, RecordingClient
from tests.history.workload import Journal
from tests.sim.client import Killed
from tests.sim.manager import wall_ms
from tests.sim.partitions import PartitionCluster, SimKeyValue
from tests.sim.troubles import Scene

HOT_KEYS = (b"apple", b"cherry", b"grape", b"kiwi", b"melon", b"pear", b"quince", b"tomato")
TWINS = (b"kiwi.1", b"kiwi.2")
MIDDLE_KEYS = (b"b", b"d", b"h", b"l", b"n", b"p", b"r")  # none of them between the twins
REGIONS_MAX = 6
SCATTERED = 0.3  # of splits: the new half is moved
SIZES_BYTES = (10, 10, 120, 260, 260, 900, 4000)
TTLS_S = (0.4, 2.0, 6.0)
ORDER_TIMEOUT_S = 15.0
ATTEMPT_TIMEOUTS_S = (0.5, 3.0, 9.0)  # some wait for a server that hangs until others have long been told by the next
READS_MAX = 40  # under way, of one reader
WALL_MARGIN_MS = 2

HOT_MIX = ("get", "get", "get", "put", "put", "put", "delete", "if_absent", "if_version", "if_version", "batch")
MIX = (*["hot"] * 12, *["journal"] * 4, "scan", "twins", "fleeting", "fleeting")


class KeyValueUsers:
    """All of a story's; they end when `over` is set."""

    def __init__(self, scene: Scene, partitions: PartitionCluster, *, options: KeyValueOptions) -> None:
        self.over = False
        self.recorder = Recorder()
        self.journal = Journal()
        self.fleeting: dict[bytes, bytes] = {}
        self.clocks_are_right = True  # otherwise nobody knows when a time to live is over
        self.scans = 0
        self._scene = scene
        self._partitions = partitions
        self._options = options
        self._expiries_ms: dict[bytes, int] = {}
        self._names = 0
        self._values = 0
        self._rng = random.Random(scene.rng.getrandbits(64))  # of its own: what is used must not shift the troubles

    def begin(self, *, clients: int, workers: int, readers: int, operators: int) -> None:
        for _ in range(clients):
            self._scene.spawn(self._use(workers))
        for _ in range(readers):
            self._scene.spawn(self._read(READS_MAX))
        for _ in range(operators):
            self._scene.spawn(self._operate())

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
            self._scene.say(f"{client.name} did not connect: {type(error).__name__} {error}")
            client.kill()
            return None
        return client

    async def _work(self, client: SimKeyValue, name: str, count: int) -> None:
        kv = RecordingClient(client.kv, self.recorder, name=name)
        versions: dict[bytes, int] = {}
        uses: dict[str, Callable[[], Awaitable[None]]] = {
            "hot": lambda: self._use_hot(kv, versions),
            "journal": lambda: self._put_once(client.kv),
            "scan": lambda: self._scan(kv),
            "twins": lambda: self._change_twins(kv),
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
            others = rng.sample(HOT_KEYS, 2)
            await kv.batch({each: None if rng.random() < 0.2 else self._value(each) for each in others})
        else:
            expected = versions.get(key) if how == "if_version" else None
            version = await kv.put(key, self._value(key), if_absent=how == "if_absent", if_version=expected)
            if version is not None:
                versions[key] = version

    async def _put_once(self, kv: KeyValueClient) -> None:
        key = b"%c/once/%d" % (self._rng.choice(b"acegikmoqsuwy"), len(self.journal.tried))
        await self.journal.put(kv, key, self._value(key))

    async def _change_twins(self, kv: RecordingClient) -> None:
        value = None if self._rng.random() < 0.2 else self._value(b"twins")
        await kv.batch(dict.fromkeys(TWINS, value))

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
        except NeveError:
            return
        self._expiries_ms[key] = info.expires_ms

    async def _get_fleeting(self, kv: KeyValueClient, key: bytes) -> None:
        begun_ms = wall_ms()
        try:
            value = (await kv.get(key)).value
        except NotFound:
            value = None
        except NeveError:
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

    # --- operators -------------------------------------------------------------------------------------------

    async def _operate(self) -> None:
        while not self.over:
            await asyncio.sleep(self._rng.uniform(0.3, 3.0))
            self._rng.choice((self.split, self.split, self.merge, self.move, self.move, self.compact))()

    def split(self, server_id: int | None = None) -> bool:
        """One of this server's; of anybody's."""
        regions = self._partitions.map.regions
        found = [(key, self._partitions.region(key)) for key in MIDDLE_KEYS]
        found = [(key, region) for key, region in found if server_id in (None, region.server_id)]
        if self.over or not found or len(regions) >= REGIONS_MAX:
            return False
        middle_key, region = self._rng.choice(found)
        if region.start == middle_key:
            return False
        how = self._rng.random()
        if how < 0.15:
            outside = region.end or region.start
            self._scene.spawn(self._split_outside(region.partition_id, outside))
        middle_key = middle_key if how < 0.6 else b""
        self._scene.say(f"partition {region.partition_id} is split at {middle_key.decode() or 'its middle'}")
        request = pm.SplitRegionRequest(partition_id=region.partition_id, middle_key=middle_key)
        scattered = server_id is not None or self._rng.random() < SCATTERED
        self._order(methods.PARTITION_MANAGER_SPLIT_REGION, request, then=self._scatter if scattered else None)
        return True

    def _scatter(self, reply: pm.SplitRegionReply) -> None:
        """The new half goes elsewhere at once, as balance would have it."""
        self._move(reply.right.partition_id, reply.right.server_id)

    async def _split_outside(self, partition_id: int, middle_key: bytes) -> None:
        """Where the region ends or begins: an error, never a silent OK (T19)."""
        if not middle_key:  # it has all keys: there is nothing outside
            return
        version = self._partitions.map.get(partition_id).version
        request = pm.SplitRegionRequest(partition_id=partition_id, middle_key=middle_key, version=version)
        try:
            await self._partitions.order(methods.PARTITION_MANAGER_SPLIT_REGION, request, timeout_s=ORDER_TIMEOUT_S)
        except NeveError:
            return
        self.wrong(f"partition {partition_id} was split at {middle_key!r}, which is outside of it (T19)")

    def merge(self, server_id: int | None = None) -> bool:
        """One of this server's into one of another's; any two."""
        pairs = list(itertools.pairwise(self._partitions.map.regions))
        if server_id is not None:
            pairs = [pair for pair in pairs if pair[1].server_id == server_id != pair[0].server_id]
        if self.over or not pairs:
            return False
        left, right = (region.partition_id for region in self._rng.choice(pairs))
        self._scene.say(f"partitions {left} and {right} are merged")
        request = pm.MergeRegionsRequest(left_partition_id=left, right_partition_id=right)
        self._order(methods.PARTITION_MANAGER_MERGE_REGIONS, request)
        return True

    def move(self) -> bool:
        if self.over:
            return False
        region = self._rng.choice(self._partitions.map.regions)
        self._move(region.partition_id, region.server_id)
        return True

    def _move(self, partition_id: int, from_id: int) -> None:
        server_id = self._rng.choice([each for each in self._partitions.servers if each != from_id])
        self._scene.say(f"partition {partition_id} goes from server {from_id} to {server_id}")
        request = pm.MoveRegionRequest(partition_id=partition_id, server_id=server_id)
        self._order(methods.PARTITION_MANAGER_MOVE_REGION, request)

    def compact(self, server_id: int | None = None) -> bool:
        """One of this server's, of anybody's; and give back what can be of its log."""
        regions = [each for each in self._partitions.map.regions if server_id in (None, each.server_id)]
        if self.over or not regions:
            return False
        region = self._rng.choice(regions)
        if region.server_id not in self._partitions.servers:
            return False
        self._scene.say(f"partition {region.partition_id} is compacted at server {region.server_id}")
        self._scene.spawn(self._compact(region))
        return True

    def _order(self, method: Any, request: Any, *, then: Callable[[Any], None] | None = None) -> None:
        self._scene.spawn(self._ordered(method, request, repeats=self._rng.choice((0, 0, 1)), then=then))

    async def _ordered(self, method: Any, request: Any, *, repeats: int, then: Callable[[Any], None] | None) -> None:
        """Perhaps once more with the same call id: it is done once (T19, T50). `then`: when it is done first."""
        request.call.CopyFrom(self._partitions.call_id())
        versions = set()
        for _ in range(1 + repeats):
            try:
                reply = await self._partitions.order(method, request, timeout_s=ORDER_TIMEOUT_S)
                versions.add(reply.version)
                if then is not None and not self.over:
                    then(reply)
                    then = None
            except NeveError as error:
                self._scene.say(f"{method.name}: {type(error).__name__} {error}")
        if len(versions) > 1:
            self.wrong(f"{method.name} was done twice, as versions {sorted(versions)} of the map (T19, T50)")

    async def _compact(self, region: pm.RegionRecord) -> None:
        channel = self._partitions.operator_channel(self._partitions.servers[region.server_id].address)
        extents = self._scene.cluster.stored_state().streams.get(region.log_stream_id)
        sealed = list(extents.extent_ids[:-1]) if extents is not None else []
        try:
            compact = ps.CompactPartitionRequest(partition_id=region.partition_id, full=self._rng.random() < 0.5)
            await channel.call(methods.PARTITION_SERVER_COMPACT_PARTITION, compact, timeout_s=ORDER_TIMEOUT_S)
            if sealed:
                some = self._rng.sample(sealed, min(2, len(sealed)))
                reclaim = ps.ReclaimLogExtentsRequest(partition_id=region.partition_id, extent_ids=some)
                reply = await channel.call(
                    methods.PARTITION_SERVER_RECLAIM_LOG_EXTENTS, reclaim, timeout_s=ORDER_TIMEOUT_S
                )
                self._scene.say(f"partition {region.partition_id} gave back {list(reply.message.punched)}")
        except NeveError as error:
            self._scene.say(f"partition {region.partition_id} is not compacted: {type(error).__name__} {error}")
