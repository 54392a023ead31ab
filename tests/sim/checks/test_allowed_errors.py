"""What users may be told: the rules themselves, and stories without any trouble."""

from __future__ import annotations

import pytest

from neve.proto import errors
from tests.sim import stories
from tests.sim.checks.allowed_errors import CALM, MAY_BE_TOLD, role_of, wrong_to_tell
from tests.sim.checks.coverage import all_errors
from tests.sim.checks.ledger import Ledger

CALM_SEEDS = range(1, 13)
KILLED = ("node killed",)


def wrong(user: str, error: errors.NeveError, *troubles: str, ledger: Ledger | None = None) -> str:
    return wrong_to_tell(user, error, troubles=troubles, ledger=ledger or Ledger())


def unknown(cause: Exception) -> errors.AppendOutcomeUnknown:
    error = errors.AppendOutcomeUnknown()
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("world", stories.WORLDS)
@pytest.mark.parametrize("seed", CALM_SEEDS)
def test_without_trouble_nobody_is_told_of_any(seed: int, world: str) -> None:
    outcome = stories.play(seed, short=True, events_max=0, world=world)
    assert not outcome.error, "\n".join([*outcome.story, outcome.error, outcome.where])


def test_a_story_fails_when_somebody_is_told_what_nobody_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    async def crowded(*_: object, **__: object) -> None:
        raise errors.NotEnoughNodes(wanted=3, available=2)

    monkeypatch.setattr("tests.sim.processes.client.SimClient.writer", crowded)
    outcome = stories.play(1, short=True, events_max=0)
    assert "there was no trouble: NotEnoughNodes" in outcome.error


def test_some_errors_take_trouble_and_some_a_certain_one() -> None:
    assert wrong("writer3", errors.NotEnoughNodes()) == "there was no trouble"
    assert not wrong("writer3", errors.NotEnoughNodes(), *KILLED)
    assert wrong("writer3", errors.MetaUnavailable(), *KILLED) == "no trouble explains it"
    assert not wrong("writer3", errors.MetaUnavailable(), *KILLED, "metadata refuses")
    assert not wrong("writer3", errors.LockHeld())


@pytest.mark.parametrize("name", ["Internal", "ProtocolViolation", "Conflict", "Gap", "ReplicaMissing", "Compacted"])
def test_nobody_is_ever_told_of_a_replica_a_frame_or_a_bug(name: str) -> None:
    for user in MAY_BE_TOLD:
        assert wrong(user, getattr(errors, name)(), *KILLED) == "nobody is told that"


def test_a_stream_is_sealed_or_gone_only_if_somebody_asked_for_that() -> None:
    ledger = Ledger()
    ledger.streams = {7: None, 8: None}
    ledger.removed = {7: {3}}
    gone, sealed = errors.NotFound(kind="stream", name="7"), errors.StreamSealed(stream_id=7)
    assert wrong("writer1", gone, ledger=ledger) == "nobody has deleted it"
    assert wrong("writer1", sealed, ledger=ledger) == "nobody has sealed it"
    ledger.sealed[7] = ledger.deleted[7] = None
    assert not wrong("writer1", gone, ledger=ledger)
    assert not wrong("writer1", sealed, ledger=ledger)
    assert not wrong("reader1", errors.NotFound(kind="position", name="3:100"), ledger=ledger)
    assert wrong("reader1", errors.NotFound(kind="position", name="4:0"), ledger=ledger) == "nobody has taken it out"


def test_an_unknown_outcome_has_a_reason_that_its_owner_might_have_been_told() -> None:
    assert not wrong("writer1", unknown(errors.LeaseLost()), "metadata stalls")
    assert wrong("writer1", unknown(errors.LeaseLost()), *KILLED) == "no trouble explains it"
    assert wrong("writer1", unknown(errors.DeadlineExceeded())) == "there was no trouble"
    assert wrong("writer1", unknown(KeyError())) == "nothing says why"
    assert not wrong("writer1", unknown(errors.ShuttingDown()))


def test_what_was_acknowledged_is_lost_only_to_who_did_without_sync_and_when_there_was_no_power() -> None:
    ledger = Ledger()
    session = ledger.begin(7, "writer1")
    lost = errors.AcknowledgedLost(extent_id=3, sealed_length=10, acknowledged=20)
    everywhere = "power cut everywhere"
    assert wrong("writer1", lost, everywhere, ledger=ledger) == "it was synced"
    assert wrong("writer1", unknown(lost), everywhere, ledger=ledger) == "it was synced"
    assert wrong("reader2", lost, everywhere, ledger=ledger) == "it was synced"
    session.weak = True
    assert not wrong("writer1", lost, everywhere, ledger=ledger)
    assert not wrong("writer1", unknown(lost), everywhere, ledger=ledger)
    assert not wrong("reader2", lost, everywhere, ledger=ledger)
    assert wrong("writer1", lost, *KILLED, ledger=ledger) == "no trouble explains it"


def test_keys_are_wrong_only_where_users_choose_wrong_ones() -> None:
    assert not wrong("kv1.0", errors.InvalidArgument(what="operations"))
    assert wrong("kv1.0", errors.InvalidArgument(what="offset")) == "nobody has asked for anything invalid"


def test_of_the_bounds_of_a_server_only_that_of_uploads_lasts_longer_than_an_operation() -> None:
    """Uploads that clients left count until they are idle for too long, and a put in chunks is one more."""
    left = errors.Overloaded(what="uploads")
    assert not wrong("kv1.0", left)
    assert (
        wrong("kv1.0", errors.Overloaded(what="partition server")) == "partition server is not what is full for so long"
    )
    assert wrong("reader-kv3.1", left) == wrong("last", left) == "nobody is told that"


def test_all_kinds_of_users_are_known_and_all_errors_exist() -> None:
    assert role_of("writer12") == "writer"
    assert role_of("kv5.1") == "kv"
    assert role_of("kv operator: MoveRegion") == "kv operator"
    for allowed in MAY_BE_TOLD.values():
        assert allowed.keys() <= {*all_errors()}
    assert any(causes == CALM for causes in MAY_BE_TOLD["writer"].values())
