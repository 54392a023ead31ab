"""Deliberate bugs of the partition layer, found by stories of the larger world. See bugs.py."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from neve.meta import keys
from neve.meta.election import Leadership
from neve.partition_manager import answers, core_regions, reshape
from neve.partition_server import hosted
from neve.partition_server.engine import engine
from neve.partition_server.engine.engine import Partition
from neve.partition_server.engine.puts import GroupedPuts
from neve.partition_server.engine.scans import Scans
from neve.partition_server.engine.sessions import Sessions
from neve.partition_server.engine.shared import Store
from neve.partition_server.engine.uploads import Uploads
from neve.partition_server.engine.write import Write
from neve.partition_server.engine.writes import Writes
from neve.partition_server.lifecycle import Host
from neve.partition_server.log import loader, log_format, replay
from neve.partition_server.log.reclaimer import Reclaimer
from neve.partition_server.tables import core_merge, manifest
from neve.partition_server.tables.flusher import Flusher
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_server_pb2 as ps
from neve.proto.errors import NeveError
from tests.sim.bugs.bugs import bug

WORLD = "partitions"


# --- who serves -----------------------------------------------------------------------------------------------


@bug(
    "a server that lost its lease goes on reading",
    origin="T11",
    needs=("partition server replaced unknowingly", "partition server stopped"),
    world=WORLD,
)
def _reads_without_lease(change: Any) -> None:
    """Reads look at the map alone: who lost his lease, and does not hear who has it now, answers with what he knew."""
    _lingers(change)
    _unchecked_reads(change, "get", "head")


@bug(
    "a server that lost its lease goes on scanning",
    origin="T11, T51",
    needs=("partition server replaced unknowingly",),
    world=WORLD,
    shows="NotLinearizable",
)
def _scans_without_lease(change: Any) -> None:
    """The same of scans alone."""
    _lingers(change)
    _unchecked_reads(change, "scan")
    change(Scans, "scan", _unchecked(Scans.scan))


def _lingers(change: Any) -> None:
    """Whoever lost his lease stays, as if he was about to freeze, until he hears of the map again."""
    until_over = hosted.Hosted._until_over

    async def wrong(self: Any, region: Any, partition: Any, group: Any) -> bool:
        graceful = await until_over(self, region, partition, group)
        while not self._woken.is_set() and not self._thaw.is_set():
            self._enter(hosted.Phase.FREEZING)
            try:
                await (await self._around.client.metadata()).get(keys.region_key(self._around.root, self.partition_id))
                break
            except NeveError:
                await asyncio.sleep(0.1)
        return graceful

    change(hosted.Hosted, "_until_over", wrong)


@bug(
    "a deposed partition manager's transaction",
    origin="T14, G7",
    shows=r"not written by the partition managers' leader .*\(G7\)",
    world=WORLD,
)
def _no_regions_leader_compare(change: Any) -> None:
    """Partition managers do not compare their leader's key, and believe that they lead as long as nobody tells them."""
    guard, ensure = Leadership.guard, Leadership.ensure

    def is_theirs(leadership: Leadership) -> bool:
        return keys.PARTITION_MANAGERS + b"/" in leadership.key

    change(Leadership, "guard", lambda self: () if is_theirs(self) else guard(self))
    change(Leadership, "ensure", lambda self: None if is_theirs(self) else ensure(self))


class _Unchecked:
    """A partition's store, for those who do not look whether it is still ours."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def check_readable(self) -> None: ...

    def ensure_owner(self) -> None: ...


def _unchecked(read: Any) -> Any:
    def wrong(self: Any, *arguments: Any, **named: Any) -> Any:
        twin = copy.copy(self)
        twin._store = _Unchecked(self._store)
        return read(twin, *arguments, **named)

    return wrong


def _unchecked_reads(change: Any, *names: str) -> None:
    """Writes do as ever."""
    for name in names:
        change(Partition, name, _unchecked(getattr(Partition, name)))


@bug("a region is served as it was heard of", origin="T11, T19", world=WORLD)
def _unconfirmed(change: Any) -> None:
    """With the lock taken, a server does not look whether the region is still the one that it is to serve."""

    async def wrong(self: Any, region: Any, group: Any) -> Any:
        return region

    change(hosted.Hosted, "_confirmed", wrong)


@bug(
    "a freeze does not stop reads",
    origin="T20, T48",
    needs=("partition reshaped unheard",),
    world=WORLD,
    shows="NotLinearizable",
)
def _reads_when_frozen(change: Any) -> None:
    """When a split is answered for, the server goes on reading for keys that may be another's already."""
    enter = hosted.Hosted._enter

    def wrong(self: Any, phase: Any) -> None:
        enter(self, hosted.Phase.FREEZING if phase is hosted.Phase.FROZEN else phase)

    change(hosted.Hosted, "_enter", wrong)
    change(Store, "ensure_owner", lambda self: self.check_readable())


# --- splits and merges ----------------------------------------------------------------------------------------


@bug("a repeated split is made again", origin="T19", world=WORLD)
def _splits_again(change: Any) -> None:
    """Nobody looks whether a call has changed the map before."""

    async def wrong(term: Any, request: Any, cause: Any) -> Any:
        snapshot = await term.regions.fresh()
        region = reshape._region(snapshot, request.partition_id, request.version)
        with term.reshape(request.partition_id):
            snapshot = await reshape._split(term, region, request.middle_key, cause)
        made = snapshot.made.replayed[-1]
        left, right = (answers.region_now(snapshot, each) for each in made.partition_ids)
        return pm.SplitRegionReply(left=left, right=right, version=made.version)

    change(reshape, "split_region", wrong)


@bug("a middle key outside is a split, too", origin="T19", world=WORLD)
def _any_middle_key(change: Any) -> None:
    """The middle key is not compared with the region's bounds."""
    change(core_regions, "check_middle_key", lambda region, middle_key: None)
    change(core_regions.RegionMap, "validate", lambda self: None)

    async def prepare(self: Any, middle_key: bytes) -> Any:
        partition, group, _ = self._served()
        ends = await self._freeze(partition.freeze())
        frozen_ms = self._around.config.serving.frozen_ms
        return ps.PreparePartitionSplitReply(
            middle_key=middle_key or partition.middle_key() or b"\xff",
            owner=group.owner,
            log=ends[0],
            row=ends[1],
            meta=ends[2],
            frozen_ms=frozen_ms,
        )

    change(hosted.Hosted, "prepare_split", prepare)


@bug("a split loses what was in memory", origin="T49", world=WORLD)
def _split_loses_memtable(change: Any) -> None:
    """The new half begins with its tables, and without the log behind them."""
    replay_all = replay.replay
    loaded: set[int] = set()

    async def wrong(store: Any, start: Any, make_room: Any) -> int:
        records: int = await replay_all(store, start, make_room)
        is_twin = store.region.epoch == 1 and store.region.version > 1
        if is_twin and store.partition_id not in loaded:  # the first load: what is written later is kept
            for memtable in store.view.memtables:
                memtable.entries.clear()
        loaded.add(store.partition_id)
        return records

    change(loader, "replay", wrong)


@bug("a merge drops a side's memory", origin="T49", world=WORLD)
def _merge_drops_memory(change: Any) -> None:
    """A partition is frozen for a merge without a flush: the log behind its tables is not looked at any more."""

    async def wrong(self: Any) -> Any:
        await self._stop_writing()
        await self._store.streams.log.flush()
        position = await self._committer.commit_last()
        streams = self._store.streams
        ends = [await engine._end_of(each) for each in (streams.log, streams.row, streams.meta)]
        return ends[0], ends[1], ends[2], position

    change(Partition, "flush_and_freeze", wrong)


@bug("a merge keeps one side's tables", origin="T49", world=WORLD)
def _merge_keeps_left(change: Any) -> None:
    """Of the two manifests that a merged partition begins with, only the first counts."""
    unite = manifest.unite

    def wrong(manifests: Sequence[Any]) -> Any:
        united = unite(manifests)
        first = unite(manifests[:1])
        del united.tables[:]
        united.tables.extend(first.tables)
        return united

    change(manifest, "unite", wrong)


@bug("a scan ends where a region was split", origin="T51", world=WORLD)
def _scan_ends_early(change: Any) -> None:
    """Nobody looks whether the range that a client asks for goes beyond the region, as by an old map it may."""
    change(Host, "check_range", lambda self, start, end: None)


# --- calls ----------------------------------------------------------------------------------------------------


@bug("a repeated call is executed again", origin="T50", world=WORLD)
def _executes_again(change: Any) -> None:
    """Results are not remembered: a client that did not hear the answer has its write done once more."""
    change(Sessions, "remember", lambda self, caller, outcome, now_ms: None)
    change(Sessions, "remember_all", lambda self, client_id, completed_below, results, now_ms: None)


@bug("calls are forgotten by a load", origin="T50", world=WORLD)
def _forgets_calls(change: Any) -> None:
    """What the log tells of calls is passed over: only the server that executed them knows."""
    change(replay, "_remember", lambda sessions, calls: None)
    change(loader, "restore_sessions", lambda sessions, entries: None)


@bug("a put is answered before it is in the log", origin="T21", world=WORLD)
def _answers_early(change: Any) -> None:
    """The answer does not wait for the replicas."""
    submit = Writes._submit

    def wrong(self: Any, write: Any, record: Any, entries: Any, outcome: Any) -> None:
        submit(self, write, record, entries, outcome)
        write.finish()

    change(Writes, "_submit", wrong)
    change(GroupedPuts, "_submit", lambda self, puts: None)


# --- conditions and uploads -----------------------------------------------------------------------------------


@bug("a batch looks at its first condition alone", origin="T48", world=WORLD)
def _first_condition(change: Any) -> None:
    """What does not meet its own condition is done with the others."""
    batch = Writes._batch

    async def wrong(self: Any, write: Any, operations: Any) -> None:
        conditional = [each for each in operations if each.expected is not None]
        unchecked = conditional[1:]
        await batch(self, write, [replace(each, expected=None) if each in unchecked else each for each in operations])

    change(Writes, "_batch", wrong)


@bug("a refusal does not wait for what it tells of", origin="T48", world=WORLD)
def _refuses_early(change: Any) -> None:
    """Somebody is told of a version, or that there is nothing, and the write that made it so may never be."""

    async def wrong(self: Any, found: Any) -> None:
        return None

    change(Writes, "_rest_on", wrong)


@bug("an aborted upload becomes an object", origin="T49", world=WORLD)
def _abort_in_vain(change: Any) -> None:
    """An abort is acknowledged, and the upload may go on."""
    change(Uploads, "abort", lambda self, upload_id, key: self._store.check_key(key))


@bug("an upload's condition is decided when it begins", origin="T48", world=WORLD)
def _condition_of_the_beginning(change: Any) -> None:
    """What happens to the key while its parts come is not looked at."""
    begin_upload, begin = Partition.begin_upload, Uploads.begin

    async def wrong(self: Any, key: bytes, *, condition: Any = None, ttl_ms: int = 0, call: Any = None) -> int:
        expected = engine.expected_of(condition)
        if expected is not None:
            found = (await self._writes._lookups.current([key]))[key]
            await self._writes._check(found, expected, self._store.wall_ms())
        return await begin_upload(self, key, condition=condition, ttl_ms=ttl_ms, call=call)

    def unconditional(self: Any, key: bytes, *, expected: Any, ttl_ms: int, caller: Any) -> int:
        return begin(self, key, expected=None, ttl_ms=ttl_ms, caller=caller)

    change(Partition, "begin_upload", wrong)
    change(Uploads, "begin", unconditional)


@bug("a repeated completion makes the object again", origin="T50", world=WORLD)
def _completes_again(change: Any) -> None:
    """The upload is kept, and the call is not: whoever did not hear the answer puts the object over later writes."""
    put_parts = Writes.put_parts

    async def wrong(self: Any, key: bytes, parts: Any, *, caller: Any, **named: Any) -> Any:
        return await put_parts(self, key, parts, caller=log_format.NOBODY, **named)

    change(Writes, "put_parts", wrong)
    change(Uploads, "_end", lambda self, upload: None)


@bug(
    "parts of an upload do not keep their extents",
    origin="T40",
    world=WORLD,
    shows="no such extent|NotLinearizable|nobody has asked for one",
)
def _unpinned_parts(change: Any) -> None:
    """The log's extents are given back while parts in them wait for the others."""

    release, write_parts = Writes.release_parts, Writes.write_parts
    released: set[Any] = set()

    async def unpinned(self: Any, key: bytes, value: Any, *, upload_id: int, offset: int) -> Any:
        parts = await write_parts(self, key, value, upload_id=upload_id, offset=offset)
        if upload_id:
            release(self, None, parts)
            released.update(parts)
        return parts

    def once(self: Any, write: Any, parts: Any) -> None:
        release(self, write, parts if write is not None else tuple(each for each in parts if each not in released))

    change(Writes, "write_parts", unpinned)
    change(Writes, "release_parts", once)


# --- tables and the value log ---------------------------------------------------------------------------------


@bug("an extent goes with values in it", origin="T40", world=WORLD)
def _punches_live(change: Any) -> None:
    """A value that could not be moved does not keep its log extent."""
    move = Reclaimer._move

    async def wrong(self: Any, entry: Any, extent_id: int) -> int:
        if entry.seq % 3 == 0:  # as if it had failed
            return 0
        return await move(self, entry, extent_id)

    change(Reclaimer, "_move", wrong)


@bug("a move wins against a later write", origin="T40", world=WORLD)
def _moves_over(change: Any) -> None:
    """A value is moved as it was when the move began."""

    async def wrong(self: Any, entry: Any, value: Any) -> bool:
        write = Write(log_format.NOBODY)
        await self._store.until_room()
        record, moved = log_format.encode_move(entry, value, seq=self._store.seq + 1)
        if await self._submitted(write, record, [moved], ()):
            await write.wait(self._loop)
        return True

    change(Writes, "move", wrong)


@bug("a merge of tables forgets deletes", origin="T48", world=WORLD)
def _drops_deletes(change: Any) -> None:
    """Deletes go though an older table may have their keys."""
    merge = core_merge.merge

    def wrong(inputs: Any, *, is_last: bool, now_ms: int) -> Any:
        return merge(inputs, is_last=True, now_ms=now_ms)

    change(core_merge, "merge", wrong)


@bug("the log is cut too far", origin="T49", world=WORLD)
def _replays_too_little(change: Any) -> None:
    """A flush says that all is in tables up to the newest write, not up to its memtable's last one."""
    flush_one = Flusher._flush_one

    async def wrong(self: Any) -> bool:
        store = self._store
        memtables = store.view.memtables
        oldest, newest = memtables[-1], memtables[0]
        if oldest.closed and not oldest.pending and newest is not oldest and newest.last_seq:
            oldest.last_seq, oldest.last_position = newest.last_seq, newest.last_position
        return await flush_one(self)

    change(Flusher, "_flush_one", wrong)
