"""What HTTP says and what the store understands, without a socket."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.client.objects.types import ObjectInfo
from neve.gateway.core_http import (
    Conditions,
    Tags,
    Unsatisfiable,
    byte_range,
    entity_tag,
    error_body,
    key_from_path,
    key_of_token,
    key_to_text,
    query_fields,
    seconds,
    status_of,
    token_of_key,
    whole_number,
)
from neve.proto import errors

INFO = ObjectInfo(b"k", 12, 100, 0, 0, 0xAB)
TAG = '"12-000000ab"'


@given(st.binary(min_size=1, max_size=40))
def test_every_key_survives_the_way_into_a_path_and_back(key: bytes) -> None:
    text = key_to_text(key)
    assert text.isascii()
    assert key_from_path(b"/v1/objects/" + text.encode()) == key
    assert not {".", ".."} & set(text.split("/"))
    assert key_of_token(token_of_key(key).encode()) == key


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_every_field_of_a_query_comes_back_as_bytes(one: bytes, other: bytes) -> None:
    fields = query_fields(f"prefix={quote(one, safe='')}&end={quote(other, safe='')}".encode())
    assert fields == {"prefix": one, "end": other}


def test_plus_is_a_blank_in_a_query_and_a_field_given_twice_is_refused() -> None:
    assert query_fields(b"a=x+y%2B&&b") == {"a": b"x y+", "b": b""}
    with pytest.raises(errors.InvalidArgument, match="twice"):
        query_fields(b"a=1&a=2")


@pytest.mark.parametrize("text", [b"0", b"-1", b"", b"1.5", b"11", b"abc", b"1 ", b"9" * 30])
def test_what_is_no_limit_is_refused(text: bytes) -> None:
    with pytest.raises(errors.InvalidArgument, match="limit"):
        whole_number({"limit": text}, "limit", default=5, maximum=10)
    assert whole_number({"limit": b"10"}, "limit", default=5, maximum=10) == 10
    assert whole_number({}, "limit", default=5, maximum=10) == 5


@pytest.mark.parametrize("text", [b"0", b"-1", b"", b"nan", b"inf", b"1e99", b"x", b"0e5"])
def test_what_is_no_number_of_seconds_is_refused(text: bytes) -> None:
    with pytest.raises(errors.InvalidArgument, match="ttl_s"):
        seconds({"ttl_s": text}, "ttl_s")
    assert seconds({"ttl_s": b"1.5"}, "ttl_s") == 1.5


def test_bad_continuations_are_refused() -> None:
    for token in (b"x", b"0", b"0G", b"AB"):
        with pytest.raises(errors.InvalidArgument):
            key_of_token(token)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("bytes=0-9", (0, 10)),
        ("bytes=90-", (90, 10)),
        ("bytes=90-1000", (90, 10)),
        ("bytes=-30", (70, 30)),
        ("bytes=-1000", (0, 100)),
        ("bytes=99-99", (99, 1)),
        # what is not one range is ignored, as the RFC has it
        ("bytes=5-3", None),
        ("bytes=-", None),
        ("bytes=0-1,5-6", None),
        ("lines=0-1", None),
        ("nonsense", None),
    ],
)
def test_ranges(header: str | None, expected: tuple[int, int] | None) -> None:
    assert byte_range(header, 100) == expected


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=100-200", "bytes=-0"])
def test_ranges_without_a_byte_are_unsatisfiable(header: str) -> None:
    with pytest.raises(Unsatisfiable):
        byte_range(header, 100)
    with pytest.raises(Unsatisfiable):
        byte_range("bytes=0-0", 0)


@given(st.integers(0, 50), st.text("bytes=-0123456789, ", max_size=14))
def test_a_range_is_always_inside_of_the_object(size_bytes: int, header: str) -> None:
    try:
        found = byte_range(header, size_bytes)
    except Unsatisfiable:
        return
    if found is not None:
        offset, length = found
        assert 0 <= offset < offset + length <= size_bytes


def test_entity_tags_and_conditions() -> None:
    assert entity_tag(INFO) == TAG
    none = Conditions.parse(None, None)
    assert not none
    assert none.met_by(None)
    assert none.met_by(INFO)
    assert Conditions.parse(TAG, None).met_by(INFO)
    assert Conditions.parse(f'"x" , {TAG}', None).met_by(INFO)
    assert Conditions.parse("*", None).met_by(INFO)
    assert not Conditions.parse("*", None).met_by(None)
    assert not Conditions.parse('"12-000000ac"', None).met_by(INFO)
    assert not Conditions.parse(f"W/{TAG}", None).met_by(INFO)  # If-Match compares strongly
    assert not Conditions.parse(None, f"W/{TAG}").met_by(INFO)  # If-None-Match weakly
    assert not Conditions.parse(None, "*").met_by(INFO)
    assert Conditions.parse(None, "*").met_by(None)
    assert Conditions.parse(None, "*").only_if_absent
    assert not Conditions.parse(TAG, "*").only_if_absent
    assert Conditions.parse(None, '"other"').met_by(INFO)


@pytest.mark.parametrize("header", ["", "x", '"open', "*, *", '"a" "b"', "12-000000ab"])
def test_a_malformed_condition_is_refused_and_never_lost(header: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="If-Match"):
        Tags.parse(header, "If-Match")


def test_every_error_of_the_taxonomy_has_a_status() -> None:
    for kind in errors.all_errors().values():
        error = kind()
        assert 400 <= status_of(error) < 600
        assert error_body(error)["error"] == kind.__name__
        if error.retriable and not isinstance(error, errors.DeadlineExceeded):
            assert status_of(error) == 503
    assert status_of(errors.NotFound()) == 404
    assert status_of(errors.ConditionFailed()) == 412
    assert status_of(errors.TooLarge()) == 413
    assert status_of(errors.DeadlineExceeded()) == 504
    assert status_of(errors.WrongServer()) == 503
