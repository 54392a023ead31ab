"""The node's benchmark without its clock: its command line, what it reads of a process, the extents that it makes."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from neve.extent_node.config import load
from neve.extent_node.disk.disk import Disk
from neve.extent_node.disk.file_system import RealFileSystem
from neve.extent_node.store.replica import load_state
from neve.proto import common_pb2, errors
from neve.proto import extent_node_pb2 as pb
from neve.proto.blocks import encode_blocks, verify
from tests.bench import harness, node
from tests.bench.node_rows import disk as node_disk
from tests.bench.node_rows import process as node_process
from tests.bench.node_rows import samples as node_samples
from tests.bench.node_rows.appends import batches, make_payloads
from tests.bench.node_rows.calls import OpenExtent, Unexpected
from tests.bench.node_rows.process import CLUSTER, NODE_ID, disk_folder
from tests.bench.report import BenchError, Quantity


def test_wrong_arguments_are_refused_before_anything_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        harness.main("node", node.__doc__, node.prepare, ["--repeats", "0"])
    assert refused.value.code == 2
    assert "at least 1" in capsys.readouterr().err


def test_the_node_understands_the_command_line_that_it_is_given(tmp_path: Path) -> None:
    settings = {"store.sealed_files_max": "1", "listen.limits.server_bytes_max": "1000000"}
    assignments = node_process.arguments(tmp_path, settings)[1::2]
    config, store_config = load(None, assignments)
    assert (config.cluster, config.node_id, config.scrub_bytes_per_s) == (CLUSTER, NODE_ID, 0)
    assert [disk.folder for disk in config.disks] == [disk_folder(tmp_path)]
    assert config.listen.limits.server_bytes_max == 1_000_000
    assert store_config.sealed_files_max == 1


@pytest.mark.parametrize("settings", [node.NO_JOURNAL, node.ONE_OPEN])
def test_every_setting_of_the_benchmark_is_one_of_the_node(tmp_path: Path, settings: dict[str, str]) -> None:
    for value in settings.values():
        tomllib.loads(f"value = {value}")
    load(None, node_process.arguments(tmp_path, settings)[1::2])


def test_the_address_is_in_the_log_once_the_node_serves() -> None:
    assert node_process.wire_address("INFO journal_formatted folder=x\n") is None
    log_text = "INFO x\n2026 INFO neve.extent_node.server node_started node_id=1 wire=127.0.0.1:345 grpc=- status=-\n"
    assert node_process.wire_address(log_text) == "127.0.0.1:345"


def test_memory_is_read_from_the_kernels_own_words() -> None:
    own_status = Path("/proc/self/status").read_text()
    assert 0 < node_process.status_field(own_status, "VmRSS") <= node_process.status_field(own_status, "VmHWM")
    with pytest.raises(BenchError, match="VmNone"):
        node_process.status_field(own_status, "VmNone")


def test_frames_take_all_payloads_in_turn() -> None:
    payloads = make_payloads(4, source_bytes=16)
    source = batches(payloads, 2)
    assert [next(source) for _ in range(3)] == [payloads[:2], payloads[2:], payloads[:2]]


def test_a_writer_gives_out_offsets_in_order_and_commits_what_was_answered() -> None:
    extent = OpenExtent(7, common_pb2.Replica(node_id=1, incarnation=5))
    blocks = encode_blocks([b"one", b"two"])
    request = pb.AppendBlockRequest()
    extent.add_segment(request, blocks, no_sync=True)
    extent.note(pb.SegmentResult(end=blocks.size_bytes, length=blocks.size_bytes))
    extent.add_segment(request, blocks, no_sync=False)
    first, second = request.segments
    assert (first.offset, first.committed, first.no_sync) == (0, 0, True)
    assert (second.offset, second.committed, second.no_sync) == (blocks.size_bytes, blocks.size_bytes, False)
    assert list(second.block_sizes) == blocks.block_sizes
    assert verify(b"".join(blocks.buffers)) is None


def test_a_refused_append_or_an_answer_for_more_than_was_sent_stops_the_sample() -> None:
    extent = OpenExtent(7, common_pb2.Replica())
    extent.add_segment(pb.AppendBlockRequest(), encode_blocks([b"x"]), no_sync=True)
    with pytest.raises(errors.ExtentFenced):
        extent.note(pb.SegmentResult(error=errors.to_message(errors.ExtentFenced(extent_id=7))))
    with pytest.raises(Unexpected):
        extent.note(pb.SegmentResult(end=1000, length=1000))


def test_measures_of_one_run_run_it_once_a_round_in_either_order() -> None:
    runs: list[int] = []

    def run() -> dict[str, Quantity]:
        runs.append(len(runs) + 1)
        return {"a": Quantity(runs[-1], "s"), "b": Quantity(runs[-1], "MiB")}

    together = node_samples.Together(run)
    taken = [together.take(name).value for name in ("a", "b", "b", "a")]
    assert taken == [1, 1, 2, 2]


def test_extents_made_for_a_start_are_such_as_a_node_makes(tmp_path: Path) -> None:
    node_disk.make_extents(tmp_path, node_disk.OPEN_EVERY)
    fs = RealFileSystem()
    disk = Disk.open(fs, str(disk_folder(tmp_path)), cluster=CLUSTER, node_id=NODE_ID)
    states = [load_state(disk, extent_id)[0] for extent_id in disk.extent_ids()]
    disk.close()
    assert sorted(state.extent_id for state in states) == list(range(1, node_disk.OPEN_EVERY + 1))
    assert [state.extent_id for state in states if state.seal is None] == [node_disk.OPEN_EVERY]
    node_disk.remove_extents(tmp_path)
    assert list(disk_folder(tmp_path).glob("extents/*/*")) == []


@pytest.mark.parametrize("mapped", [True, False])
def test_reads_without_a_node_run(tmp_path: Path, mapped: bool) -> None:
    path = tmp_path / "extent"
    path.write_bytes(os.urandom(100_000))
    assert node_disk.read_sequentially(path, mapped=mapped, touched=False).unit == "MB/s"
    assert node_disk.read_at_random(path, mapped=mapped, count=3).unit == "reads/s"


def test_syncs_without_a_node_run_and_leave_nothing(tmp_path: Path) -> None:
    quantity = node_disk.fdatasync_each(tmp_path, files=2, block_bytes=1024, duration_s=0.001)
    assert quantity.unit == "appends/s"
    assert list(tmp_path.iterdir()) == []
