"""stream-client on a client that keeps everything in memory: what is asked of it, what is printed, what is refused."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from neve.client.command import connection, main
from neve.client.command.samples import SampleFile
from neve.client.streams.types import Position, Record, Stream
from neve.partition_manager import bootstrap
from neve.proto import common_pb2
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import LeaseLost, NeveError, NotEnoughNodes, NotFound, Overloaded
from neve.proto.stream_policy import StreamPolicy

POLICY = StreamPolicy(replicas=3, extent_bytes_max=1 << 30)


class Writer:
    def __init__(self, client: FakeClient, stream_id: int) -> None:
        self._client = client
        self.stream_id = stream_id

    async def open(self) -> Self:
        self._client.log.append(f"open {self.stream_id}")
        return self

    async def close(self) -> None:
        self._client.log.append(f"close {self.stream_id}")

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def submit(self, payload: bytes) -> asyncio.Future[Position]:
        if self._client.pending >= 3:
            raise Overloaded(what="writer")
        self._client.pending += 1
        future: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

        def settle() -> None:
            self._client.pending -= 1
            if len(self._client.payloads) >= self._client.fail_after:
                future.set_exception(LeaseLost(detail="the lease ended"))
                return
            self._client.payloads.append(payload)
            future.set_result(Position(9, len(self._client.payloads) - 1))

        asyncio.get_running_loop().call_later(self._client.acknowledge_after_s, settle)
        return future

    async def append(self, payload: bytes) -> Position:
        if self._client.append_error is not None:
            raise self._client.append_error
        await asyncio.sleep(0.001)
        self._client.payloads.append(payload)
        return Position(9, len(self._client.payloads))

    async def append_many(self, payloads: Iterable[bytes]) -> Sequence[Position]:
        return [await self.append(payload) for payload in payloads]

    async def ready(self, size_bytes: int = 1) -> None:
        await asyncio.sleep(0.001)


class FakeClient:
    """One stream, `events`, of id 5 with extents 8 (sealed) and 9."""

    def __init__(self) -> None:
        self.stream_5 = Stream(5, "events", (8, 9), False, POLICY, "stream/5", {"team": "a"})
        self.payloads: list[bytes] = []
        self.pending = 0
        self.acknowledge_after_s = 0.001
        self.fail_after = 10**9
        self.append_error: NeveError | None = None
        self.log: list[str] = []
        self.created = 100
        self.admin = self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.log.append("closed")

    async def create_stream(self, **options: Any) -> Stream:
        if options["replicas"] == 7:
            raise NotEnoughNodes(wanted=7, available=4)
        self.created += 1
        self.log.append(f"create {options.get('name', '')}")
        return replace(
            self.stream_5,
            id=self.created,
            name=options.get("name", ""),
            policy=POLICY._replace(sync=options["sync"]),
            labels=options["labels"],
        )

    async def stream(self, stream: int | str) -> Stream:
        if stream in (5, "events"):
            return self.stream_5
        raise NotFound(kind="stream", name=str(stream))

    async def streams(self, labels: Mapping[str, str] | None = None) -> AsyncIterator[Stream]:
        if labels is None or labels.items() <= self.stream_5.labels.items():
            yield self.stream_5

    async def describe_extents(self, extent_ids: Sequence[int]) -> Sequence[sm.ExtentInfo]:
        replicas = [
            sm.ExtentReplica(replica=common_pb2.Replica(node_id=1), confirmed=True),
            sm.ExtentReplica(replica=common_pb2.Replica(node_id=2)),
        ]
        known = {
            8: sm.ExtentInfo(extent_id=8, seal=common_pb2.Seal(length=4), replicas=replicas),
            9: sm.ExtentInfo(extent_id=9, replicas=replicas),
        }
        return [known[extent_id] for extent_id in reversed(extent_ids)]

    def writer(self, stream_id: int, **options: Any) -> Writer:
        self.log.append(f"writer {options}")
        return Writer(self, stream_id)

    async def read(
        self,
        stream_id: int,
        *,
        start: Position | None = None,
        follow: bool = False,
        end: Position | None = None,
    ) -> AsyncIterator[Record]:
        """Extent 8 has records old-0 … old-3; extent 9 what was appended."""
        everything = [(Position(8, n), b"old-%d" % n) for n in range(4)]
        everything += [(Position(9, n), payload) for n, payload in enumerate(self.payloads)]
        for position, payload in everything:
            if (start is None or position >= start) and (end is None or position < end):
                yield Record(position, payload, Position(position.extent_id, position.offset + 1))

    async def read_record(self, stream_id: int, position: Position) -> Record:
        await asyncio.sleep(0.001)
        return Record(position, b"one", position)

    async def truncate(self, stream_id: int, before: Position) -> Stream:
        self.log.append(f"truncate {stream_id} {before}")
        return self.stream_5

    async def seal(self, stream_id: int) -> Stream:
        self.log.append(f"seal {stream_id}")
        return self.stream_5

    async def delete(self, stream_id: int) -> None:
        self.log.append(f"delete {stream_id}")


class Run:
    def __init__(self, client: FakeClient, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        self.client = client
        self._capture = capfdbinary

    def __call__(self, *words: str, code: int = 0) -> tuple[str, str]:
        gc.collect()  # futures that earlier tests have left are told of now, and not in what this command says
        self._capture.readouterr()
        got = main.main(words)
        out, err = self._capture.readouterr()
        assert got == code, (out, err)
        assert b"Traceback" not in err
        return out.decode(errors="replace"), err.decode()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    client = FakeClient()
    monkeypatch.setattr(connection, "connect", lambda args: client)
    return Run(client, capfdbinary)


def test_create_list_and_info(run: Run) -> None:
    out, _ = run("create", "clicks", "--replicas", "2", "--no-sync", "--label", "team=b")
    assert out == "stream 101 'clicks', 3 replicas, no sync\n"
    value = json.loads(run("create", "--json", "--label", "a=1", "--label", "b=2")[0])
    assert (value["stream_id"], value["sync"], value["labels"]) == (102, True, {"a": "1", "b": "2"})
    assert [stream["name"] for stream in json.loads(run("list", "--json")[0])] == ["events"]
    assert run("list", "--label", "team=b")[0] == "no streams\n"
    info = json.loads(run("info", "events", "--json")[0])
    assert [(extent["extent_id"], extent["length"]) for extent in info["extents"]] == [(8, 4), (9, None)]
    assert "1 2?" in run("info", "5")[0]


def test_errors_are_one_sentence_and_exit_code_1(run: Run) -> None:
    assert run("info", "evnts", code=1)[1] == "stream-client: no such stream: evnts\n"
    assert "7 are needed, 4 can" in run("create", "--replicas", "7", code=1)[1]
    assert "No such file" in run("append", "events", "/does/not/exist", code=1)[1]
    assert run.client.log.count("closed") == 3


def test_what_cannot_be_taken_back_needs_yes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (("delete", "events"), ("seal", "events"), ("truncate", "events", "--before", "9")):
        assert "needs --yes" in run(*words, code=2)[1]
    assert not any(line.startswith(("delete", "seal", "truncate")) for line in run.client.log)
    run("truncate", "events", "--before", "9:16", "--yes")
    run("seal", "events", "--yes")
    run("delete", "events", "--yes")
    assert [line for line in run.client.log if line[0] in "tsd"] == ["truncate 5 9:16", "seal 5", "delete 5"]


@pytest.mark.parametrize("words", [["delete", "events"], ["seal", "events"], ["truncate", "events", "--before", "9"]])
def test_a_stream_of_the_key_value_store_is_harmed_only_by_force(run: Run, words: list[str]) -> None:
    labels = {bootstrap.KIND_LABEL: bootstrap.KIND, bootstrap.ROLE_LABEL: "log"}
    run.client.stream_5 = replace(run.client.stream_5, labels=labels)
    _, err = run(*words, "--yes", code=2)
    assert "stream 5 belongs to a partition of the key-value store" in err
    assert "--force" in err
    assert run.client.log == ["closed"]
    assert "needs --yes" in run(*words, "--force", code=2)[1]
    run(*words, "--yes", "--force")
    assert any(line.startswith(words[0]) for line in run.client.log)


def test_an_empty_name_is_refused_but_none_is_fine(run: Run) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["create", ""])
    assert ended.value.code == 2
    assert run.client.log == []
    run("create")
    assert run.client.log == ["create ", "closed"]


def test_append_cuts_a_file_as_it_is_told(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "in.txt"
    file.write_bytes(b"one\ntwo\n\nfour")
    assert run("append", "events", str(file))[0] == "4 records, 10 bytes acknowledged, 9:0 to 9:3\n"
    assert run.client.payloads == [b"one", b"two", b"", b"four"]
    run.client.payloads.clear()
    value = json.loads(run("append", "events", str(file), "--record-size", "5", "--json")[0])
    assert value == {"records": 3, "bytes": 13, "first": "9:0", "last": "9:2"}
    run.client.payloads.clear()
    run("append", "events", str(file), "--whole", "--takeover", "--no-sync")
    assert run.client.payloads == [b"one\ntwo\n\nfour"]
    assert "writer {'sync': False, 'takeover': True}" in run.client.log


def test_append_takes_standard_input_of_any_length_in_order(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Far more records than the writer holds at a time."""
    lines = [b"%d" % number for number in range(500)]
    file = tmp_path / "in.txt"
    file.write_bytes(b"\n".join(lines) + b"\n")
    with file.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert run("append", "events")[0].startswith("500 records")
    assert run.client.payloads == lines


def test_append_that_fails_says_what_was_acknowledged(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "in.txt"
    file.write_bytes(b"a\n" * 20)
    run.client.fail_after = 7
    out, err = run("append", "events", str(file), code=1)
    assert out == ""
    assert "7 records, 7 bytes acknowledged, 9:0 to 9:6" in err
    assert "lost the stream" in err


def test_read_and_tail(run: Run) -> None:
    run.client.payloads = [b"a", b"b\xff", b"c"]
    assert run("read", "events")[0].startswith("old-0\nold-1\nold-2\nold-3\na\n")
    assert run("read", "events", "--from", "8:2", "--to", "9", "--positions")[0] == "8:2\told-2\n8:3\told-3\n"
    assert run("read", "events", "--count", "1", "--format", "raw")[0] == "old-0"
    lines = [json.loads(line) for line in run("read", "events", "--from", "9:1", "--json")[0].splitlines()]
    assert lines == [
        {"position": "9:1", "next": "9:2", "payload_base64": "Yv8="},
        {"position": "9:2", "next": "9:3", "payload": "c"},
    ]
    assert run("tail", "events", "-n", "2", "--no-follow", "--format", "hex")[0] == "62ff\n63\n"
    assert run("tail", "events", "-n", "5", "--no-follow", "--positions")[0].splitlines()[0] == "8:2\told-2"
    assert run("tail", "events", "-n", "100", "--no-follow")[0].startswith("old-0\n")
    assert run("tail", "events", "-n", "0", "--no-follow")[0] == ""
    out, err = run("read", "events", "--to", "12:0", code=1)
    assert (out, "has no extent 12; its last extents: 8, 9" in err) == ("", True)


def test_wbench_reports_writes_every_sample_and_removes_its_streams(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    words = ["wbench", "--duration", "300ms", "--size", "2KiB", "--streams", "3", "--inflight", "2", "--batch", "4"]
    out, err = run(*words, "--json", str(file))
    assert "errors      0" in out
    assert "p99.9" in out
    assert err == ""
    samples = list(SampleFile.open(file).samples())
    assert sum(sample.operations for sample in samples) == len(run.client.payloads) > 0
    assert all((sample.operations, sample.size_bytes) == (4, 8192) for sample in samples)
    assert len({bytes(payload) for payload in run.client.payloads}) > 1
    assert sum(line.startswith("delete") for line in run.client.log) == 3
    assert '"token"' not in file.read_text()


def test_wbench_keeps_streams_if_asked_and_fails_when_writes_fail(run: Run) -> None:
    run.client.append_error = LeaseLost(detail="gone")
    out, _ = run("wbench", "--duration", "100ms", "--keep", code=1)
    assert "16 LeaseLost" in out
    assert "last error  this writer lost the stream" in out
    assert not any(line.startswith("delete") for line in run.client.log)


def test_wbench_against_too_few_nodes_is_one_sentence(run: Run) -> None:
    out, err = run("wbench", "--replicas", "7", code=1)
    assert (out, err.count("\n")) == ("", 1)


def test_rbench_reads_in_sequence_and_at_random(run: Run, tmp_path: Path) -> None:
    run.client.payloads = [b"x" * 100] * 50
    out, _ = run("rbench", "events", "--duration", "100ms", "--inflight", "3")
    assert "rbench sequential × 3" in out
    assert "errors      0" in out
    out, _ = run("rbench", "events", "--duration", "100ms", "--random", "--inflight", "2")
    assert "rbench random × 2" in out
    assert "no such stream" in run("rbench", "nobody", code=1)[1]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["create", "--replicas", "0"],
        ["create", "--replicas", "99"],
        ["append"],
        ["append", "events", "--whole", "--lines"],
        ["read", "events", "--from", "x"],
        ["wbench", "--duration", "0"],
        ["wbench", "--size", "0"],
        ["list", "--managers", "nowhere"],
        ["plot", "a.json"],
    ],
)
def test_wrong_usage_ends_with_2_before_anything_is_done(run: Run, words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(words)
    assert ended.value.code == 2
    assert run.client.log == []
