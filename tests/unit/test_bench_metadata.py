"""The metadata benchmark without its targets: its command lines, the metadata that it makes up, each sample once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from neve.meta.txn import KeyValue
from neve.stream_manager.config import load
from neve.stream_manager.metadata.records import ExtentSeal, root_of
from neve.stream_manager.metadata.state import State
from neve.stream_manager.streams.core.seal import choose_length
from neve.stream_manager.term.context import NodeChoice
from tests.bench import harness, metadata, processes
from tests.bench.metadata_rows import (
    client as metadata_client,
)
from tests.bench.metadata_rows import (
    fill as metadata_fill,
)
from tests.bench.metadata_rows import (
    process as metadata_process,
)
from tests.bench.metadata_rows.manager import AtOnce
from tests.bench.node_rows.process import CLUSTER
from tests.bench.report import BenchError
from tests.bench.stream_rows import cluster as stream_cluster
from tests.cluster.etcd import EtcdCluster

ROOT = root_of(CLUSTER)


def test_wrong_arguments_are_refused_before_anything_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        harness.main("metadata", metadata.__doc__, metadata.prepare, ["--repeats", "0"])
    assert refused.value.code == 2
    assert "at least 1" in capsys.readouterr().err


def test_the_manager_understands_the_command_line_that_it_is_given() -> None:
    assignments = metadata_process.arguments(["127.0.0.1:1", "127.0.0.1:2"], {"lease_ttl_s": "3"})[1::2]
    config = load(None, assignments)
    assert (config.cluster, config.lease_ttl_s) == (CLUSTER, 3)
    assert tuple(config.etcd.endpoints) == ("127.0.0.1:1", "127.0.0.1:2")


def test_the_address_is_in_the_log_once_the_manager_serves() -> None:
    assert metadata_process.wire_address("INFO etcd_member address=x\n") is None
    line = "INFO x\n2026 INFO neve.stream_manager.server manager_started wire=127.0.0.1:345 grpc=- status=-\n"
    assert metadata_process.wire_address(line) == "127.0.0.1:345"


@pytest.mark.parametrize("extents", [1, metadata_fill.EXTENTS_PER_STREAM, 2 * metadata_fill.EXTENTS_PER_STREAM + 1])
def test_metadata_that_is_made_up_is_such_as_a_manager_accepts(extents: int) -> None:
    puts = list(metadata_fill.puts(ROOT, extents))
    state = State(ROOT)
    state.load((KeyValue(put.key, put.value, 1, 1, 1) for put in puts), 1)
    state.validate()
    assert len({put.key for put in puts}) == len(puts)
    assert len(state.extents) == extents
    assert len(state.nodes) == metadata_fill.NODES
    assert sum(len(stream.extent_ids) for stream in state.streams.values()) == extents
    assert len(state.open_extents) == len(state.streams)
    assert not state.unconfirmed_extents
    (next_id,) = (int(put.value) for put in puts if put.key == ROOT + b"ids")
    assert next_id > max([*state.extents, *state.streams])


async def test_nodes_that_answer_at_once_let_an_extent_be_sealed_by_all() -> None:
    nodes = {node.node_id: node for node in metadata_fill.nodes()}
    calls = AtOnce(nodes.get)
    extent = metadata_fill.extent_of(5, 1, is_open=True)
    made = await calls.create(5, NodeChoice(1), eversion=1, extent_bytes_max=1, stream_id=1)
    assert made.disk_uuid == nodes[1].disks[0].disk_uuid
    answers = {replica.node_id: await calls.fence(extent, replica, token=7) for replica in extent.replicas}
    decision = choose_length(answers, acknowledged_end=0)
    assert (decision.length, decision.all_took_part) == (0, True)
    sealed = metadata_fill.extent_of(5, 1, is_open=False)
    reply = await calls.seal(sealed, sealed.replicas[0])
    assert isinstance(sealed.seal, ExtentSeal)
    assert (reply.confirmed, reply.seal.length) == (True, sealed.seal.length)


async def test_a_rate_counts_the_calls_of_all_that_run_side_by_side() -> None:
    calls: list[int] = []

    def worker(number: int) -> Callable[[], Awaitable[None]]:
        async def call() -> None:
            calls.append(number)
            await asyncio.sleep(0)

        return call

    rate = await metadata_client.rate([worker(1), worker(2)], 0.01)
    assert set(calls) == {1, 2}
    assert 0 < rate <= len(calls) / 0.01


def test_the_best_number_of_calls_in_flight_counts() -> None:
    class Child:
        def __init__(self) -> None:
            self.orders: list[dict[str, Any]] = []

        def ask(self, order: dict[str, Any], *, timeout_s: float) -> float:
            self.orders.append(order)
            return {64: 10.0, 256: 30.0, 1024: 20.0}[order["in_flight"]]

    child = Child()
    quantity = metadata.Caller(child).best_rate("put", duration_s=1.0)  # type: ignore[arg-type]
    assert (quantity.value, quantity.unit) == (30.0, "ops/s")
    assert [order["in_flight"] for order in child.orders] == list(metadata.IN_FLIGHT)


def test_every_sample_runs_on_a_manager_that_was_elected_over_what_was_filled_in(tmp_path: Path) -> None:
    with EtcdCluster() as etcd, processes.start("tests.bench.metadata_rows.client") as child:
        caller = metadata.Caller(child)
        caller.fill(etcd.endpoints, 150)
        settings = metadata.ELECTION_SETTINGS  # nodes that were made up are never heard of
        log_path = tmp_path / "manager.log"
        with metadata_process.start(log_path, etcd.endpoints, settings, module=metadata.MANAGER_MODULE) as manager:
            caller.connect(manager.address, etcd.endpoints, cluster=CLUSTER, nodes=0)
            assert manager.wait_for(re.compile(r"term_begins .*\bextents=(\d+)"), timeout_s=60) == "150"
            assert manager.rss_peak_bytes() > 0
            for case in ("put", "create"):
                order = {"case": case, "in_flight": 3, "duration_s": 0.05}
                assert child.ask(order, timeout_s=60) > 0
            with pytest.raises(BenchError, match="no 'never'"):
                manager.wait_for(re.compile("never"), timeout_s=0.01)
        assert "manager_stopped" in log_path.read_text()


def test_rolls_are_measured_on_real_nodes(tmp_path: Path) -> None:
    with (
        EtcdCluster() as etcd,
        processes.start("tests.bench.metadata_rows.client") as child,
        stream_cluster.start(tmp_path / "rolls", metadata.ROLL_CLUSTER, etcd.endpoints) as cluster,
    ):
        caller = metadata.Caller(child)
        caller.connect(cluster.manager, etcd.endpoints, cluster=metadata.ROLL_CLUSTER, nodes=stream_cluster.NODES)
        assert child.ask({"case": "allocate", "in_flight": 3, "duration_s": 0.05}, timeout_s=60) > 0
    audit = (tmp_path / "rolls" / "manager.log").read_text()
    assert len(re.findall(r"method=\S*StreamAllocExtent\b.* outcome=done", audit)) >= 3
    assert len(re.findall(r"method=\S*DeleteStream\b.* outcome=done", audit)) == 3
