"""The journal by itself: what is read back is what was written, or its absence is noticed."""

from __future__ import annotations

import errno
import uuid

import pytest

from neve.extent_node.journal.folder import JournalRefused, format_journal, slot_path
from neve.extent_node.journal.format import (
    FIRST_POSITION,
    RECORD_HEADER_BYTES,
    Entry,
    decode_record,
    encode_records,
    record_bytes,
    scan_segment,
)
from neve.extent_node.journal.journal import Journal, JournalFailed, Segment
from neve.extent_node.journal.replay import Chain, read_chain
from tests.sim.disks.disk import SimFileSystem

FOLDER = "/journal"
UUID = uuid.UUID(int=5)
SEGMENT_BYTES = 16 << 10


def new_journal(segment_bytes: int = SEGMENT_BYTES, slots: int = 2, segments_max: int = 4) -> Journal:
    fs = SimFileSystem()
    format_journal(fs, FOLDER, cluster="c", node_id=1, journal_uuid=UUID, segment_bytes=segment_bytes, slots=slots)
    journal = Journal.open(fs, FOLDER, cluster="c", node_id=1, segments_max=segments_max)
    journal.start(number_seen_max=0)
    return journal


def entry(extent_id: int, offset: int, payload: bytes, *, disk: int = 1) -> Entry:
    return Entry((disk, extent_id), disk, extent_id, 77, offset, [payload], len(payload))


def commit(journal: Journal, *entries: Entry) -> int:
    taken = journal.append(entries)
    if taken:
        ticket = journal.begin_sync()
        journal.sync(ticket)
        journal.finish_sync(ticket)
    return taken


def reread(journal: Journal) -> Chain:
    return read_chain(journal.fs, FOLDER, journal.label, journal.uuid_bytes)


def contents(chain: Chain) -> list[tuple[int, int, bytes]]:
    return [(record.extent_id, record.offset, bytes(payload)) for record, payload in chain.records()]


def fs_of(journal: Journal) -> SimFileSystem:
    assert isinstance(journal.fs, SimFileSystem)
    return journal.fs


def test_records_come_back_in_the_order_of_writing() -> None:
    journal = new_journal()
    commit(journal, entry(1, 0, b"one"), entry(2, 0, b"two" * 50))
    commit(journal, entry(1, 3, b"more"))
    chain = reread(journal)
    assert contents(chain) == [(1, 0, b"one"), (2, 0, b"two" * 50), (1, 3, b"more")]
    assert chain.hole == ""


def test_what_was_synced_survives_a_power_cut_and_the_rest_is_no_hole() -> None:
    journal = new_journal()
    commit(journal, entry(1, 0, b"kept"))
    journal.append([entry(1, 4, b"lost"), entry(2, 0, b"lost")])
    fs_of(journal).power_cut()
    chain = reread(journal)
    assert contents(chain) == [(1, 0, b"kept")]
    assert chain.hole == ""


def test_a_record_binds_its_place_and_its_journal() -> None:
    appended = Entry("holder", 1, 2, 3, 4, [b"payload"], 7)
    place = {"position": 4096, "segment_number": 1, "durable_through": 0, "needed_from": 0}
    buffers, taken, end = encode_records([appended], seed=9, **place, position_max=9999)
    record = b"".join(buffers)
    assert (taken, end) == (1, 4096 + len(record))
    assert len(record) == record_bytes(7)
    assert decode_record(bytes(4096) + record, 4096, 9) is not None
    assert decode_record(bytes(4096) + record, 4096, 8) is None  # another journal's seed
    assert decode_record(bytes(4104) + record, 4104, 9) is None  # elsewhere in the segment


def test_a_segment_that_is_full_ends_and_the_chain_goes_on_in_the_next_one() -> None:
    journal = new_journal()
    payloads = [bytes([number]) * 3000 for number in range(6)]
    for number, payload in enumerate(payloads):
        assert commit(journal, entry(1, number * 3000, payload)) == 1
    chain = reread(journal)
    assert [payload for _, _, payload in contents(chain)] == payloads
    assert chain.number_seen_max == 2


def test_an_entry_without_room_is_not_taken_and_those_before_it_are() -> None:
    journal = new_journal()
    taken = commit(journal, *(entry(1, number * 3000, bytes(3000)) for number in range(20)))
    assert 0 < taken < 20
    assert len(contents(reread(journal))) == taken
    assert commit(journal, entry(1, 0, bytes(20_000))) == 0  # larger than a segment


def test_t25_a_segment_is_not_used_again_before_every_disk_has_its_extents() -> None:
    journal = new_journal()
    commit(journal, entry(1, 0, bytes(5000), disk=1), entry(2, 0, bytes(5000), disk=2))
    commit(journal, entry(3, 0, bytes(5000), disk=1))  # begins the next segment
    assert journal.take_free() is None
    journal.settle((1, 1), 5000)  # disk 1 is done
    assert journal.take_free() is None
    journal.settle((2, 2), 4999)
    assert journal.take_free() is None
    assert journal.holders(filled_only=True) == [(2, 2)]
    journal.settle((2, 2), 5000)
    segment = journal.take_free()
    assert segment is not None
    journal.prepare(segment, journal.needed_from)
    journal.add_ready(segment)
    assert contents(reread(journal)) == [(3, 0, bytes(5000))]


def test_segments_are_freed_in_the_order_in_which_they_were_filled() -> None:
    journal = new_journal(slots=3)
    for number in range(3):
        commit(journal, entry(number, 0, bytes(9000)))
    journal.drop((1, 1))
    assert journal.take_free() is None  # the one before it is held
    journal.drop((1, 0))
    assert journal.take_free() is not None
    assert journal.take_free() is not None
    assert journal.take_free() is None  # the current one


def test_the_ring_turns_for_ever_and_old_records_never_come_back() -> None:
    journal = new_journal()
    for number in range(60):
        assert commit(journal, entry(1, number * 3000, bytes([number]) * 3000)) == 1
        journal.settle((1, 1), number * 3000)  # all but the last one is in place
        while (free := journal.take_free()) is not None:
            journal.prepare(free, journal.needed_from)
            journal.add_ready(free)
        fs_of(journal).crash()  # descriptors are gone: look as a new process would
        chain = reread(journal)
        found = contents(chain)
        assert chain.hole == ""
        assert found[-1] == (1, number * 3000, bytes([number]) * 3000)
        assert [offset for _, offset, _ in found] == [
            record * 3000 for record in range(number + 1 - len(found), number + 1)
        ]
        for segment in _segments(journal):
            segment.fd = journal.fs.open(slot_path(FOLDER, segment.slot))


def _segments(journal: Journal) -> list[Segment]:
    return [*journal._filled, *journal._ready, *([journal._current] if journal._current else [])]


def test_t30_a_bit_flipped_anywhere_is_noticed_and_never_answered() -> None:
    """In a record that later ones call durable it is a hole; in the last group it ends the chain; elsewhere nothing."""
    journal = new_journal(segment_bytes=FIRST_POSITION + 4096)
    groups = [[entry(1, 0, b"a" * 30)], [entry(2, 0, b"b" * 40), entry(3, 0, b"c" * 11)], [entry(1, 30, b"d" * 25)]]
    ends = []
    for group in groups:
        commit(journal, *group)
        ends.append(journal._current.position if journal._current else 0)
    fs = fs_of(journal)
    fs.crash()
    path = slot_path(FOLDER, 0)
    whole = contents(reread(journal))
    assert len(whole) == 4
    for byte in [*range(64), *range(FIRST_POSITION, ends[-1] + 64)]:
        fs.flip(path, byte, byte % 8)
        chain = reread(journal)
        found = contents(chain)
        assert all(item in whole for item in found), byte
        if byte < FIRST_POSITION:
            assert found == whole  # the records say which segment it is
        elif byte < ends[1] and found != whole:
            assert chain.hole, byte
        elif found != whole:
            assert byte < ends[2]
            assert found == whole[:3]
        fs.flip(path, byte, byte % 8)


def test_behind_a_hole_valid_records_are_still_given() -> None:
    journal = new_journal()
    for number in range(3):
        commit(journal, entry(number, 0, b"x" * 20))
    fs_of(journal).flip(slot_path(FOLDER, 0), FIRST_POSITION + record_bytes(20) + RECORD_HEADER_BYTES, 0)
    chain = reread(journal)
    assert "later ones say" in chain.hole
    assert [extent for extent, _, _ in contents(chain)] == [0, 2]


def test_a_missing_segment_file_is_a_hole_unless_the_last_process_stopped_cleanly() -> None:
    journal = new_journal()
    commit(journal, entry(1, 0, b"x"))
    fs_of(journal).unlink(slot_path(FOLDER, 1))
    assert "missing" in reread(journal).hole
    journal.retire()
    assert reread(journal).hole == ""
    assert contents(reread(journal)) == []


def test_a_header_torn_while_the_segment_was_made_ready_loses_nothing() -> None:
    journal = new_journal()
    commit(journal, entry(1, 0, bytes(9000)))
    commit(journal, entry(2, 0, bytes(9000)))
    fs = fs_of(journal)
    first = slot_path(FOLDER, 0)
    fs.flip(first, 9, 0)
    assert [extent for extent, _, _ in contents(reread(journal))] == [1, 2]
    assert scan_segment(fs.content(first), journal.uuid_bytes).number == 1


def test_t23_a_failed_sync_ends_the_journal_for_this_process() -> None:
    journal = new_journal()
    journal.append([entry(1, 0, b"x")])
    ticket = journal.begin_sync()
    fs_of(journal).fail(errno.EIO, match=lambda operation, path: operation == "fdatasync")
    with pytest.raises(OSError, match="Input/output"):
        journal.sync(ticket)
    journal.fail("sync")
    with pytest.raises(JournalFailed):
        journal.append([entry(1, 1, b"y")])
    with pytest.raises(JournalFailed):
        journal.finish_sync(ticket)
    assert journal.take_free() is None


def test_a_failed_write_ends_the_journal_too() -> None:
    journal = new_journal()
    fs_of(journal).fail(errno.EIO, match=lambda operation, path: operation == "pwrite")
    with pytest.raises(OSError, match="Input/output"):
        journal.append([entry(1, 0, b"x")])
    assert journal.failed


def test_short_writes_make_whole_records() -> None:
    journal = new_journal()
    fs_of(journal).short_write_chance = 0.8
    commit(journal, entry(1, 0, b"x" * 3000), entry(2, 0, b"y" * 3000))
    assert contents(reread(journal)) == [(1, 0, b"x" * 3000), (2, 0, b"y" * 3000)]


def test_a_folder_that_is_not_this_nodes_journal_is_refused_by_name() -> None:
    journal = new_journal()
    fs = fs_of(journal)
    with pytest.raises(JournalRefused, match="locked"):
        Journal.open(fs, FOLDER, cluster="c", node_id=1)
    fs.crash()
    with pytest.raises(JournalRefused, match="of node 1 of cluster 'c'"):
        Journal.open(fs, FOLDER, cluster="c", node_id=2)
    with pytest.raises(JournalRefused, match=r"no journal\.json"):
        Journal.open(fs, "/", cluster="c", node_id=1)
    with pytest.raises(JournalRefused, match="not empty"):
        format_journal(fs, FOLDER, cluster="c", node_id=1, journal_uuid=UUID)
    fs.flip(FOLDER + "/journal.json", 20, 3)
    with pytest.raises(JournalRefused, match="damaged"):
        Journal.open(fs, FOLDER, cluster="c", node_id=1)


def test_the_ring_grows_up_to_its_bound() -> None:
    journal = new_journal(slots=1, segments_max=2)
    could_grow = journal.may_grow
    journal.add_ready(journal.grow(journal.needed_from))
    assert (could_grow, journal.may_grow) == (True, False)
    assert commit(journal, entry(1, 0, bytes(9000)), entry(2, 0, bytes(9000))) == 2
    fs_of(journal).power_cut()
    again = Journal.open(fs_of(journal), FOLDER, cluster="c", node_id=1)
    assert len(contents(read_chain(again.fs, FOLDER, again.label, again.uuid_bytes))) == 2


def test_distrusted_disks_are_remembered_until_they_are_trusted_again() -> None:
    journal = new_journal()
    journal.distrust(7)
    journal.distrust(7)
    journal.distrust(9)
    fs_of(journal).power_cut()
    again = Journal.open(fs_of(journal), FOLDER, cluster="c", node_id=1)
    assert list(again.label.distrusted_disks) == [7, 9]
    again.trust([7])
    assert list(again.label.distrusted_disks) == [9]


def test_a_header_promises_no_more_than_what_its_caller_saw_however_the_ring_turns_meanwhile() -> None:
    """A segment is made ready in a thread while appends go on: it must not read the ring's state itself."""
    journal = new_journal(slots=3)
    commit(journal, entry(1, 0, bytes(9000)))
    commit(journal, entry(2, 0, bytes(9000)))  # the first segment is full
    journal.settle((1, 1), 1 << 40)
    free = journal.take_free()
    assert free is not None
    seen = journal.needed_from
    commit(journal, entry(3, 0, bytes(9000)))  # the ring turns before the thread begins
    journal.prepare(free, seen)
    journal.add_ready(free)
    fs_of(journal).power_cut()
    assert [extent_id for extent_id, _, _ in contents(reread(journal))] == [2, 3]


def test_t24_growing_that_fails_for_lack_of_room_leaves_none_of_it_taken() -> None:
    journal = new_journal(slots=1, segments_max=4)
    fs = fs_of(journal)
    fs.fail(errno.ENOSPC, match=lambda operation, path: operation == "pwrite" and path.endswith("0001.seg"))
    with pytest.raises(OSError, match="No space"):
        journal.grow(journal.needed_from)
    assert "0001.seg" not in fs.list_dir(FOLDER)


def test_segment_files_that_the_label_does_not_count_are_removed_by_the_next_start() -> None:
    journal = new_journal(slots=1)
    fs = fs_of(journal)
    fs.close(fs.open(slot_path(FOLDER, 7), create=True))  # a process was killed while the ring grew
    fs.crash()
    again = Journal.open(fs, FOLDER, cluster="c", node_id=1)
    again.start(number_seen_max=5)
    assert sorted(name for name in fs.list_dir(FOLDER) if name.endswith(".seg")) == ["0000.seg"]
