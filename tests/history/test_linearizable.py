"""The checker of histories: good ones pass, and every kind of bad one is found."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.history.history import Kind, Operation, Outcome
from tests.history.linearizable import NotLinearizable, Undecided, assert_linearizable

K = b"k"
INF = float("inf")


def put(begin: float, end: float, value: bytes, version: int = 0, **how: object) -> Operation:
    outcome = Outcome.MAYBE if end == INF else Outcome.DONE
    return Operation("c", Kind.PUT, K, begin, end, value=value, outcome=outcome, seen_version=version, **how)  # type: ignore[arg-type]


def get(begin: float, end: float, value: bytes | None, version: int = 0) -> Operation:
    return Operation("c", Kind.GET, K, begin, end, outcome=Outcome.DONE, seen_value=value, seen_version=version)


def head(begin: float, end: float, version: int) -> Operation:
    return Operation("c", Kind.HEAD, K, begin, end, outcome=Outcome.DONE, seen_version=version)


def delete(begin: float, end: float, existed: bool = True, **how: object) -> Operation:
    outcome = Outcome.MAYBE if end == INF else Outcome.DONE
    return Operation("c", Kind.DELETE, K, begin, end, outcome=outcome, existed=existed, **how)  # type: ignore[arg-type]


def refused(begin: float, end: float, found: int, **how: object) -> Operation:
    return Operation(
        "c",
        Kind.PUT,
        K,
        begin,
        end,
        value=b"refused",
        outcome=Outcome.REFUSED,
        seen_version=found,
        **how,  # type: ignore[arg-type]
    )


GOOD: dict[str, Sequence[Operation]] = {
    "nothing": [],
    "one after the other": [put(0, 1, b"a", 1), get(2, 3, b"a", 1), delete(4, 5), get(6, 7, None)],
    "a read during a put sees the old": [put(0, 1, b"a", 1), put(2, 9, b"b", 2), get(3, 4, b"a", 1)],
    "a read during a put sees the new": [put(0, 1, b"a", 1), put(2, 9, b"b", 2), get(3, 4, b"b", 2)],
    "puts at the same time, either order": [put(0, 9, b"a", 2), put(0, 9, b"b", 1), get(10, 11, b"a", 2)],
    "a maybe that happened": [put(0, INF, b"a"), get(5, 6, b"a", 3)],
    "a maybe that happened late": [put(0, INF, b"a"), get(1, 2, None), get(5, 6, b"a", 3)],
    "a maybe that never happened": [put(0, 1, b"a", 1), put(2, INF, b"b"), get(5, 6, b"a", 1)],
    "a maybe delete": [put(0, 1, b"a", 1), delete(2, INF), get(3, 4, b"a", 1), get(5, 6, None)],
    "if absent": [put(0, 1, b"a", 1, if_absent=True), refused(2, 3, 1, if_absent=True)],
    "if version": [put(0, 1, b"a", 4), put(2, 3, b"b", 5, if_version=4), refused(4, 5, 5, if_version=4)],
    "refused by a maybe": [put(0, INF, b"a"), refused(2, 3, 7, if_absent=True), get(4, 5, b"a", 7)],
    "refused: nothing there": [refused(0, 1, 0, if_version=3)],
    "put again after a delete": [put(0, 1, b"a", 1), delete(2, 3), put(4, 5, b"b", 3), get(6, 7, b"b", 3)],
    "a head": [head(0, 1, 0), put(2, 3, b"a", 4), head(4, 5, 4), delete(6, 7), head(8, 9, 0)],
    "a head of a maybe": [put(0, INF, b"a"), head(2, 3, 7), get(4, 5, b"a", 7)],
    "deleted twice": [put(0, 1, b"a", 1), delete(2, 3), delete(4, 5, existed=False)],
}

BAD: dict[str, Sequence[Operation]] = {
    "a lost put": [put(0, 1, b"a", 1), get(2, 3, None)],
    "a stale head": [put(0, 1, b"a", 1), put(2, 3, b"b", 2), head(4, 5, 1)],
    "a head of nothing": [put(0, 1, b"a", 1), head(2, 3, 0)],
    "a head of what nobody put": [head(0, 1, 3)],
    "a stale read": [put(0, 1, b"a", 1), put(2, 3, b"b", 2), get(4, 5, b"a", 1)],
    "a value nobody wrote": [get(0, 1, b"x", 1)],
    "a read before the put began": [get(0, 1, b"a", 1), put(2, 3, b"a", 1)],
    "back to the old one": [put(0, 1, b"a", 1), put(2, 20, b"b", 2), get(3, 4, b"b", 2), get(5, 6, b"a", 1)],
    "a maybe that came and went": [
        put(0, 1, b"a", 1),
        put(2, INF, b"b"),
        get(3, 4, b"b", 2),
        get(5, 6, b"a", 1),
    ],
    "a maybe seen before it began": [get(0, 1, b"a", 1), put(2, INF, b"a")],
    "two winners of if absent": [put(0, 9, b"a", 1, if_absent=True), put(0, 9, b"b", 2, if_absent=True)],
    "two winners of one version": [
        put(0, 1, b"a", 1),
        put(2, 9, b"b", 2, if_version=1),
        put(2, 9, b"c", 3, if_version=1),
    ],
    "refused although absent": [refused(0, 1, 3, if_absent=True)],
    "refused although it fits": [put(0, 1, b"a", 4), refused(2, 3, 4, if_version=4)],
    "a version that goes back": [put(0, 1, b"a", 5), put(2, 3, b"b", 5)],
    "a version that goes back over a delete": [put(0, 1, b"a", 5), delete(2, 3), put(4, 5, b"b", 4)],
    "the right value with another version": [put(0, 1, b"a", 1), get(2, 3, b"a", 2)],
    "executed twice": [  # a's retry undoes b
        put(0, 1, b"a", 1),
        put(2, 3, b"b", 2),
        get(4, 5, b"b", 2),
        get(6, 7, b"a", 3),
    ],
    "deleted what was not there": [delete(0, 1, existed=True)],
    "did not delete what was there": [put(0, 1, b"a", 1), delete(2, 3, existed=False)],
    "back from the dead": [put(0, 1, b"a", 1), delete(2, 3), get(4, 5, b"a", 1)],
}


@pytest.mark.parametrize("name", GOOD)
def test_good_histories_pass(name: str) -> None:
    assert_linearizable(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_bad_histories_are_found(name: str) -> None:
    with pytest.raises(NotLinearizable, match="k"):
        assert_linearizable(BAD[name])


def test_keys_are_judged_alone_and_what_was_not_executed_does_not_count() -> None:
    other = get(2, 3, None)
    other.key = b"other"
    nothing = put(4, 5, b"z", 9)
    nothing.outcome = Outcome.NOTHING
    assert_linearizable([put(0, 1, b"a", 1), other, nothing, get(6, 7, b"a", 1)])


def test_the_report_ends_where_it_went_wrong() -> None:
    history = [put(0, 1, b"a", 1), get(2, 3, b"a", 1), get(4, 5, None), *(get(n, n + 0.5, None) for n in range(6, 50))]
    with pytest.raises(NotLinearizable) as wrong:
        assert_linearizable(history)
    assert len(str(wrong.value).splitlines()) == 4


def test_a_search_that_is_too_large_is_not_a_pass() -> None:
    history = [put(0, INF, b"%d" % n) for n in range(20)] + [get(1, 2, b"nobody", 1)]
    with pytest.raises(Undecided):
        assert_linearizable(history, steps_max=1000)


def random_history(rng: random.Random, *, clients: int, count: int) -> list[Operation]:
    """Of an object that is atomic: each operation takes effect at a moment between its begin and its end."""
    moments = []
    for client in range(clients):
        at = rng.random()
        for _ in range(count):
            begin, effect, end = sorted(at + rng.random() * 3 for _ in range(3))
            moments.append((effect, begin, end, client))
            at = end + rng.random()
    history = []
    value: bytes | None = None
    version = counter = 0
    for number, (_, begin, end, client) in enumerate(sorted(moments)):
        kind = rng.choice(["get", "get", "put", "put", "delete", "absent", "version"])
        if kind == "get":
            operation = get(begin, end, value, version)
        elif kind == "delete":
            operation = delete(begin, end, existed=value is not None)
            value, version = None, 0
            counter += 1
        else:
            expected = rng.choice([version or 1, counter + 5]) if kind == "version" else None
            met = {"put": True, "absent": value is None, "version": value is not None and expected == version}[kind]
            conditions = {"if_absent": kind == "absent", "if_version": expected}
            if met:
                counter += 1
                value, version = b"%d" % number, counter
                operation = put(begin, end, value, version, **conditions)
            else:
                operation = refused(begin, end, version, **conditions)
        if operation.kind is not Kind.GET and operation.outcome is Outcome.DONE and rng.random() < 0.15:
            operation.outcome, operation.end_s, operation.seen_version = Outcome.MAYBE, INF, 0
        operation.client = f"c{client}"
        history.append(operation)
    return history


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_histories_of_an_atomic_object_pass_and_with_one_read_changed_they_do_not(seed: int) -> None:
    rng = random.Random(seed)
    history = random_history(rng, clients=rng.randrange(1, 6), count=12)
    assert_linearizable(history)
    reads = [operation for operation in history if operation.kind is Kind.GET]
    if reads:
        changed = rng.choice(reads)
        changed.seen_value, changed.seen_version = b"made up", 1
        with pytest.raises(NotLinearizable):
            assert_linearizable(history)


def test_long_histories_of_many_clients_are_judged_quickly_enough() -> None:
    for seed in range(3):
        assert_linearizable(random_history(random.Random(seed), clients=8, count=50))
