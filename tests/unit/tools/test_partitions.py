"""`neve partitions` and its neighbours: keys as people type them, rows, and a region without a server."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.proto import partition_manager_pb2 as pm
from neve.proto.errors import NotFound
from neve.tools import main
from neve.tools.objects import partitions
from neve.tools.objects.partition_link import PartitionLink
from tests.sim.partitions import PartitionCluster, partitioned
from tests.sim.processes.partitions import CLIENT_OPTIONS


@given(st.binary(max_size=20))
def test_every_key_can_be_shown_and_typed(data: bytes) -> None:
    text = partitions.key_text(data)
    assert text.isprintable()
    assert partitions.key(text) == data


def test_keys_that_are_text_look_like_it() -> None:
    assert partitions.key_text("grün/1".encode()) == "grün/1"
    assert partitions.key_text(b"a\x00\xff\\") == r"a\x00\xff\\"


def test_a_region_without_a_server_is_told() -> None:
    regions = [pm.Region(partition_id=1, end=b"m", server_id=4, address="x:1"), pm.Region(partition_id=2, start=b"m")]
    servers = [pm.PartitionServerRecord(server_id=4)]
    assert partitions.homeless(regions) == [2]
    assert partitions.summary(regions, servers, 7) == "2 on 1 servers, version 7; WITHOUT A SERVER: 2"
    assert "bootstrap" in partitions.summary([], servers, 0)
    assert partitions.region_row(regions[1], None)[:6] == [2, "m", "-", "-", "nobody", 0]
    load = pm.PartitionLoad(keys=3, size_bytes=2048, reads_per_s=10.4, writes_per_s=1)
    assert partitions.region_row(regions[0], load)[6:] == [3, "2.0 KiB", "10", "1"]
    assert partitions.region_value(regions[0], load)["reads_per_s"] == 10.4


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["split", "7", "--at", r"k\x00"], {"partition": 7, "at": b"k\x00", "timeout": partitions.RESHAPE_S_DEFAULT}),
        (["merge", "7", "8"], {"left": 7, "right": 8}),
        (["move", "7", "2"], {"partition": 7, "server": 2}),
        (["compact", "7"], {"partition": 7, "timeout": partitions.COMPACT_S_DEFAULT}),
        (["bootstrap", "g", "p"], {"split_keys": [b"g", b"p"]}),
        (["balance", "pause"], {"action": "pause"}),
        (["partitions", "--check"], {"check": True}),
    ],
)
def test_the_commands_understand_their_words(words: list[str], wanted: dict[str, object]) -> None:
    args: argparse.Namespace = main.parser().parse_args(words)
    assert {name: getattr(args, name) for name in wanted} == wanted


@partitioned(seed=51)
async def test_compact_merges_the_tables_where_they_are(cluster: PartitionCluster) -> None:
    await cluster.bootstrap()
    kv = await cluster.kv()
    partition_id = cluster.region(b"a").partition_id
    engine = cluster.servers[cluster.homes()[partition_id]].host_.hosted[partition_id].partition
    assert engine is not None
    for value in (b"one", b"two"):
        await kv.put(b"a", value)
        await kv.put(value, value)
        await engine.flush()
    await kv.delete(b"one")
    assert engine.state().tables == 2
    link = PartitionLink(cluster._channels("compacts"), cluster.manager_addresses, options=CLIENT_OPTIONS)
    assert (await link.compact(partition_id)).partition_id == partition_id
    assert engine.state().tables == 1
    assert (await kv.get(b"a")).value == b"two"
    with pytest.raises(NotFound):
        await link.compact(partition_id + 1000)


def test_a_partition_is_a_number() -> None:
    with pytest.raises(SystemExit) as refused:
        main.parser().parse_args(["split", "a"])
    assert refused.value.code == 2
