"""Records and their stored form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.proto import records_pb2 as pb
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import UnsupportedVersion
from neve.proto.stream_policy import StreamPolicy
from neve.stream_manager.metadata import describe
from neve.stream_manager.metadata import records as r
from neve.stream_manager.metadata.record_kinds import (
    EXTENT,
    KINDS,
    NAME,
    NODE,
    QUOTA,
    SETTINGS,
    STREAM,
    TASK,
    Kind,
    Name,
)
from neve.stream_manager.metadata.records import extent_bytes, read_extent, read_stream, replica_at, stream_bytes
from neve.stream_manager.metadata.replay import read_replay, replay_bytes
from neve.stream_manager.metadata.state import State

ids = st.integers(1, 2**63)
texts = st.text(max_size=20)
replicas = st.builds(r.ReplicaAt, ids, texts, st.integers(0, 2**64 - 1))
labels = st.dictionaries(texts, texts, max_size=4).map(lambda found: tuple(sorted(found.items())))
policies = st.builds(
    StreamPolicy,
    replicas=st.integers(1, 7),
    sync=st.booleans(),
    extent_bytes_max=st.integers(1, 2**31),
    placement=texts,
    strict=st.booleans(),
)
seals = st.builds(r.ExtentSeal, st.integers(0, 2**31), ids, st.binary(max_size=32))
# Not `st.builds`: of a tuple's fields it makes up those with defaults, too.
replays = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), ids).map(lambda fields: r.Replay(*fields))
extents = st.tuples(
    ids,
    ids,
    st.lists(replicas, max_size=4).map(tuple),
    ids,
    ids,
    ids,
    st.none() | seals,
    st.lists(ids, max_size=4).map(tuple),
    st.booleans(),
).map(lambda fields: r.Extent(*fields))
streams = st.tuples(
    ids,
    texts,
    texts,
    st.lists(ids, max_size=5).map(tuple),
    st.booleans(),
    policies,
    labels,
    ids,
    ids,
    st.integers(0, 2**63),
    st.lists(ids, max_size=3).map(tuple),
).map(lambda fields: r.Stream(*fields[:-1])._replace(after_hole=fields[-1]))
RECORDS: dict[Kind[Any, Any], st.SearchStrategy[Any]] = {
    STREAM: streams,
    EXTENT: extents,
    NODE: st.builds(
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
    TASK: st.builds(
        r.Task, ids, ids, st.integers(0, 3), st.none() | replicas, st.none() | replicas, ids, ids, ids, texts
    ).map(lambda task: replace(task, attempts=task.attempts % 1000)),
    NAME: st.builds(Name, texts, ids),
    QUOTA: st.builds(r.Quota, texts, ids, ids, ids),
    SETTINGS: st.builds(r.Settings, st.lists(texts, max_size=3).map(tuple)),
}


def test_every_kind_of_records_is_tested() -> None:
    assert set(RECORDS) == set(KINDS.values())


@given(st.data())
@pytest.mark.parametrize("kind", RECORDS, ids=repr)
def test_what_was_stored_is_read_back(kind: Kind[Any, Any], data: st.DataObject) -> None:
    record = data.draw(RECORDS[kind])
    key = kind.key(b"", kind.ident(record)).removeprefix(kind.prefix)
    assert kind.parse_ident(key) == kind.ident(record)
    assert kind.decode(key, kind.encode(record), 77) == record.at(77)


@given(streams, st.lists(extents, max_size=3), st.none() | replays, st.none() | st.tuples(replays, ids, ids))
def test_a_stream_is_read_back_with_its_young_extents_and_its_calls(
    stream: r.Stream, young: list[r.Extent], made: r.Replay | None, linked: tuple[r.Replay, int, int] | None
) -> None:
    own = (stream.stream_id,)
    if made is not None:
        stream = stream._replace(made_by=r.StreamCall(2**64 - 1, 2**64 - 1, made._replace(stream_ids=own)))
    if linked is not None:
        replay = linked[0]._replace(stream_ids=own, extent_ids=linked[1:])
        stream = stream._replace(linked_by=r.StreamCall(1, 2, replay))
    for version in (stream, stream.changed((*stream.extent_ids, 7)), stream):  # its parts are remembered meanwhile
        assert read_stream(stream_bytes(version, young), 77) == (version.at(77), young)


@given(extents, extents)
def test_what_is_remembered_of_an_extent_is_not_taken_for_another_of_the_same_id(
    one: r.Extent, other: r.Extent
) -> None:
    for extent in (one, other._replace(extent_id=one.extent_id), one):
        assert read_extent(extent_bytes(extent), 0) == extent


@given(streams, extents, st.booleans(), st.booleans())
def test_callers_see_of_a_stream_and_its_extents_what_is_recorded(
    stream: r.Stream, extent: r.Extent, confirmed: bool, known: bool
) -> None:
    state = State(b"/x/")
    stream = stream.at(77)
    extent = extent._replace(confirmed=extent.node_ids if confirmed else (), mod_revision=5)
    for node_id in extent.node_ids if known else ():
        state._set(NODE, node_id, r.NodeEntry(node_id, f"a:{node_id}", grpc_address="g" * (node_id % 2)))
    for _ in range(2):  # its parts are remembered meanwhile
        reply = describe.alloc_reply(state, stream, extent, extent._replace(extent_id=3)).message()
        assert StreamPolicy.of(reply.stream.policy) == stream.policy
        told = reply.stream
        assert (told.stream_id, told.name, told.lock, tuple(told.extent_ids), told.sealed, told.version) == (
            *(stream.stream_id, stream.name, stream.lock, stream.extent_ids, stream.sealed, stream.version),
        )
        assert tuple(told.after_hole) == stream.after_hole
        assert (dict(told.labels), told.mod_revision, told.created_ms, told.truncated_before) == (
            *(dict(stream.labels), 77, stream.created_ms, stream.truncated_before),
        )
        sealed = reply.sealed
        assert (sealed.extent_id, sealed.eversion, sealed.extent_bytes_max, sealed.created_ms, sealed.mod_revision) == (
            *(extent.extent_id, extent.eversion, extent.extent_bytes_max, extent.created_ms, 5),
        )
        assert [replica_at(one.replica) for one in sealed.replicas] == list(extent.replicas)
        for one in sealed.replicas:
            assert one.confirmed == confirmed
            assert one.address == (f"a:{one.replica.node_id}" if known else "")
            assert one.grpc_address == ("g" * (one.replica.node_id % 2) if known else "")
        if extent.seal is None:
            assert not sealed.HasField("seal")
        else:
            assert (sealed.seal.length, sealed.seal.eversion, sealed.seal.digest) == extent.seal
        assert reply.tail.extent_id == 3
        assert reply.all_took_part == (extent.all_took_part or extent.all_confirmed)
        for node_id in list(state.nodes):
            state._set(NODE, node_id, None)
        known = False


@given(replays)
def test_a_replay_record_is_read_back(replay: r.Replay) -> None:
    assert read_replay(replay_bytes(replay)) == replay


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(UnsupportedVersion, match="extent record version 2"):
        read_extent(pb.ExtentRecord(format=2).SerializeToString(), 1)


def test_a_seal_at_length_zero_is_not_an_open_extent() -> None:
    extent = r.Extent(1, 2, (r.ReplicaAt(1, "d", 5),), 100, 0, 9, seal=r.ExtentSeal(0, 2, b""))
    assert read_extent(extent_bytes(extent), 0).seal == r.ExtentSeal(0, 2, b"")
    still_open = extent._replace(seal=None)
    assert read_extent(extent_bytes(still_open), 0).seal is None


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


def test_a_list_that_is_put_together_remembers_where_it_was_cut() -> None:
    stream = r.Stream(1, "", "", (1, 2, 3, 4, 5), False, StreamPolicy(replicas=3, extent_bytes_max=1), (), 1, 1)
    punched = stream.with_list((1, 3, 5))
    assert punched.after_hole == (3, 5)
    assert punched.version == 2
    assert punched.with_list((3, 5)).after_hole == (5,)  # what begins a list goes on nothing
    assert punched.changed((1, 3, 5, 6)).after_hole == (3, 5)  # a new tail goes on the old one
    assert stream.with_list((3, 4, 5), truncated_before=3).after_hole == ()
    other = stream._replace(stream_id=2, extent_ids=(1, 2, 8, 9), after_hole=(9,))  # a twin that went its own way
    assert stream.with_list((1, 2, 3, 4, 5, 8, 9), other).after_hole == (8, 9)


def test_an_empty_extent_leaves_no_hole() -> None:
    stream = r.Stream(1, "", "", (1, 2, 3, 4, 5, 6), False, StreamPolicy(replicas=3, extent_bytes_max=1), (), 1, 1)
    assert stream.with_list((1, 4, 5, 6), empty={2, 3}).after_hole == ()
    assert stream.with_list((1, 4, 5, 6), empty={2}).after_hole == (4,)
    assert stream.with_list((1, 4, 5, 6), empty={3}).after_hole == (4,)
    assert stream.with_list((1, 3, 5, 6), empty={4}).after_hole == (3,)
    for before_or_behind_it in (4, 5):
        cut = stream._replace(after_hole=(before_or_behind_it,))
        assert cut.with_list((1, 2, 3, 5, 6), empty={4}).after_hole == (5,)


@given(streams, extents, replays)
def test_what_is_new_is_encoded_and_described_as_any_other(
    stream: r.Stream, extent: r.Extent, replay: r.Replay
) -> None:
    """A stream that was just created, and its extent, go a way of their own, on which nothing is kept."""
    tail = extent._replace(eversion=1, seal=None, confirmed=(), all_took_part=False, stream_id=stream.stream_id)
    call = r.StreamCall(1, 2, replay._replace(stream_ids=(stream.stream_id,)))
    stream = stream._replace(extent_ids=(tail.extent_id,), made_by=call)
    state = State(b"/c/")
    reply = describe.create_reply(state, stream, tail).message()
    assert reply == sm.CreateStreamReply(stream=describe.stream_info(stream), tail=describe.extent_info(state, tail))
