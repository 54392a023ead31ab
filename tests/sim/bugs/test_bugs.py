"""The simulation has teeth: deliberate bugs are found. Those that take a few seconds run in every build; all of them by
`python -m tests.sim --bugs`, which is a part of `make long`."""

from __future__ import annotations

import dataclasses

import pytest

from neve.client.streams.core.writer import WriterCore
from tests.sim.bugs.bugs import BUGS
from tests.sim.bugs.hunt import hunt, seeds_for
from tests.sim.stories import play

QUICK = (
    "two answers of three acknowledge",
    "a deposed manager's transaction",
    "truncation takes one extent more",
    "who took part counts as confirmed",
    "a seal is confirmed before it is durable",
    "a late append cuts",
    "a sealed replica keeps its descriptor",
    "a lease's renewal outlives it",
    "a pool forgets its channels",
    "a replica that was looked at stays pinned",
    "a deposed partition manager's transaction",
    "a put is answered before it is in the log",
    "an aborted upload becomes an object",
    "an append is answered before it is durable",
    "a reply goes to another call",
    "a lost connection forgets its calls",
    "an encoded reply has gone stale",
)


@pytest.mark.parametrize("name", QUICK)
def test_t54_a_bug_is_found_by_one_of_a_few_stories(name: str) -> None:
    assert hunt(BUGS[name], seeds_max=20).error


def test_a_failure_that_is_not_what_a_bug_shows_in_does_not_count() -> None:
    bug = BUGS["two answers of three acknowledge"]
    catch = hunt(dataclasses.replace(bug, shows="something else"), seeds_max=1)
    assert not catch.error
    assert "(G1)" in catch.by_others[0]


def test_a_bug_is_gone_when_its_time_is_over() -> None:
    before = WriterCore.on_answer
    with BUGS["two answers of three acknowledge"].planted():
        assert WriterCore.on_answer is not before
    assert WriterCore.on_answer is before


def test_every_bug_can_be_planted_and_has_stories_that_can_come_to_it() -> None:
    for name, bug in BUGS.items():
        assert bug.what, name
        assert bug.origin, name
        with bug.planted():
            pass
        assert next(seeds_for(bug)) < 500, name


def test_a_story_that_fails_is_the_same_story_again() -> None:
    bug = BUGS["two answers of three acknowledge"]
    seed = hunt(bug, seeds_max=20).seed
    with bug.planted():
        one, other = (play(seed, short=True) for _ in range(2))
    assert one.error
    assert (one.error, one.trace_hash) == (other.error, other.trace_hash)
    assert len(one.trace_hash) == 32
