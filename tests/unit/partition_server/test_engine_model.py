"""A partition against a dict: any sequence of writes, reads, scans, flushes, merges, moves, crashes and loads.

Method: Hypothesis makes a list of steps; they run against a partition on a simulated cluster and against a dict of what
must be there. After a crash nothing that was answered may be missing, and a write that was under way is there or not,
as a whole. After each step some keys are read; at the end all of them, by scans and one by one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from neve.partition_server.engine.engine import Info, Operation, Partition, Puts
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_server_pb2 as ps
from neve.proto.errors import ConditionFailed, NeveError, NotFound
from tests.sim.cluster import SimCluster, run_story
from tests.sim.processes.client import Killed
from tests.unit.partition_server.rig import PartitionRig, call

KEYS = [b"k%02d" % number for number in range(24)]
SIZES = (0, 10, 150, 250, 900, 4000)  # inline, pointed to, in parts

Step = tuple[Any, ...]
KEY = st.sampled_from(KEYS)
PUT = st.tuples(st.just("put"), KEY, st.sampled_from(SIZES))
STEPS = st.one_of(
    PUT,
    PUT,
    st.tuples(st.just("puts"), st.lists(st.tuples(KEY, st.sampled_from(SIZES)), min_size=5, max_size=40)),
    st.tuples(st.just("group"), st.lists(st.tuples(KEY, st.sampled_from(SIZES)), min_size=1, max_size=20)),
    st.tuples(st.just("delete"), KEY),
    st.tuples(st.just("conditional"), KEY, st.booleans()),
    st.tuples(st.just("batch"), st.lists(st.tuples(KEY, st.sampled_from((None, *SIZES))), min_size=1, max_size=5)),
    st.tuples(st.just("get"), KEY, st.integers(0, 300), st.integers(1, 2000)),
    st.tuples(st.just("scan"), KEY, st.integers(1, 9)),
    st.tuples(st.sampled_from(("flush", "compact", "merge", "reclaim", "crash", "wait", "snapshot"))),
    st.tuples(st.just("crash writing"), st.lists(st.tuples(KEY, st.sampled_from(SIZES)), min_size=1, max_size=20)),
)


@dataclass
class Story:
    rig: PartitionRig
    region: pm.RegionRecord
    partition: Partition
    model: dict[bytes, bytes] = field(default_factory=dict)
    versions: dict[bytes, int] = field(default_factory=dict)
    written: int = 0
    snapshot: tuple[bytes, list[bytes], dict[bytes, bytes]] | None = None  # continuation, keys so far, the model then

    def value(self, size_bytes: int) -> bytes:
        self.written += 1
        return (b"%d," % self.written + b"." * size_bytes)[:size_bytes]

    async def run(self, step: Step) -> None:
        await getattr(self, "step_" + step[0].replace(" ", "_"))(*step[1:])

    # --- writes ----------------------------------------------------------------------------------------------

    async def step_put(self, key: bytes, size_bytes: int) -> None:
        value = self.value(size_bytes)
        info = await self.partition.put(key, value, call=call(1, self.written))
        assert info.version > self.versions.get(key, 0)
        self.model[key], self.versions[key] = value, info.version

    async def step_puts(self, items: list[tuple[bytes, int]]) -> None:
        """All at once: the order of calls is the order of effects."""
        values = [(key, self.value(size_bytes)) for key, size_bytes in items]
        infos = await asyncio.gather(*(self.partition.put(key, value) for key, value in values))
        for (key, value), info in zip(values, infos, strict=True):
            if info.version > self.versions.get(key, 0):
                self.model[key], self.versions[key] = value, info.version

    async def step_group(self, items: list[tuple[bytes, int]]) -> None:
        """As one call. It may go the way of single puts, where a large value comes later than a small one."""
        values = [(key, self.value(size_bytes)) for key, size_bytes in items]
        calls = range(self.written - len(items) + 1, self.written + 1)
        puts = Puts([key for key, _ in values], [value for _, value in values], (), 1, 0, calls)
        for (key, value), info in zip(values, await self.partition.start_puts(puts), strict=True):
            assert isinstance(info, Info), info
            if info.version > self.versions.get(key, 0):
                self.model[key], self.versions[key] = value, info.version

    async def step_delete(self, key: bytes) -> None:
        assert await self.partition.delete(key) is (key in self.model)
        self.model.pop(key, None)

    async def step_conditional(self, key: bytes, right: bool) -> None:
        version = self.versions[key] if key in self.model else 0
        condition = ps.Condition(version=version) if version else ps.Condition(absent=True)
        if not right:
            condition = ps.Condition(absent=True) if version else ps.Condition(version=12345678)
            with pytest.raises(ConditionFailed) as failed:
                await self.partition.put(key, b"never", condition=condition)
            assert failed.value.version == version
            return
        value = self.value(20)
        info = await self.partition.put(key, value, condition=condition)
        self.model[key], self.versions[key] = value, info.version

    async def step_batch(self, items: list[tuple[bytes, int | None]]) -> None:
        operations = [
            Operation(key, None if size_bytes is None else self.value(size_bytes)) for key, size_bytes in items
        ]
        infos = await self.partition.batch(operations)
        for each, info in zip(operations, infos, strict=True):
            if each.value is None:
                self.model.pop(each.key, None)
            else:
                self.model[each.key], self.versions[each.key] = bytes(each.value), info.version

    # --- reads -----------------------------------------------------------------------------------------------

    async def check(self, key: bytes) -> None:
        if key not in self.model:
            with pytest.raises(NotFound):
                await self.partition.get(key)
            return
        info, pieces = await self.partition.get(key)
        assert b"".join(pieces) == self.model[key], key
        assert info.version == self.versions[key]

    async def step_get(self, key: bytes, offset: int, length: int) -> None:
        value = self.model.get(key)
        if value is not None and offset <= len(value):
            _, pieces = await self.partition.get(key, offset=offset, length=length)
            assert b"".join(pieces) == value[offset : offset + length]

    async def step_scan(self, start: bytes, limit: int) -> None:
        found: dict[bytes, bytes] = {}
        continuation = b""
        while True:
            page = await self.partition.scan(start=start, limit=limit, continuation=continuation, with_values=True)
            data = b"".join(page.values)
            for info in page.infos:
                assert info.key not in found
                found[info.key], data = data[: info.size_bytes], data[info.size_bytes :]
            assert not data
            continuation = page.continuation
            if not continuation:
                break
            assert len(page.infos) <= limit
        assert found == {key: value for key, value in self.model.items() if key >= start}
        assert list(found) == sorted(found)

    async def step_snapshot(self) -> None:
        """Begin a scan, or go on with the one that was begun: it shows what was there then."""
        if self.snapshot is None:
            page = await self.partition.scan(limit=3, with_values=True)
            before = dict(self.model)
            keys: list[bytes] = []
        else:
            continuation, keys, before = self.snapshot
            page = await self.partition.scan(limit=3, continuation=continuation, with_values=True)
        assert b"".join(page.values) == b"".join(before[info.key] for info in page.infos)
        keys = keys + [info.key for info in page.infos]
        if page.continuation:
            self.snapshot = (page.continuation, keys, before)
        else:
            self.snapshot = None
            assert keys == sorted(before)

    # --- what happens to partitions --------------------------------------------------------------------------

    async def step_flush(self) -> None:
        await self.partition.flush()

    async def step_compact(self) -> None:
        await self.partition.compact(full=True)

    async def step_merge(self) -> None:
        await self.partition.compact(full=False)

    async def step_reclaim(self) -> None:
        extent_ids = await self.rig.stream_extents(self.region.log_stream_id)
        punched, kept, _ = await self.partition.reclaim(extent_ids[:-1])
        assert set(punched) | set(kept) == set(extent_ids[:-1])

    async def step_wait(self) -> None:
        await asyncio.sleep(3)

    async def step_crash(self) -> None:
        self.snapshot = None
        self.partition = await self.rig.crash_and_load(self.region)

    async def step_crash_writing(self, items: list[tuple[bytes, int]]) -> None:
        """Each write that was under way has happened or not."""
        values = [(key, self.value(size_bytes)) for key, size_bytes in items]
        partition = self.partition
        client = self.rig.loaded[self.region.partition_id].client
        tasks = [client.process.spawn(partition.put(key, value)) for key, value in values]
        await asyncio.sleep(self.rig.rng.choice((0.0, 0.001, 0.003, 0.01)))
        done = [task.done() and not task.cancelled() and task.exception() is None for task in tasks]
        await self.step_crash()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            assert not isinstance(outcome, BaseException) or isinstance(
                outcome, (NeveError, Killed, asyncio.CancelledError)
            ), outcome
        for key in dict.fromkeys(key for key, _ in values):
            attempts = [(value, ok) for (each, value), ok in zip(values, done, strict=True) if each == key]
            possible: list[bytes | None] = [
                value for value, _ in attempts
            ]  # a large one may come later than a small one
            if not any(ok for _, ok in attempts):
                possible.append(self.model.get(key))
            try:
                info, pieces = await self.partition.get(key)
            except NotFound:
                assert None in possible, (key, possible)
            else:
                found = b"".join(pieces)
                assert found in possible, (key, found, possible)
                self.model[key], self.versions[key] = found, info.version


@pytest.mark.slow
# An example takes half a second: to shrink one would take minutes. The steps that failed are told.
@settings(
    max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)
@given(steps=st.lists(STEPS, min_size=5, max_size=40), seed=st.integers(0, 100))
def test_a_partition_is_a_dict_that_survives_crashes(steps: list[Step], seed: int) -> None:
    async def story(cluster: SimCluster) -> None:
        rig = PartitionRig(cluster)
        region = await rig.create()
        story = Story(rig, region, await rig.load(region))
        for number, step in enumerate(steps):
            await story.run(step)
            await story.check(KEYS[(number * 7) % len(KEYS)])
        for _ in range(2):
            await story.step_scan(b"", 7)
            for key in KEYS:
                await story.check(key)
            await story.step_crash()

    run_story(story, seed=seed)
