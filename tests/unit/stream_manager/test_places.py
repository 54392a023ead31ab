"""New extents as bytes: what a roll joins is what the encoders of any extent give."""

from __future__ import annotations

import random

from neve.meta.txn import KeyValue
from neve.proto.fields import varint
from neve.stream_manager import describe
from neve.stream_manager import record_codec as codec
from neve.stream_manager import records as r
from neve.stream_manager.places import Places
from neve.stream_manager.records import Extent, NodeEntry, ReplicaAt, new_extent
from neve.stream_manager.state import State

ROOT = b"/neve/test/"


def put_node(state: State, node_id: int, wire_address: str) -> None:
    value = codec.encode_node(NodeEntry(node_id=node_id, wire_address=wire_address))
    state.put_key(KeyValue(ROOT + r.NODES + r.id_text(node_id), value, 1, 1, 1, 0))


def some_extent(rng: random.Random) -> Extent:
    replicas = tuple(
        ReplicaAt(node_id, rng.choice(["", "d", "a" * 36]), rng.getrandbits(64))
        for node_id in rng.sample(range(1, 8), rng.randrange(1, 4))  # of some of them nothing is known
    )
    numbers = [rng.getrandbits(rng.randrange(1, 63)) for _ in range(4)]
    return new_extent(numbers[0], 1, replicas, numbers[1], numbers[2], numbers[3])


def test_a_new_extent_is_encoded_as_any_other() -> None:
    rng = random.Random(5)
    state = State(ROOT)
    places = Places(state)
    for step in range(300):
        if step % 20 == 0:  # what was kept of the nodes before is not used
            put_node(state, rng.randrange(1, 6), f"node:{rng.randrange(1, 9999)}")
        extent = some_extent(rng)
        body, info, nodes = places.new_extent(extent, varint(extent.extent_id), varint(extent.stream_id))
        assert body == codec.new_body(extent)
        assert info == describe.fixed_info(state, extent)
        assert nodes is state.nodes_as_of


def test_what_is_new_is_open_and_young() -> None:
    extent = new_extent(7, 1, (ReplicaAt(1, "d", 2),), 64, 5, 9)
    assert extent == Extent(7, 1, (ReplicaAt(1, "d", 2),), 64, 5, 9)
    assert type(extent) is Extent
