"""The taxonomy: codes that never change, facts that cross the wire, and words for people."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.proto import common_pb2 as pb
from neve.proto import errors

# A peer of another version goes by these numbers. A new class adds a line; no line ever changes or goes.
CODES = {
    "InvalidArgument": 1,
    "NotFound": 2,
    "AlreadyExists": 3,
    "TooLarge": 4,
    "Unauthenticated": 5,
    "PermissionDenied": 6,
    "WrongCluster": 7,
    "UnsupportedVersion": 8,
    "QuotaExceeded": 9,
    "ConditionFailed": 10,
    "Unimplemented": 11,
    "ConnectFailed": 20,
    "ConnectionLost": 21,
    "DeadlineExceeded": 22,
    "Overloaded": 23,
    "ShuttingDown": 24,
    "Cancelled": 25,
    "ProtocolViolation": 26,
    "NotLeader": 40,
    "NotOwner": 41,
    "LockedByOther": 42,
    "LockHeld": 43,
    "LeaseLost": 44,
    "WrongServer": 45,
    "ReplicaMissing": 60,
    "ReplicaDeleted": 61,
    "ReplicaDamaged": 62,
    "ReplicaDoubtful": 63,
    "ReplicaReadOnly": 64,
    "WrongReplica": 65,
    "ExtentSealed": 66,
    "ExtentFenced": 67,
    "ExtentFull": 68,
    "EversionMismatch": 69,
    "Gap": 70,
    "Conflict": 71,
    "OutOfRange": 72,
    "DiskFull": 73,
    "DiskFailed": 74,
    "StreamSealed": 80,
    "NotEnoughNodes": 81,
    "SealUnavailable": 82,
    "AppendOutcomeUnknown": 83,
    "VersionConflict": 84,
    "AcknowledgedLost": 85,
    "MetaUnavailable": 100,
    "MaybeApplied": 101,
    "Compacted": 102,
    "Internal": 200,
    "UnknownError": 201,
}

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(errors.INT64_MIN, errors.INT64_MAX),
    "str": st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
    "bytes": st.binary(max_size=50),
    "bool": st.booleans(),
}


@st.composite
def any_error(draw: st.DrawFn) -> errors.NeveError:
    cls = draw(st.sampled_from([*errors.all_errors().values()]))
    return cls(**{field.name: draw(VALUES[str(field.type)]) for field in dataclasses.fields(cls)})


def every_class(base: type[errors.NeveError] = errors.NeveError) -> list[type[errors.NeveError]]:
    """All classes of the module; subclasses that tests define elsewhere do not count."""
    found = [base]
    for cls in base.__subclasses__():
        found += every_class(cls)
    return [cls for cls in found if cls.__module__ == errors.__name__]


def test_codes_are_the_ones_that_peers_know() -> None:
    assert {cls.__name__: code for code, cls in errors.all_errors().items()} == CODES


def test_every_class_without_subclasses_has_a_code_of_its_own() -> None:
    leaves = [cls for cls in every_class() if not cls.__subclasses__()]
    assert sorted(cls.code for cls in leaves) == sorted(CODES.values())
    inner = [cls for cls in every_class() if cls.__subclasses__()]
    assert {cls.code for cls in inner} == {0}, "a class with subclasses is never sent"


def test_a_code_cannot_be_used_twice() -> None:
    with pytest.raises(AssertionError, match="share error code 1"):

        class Impostor(errors.NeveError):
            code = 1


def test_the_tree_in_the_docstring_names_every_class() -> None:
    tree = (errors.__doc__ or "").partition("Invariants:")[0].replace(",", " ").split()
    assert {cls.__name__ for cls in every_class()} <= set(tree)


@given(any_error())
def test_an_error_survives_the_wire(error: errors.NeveError) -> None:
    message = pb.Error.FromString(errors.to_message(error).SerializeToString())
    back = errors.from_message(message)
    assert type(back) is type(error)
    assert back.facts() == error.facts()
    assert str(back) == str(error)


@given(any_error())
def test_an_error_survives_pickling(error: errors.NeveError) -> None:
    """Spark and process pools send exceptions this way."""
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert back.facts() == error.facts()


@given(any_error())
def test_an_error_says_something_to_a_person(error: errors.NeveError) -> None:
    assert str(error)
    assert str(error).endswith(error.detail)


def test_facts_of_unknown_names_are_dropped() -> None:
    message = errors.to_message(errors.Gap(extent_id=1, offset=2, length=3))
    message.facts.add(name="added_later", number=9)
    assert errors.from_message(message).facts() == {"extent_id": 1, "offset": 2, "length": 3, "detail": ""}


@pytest.mark.parametrize("value", [{"text": "7"}, {"flag": True}, {"data": b"7"}, {}])
def test_a_fact_of_the_wrong_type_is_dropped(value: dict[str, Any]) -> None:
    message = pb.Error(code=errors.Gap.code)
    message.facts.add(name="offset", **value)
    message.facts.add(name="length", number=3)
    error = errors.from_message(message)
    assert error.facts() == {"extent_id": 0, "offset": 0, "length": 3, "detail": ""}


def test_an_unknown_code_becomes_unknown_error_with_what_the_peer_said() -> None:
    message = pb.Error(code=60_000)
    message.facts.add(name="depth", number=9)
    error = errors.from_message(message)
    assert isinstance(error, errors.UnknownError)
    assert error.peer_code == 60_000
    assert "depth=9" in error.detail


@pytest.mark.parametrize("foreign", [ValueError("boom"), errors.NeveError(detail="boom"), KeyboardInterrupt("boom")])
def test_what_is_not_of_the_tree_is_sent_as_internal(foreign: BaseException) -> None:
    error = errors.from_message(errors.to_message(foreign))
    assert type(error) is errors.Internal
    assert "boom" in error.detail


def test_a_long_text_is_cut_so_that_an_error_fits_any_frame() -> None:
    error = errors.from_message(errors.to_message(errors.Internal(detail="é" * 1_000_000)))
    assert error.detail == "é" * errors.TEXT_CHARS_MAX


def test_what_a_message_cannot_carry_does_not_keep_the_error_from_being_sent() -> None:
    sent = errors.DiskFailed(extent_id=2**64, disk="caf\udce9")  # a path that is not UTF-8, as os.fsdecode gives it
    error = errors.from_message(errors.to_message(sent))
    assert type(error) is errors.DiskFailed
    assert error.facts() == {"extent_id": 0, "disk": "caf?", "detail": ""}


def test_only_errors_that_cannot_have_been_executed_are_plainly_retriable() -> None:
    """Who repeats a call by these flags alone must not execute it twice."""
    doubtful = {cls.__name__ for cls in errors.all_errors().values() if cls.outcome_unknown}
    assert doubtful == {
        "ConnectionLost",
        "DeadlineExceeded",
        "Cancelled",
        "AppendOutcomeUnknown",
        "MaybeApplied",
        "Internal",
        "UnknownError",
    }
