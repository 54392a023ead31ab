"""Attributes: round trips, and that nothing broken is ever believed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.extent_node.disk import attributes
from neve.extent_node.disk.attributes import Attributes, BadAttribute, Doubt, Meta, Seal
from neve.proto.crc import crc32c

U64 = st.integers(0, 2**64 - 1)
METAS = st.builds(
    Meta,
    extent_id=U64,
    eversion=U64,
    incarnation=U64,
    stream_id=U64,
    created_ms=U64,
    extent_bytes_max=U64,
    node_id=U64,
    disk_uuid=st.uuids().map(str),
)
SEALS = st.builds(Seal, length=U64, eversion=U64, digest=st.binary(min_size=32, max_size=32))
ALL = st.builds(
    Attributes,
    meta=METAS,
    token=U64,
    fenced=st.booleans(),
    seal=st.none() | SEALS,
    unsynced=st.booleans(),
    doubt=st.none() | st.sampled_from(Doubt),
)

META = Meta(
    extent_id=1,
    eversion=2,
    incarnation=3,
    stream_id=4,
    created_ms=5,
    extent_bytes_max=6,
    node_id=7,
    disk_uuid=str(uuid.UUID(int=8)),
)

# name, a value, its decoder
VALUES: list[tuple[str, bytes, Callable[[bytes], Any]]] = [
    (attributes.META, attributes.encode_meta(META), attributes.decode_meta),
    (attributes.TOKEN, attributes.encode_token(9), attributes.decode_token),
    (
        attributes.FENCED,
        attributes.encode_flag(attributes.FENCED),
        lambda v: attributes.decode_flag("user.neve.fenced", v),
    ),
    (attributes.SEAL, attributes.encode_seal(Seal(10, 11, bytes(32))), attributes.decode_seal),
    (
        attributes.UNSYNCED,
        attributes.encode_flag(attributes.UNSYNCED),
        lambda v: attributes.decode_flag("user.neve.unsynced", v),
    ),
    (attributes.DOUBTFUL, attributes.encode_doubtful(Doubt.DAMAGE), attributes.decode_doubtful),
]
NAMES = [name for name, _, _ in VALUES]


@given(state=ALL)
def test_all_attributes_come_back(state: Attributes) -> None:
    values = attributes.encode_all(state)
    assert attributes.decode_all(values) == state
    assert attributes.decode_all(values | {"user.other": b"x", "security.selinux": b"y"}) == state
    assert next(iter(values)) == attributes.META


def test_a_new_file_has_meta_alone() -> None:
    assert attributes.encode_all(Attributes(META)) == {attributes.META: attributes.encode_meta(META)}
    assert attributes.decode_all({attributes.META: attributes.encode_meta(META)}) == Attributes(
        META, token=0, fenced=False, seal=None, unsynced=False, doubt=None
    )


def test_every_attribute_of_the_format_is_tested_here() -> None:
    assert tuple(NAMES) == attributes.ALL


@pytest.mark.parametrize(("name", "value", "decode"), VALUES, ids=NAMES)
def test_t30_every_flipped_bit_is_refused_by_name(name: str, value: bytes, decode: Callable[[bytes], Any]) -> None:
    decode(value)
    for at in range(len(value)):
        for bit in range(8):
            broken = bytearray(value)
            broken[at] ^= 1 << bit
            with pytest.raises(BadAttribute) as caught:
                decode(bytes(broken))
            assert caught.value.attribute == name
            assert name in str(caught.value)


@pytest.mark.parametrize(("name", "value", "decode"), VALUES, ids=NAMES)
def test_any_other_length_is_refused(name: str, value: bytes, decode: Callable[[bytes], Any]) -> None:
    for other in [value[:size] for size in range(len(value))] + [value + b"\0"]:
        with pytest.raises(BadAttribute):
            decode(other)


def framed(name: str, version: int, body: bytes) -> bytes:
    value = bytes([version]) + body
    return value + crc32c(name.encode() + value).to_bytes(4, "little")


@pytest.mark.parametrize(("name", "value", "decode"), VALUES, ids=NAMES)
def test_a_newer_version_and_a_wrong_size_with_a_right_checksum_are_refused(
    name: str, value: bytes, decode: Callable[[bytes], Any]
) -> None:
    body = value[1:-4]
    assert framed(name, 1, body) == value
    with pytest.raises(BadAttribute, match="version 2"):
        decode(framed(name, 2, body))
    with pytest.raises(BadAttribute, match="bytes"):
        decode(framed(name, 1, body + b"\0"))


def test_a_value_does_not_pass_under_another_name() -> None:
    with pytest.raises(BadAttribute):
        attributes.decode_flag(attributes.FENCED, attributes.encode_flag(attributes.UNSYNCED))


def test_an_unknown_reason_to_doubt_is_refused() -> None:
    with pytest.raises(BadAttribute, match="reason 77"):
        attributes.decode_doubtful(framed(attributes.DOUBTFUL, 1, bytes([77])))


def test_a_file_without_meta_is_absent_whatever_else_it_has() -> None:
    values = attributes.encode_all(Attributes(META, token=5, fenced=True))
    del values[attributes.META]
    with pytest.raises(BadAttribute) as caught:
        attributes.decode_all(values)
    assert caught.value.attribute == attributes.META
    with pytest.raises(BadAttribute):
        attributes.decode_all({})


@pytest.mark.parametrize("name", NAMES)
def test_one_broken_attribute_makes_the_replica_absent(name: str) -> None:
    state = Attributes(META, token=5, fenced=True, seal=Seal(1, 1, bytes(32)), unsynced=True, doubt=Doubt.POWER_CUT)
    values = attributes.encode_all(state)
    values[name] = values[name][:-1]
    with pytest.raises(BadAttribute) as caught:
        attributes.decode_all(values)
    assert caught.value.attribute == name
