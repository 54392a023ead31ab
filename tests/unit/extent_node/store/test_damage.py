"""Damage: files cut at every byte, bits flipped in every region (T28). It is noticed, and never answered as data."""

from __future__ import annotations

import functools

import pytest

from neve.extent_node.disk import attributes
from neve.extent_node.store.storage import Storage
from neve.proto import blocks
from neve.proto import extent_node_pb2 as pb
from neve.proto.errors import NeveError, ReplicaDamaged
from tests.unit.extent_node.store.rig import (
    TOKEN,
    Machine,
    append,
    block_of,
    create,
    describe,
    error_of,
    fence,
    raise_token,
    read,
    read_bytes,
    seal,
    tell_committed,
)

BLOCKS = [block_of("first", 40), block_of("second", 61), block_of("third", 9), block_of("fourth", 33)]
WHOLE = b"".join(BLOCKS)
ENDS = [sum(len(block) for block in BLOCKS[:count]) for count in range(len(BLOCKS) + 1)]

PATH = "/disk0/extents/01/0000000000000001.ext"
INDEX = "/disk0/extents/01/0000000000000001.idx"

Kind = pb.LengthAnswer


def machine_with_extent(*, sealed: bool) -> Machine:
    return _made_once(sealed).clone()


@functools.cache
def _made_once(sealed: bool) -> Machine:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, *BLOCKS)
        if sealed:
            assert (await seal(store, 1, len(WHOLE))).confirmed

    machine.run(work)
    machine.fs.power_cut()
    return machine


def cut(machine: Machine, length: int) -> None:
    descriptor = machine.fs.open(PATH)
    machine.fs.truncate(descriptor, length)
    machine.fs.fsync(descriptor)
    machine.fs.crash()


async def answered(store: Storage) -> bytes:
    """What a reader who checks CRCs, as all do, takes as data; b"" if it is refused or does not pass."""
    try:
        data = await read_bytes(store, 1)
    except NeveError:
        return b""
    return data if blocks.verify(data) is None else b""


@pytest.mark.parametrize("length", range(ENDS[1], len(WHOLE)))
def test_t28_an_open_extent_cut_at_any_byte_ends_with_its_last_whole_block(length: int) -> None:
    machine = machine_with_extent(sealed=False)
    cut(machine, length)
    last_whole = max(end for end in ENDS if end <= length)

    async def after(store: Storage) -> None:
        answer = await raise_token(store, 1, TOKEN)
        assert (answer.kind, answer.length) == (Kind.LENGTH, last_whole)
        await tell_committed(store, 1, len(WHOLE))
        assert await answered(store) == WHOLE[:last_whole]
        number = ENDS.index(last_whole)
        assert (await append(store, 1, last_whole, *BLOCKS[number:])).end == len(WHOLE)
        assert (await seal(store, 1, len(WHOLE))).confirmed
        assert await answered(store) == WHOLE

    machine.run(after)


@pytest.mark.parametrize("length", range(ENDS[1], len(WHOLE)))
def test_t28_a_sealed_extent_cut_at_any_byte_is_damaged_and_says_from_where(length: int) -> None:
    machine = machine_with_extent(sealed=True)
    cut(machine, length)

    async def after(store: Storage) -> None:
        answer = await fence(store, 1)
        assert (answer.kind, answer.valid_length) == (Kind.DAMAGED, length)
        assert await error_of(read(store, 1)) is ReplicaDamaged
        reply = await seal(store, 1, len(WHOLE))
        assert (reply.confirmed, reply.length) == (False, length)

    machine.run(after)


@pytest.mark.parametrize("byte", range(len(WHOLE)))
def test_a_bit_flipped_in_an_open_extent_makes_it_doubtful_and_is_never_answered(byte: int) -> None:
    """Also in the last block: a flipped bit is not a torn write (rule 13)."""
    machine = machine_with_extent(sealed=False)
    machine.fs.flip(PATH, byte, byte % 8)
    below = max(end for end in ENDS if end <= byte)

    async def after(store: Storage) -> None:
        answer = await raise_token(store, 1, TOKEN)
        assert answer.kind == Kind.DOUBTFUL
        assert answer.valid_length == below
        assert await error_of(append(store, 1, len(WHOLE), BLOCKS[0])) is not None
        assert await answered(store) == b""
        reply = await seal(store, 1, len(WHOLE))
        assert (reply.confirmed, reply.length) == (False, below)

    machine.run(after)


@pytest.mark.parametrize("byte", range(0, len(WHOLE), 3))
def test_a_bit_flipped_while_the_extent_is_open_is_found_by_the_seal(byte: int) -> None:
    machine = machine_with_extent(sealed=False)

    async def work(store: Storage) -> None:
        await store.verified()
        machine.fs.flip(PATH, byte, byte % 8)
        reply = await seal(store, 1, len(WHOLE))
        below = max(end for end in ENDS if end <= byte)
        assert (reply.confirmed, reply.length) == (False, below)
        assert describe(store, 1).kind == Kind.DAMAGED

    machine.run(work)


@pytest.mark.parametrize("byte", range(0, len(WHOLE), 3))
@pytest.mark.parametrize("with_index", [True, False])
def test_a_bit_flipped_in_a_sealed_extent_does_not_pass_for_data(byte: int, with_index: bool) -> None:
    machine = machine_with_extent(sealed=True)
    machine.fs.flip(PATH, byte, byte % 8)
    if not with_index:
        machine.fs.unlink(INDEX)

    async def after(store: Storage) -> None:
        assert await answered(store) == b""
        if not with_index:  # whoever rebuilds it goes over all bytes
            assert await error_of(read(store, 1)) is ReplicaDamaged
            assert describe(store, 1).kind == Kind.DAMAGED

    machine.run(after)


def test_a_bit_flipped_anywhere_in_the_index_only_makes_it_be_rebuilt() -> None:
    machine = machine_with_extent(sealed=True)
    size_bytes = len(machine.fs.content(INDEX))
    for byte in range(0, size_bytes, 2):
        machine.fs.flip(INDEX, byte, byte % 8)

        async def after(store: Storage) -> None:
            assert await answered(store) == WHOLE
            assert await read_bytes(store, 1, ENDS[2], max_blocks=1) == BLOCKS[2]

        machine.restart(after)
        machine.fs.crash()


@pytest.mark.parametrize("name", [attributes.META, attributes.TOKEN, attributes.FENCED, attributes.SEAL])
def test_a_bit_flipped_in_any_attribute_makes_the_replica_absent_and_keeps_its_bytes(name: str) -> None:
    fresh = machine_with_extent(sealed=True)
    value = fresh.fs._tree.file(PATH).xattrs[name]
    for byte in range(len(value)):
        machine = fresh.clone()
        file = machine.fs._tree.file(PATH)
        file.xattrs[name] = value[:byte] + bytes([value[byte] ^ 1 << byte % 8]) + value[byte + 1 :]

        async def after(store: Storage) -> None:
            assert (await fence(store, 1)).kind == Kind.DAMAGED
            assert await error_of(read(store, 1)) is ReplicaDamaged
            assert await answered(store) == b""

        machine.run(after)
        (kept,) = machine.fs.list_dir("/disk0/quarantine")
        assert machine.fs.content(f"/disk0/quarantine/{kept}") == WHOLE


@pytest.mark.parametrize("name", [attributes.UNSYNCED, attributes.DOUBTFUL])
def test_a_broken_mark_of_doubt_does_not_pass_for_none(name: str) -> None:
    machine = Machine()

    async def work(store: Storage) -> None:
        await create(store, 1)
        await append(store, 1, 0, BLOCKS[0], no_sync=True)

    async def look(store: Storage) -> pb.LengthAnswer:
        return await fence(store, 1)

    machine.run(work)
    machine.fs.power_cut()
    if name == attributes.DOUBTFUL:
        assert machine.run(lambda store: raise_token(store, 1, TOKEN)).kind == Kind.DOUBTFUL
        machine.fs.crash()
    file = machine.fs._tree.file(PATH)
    file.xattrs[name] = bytes([file.xattrs[name][0] ^ 4]) + file.xattrs[name][1:]
    assert machine.run(look).kind == Kind.DAMAGED
