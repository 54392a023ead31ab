"""What the simulation's ledger holds against an acknowledgement of an owner who was replaced (G5)."""

from __future__ import annotations

import asyncio
import logging

import pytest

from neve.client.streams.types import Position
from tests.sim.checks.ledger import Attempt, Ledger, Session
from tests.sim.cluster import SimCluster, simulated
from tests.sim.processes.client import OPTIONS

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
    if not takeover:
        ledger.holding_over(10)
    ledger.opened(new, 20, found=Position(2, 100), revision=21)
    assert (ledger.outruns(attempt, acknowledged, LINKED) is new) == is_wrong
    assert ledger.outruns(ledger.attempt(new), Position(2, 100), LINKED) is None


def test_who_waits_when_its_holding_of_the_lock_is_over_is_barred_whoever_has_opened_the_stream_before_or_does_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Short story 6266: one who was stopped is taken over from, and a third one opens before he hears of it."""
    caplog.set_level(logging.INFO, "neve")
    ledger = Ledger()
    old, rival, third = (ledger.begin(7, name) for name in ("old", "rival", "third"))
    loop = asyncio.new_event_loop()

    def append(session: Session) -> Attempt:
        attempt = ledger.attempt(session)
        ledger.made(session, attempt, loop.create_future())
        return attempt

    ledger.opened(old, 10, found=Position(1, 0), revision=10)
    early, of_old = append(old), append(old)
    assert early.future is not None
    early.future.set_result(Position(1, 0))
    ledger.opened(rival, 20, found=Position(1, 100), revision=21)
    of_rival = append(rival)
    both = (of_old, of_rival)
    assert [each.barred for each in both] == [False, False]  # its lease lives: the rival has taken the stream over
    ledger.holding_over(20)
    ledger.opened(third, 30, found=Position(1, 200), revision=31)
    assert [each.barred for each in both] == [False, True]  # still: a third one's opening is no news for it
    ledger.holding_over(10)
    assert [each.barred for each in both] == [True, True]
    assert append(old).barred
    assert not early.barred
    assert not append(third).barred
    loop.close()
    events = [line.partition(" ")[0] for line in caplog.messages]
    assert events == ["excused_at_opening", "excused_at_opening", "barred_at_opening", "barred_after_takeover"]


@simulated(nodes=3)
async def test_a_holding_is_over_with_its_key_or_its_lease_and_not_by_a_take_over(cluster: SimCluster) -> None:
    stream = await cluster.create_stream(replicas=3)
    old, rival, third = [await cluster.client(name) for name in ("old", "rival", "third")]
    first = await old.writer(stream.id)
    old.pause()
    second = await rival.writer(stream.id, takeover=True)
    sessions = (first.session, second.session)
    assert [each.over for each in sessions] == [False, False]
    await second.close()
    assert [each.over for each in sessions] == [False, True]
    await third.writer(stream.id)
    await cluster.wait(OPTIONS.lease_ttl_s + 1.0)
    assert [each.over for each in sessions] == [True, True]
    assert {each.token for each in sessions} <= cluster.etcd.over
    old.resume()
    await cluster.settle()
