"""What the simulation's ledger holds against an acknowledgement of an owner who was replaced (G5)."""

from __future__ import annotations

import asyncio

import pytest

from neve.client.types import Position
from tests.sim.ledger import Ledger

LINKED = {1: 5, 2: 9, 3: 30}  # extent → revision


@pytest.mark.parametrize(
    ("acknowledged", "is_wrong"),
    [
        (Position(1, 4000), False),  # an extent before the one in which the new owner goes on
        (Position(2, 90), False),  # found by the new owner
        (Position(2, 100), True),  # where the new owner's first record goes
        (Position(3, 0), True),  # an extent of the new owner's time
    ],
)
@pytest.mark.parametrize("takeover", [False, True])
def test_an_older_owner_is_told_of_nothing_that_the_newer_one_did_not_find(
    acknowledged: Position, is_wrong: bool, takeover: bool
) -> None:
    ledger = Ledger()
    old, new, other = ledger.begin(7, "old"), ledger.begin(7, "new"), ledger.begin(8, "other")
    ledger.opened(old, 10, found=Position(1, 0), revision=10)
    ledger.opened(other, 25, found=Position(2, 0), revision=25)  # of another stream: no matter
    attempt = ledger.attempt(old)
    assert ledger.outruns(attempt, acknowledged, LINKED) is None
    ledger.opened(new, 20, takeover=takeover, found=Position(2, 100), revision=21)
    assert (ledger.outruns(attempt, acknowledged, LINKED) is new) == is_wrong
    assert ledger.outruns(ledger.attempt(new), Position(2, 100), LINKED) is None


@pytest.mark.parametrize(("taken_alive", "is_barred"), [(False, True), (True, False)])
def test_who_waits_when_another_opens_the_stream_is_barred_unless_it_was_taken_from_him(
    taken_alive: bool, is_barred: bool
) -> None:
    """Short story 6266: one who was stopped is taken over from, and a third one opens before he hears of it."""
    ledger = Ledger()
    old, rival, third = (ledger.begin(7, name) for name in ("old", "rival", "third"))
    ledger.opened(old, 10, found=Position(1, 0), revision=10)
    attempt = ledger.attempt(old)
    loop = asyncio.new_event_loop()
    ledger.made(old, attempt, loop.create_future())
    loop.close()
    ledger.opened(rival, 20, takeover=taken_alive, found=Position(1, 100), revision=21)
    ledger.opened(third, 30, found=Position(1, 200), revision=31)
    assert attempt.barred == is_barred
