"""What rolls store and reply, byte for byte, as it was when a usual roll still had a path of its own (commit 80cb0fa).

`roll_golden.json` was written by that code, whose two paths gave the same bytes for this story. Stored records are
read by managers of other versions and by other programs, so that a change here is a change of a format.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from neve.meta.txn import KeyRange
from neve.proto import methods
from neve.proto import records_pb2 as pb
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import ConnectFailed
from neve.stream_manager.streams.allocate import Allocator
from tests.sim.processes import processes
from tests.unit.stream_manager import manager_rig
from tests.unit.stream_manager.manager_rig import REAL_LIMIT_S, ROOT, Cluster

GOLDEN = Path(__file__).with_name("roll_golden.json")
STORED = (b"streams/", b"extents/", b"names/", b"replay/")
WALL_MS = 1_701_000_000_000
SETTLE_S = 1.0  # of the simulation: until the confirmations of a seal are recorded by a transaction of their own


async def node_2_confirms_nothing(what: str, extent_id: int, node_id: int) -> None:
    if what == "seal" and node_id == 2:
        raise ConnectFailed(address="node2")


async def nobody_confirms(what: str, extent_id: int, node_id: int) -> None:
    if what == "seal":
        raise ConnectFailed(address=f"node{node_id}")


async def story() -> dict[str, str]:
    """Rolls of two streams: usual ones, with a prepared extent, without an end, after a truncate, with silent nodes."""
    async with Cluster() as cluster:
        await cluster.start_managers(1)
        labels = {"tenant": "acme", "team": "search"}
        named, named_tail, named_owner = await cluster.opened(name="events", labels=labels)
        plain, plain_tail, plain_owner = await cluster.opened(policy=sm.StreamPolicy(replicas=2, no_sync=True))

        async def roll(tail: sm.ExtentInfo, length: int, end: int | None, **fields: Any) -> sm.ExtentInfo:
            stream, owner = (named, named_owner) if tail.extent_id in named_ids else (plain, plain_owner)
            cluster.nodes.append(tail, length, token=owner.token)
            reply = await cluster.alloc(stream.stream_id, tail.extent_id, owner, end, **fields)
            named_ids.update(reply.stream.extent_ids if stream is named else ())
            await asyncio.sleep(SETTLE_S)
            return reply.tail

        named_ids = {named_tail.extent_id}
        for length in (0, 200, 70_000):
            named_tail = await roll(named_tail, length, length)
        plain_tail = await roll(plain_tail, 1, 1)
        prepared = await cluster.call(
            methods.STREAM_MANAGER_PREPARE_EXTENT,
            sm.PrepareExtentRequest(stream_id=named.stream_id, owner=named_owner),
        )
        named_tail = await roll(named_tail, 5, 5, prepared_extent_id=prepared.extent.extent_id)
        named_tail = await roll(named_tail, 300, None)
        truncate = sm.TruncateStreamRequest(
            stream_id=named.stream_id, owner=named_owner, before_extent_id=named_tail.extent_id
        )
        await cluster.call(methods.STREAM_MANAGER_TRUNCATE_STREAM, truncate)
        named_tail = await roll(named_tail, 17, 17)
        cluster.nodes.trouble = node_2_confirms_nothing
        for length in (1, 2, 3):
            plain_tail = await roll(plain_tail, length, length)
            named_tail = await roll(named_tail, length, length)
        cluster.nodes.trouble = nobody_confirms
        for length in (20, 30):
            plain_tail = await roll(plain_tail, length, length)
        cluster.nodes.trouble = None
        plain_tail = await roll(plain_tail, 9, 9)
        cluster.term.state.validate()
        listing = await cluster.store.range_all(KeyRange.prefix(ROOT))
        stored = [kv for kv in listing.kvs if kv.key.removeprefix(ROOT).startswith(STORED)]
        return {kv.key.decode(): kv.value.hex() for kv in stored}


def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The story's stored keys, and the bytes of every reply to a roll."""
    replies: list[str] = []
    alloc_extent = Allocator.alloc_extent

    async def recorded(self: Allocator, request: Any, mutation: Any) -> Any:
        reply = await alloc_extent(self, request, mutation)
        replies.append(reply.data.hex())
        return reply

    monkeypatch.setattr(Allocator, "alloc_extent", recorded)
    monkeypatch.setattr(manager_rig, "wall_ms", lambda: WALL_MS)  # the network's delays are not what is compared
    stored = processes.run(story(), seed=0, real_limit_s=REAL_LIMIT_S)
    return {"stored": stored, "replies": replies}


def test_rolls_store_and_reply_the_same_bytes_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    golden = json.loads(GOLDEN.read_text())
    found = told(monkeypatch)
    assert found["stored"] == golden["stored"]
    assert found["replies"] == golden["replies"]
    records = [bytes.fromhex(value) for key, value in golden["stored"].items() if "/streams/" in key]
    assert [len(pb.StreamRecord.FromString(record).young) for record in records] == [2, 4]
