"""Records and their stored form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.proto import records_pb2 as pb
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import UnsupportedVersion
from neve.stream_manager import record_codec as codec
from neve.stream_manager import records as r

ids = st.integers(1, 2**63)
texts = st.text(max_size=20)
replicas = st.builds(r.ReplicaAt, ids, texts, st.integers(0, 2**64 - 1))
labels = st.dictionaries(texts, texts, max_size=4).map(lambda found: tuple(sorted(found.items())))
policies = st.builds(r.Policy, st.integers(1, 7), st.booleans(), st.integers(1, 2**31), texts, st.booleans())
seals = st.builds(r.ExtentSeal, st.integers(0, 2**31), ids, st.binary(max_size=32))
RECORDS = [
    (
        st.builds(
            r.Stream, ids, texts, texts, st.lists(ids, max_size=5).map(tuple), st.booleans(), policies, labels, ids, ids
        ),
        codec.encode_stream,
        codec.decode_stream,
    ),
    (
        st.builds(
            r.Extent,
            ids,
            ids,
            st.lists(replicas, max_size=4).map(tuple),
            ids,
            ids,
            ids,
            st.none() | seals,
            st.lists(ids, max_size=4).map(tuple),
            st.booleans(),
        ),
        codec.encode_extent,
        codec.decode_extent,
    ),
    (
        st.builds(
            r.NodeEntry,
            node_id=ids,
            wire_address=texts,
            grpc_address=texts,
            region=texts,
            rack=texts,
            zone=texts,
            labels=labels,
            disks=st.lists(st.builds(r.Disk, texts, st.integers(0, 3), ids), max_size=3).map(tuple),
            mode=st.sampled_from(list(sm.NodeMode.values())),
            health=st.sampled_from(list(sm.NodeHealth.values())),
            process_id=ids,
            build=texts,
        ),
        codec.encode_node,
        codec.decode_node,
    ),
    (
        st.builds(
            r.Task, ids, ids, st.integers(0, 3), st.none() | replicas, st.none() | replicas, ids, ids, ids, texts
        ).map(lambda task: replace(task, attempts=task.attempts % 1000)),
        codec.encode_task,
        codec.decode_task,
    ),
    (st.builds(r.Quota, texts, ids, ids, ids), codec.encode_quota, codec.decode_quota),
    (st.builds(r.Settings, st.lists(texts, max_size=3).map(tuple)), codec.encode_settings, codec.decode_settings),
]


@given(st.data())
@pytest.mark.parametrize(("records", "encode", "decode"), RECORDS, ids=lambda value: getattr(value, "__name__", ""))
def test_what_was_stored_is_read_back(
    records: st.SearchStrategy[Any], encode: Callable[[Any], bytes], decode: Callable[[bytes, int], Any], data: Any
) -> None:
    record = data.draw(records)
    assert decode(encode(record), 77) == replace(record, mod_revision=77)


@given(st.builds(r.Replay, ids.map(lambda i: i % 2**32), st.integers(0, 2**32 - 1), ids))
def test_a_replay_record_is_read_back(replay: r.Replay) -> None:
    assert codec.decode_replay(codec.encode_replay(replay)) == replay


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(UnsupportedVersion, match="extent record version 2"):
        codec.decode_extent(pb.ExtentRecord(format=2).SerializeToString(), 1)


def test_a_seal_at_length_zero_is_not_an_open_extent() -> None:
    extent = r.Extent(1, 2, (r.ReplicaAt(1, "d", 5),), 100, 0, 9, seal=r.ExtentSeal(0, 2, b""))
    assert codec.decode_extent(codec.encode_extent(extent), 0).seal == r.ExtentSeal(0, 2, b"")
    still_open = replace(extent, seal=None)
    assert codec.decode_extent(codec.encode_extent(still_open), 0).seal is None


@given(st.lists(ids, min_size=2, max_size=10))
def test_keys_are_in_the_order_of_ids(numbers: list[int]) -> None:
    assert sorted(numbers) == sorted(numbers, key=r.id_text)


def test_confirmations_are_kept_in_the_order_of_replicas() -> None:
    replicas = tuple(r.ReplicaAt(node_id, "d", node_id) for node_id in (5, 3, 9))
    extent = r.Extent(1, 2, replicas, 100, 0, 9, seal=r.ExtentSeal(0, 2, b""))
    once = extent.with_confirmed([9], b"x")
    twice = once.with_confirmed([5], b"x")
    assert twice.confirmed == (5, 9)
    assert twice.seal is not None
    assert twice.seal.digest == b"x"
    assert not twice.all_confirmed
    assert twice.with_confirmed([3], b"x").all_confirmed
