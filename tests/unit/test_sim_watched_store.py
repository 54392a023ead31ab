"""What the simulation's metadata store says of ids that are used again, of replicas that count as confirmed and did not
say so, and of a region map that somebody changes who does not lead: records as no manager would write them."""

from __future__ import annotations

import pytest

from neve.meta import keys
from neve.meta.txn import Compare, Delete, Operation, Put, create_revision_is, key_absent, mod_revision_is
from neve.proto import stream_manager_pb2 as sm
from neve.proto.stream_policy import StreamPolicy
from neve.stream_manager.metadata import records as r
from neve.stream_manager.metadata.record_kinds import NODE, TASK
from neve.stream_manager.metadata.records import (
    Extent,
    ExtentSeal,
    NodeEntry,
    ReplicaAt,
    Stream,
    Task,
    extent_bytes,
    stream_bytes,
)
from tests.sim.checks.watched_store import WatchedStore

ROOT = b"/test/"
POLICY = StreamPolicy(replicas=1, extent_bytes_max=4000)


def extent(extent_id: int, *, of: int, node_id: int = 1) -> Extent:
    return Extent(extent_id, 1, (ReplicaAt(node_id, "disk", 7),), 4000, 0, of)


def stream(stream_id: int, *extents: Extent) -> Put:
    ids = tuple(each.extent_id for each in extents)
    record = Stream(stream_id, "", f"lock {stream_id}", ids, False, POLICY, (), 1, 0)
    return Put(ROOT + r.STREAMS + r.id_text(stream_id), stream_bytes(record, extents))


def task(task_id: int, extent_id: int, *, attempts: int = 0) -> Put:
    record = Task(task_id, extent_id, sm.RecoveryTask.COPY, None, None, 1, 0, attempts)
    return Put(ROOT + r.TASKS + r.id_text(extent_id), TASK.encode(record))


def node(node_id: int, address: str) -> Put:
    return Put(ROOT + r.NODES + r.id_text(node_id), NODE.encode(NodeEntry(node_id, address)))


def gone(put: Put) -> Delete:
    return Delete(put.key)


A, B, C = extent(11, of=1), extent(12, of=1), extent(13, of=1)
S, T = stream(1, A), stream(2, extent(14, of=2))


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([[S], [stream(1, A, B)], [stream(1, B)], [stream(1, B, C)]], ""),
        ([[S], [stream(1, A, B)], [stream(1, A, B), stream(3, A, B)]], ""),  # a split
        ([[S], [gone(S), stream(3, A)]], ""),  # a merge
        ([[S], [task(20, 11)], [task(20, 11, attempts=1)], [task(21, 11)]], ""),
        ([[node(4, "node4:1")], [node(4, "node4:1")], [node(5, "node5:1")]], ""),
        ([[S], [gone(S)], [stream(1, extent(15, of=1))]], "id of stream 1 was used before"),
        ([[S], [stream(1, A, B)], [stream(1, B)], [stream(1, A, B, C)]], "id of extent 11 was used before"),
        ([[S], [stream(1, A, B, C, A)]], "lists an extent twice"),
        ([[S, T], [stream(2, extent(14, of=2), extent(11, of=2))]], "extent 11 was"),  # another one, with its id
        ([[S], [stream(1, extent(11, of=1, node_id=2))]], "extent 11 was"),
        ([[S], [stream(11, extent(15, of=11))]], "id of stream 11 was used before"),
        ([[S, T], [stream(1, A, extent(2, of=1))]], "the id of extent 2 is a stream's"),
        ([[S], [task(20, 11)], [gone(task(20, 11))], [task(20, 12)]], "id of task 20 was used before"),
        ([[S], [task(20, 11)], [task(21, 11)], [task(20, 11)]], "id of task 20 was used before"),
        ([[S], [task(11, 11)]], "id of task 11 was used before"),
        ([[node(4, "node4:1")], [node(4, "node5:1")]], "node 4 was node4:1"),
    ],
)
def test_an_id_that_is_used_again_is_noted_and_what_goes_on_under_its_own_is_not(
    steps: list[list[Operation]], told: str
) -> None:
    store = WatchedStore(ROOT)
    for operations in steps:
        store.txn([], operations, [])
    found = [each for each in store.violations if "(G7)" not in each]  # nobody leads here
    assert told in "".join(found)
    assert bool(found) == bool(told), found


# --- confirmations --------------------------------------------------------------------------------------------

ONE, OTHER = ReplicaAt(1, "disk", 7), ReplicaAt(2, "disk", 8)
SEAL = ExtentSeal(4000, 2, b"digest")


def sealed(*confirmed: int, seal: ExtentSeal = SEAL, replicas: tuple[ReplicaAt, ...] = (ONE, OTHER)) -> Put:
    record = Extent(11, 2, replicas, 4000, 0, 1, seal, confirmed)
    return Put(ROOT + r.EXTENTS + r.id_text(11), extent_bytes(record))


@pytest.mark.parametrize(
    ("heard", "steps", "told"),
    [
        ([ONE, OTHER], [sealed(), sealed(1), sealed(1, 2)], ""),
        ([ONE, OTHER], [sealed(1, 2)], ""),
        ([ONE], [sealed(1), sealed()], ""),
        ([ONE], [sealed(), sealed(1, 2)], f"by {OTHER}, which has confirmed nothing"),
        ([ONE], [sealed(1), sealed(), sealed(1)], f"by {ONE}, which has confirmed nothing"),  # what it said is void
        ([ONE], [sealed(1, seal=ExtentSeal(3000, 2, b"digest"))], "has confirmed (4000, b'digest')"),
        ([ONE], [sealed(1, seal=ExtentSeal(4000, 2, b"another"))], "has confirmed (4000, b'digest')"),
        ([ONE], [sealed(1, replicas=(ONE._replace(incarnation=9),))], "which has confirmed nothing"),  # made anew
    ],
)
def test_a_replica_counts_as_confirmed_only_if_it_was_heard_to_confirm(
    heard: list[ReplicaAt], steps: list[Put], told: str
) -> None:
    store = WatchedStore(ROOT)
    for replica in heard:
        store.told_whole[11, replica] = (4000, b"digest")
    for put in steps:
        store.txn([], [put], [])
    found = [each for each in store.violations if "(G7)" not in each]
    assert told in "".join(found)
    assert bool(found) == bool(told), found


# --- who changes the region map -------------------------------------------------------------------------------

MAP, REGION = keys.region_map_key(ROOT), keys.region_key(ROOT, 30)
MANAGER, REGIONS_MANAGER = r.election_prefix(ROOT) + b"/1", ROOT + keys.PARTITION_MANAGERS + b"/1"


@pytest.mark.parametrize(
    ("compares", "key", "told"),
    [
        ([create_revision_is(REGIONS_MANAGER, 3)], MAP, ""),
        ([create_revision_is(REGIONS_MANAGER, 3)], keys.partition_server_key(ROOT, 5), ""),
        ([create_revision_is(MANAGER, 2), key_absent(MAP)], MAP, ""),  # a split or a merge
        ([create_revision_is(MANAGER, 2)], MAP, "whatever it is (G7)"),
        ([create_revision_is(MANAGER, 2), key_absent(REGION)], REGION, "leaves the map's version as it was (G7)"),
        ([mod_revision_is(MAP, 0)], MAP, "not written by the partition managers' leader (G7)"),
        ([], REGION, "not written by the partition managers' leader (G7)"),
        ([create_revision_is(REGIONS_MANAGER + b"0", 4)], MAP, "not written by the partition managers' leader (G7)"),
    ],
)
def test_the_region_map_is_changed_by_whoever_leads_the_partition_managers(
    compares: list[Compare], key: bytes, told: str
) -> None:
    store = WatchedStore(ROOT)
    for candidate in (MANAGER, REGIONS_MANAGER, REGIONS_MANAGER + b"0"):
        store.txn([], [Put(candidate, b"")], [])
    assert store.txn(compares, [Put(key, b"")], []).succeeded
    assert told in "".join(store.violations)
    assert bool(store.violations) == bool(told), store.violations
