"""What callers ask beyond reason, and what is kept of it: refused by name, counted as it is, given up whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from neve.partition_server import log_format
from neve.partition_server.engine import Info, Operation, Partition, Puts
from neve.partition_server.engine_config import TTL_MS_MAX
from neve.proto import partition_server_pb2 as ps
from neve.proto.errors import Internal, InvalidArgument
from tests.unit.partition_server.rig import PartitionRig, call, on_cluster


def under_way(partition: Partition) -> dict[int, list[int]]:
    """Calls that sessions take for running, by client."""
    return {client_id: list(each.running) for client_id, each in partition._store.sessions.all() if each.running}


@on_cluster()
async def test_a_time_to_live_that_no_record_can_hold_is_refused_by_name(rig: PartitionRig) -> None:
    partition = await rig.load(await rig.create())
    attempts: list[Any] = [
        lambda ttl_ms: partition.put(b"a", b"b", ttl_ms=ttl_ms, call=call(7, 1)),
        lambda ttl_ms: partition.put(b"a", b"b" * 5000, ttl_ms=ttl_ms, call=call(7, 2)),
        lambda ttl_ms: partition.batch([Operation(b"a", b"b", ttl_ms=ttl_ms)], call=call(7, 3)),
        lambda ttl_ms: partition.begin_upload(b"a", ttl_ms=ttl_ms, call=call(7, 4)),
    ]
    for attempt in attempts:
        for ttl_ms in (TTL_MS_MAX + 1, 2**64 - 1):
            with pytest.raises(InvalidArgument, match="ttl_ms"):
                async with asyncio.timeout(60):
                    await attempt(ttl_ms)
        assert not under_way(partition)
        await attempt(TTL_MS_MAX)
    results = await partition.start_puts(Puts([b"c", b"d"], [b"1", b"2"], [2**64 - 1, 0], 8, 0, [1, 2]))
    assert [type(each) for each in results] == [InvalidArgument, Info], "the other one is not its fault"
    assert not under_way(partition)
    assert (await partition.head(b"a")).expires_ms > TTL_MS_MAX


@on_cluster()
async def test_a_bug_ends_the_write_that_met_it_and_leaves_no_call_under_way(rig: PartitionRig) -> None:
    rig.cluster.expected_errors = (*rig.cluster.expected_errors, "write_failed")
    partition = await rig.load(await rig.create())

    def bug(*_: object, **__: object) -> None:
        raise ValueError("a bug")

    writes: list[Any] = [
        lambda: partition.put(b"a", b"b", call=call(7, 1)),
        lambda: partition.put(b"a", b"b", condition=ps.Condition(absent=True), call=call(7, 2)),
        lambda: partition.batch([Operation(b"c", b"d")], call=call(7, 3)),
        lambda: partition.start_puts(Puts([b"e"], [b"1"], (), 8, 0, [1])),
    ]
    for write in writes:
        with pytest.MonkeyPatch.context() as broken:
            for name in ("encode_put", "encode_batch", "encode_puts"):
                broken.setattr(log_format, name, bug)
            with pytest.raises((ValueError, Internal), match="a bug"):
                async with asyncio.timeout(60):
                    await write()
        assert not under_way(partition)
    for write in reversed(writes):  # the same calls: they were not done, and may be
        await write()
