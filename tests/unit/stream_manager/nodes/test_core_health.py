"""Heartbeats in, alive, suspect or dead out: nothing waits, the clock is a number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.stream_manager.nodes.core.health import Health, HealthConfig, NodeHealth

CONFIG = HealthConfig(heartbeat_s=1, suspect_after_s=5, dead_after_s=30, stabilise_s=10, leader_grace_s=15)
TERM_S = 1000.0
SETTLED_S = TERM_S + 100  # the grace of the new leader is over


def node(*beats_s: float) -> NodeHealth:
    health = NodeHealth(CONFIG, since_s=TERM_S)
    for at_s in beats_s:
        health.beat(at_s)
    return health


def settled() -> NodeHealth:
    """Alive for long; the last heartbeat came at SETTLED_S."""
    health = node()
    steady(health, TERM_S, SETTLED_S)
    return health


def steady(health: NodeHealth, begin_s: float, end_s: float) -> None:
    at_s = begin_s
    while at_s <= end_s:
        health.beat(at_s)
        at_s += CONFIG.heartbeat_s


def test_a_node_that_beats_is_alive_and_silence_makes_it_suspect_then_dead() -> None:
    health = settled()
    assert health.judge(SETTLED_S + 5) is Health.ALIVE
    assert health.judge(SETTLED_S + 5.1) is Health.SUSPECT
    assert health.judge(SETTLED_S + 30) is Health.SUSPECT
    assert health.judge(SETTLED_S + 30.1) is Health.DEAD
    assert health.dead_since_s() == SETTLED_S + 30
    assert health.age_s(SETTLED_S + 8) == 8


def test_nobody_is_dead_because_the_manager_is_new() -> None:
    health = node()
    assert not health.heard
    assert health.judge(TERM_S + 15 + 30) is Health.SUSPECT
    assert health.judge(TERM_S + 15 + 30.1) is Health.DEAD


def test_the_first_heartbeat_of_a_term_makes_a_node_alive_at_once() -> None:
    health = node(TERM_S + 20)
    assert health.heard
    assert health.judge(TERM_S + 20) is Health.ALIVE


def test_a_node_that_beat_early_in_the_grace_is_judged_from_its_end() -> None:
    health = node(TERM_S + 1)
    assert health.judge(TERM_S + 15 + 5) is Health.ALIVE
    assert health.judge(TERM_S + 15 + 6) is Health.SUSPECT


def test_a_node_that_comes_back_from_the_dead_must_be_steady_before_it_is_alive() -> None:
    health = settled()
    back_s = SETTLED_S + 60
    assert health.judge(back_s) is Health.DEAD
    health.beat(back_s)
    assert health.judge(back_s) is Health.SUSPECT
    steady(health, back_s, back_s + 9)
    assert health.judge(back_s + 9) is Health.SUSPECT
    health.beat(back_s + 10)
    assert health.judge(back_s + 10) is Health.ALIVE


def test_a_flapping_node_never_becomes_alive_nor_is_it_dead() -> None:
    health = settled()
    at_s = SETTLED_S
    for _ in range(20):
        at_s += 8  # a gap that makes it suspect
        steady(health, at_s, at_s + 7)  # and less than the stabilising delay of peace
        at_s += 7
        assert health.judge(at_s) is Health.SUSPECT


def test_a_dead_node_not_heard_of_in_this_term_also_has_to_be_steady() -> None:
    health = node()
    late_s = TERM_S + 100
    assert health.judge(late_s) is Health.DEAD
    health.beat(late_s)
    assert health.judge(late_s) is Health.SUSPECT


def test_a_node_that_an_earlier_leader_declared_dead_stays_dead_until_it_beats() -> None:
    health = NodeHealth(CONFIG, since_s=TERM_S, was_dead=True)
    assert health.judge(TERM_S) is Health.DEAD
    steady(health, TERM_S + 1, TERM_S + 10)
    assert health.judge(TERM_S + 10) is Health.SUSPECT
    steady(health, TERM_S + 11, TERM_S + 12)
    assert health.judge(TERM_S + 12) is Health.ALIVE


def test_t43_a_death_keeps_its_time_whatever_beats_come_until_the_node_is_stored_as_alive() -> None:
    health = settled()
    died_s = SETTLED_S + 30
    for late_s in (60, 100, 140):  # now and then a heartbeat
        assert health.judge(SETTLED_S + late_s) is Health.DEAD
        assert health.dead_since_s() == died_s
        assert health.give_up_s(SETTLED_S + late_s, delay_s=300) == died_s + 300
        health.beat(SETTLED_S + late_s)
        assert health.dead_since_s() == died_s
        back_s = SETTLED_S + 60  # for the first time: it may be steady soon
        assert health.give_up_s(SETTLED_S + late_s, delay_s=1) == back_s + 10 + 3
        assert health.give_up_s(SETTLED_S + late_s, delay_s=300) == died_s + 300
    steady(health, SETTLED_S + 141, SETTLED_S + 160)
    assert health.judge(SETTLED_S + 160) is Health.ALIVE
    assert health.dead_since_s() == died_s
    health.stored_alive()
    assert health.dead_since_s() == SETTLED_S + 160 + 30


def test_t43_who_is_silent_again_after_it_came_back_is_given_up_when_its_death_says() -> None:
    """It had a chance to prove steady, and did not take it."""
    slow = HealthConfig(heartbeat_s=2, suspect_after_s=5, dead_after_s=30, stabilise_s=10, leader_grace_s=15)
    health = NodeHealth(slow, since_s=TERM_S)
    for late_s in range(0, 60, 2):
        health.beat(TERM_S + late_s)
    died_s = TERM_S + 58 + 30
    assert health.judge(died_s + 1) is Health.DEAD
    health.beat(died_s + 1)
    assert health.give_up_s(died_s + 2, delay_s=1) == died_s + 1 + 10 + 3 * 2
    assert health.give_up_s(died_s + 32, delay_s=1) == died_s + 1


def test_a_heartbeat_is_as_old_as_it_is() -> None:
    health = settled()
    assert health.age_s(SETTLED_S + 0.25) == 0.25
    assert health.age_s(SETTLED_S - 1) == 0
    assert node().age_s(TERM_S + 0.5) == 0.5


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_s": 0},
        {"heartbeat_s": 5},
        {"suspect_after_s": 30},
        {"stabilise_s": -1},
        {"leader_grace_s": -1},
    ],
)
def test_times_that_contradict_each_other_are_refused(wrong: dict[str, float]) -> None:
    times = {"heartbeat_s": 0.5, "suspect_after_s": 5, "dead_after_s": 30, "stabilise_s": 0, "leader_grace_s": 0}
    HealthConfig(**times)
    with pytest.raises(ValueError, match="must"):
        HealthConfig(**(times | wrong))


def test_t43_who_was_dead_before_the_term_died_at_the_graces_end_however_often_it_beats() -> None:
    health = NodeHealth(CONFIG, since_s=TERM_S, was_dead=True)
    assert health.dead_since_s() == TERM_S + 15
    for late_s in (20, 60, 100):
        health.beat(TERM_S + late_s)
        assert health.dead_since_s() == TERM_S + 15


def test_maintenance_keeps_a_silent_node_from_being_dead_until_its_time() -> None:
    health = settled()
    until_s = SETTLED_S + 600
    assert health.judge(SETTLED_S + 599, maintenance_until_s=until_s) is Health.SUSPECT
    assert health.judge(SETTLED_S + 600, maintenance_until_s=until_s) is Health.DEAD


def test_a_node_back_from_maintenance_in_time_is_alive_after_the_stabilising_delay() -> None:
    health = settled()
    until_s = SETTLED_S + 600
    health.judge(SETTLED_S + 100, maintenance_until_s=until_s)
    steady(health, SETTLED_S + 100, SETTLED_S + 111)
    assert health.judge(SETTLED_S + 111, maintenance_until_s=until_s) is Health.ALIVE


@pytest.mark.parametrize(
    "wrong", [{"suspect_after_s": 0.5}, {"dead_after_s": 4}, {"stabilise_s": -1}, {"leader_grace_s": -1}]
)
def test_delays_that_contradict_each_other_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        HealthConfig(**wrong)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 60)), max_size=40))
def test_dead_only_after_silence_and_alive_only_after_heartbeats(steps: list[tuple[bool, float]]) -> None:
    """Whatever the order of beats and looks: dead exactly when the silence is longer than dead_after_s."""
    health, now_s, last_s = settled(), SETTLED_S, SETTLED_S
    for beats, wait_s in steps:
        now_s += wait_s
        if beats:
            health.beat(now_s)
            last_s = now_s
        state = health.judge(now_s)
        assert (state is Health.DEAD) == (now_s - last_s > CONFIG.dead_after_s)
        if state is Health.ALIVE:
            assert now_s - last_s <= CONFIG.suspect_after_s
