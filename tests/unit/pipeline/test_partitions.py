"""How a partition is found in a snapshot: by a manifest that the snapshot has all of, from whole records only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from neve.client.streams.core.reader import Block
from neve.client.streams.reading.extent_reader import Chunk
from neve.partition_server.tables import manifest
from neve.pipeline.scan import partitions
from neve.pipeline.scan.partitions import Reach, is_later, records_of
from neve.proto import common_pb2
from neve.proto import partition_manager_pb2 as pm
from neve.proto import partition_records_pb2 as records
from neve.proto import stream_manager_pb2 as sm
from neve.proto.blocks import HEADER_BYTES, BlockType
from neve.proto.errors import Internal

LOG, ROW, META = 1, 2, 3


class Cluster:
    """Sealed extents of blocks, as a link reads them and as a snapshot lists them."""

    def __init__(self, extents: dict[int, list[tuple[BlockType, bytes]]], streams: dict[int, tuple[int, ...]]) -> None:
        self.blocks: dict[int, list[Block]] = {}
        for extent_id, payloads in extents.items():
            at, found = 0, []
            for kind, payload in payloads:
                found.append(Block(at, at + HEADER_BYTES + len(payload), kind, payload))
                at = found[-1].end
            self.blocks[extent_id] = found
        self.streams = streams
        self.after_hole: tuple[int, ...] = ()
        self.reader = self
        self.catalog = SimpleNamespace(known=lambda extent_id: extent_id)

    def end(self, extent_id: int) -> int:
        found = self.blocks.get(extent_id)
        return found[-1].end if found else 0

    async def chunks(
        self, extent_id: int, offset: int, *, follow: bool, stop: int | None = None
    ) -> AsyncGenerator[Chunk, None]:
        yield Chunk([block for block in self.blocks[extent_id] if block.offset >= offset], self.end(extent_id))
        yield Chunk([], self.end(extent_id), sealed=True)

    def stream(self, stream_id: int) -> Any:
        return SimpleNamespace(extent_ids=self.streams[stream_id], after_hole=self.after_hole)

    def extent(self, extent_id: int) -> sm.ExtentInfo:
        return sm.ExtentInfo(extent_id=extent_id, seal=common_pb2.Seal(length=self.end(extent_id)))

    def reach(self, stream_id: int) -> Reach:
        made: Reach = asyncio.run(partitions.reach_of(self, self, stream_id))  # type: ignore[arg-type]
        return made

    def payloads(self, stream_id: int) -> list[bytes]:
        async def read() -> list[bytes]:
            link: Any = self
            return [bytes(record.payload) async for record in records_of(link, reach)]

        reach = self.reach(stream_id)
        return asyncio.run(read())

    def manifest(self, region: pm.RegionRecord) -> tuple[records.Manifest | None, bool]:
        link: Any = self
        return asyncio.run(partitions._manifest(link, link, region))


def made(number: int, log_extent: int, *table_extents: int, map_version: int = 1) -> records.Manifest:
    tables = [records.TableEntry(footer=common_pb2.Position(extent_id=extent_id)) for extent_id in table_extents]
    return records.Manifest(
        format=manifest.FORMAT,
        map_version=map_version,
        number=number,
        tables=tables,
        log_replay_from=common_pb2.Position(extent_id=log_extent),
    )


def full(*found: records.Manifest) -> list[tuple[BlockType, bytes]]:
    return [(BlockType.FULL, manifest.encode(each)) for each in found]


REGION = pm.RegionRecord(partition_id=9, log_stream_id=LOG, row_stream_id=ROW, meta_stream_id=META)


def test_a_record_is_not_put_together_over_an_extent_that_was_taken_out() -> None:
    extents = {
        1: [(BlockType.FULL, b"one"), (BlockType.FIRST, b"begun ")],
        3: [(BlockType.LAST, b"of another"), (BlockType.FULL, b"two")],
    }
    cluster = Cluster(extents, {META: (1, 3)})
    assert cluster.payloads(META) == [b"one", b"begun of another", b"two"]
    cluster.after_hole = (3,)
    assert cluster.payloads(META) == [b"one", b"two"]


def test_a_manifest_is_later_than_the_snapshot_only_by_extents_that_were_made_since() -> None:
    known: dict[str, Any] = {"log_last": 2, "row_last": 6}
    assert not is_later(made(1, 2, 5, 6), REGION, **known)
    assert not is_later(records.Manifest(), REGION, **known)
    assert is_later(made(1, 3, 5), REGION, **known)
    assert is_later(made(1, 2, 5, 7), REGION, **known)
    twin = pm.RegionRecord(start=b"m")
    other = made(1, 2, 5, 7)
    other.tables[1].clip_end = b"m"  # the other twin's: its extents are none of this partition's
    assert not is_later(other, twin, **known)


def test_t36_a_manifest_of_which_an_extent_is_gone_is_not_replaced_by_an_older_one() -> None:
    cluster = Cluster({1: full(made(1, 20, 10), made(2, 20, 9))}, {META: (1,), LOG: (20,), ROW: (10, 11)})
    found, _ = cluster.manifest(REGION)
    assert found is not None
    assert found.number == 2  # whose table cannot be read: that raises, later


@pytest.mark.parametrize("later", [made(3, 21, 11), made(3, 20, 11, 12), made(3, 20, 12, map_version=2)])
def test_what_was_flushed_after_the_snapshot_does_not_stop_the_scan(later: records.Manifest) -> None:
    streams = {META: (1,), LOG: (20,), ROW: (10, 11)}
    cluster = Cluster({1: full(made(1, 20, 10), made(2, 20, 11), later)}, streams)
    found, merged = cluster.manifest(REGION)
    assert found is not None
    assert (found.number, merged) == (2, False)
    streams |= {LOG: (20, 21), ROW: (10, 11, 12)}
    newest, _ = cluster.manifest(REGION)
    assert newest is not None
    assert newest.number == 3


def test_t36_a_merged_partition_of_which_one_side_is_not_there_is_an_error() -> None:
    cluster = Cluster(
        {1: [*full(made(1, 20, 10)), (BlockType.FULL, manifest.MARKER)]}, {META: (1,), LOG: (20,), ROW: ()}
    )
    marker_at = cluster.blocks[1][1].offset
    region = pm.RegionRecord()
    region.CopyFrom(REGION)
    region.merged_at = 5
    region.merged_manifests.add(extent_id=1, offset=0)
    assert cluster.manifest(region) == (manifest.unite([made(1, 20, 10)]), True)
    region.merged_manifests.add(extent_id=1, offset=marker_at)
    with pytest.raises(Internal, match="no manifest"):
        cluster.manifest(region)
