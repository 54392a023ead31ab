"""The synchronous twin of the key-value client."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from neve.client import InvalidArgument, KeyValueClient, NotFound, Put, ShuttingDown, SyncKeyValueClient
from tests.unit.client.objects.rig import wire_cluster
from tests.unit.client.objects.scripted_partitions import CLUSTER


@pytest.fixture
def manager() -> Iterator[str]:
    with wire_cluster(servers=2, split_keys=(b"m",)) as (_, address):
        yield address


def test_every_method_of_the_client_has_its_twin() -> None:
    public = {name for name, _ in inspect.getmembers(KeyValueClient, inspect.isfunction) if not name.startswith("_")}
    assert public <= {name for name, _ in inspect.getmembers(SyncKeyValueClient, inspect.isfunction)}


def test_objects_scans_and_streams_without_await(manager: str) -> None:
    with SyncKeyValueClient([manager], cluster=CLUSTER) as kv:
        info = kv.put(b"a", b"1")
        assert kv.get(b"a").value == b"1"
        assert kv.head(b"a") == info
        assert [each.key for each in kv.batch([Put(b"b", b"2"), Put(b"c", b"3")])] == [b"b", b"c"]
        assert [each.key for each in kv.scan()] == [b"a", b"b", b"c"]
        assert [each.value for each in kv.scan_objects(limit=2)] == [b"1", b"2"]
        assert kv.delete(b"a")
        with pytest.raises(NotFound):
            kv.get(b"a")
        value = bytes(range(256)) * 50_000
        reader_threads = set()

        def pieces() -> Iterator[bytes]:
            for at in range(0, len(value), 1_000_000):
                reader_threads.add(threading.current_thread().name)
                yield value[at : at + 1_000_000]

        assert kv.put_stream(b"z", pieces()).size_bytes == len(value)
        assert "neve-client" not in reader_threads  # a source that blocks must not stop the loop
        with pytest.raises(InvalidArgument, match="not NoneType"):
            kv.put_stream(b"y", [b"begin", None, b"end"])  # type: ignore[list-item]  # a raw file gives it: "not yet"
        stream = kv.get_stream(b"z")
        assert stream.length == len(value)
        assert stream.read() == value
        assert b"".join(kv.get_stream(b"z", offset=5, length=100)) == value[5:105]
    with pytest.raises(ShuttingDown):
        kv.get(b"b")


def test_many_threads_share_one_client(manager: str) -> None:
    with SyncKeyValueClient([manager], cluster=CLUSTER) as kv, ThreadPoolExecutor(8) as pool:
        keys = [b"%04d" % n for n in range(500)]
        list(pool.map(lambda key: kv.put(key, key), keys))
        assert [each.value for each in pool.map(kv.get, keys)] == keys
