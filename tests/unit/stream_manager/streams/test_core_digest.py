"""Which digest counts: what most replicas say, and after a conflict only if nobody is left who could say otherwise."""

from __future__ import annotations

import pytest

from neve.stream_manager.metadata.records import Extent, ExtentSeal
from neve.stream_manager.streams.core.digest import choose_digest, compares_first

A, B = b"a" * 32, b"b" * 32


@pytest.mark.parametrize("conflict", [False, True])
def test_what_most_say_counts_whatever_came_first(conflict: bool) -> None:
    assert choose_digest({1: A, 2: B, 3: B}, (1, 2, 3), without_digest=(), conflict=conflict) == B
    assert choose_digest({3: B, 1: A, 2: A}, (1, 2, 3), without_digest=(), conflict=conflict) == A


def test_of_as_many_on_both_sides_the_first_to_come_counts() -> None:
    assert choose_digest({2: B, 1: A}, (1, 2, 3), without_digest=(), conflict=False) == B
    assert choose_digest({1: A, 2: B}, (1, 2), without_digest=(), conflict=True) == A  # all have told


def test_one_answer_is_enough_unless_there_was_a_conflict() -> None:
    assert choose_digest({2: A}, (1, 2, 3), without_digest=(), conflict=False) == A
    assert choose_digest({2: A}, (1, 2, 3), without_digest=(), conflict=True) is None


def test_after_a_conflict_half_of_the_replicas_are_not_enough_and_more_than_half_are() -> None:
    assert choose_digest({1: A, 2: A}, (1, 2, 3, 4), without_digest=(), conflict=True) is None
    assert choose_digest({1: A, 2: A}, (1, 2, 3), without_digest=(), conflict=True) == A


def test_after_a_conflict_those_who_have_nothing_to_tell_are_not_waited_for() -> None:
    assert choose_digest({2: A}, (1, 2, 3), without_digest={1, 3}, conflict=True) == A
    assert choose_digest({2: A}, (1, 2, 3), without_digest={1}, conflict=True) is None


def test_answers_are_compared_first_after_a_conflict_until_a_digest_is_recorded() -> None:
    extent = Extent(7, 2, (), 1000, 0, 1, seal=ExtentSeal(length=10, eversion=2, digest=b""), conflict=True)
    assert compares_first(extent)
    assert not compares_first(extent._replace(conflict=False))
    assert not compares_first(extent._replace(seal=None))
    assert not compares_first(extent._replace(seal=ExtentSeal(length=10, eversion=2, digest=A)))
