"""What is lost, what is urgent, and what the bounds allow."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from neve.stream_manager.metadata.records import Extent, ExtentSeal, ReplicaAt
from neve.stream_manager.nodes.core.recovery import Budget, Reason, Share, Trouble, sources_for, worst_loss

KNOWN = dict.fromkeys(range(1, 10))
DIGEST = b"d" * 32


def replica(node_id: int) -> ReplicaAt:
    return ReplicaAt(node_id, f"disk-{node_id}", 100 + node_id)


def extent(*nodes: int, confirmed: tuple[int, ...] | None = None, extent_id: int = 7) -> Extent:
    return Extent(
        extent_id,
        3,
        tuple(map(replica, nodes)),
        1000,
        0,
        1,
        seal=ExtentSeal(10, 2, DIGEST),
        confirmed=nodes if confirmed is None else confirmed,
    )


def trouble(**fields: Any) -> Trouble:
    return Trouble(**{"known": KNOWN, **fields})


def test_nothing_is_lost_where_nothing_is_wrong() -> None:
    assert worst_loss(extent(1, 2, 3), trouble()) is None


def test_each_kind_of_loss_is_seen() -> None:
    cases = {
        Reason.NODE_DEAD: trouble(dead_due_s={2: 50.0}),
        Reason.NODE_UNKNOWN: trouble(known=dict.fromkeys([1, 3])),
        Reason.DISK_GONE: trouble(gone_disks={(2, "disk-2"): None, (2, "other"): None}),
        Reason.BAD: trouble(bad={(7, 2): 102}),
        Reason.DRAINING: trouble(draining={2: None}),
    }
    for reason, wrong in cases.items():
        loss = worst_loss(extent(1, 2, 3), wrong)
        assert loss is not None
        assert (loss.reason, loss.replica) == (reason, replica(2))
        assert loss.left == (3 if reason is Reason.DRAINING else 2)
        assert loss.due_s == (50.0 if reason is Reason.NODE_DEAD else 0.0)


def test_another_disk_another_file_and_another_extent_are_not_lost_with_it() -> None:
    assert worst_loss(extent(1, 2, 3), trouble(gone_disks={(2, "other"): None})) is None
    assert worst_loss(extent(1, 2, 3), trouble(bad={(7, 2): 999})) is None  # it was replaced since
    assert worst_loss(extent(1, 2, 3), trouble(bad={(8, 2): 102})) is None


def test_a_dead_node_is_waited_for_and_a_second_loss_ends_the_wait() -> None:
    one = worst_loss(extent(1, 2, 3), trouble(dead_due_s={2: 50.0}))
    assert one is not None
    assert one.due_s == 50.0
    for second in ({"bad": {(7, 3): 103}}, {"dead_due_s": {2: 50.0, 3: 60.0}}, {"gone_disks": {(3, "disk-3"): None}}):
        loss = worst_loss(extent(1, 2, 3), trouble(**{"dead_due_s": {2: 50.0}, **second}))
        assert loss is not None
        assert loss.due_s == 0.0
        assert loss.left == 1


def test_a_drain_beside_a_death_does_not_end_the_wait_and_is_not_moved_first() -> None:
    loss = worst_loss(extent(1, 2, 3), trouble(dead_due_s={2: 50.0}, draining={3: None}))
    assert loss is not None
    assert (loss.reason, loss.due_s) == (Reason.NODE_DEAD, 50.0)


def test_fewest_confirmed_replicas_come_first_and_drains_last() -> None:
    wrong = trouble(dead_due_s={2: 0.0}, draining={9: None}, bad={(3, 3): 103})
    extents = [
        extent(1, 9, 4, extent_id=1),
        extent(1, 2, 3, extent_id=2),
        extent(1, 2, 3, extent_id=3),
        extent(1, 2, 3, extent_id=4, confirmed=(1, 2)),
    ]
    losses = [loss for e in extents if (loss := worst_loss(e, wrong)) is not None]
    assert [loss.extent_id for loss in sorted(losses, key=lambda loss: loss.rank)] == [3, 4, 2, 1]


def test_sources_are_confirmed_and_in_reach_the_good_ones_first() -> None:
    e = extent(1, 2, 3, 4, confirmed=(1, 2, 3))
    assert sources_for(e, None, trouble()) == [replica(1), replica(2), replica(3)]
    assert sources_for(e, replica(2), trouble(dead_due_s={2: 0.0})) == [replica(1), replica(3)]
    assert sources_for(e, replica(1), trouble(draining={1: None})) == [replica(1), replica(2), replica(3)]
    assert sources_for(e, replica(1), trouble()) == [replica(2), replica(3), replica(1)]  # to be verified
    bad = trouble(bad={(7, 1): 101, (7, 2): 102})
    assert sources_for(e, replica(1), bad) == [replica(3), replica(1), replica(2)]
    assert sources_for(e, replica(1), trouble(dead_due_s=dict.fromkeys((1, 2, 3), 0.0))) == []


def budget(**changes: int) -> Budget:
    return Budget(
        **{
            "tasks_max": 10,
            "tasks_per_node_max": 2,
            "bytes_per_s_max": 10 << 20,
            "copy_bytes_per_s_max": 4 << 20,
            **changes,
        }
    )


def test_copies_share_the_bandwidth_and_more_of_them_wait() -> None:
    bounds = budget()
    rates = []
    while rate := bounds.rate():
        rates.append(rate >> 20)
        bounds.take(Share((), rate))
    assert rates == [4, 4, 2]


def test_the_number_of_tasks_is_bounded() -> None:
    bounds = budget(tasks_max=2, bytes_per_s_max=1 << 40)
    for _ in range(2):
        assert bounds.rate()
        bounds.take(Share((), 1))
    assert bounds.rate() == 0


def test_a_small_bandwidth_still_allows_one_copy() -> None:
    assert budget(copy_bytes_per_s_max=1000).rate() == 1000


def test_a_node_takes_part_in_so_many_copies_and_the_least_busy_is_read_first() -> None:
    bounds = budget()
    bounds.take(Share((1, 2), 1))
    bounds.take(Share((1, 3), 1))
    assert bounds.busy() == {1}
    assert bounds.first_source([replica(1), replica(2), replica(4)]) == replica(4)
    assert bounds.first_source([replica(1), replica(3), replica(2)]) == replica(2)
    assert bounds.first_source([replica(1)]) is None
    assert bounds.first_source([]) is None


@given(st.data())
def test_a_source_is_never_unconfirmed_dead_or_gone(data: st.DataObject) -> None:
    nodes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5, unique=True))
    confirmed = tuple(node_id for node_id in nodes if data.draw(st.booleans()))
    dead = data.draw(st.sets(st.sampled_from(nodes)))
    gone = data.draw(st.sets(st.sampled_from(nodes)))
    bad = data.draw(st.sets(st.sampled_from(nodes)))
    wrong = trouble(
        dead_due_s=dict.fromkeys(dead, 0.0),
        gone_disks={(node_id, f"disk-{node_id}"): None for node_id in gone},
        bad={(7, node_id): 100 + node_id for node_id in bad},
    )
    e = extent(*nodes, confirmed=confirmed)
    found = [source.node_id for source in sources_for(e, None, wrong)]
    assert set(found) == set(confirmed) - dead - gone
    assert found == sorted(found, key=lambda node_id: node_id in bad)
    loss = worst_loss(e, wrong)
    assert (loss is None) == (not (dead | gone | bad))
    if loss is not None:
        assert loss.left == len(set(confirmed) - dead - gone - bad)


def test_what_is_given_back_is_there_for_the_next_one() -> None:
    bounds = budget(tasks_max=2, bytes_per_s_max=4 << 20)
    shares = [Share((1, 2), 1 << 20), Share((1, 3), 3 << 20)]
    for share in shares:
        bounds.take(share)
    assert (bounds.tasks_left, bounds.rate(), bounds.busy()) == (0, 0, frozenset({1}))
    bounds.give_back(shares[1])
    assert (bounds.tasks_left, bounds.rate(), bounds.busy()) == (1, 3 << 20, frozenset())
    bounds.give_back(shares[0])
    assert (bounds.tasks_left, bounds.rate(), bounds.busy()) == (2, 4 << 20, frozenset())


def test_nodes_in_trouble_are_the_dead_those_without_a_disk_and_those_that_are_emptied() -> None:
    found = trouble(dead_due_s={1: 0.0}, gone_disks={(2, "disk-2"): None}, draining={3: None, 1: None})
    assert list(found.nodes()) == [1, 2, 3]
    assert not trouble().nodes()
