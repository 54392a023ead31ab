"""The streams' benchmark without its targets: its command lines, its arithmetic, one short run of each sample."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from neve.extent_node.config import load
from tests.bench import harness, processes, stream
from tests.bench.baselines import bare_writes, tcp_pair
from tests.bench.limits import KIB, MIB
from tests.bench.node_rows import process as node_process
from tests.bench.stream_rows import cluster as stream_cluster
from tests.bench.stream_rows import writes as stream_writes
from tests.cluster.etcd import EtcdCluster


def test_wrong_arguments_are_refused_before_anything_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        harness.main("stream", stream.__doc__, stream.prepare, ["--repeats", "0"])
    assert refused.value.code == 2
    assert "at least 1" in capsys.readouterr().err


def test_the_nodes_understand_the_command_line_that_they_are_given(tmp_path: Path) -> None:
    settings = stream_cluster.node_settings("main", 2, "127.0.0.1:3401")
    config, _ = load(None, node_process.arguments(tmp_path, settings)[1::2])
    assert (config.cluster, config.node_id, list(config.managers)) == ("main", 2, ["127.0.0.1:3401"])


def test_the_time_of_a_byte_over_tcp_is_that_of_both_ends(tmp_path: Path) -> None:
    sample = stream.tcp_bandwidth(tcp_pair.build(tmp_path), duration_s=0.05)
    assert (sample["rate"].unit, sample["cpu"].unit) == ("MB/s", "µs")


def test_replicas_that_are_synced_one_by_one_are_measured_at_once(tmp_path: Path) -> None:
    quantity = stream.fdatasync_each_at_nodes(tmp_path, duration_s=0.001)
    assert quantity.unit == "appends/s"
    assert list(tmp_path.iterdir()) == []


def test_processor_time_is_told_for_a_mebibyte_and_is_a_tick_at_least() -> None:
    assert stream.cpu_of_1_mib(2.0, 4 * MIB).value == 500_000
    assert stream.cpu_of_1_mib(0.0, MIB).value > 0


def test_bare_loops_write_all_that_they_are_sent(tmp_path: Path) -> None:
    with bare_writes.start(tmp_path / "bare", nodes=2) as bare:
        assert bare.p50_s(duration_s=0.01) > 0
        sizes = {path.stat().st_size for path in (tmp_path / "bare").iterdir()}
    assert len(sizes) == 1
    assert min(sizes) > bare_writes.WARM_UP_WRITES * bare_writes.BLOCK_BYTES


async def test_a_submitted_record_that_failed_ends_the_sample() -> None:
    loop = asyncio.get_running_loop()
    failed, done = loop.create_future(), loop.create_future()
    failed.set_exception(ConnectionError("lost"))
    done.set_result(None)
    with pytest.raises(ConnectionError, match="lost"):
        await stream_writes._all_done([failed, done])


def test_every_sample_runs_and_deleted_extents_are_given_back(tmp_path: Path) -> None:
    with (
        EtcdCluster() as etcd,
        stream_cluster.start(tmp_path / "main", "bench", etcd.endpoints) as cluster,
        processes.start("tests.bench.stream_rows.client") as client,
    ):
        bench = stream.StreamBench(client, cluster)
        sealed = bench.make_sealed(size_bytes=MIB, block_bytes=4 * KIB)
        assert bench.many_streams(2, duration_s=0.05).value > 0
        bench.keep()
        appended = bench.append(total_bytes=4 * MIB)
        units = {name: quantity.unit for name, quantity in appended.items()}
        assert units == {"rate": "MB/s", "cpu": "µs", "as found": "MB/s"}
        for case in ("append_many", "submit"):
            assert bench.append_small(case, total_bytes=2 * MIB).unit == "MB/s"
        for sync in (False, True):
            assert bench.latency(sync=sync, duration_s=0.01).unit == "µs"
        assert bench.read_through(sealed, total_bytes=MIB)["rate"].unit == "MB/s"
        assert bench.read_through_anywhere(sealed, total_bytes=MIB)["rate"].unit == "MB/s"
        assert bench.random_reads(sealed, window=4, duration_s=0.05).unit == "reads/s"
        # What is kept: the sealed extent and the tails of the two streams, on three nodes.
        assert len(list((tmp_path / "main").glob("node*/disk/extents/*/*.ext"))) == 3 * stream_cluster.NODES
