"""What must hold in every story, whatever happened in it.

check_streams    G2, G6: every acknowledged record is read back once, where it was acknowledged, in order; nothing
                 that was never appended; what was not acknowledged at most once, and without a gap before it
check_replicas   G3, T10: confirmed replicas have the same bytes, exactly as many as the seal says
check_owners     G5: nothing of an owner is acknowledged once its holding of the lock is over, by its lease or its
                 own release; nobody but who takes a stream over opens it before
check_metadata   the stored state is consistent; what the leader has in memory is what is stored
check_readers    G4, T9: whoever read during the story saw nothing that is not there at the end, nor jumped over it;
                 what it had to see is judged when it has read (reads.py), and of followers by end_followers
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence

from neve.client.streams.types import Position, Record
from neve.proto import extent_node_pb2 as en
from neve.proto.blocks import HEADER_BYTES, BlockType, verify, walk
from neve.proto.errors import NeveError, SealUnavailable
from neve.stream_manager.metadata import records as r
from neve.stream_manager.metadata.records import Extent
from neve.stream_manager.metadata.state import State
from tests.model.protocol_seal import choose_length
from tests.model.protocol_state import ABSENT, DOUBTFUL, LENGTH, SEALED, Answer
from tests.sim.checks.leaks import left_over
from tests.sim.checks.ledger import Session, Sighting, payloads
from tests.sim.cluster import SimCluster
from tests.sim.processes.client import OPTIONS, Killed, SimClient

LAST_OWNER_S = 60.0  # to open a stream: above what it takes to know that a node is dead
FOLLOWED_S = 30.0  # for a follower that was waiting when all was well
LEFT_S = 300.0  # for the collector: above its grace period, a report and the delays of its attempts
LOOK_S = 1.37  # between two looks at all that is open or in memory, which cost most of the end; no beat of the product

Block = tuple[Position, int, bytes]  # where, type, payload


async def finish_sessions(cluster: SimCluster) -> None:
    """End all clients: what they wait for comes to its end, whichever."""
    for client in [*cluster.clients.values()]:
        if client.running:
            try:
                await client.close()
            except Killed:
                continue
            except NeveError as error:
                cluster.on_refused(client.name, error)
            held_bytes = client.neve._budget.used_bytes
            assert not held_bytes, f"{client.name} is closed, and holds {held_bytes} bytes of records"


async def reopen_streams(cluster: SimCluster) -> None:
    """Each stream gets a last owner, who tells its replicas how far readers may go: restarted nodes do not know."""
    for stream_id in cluster.ledger.streams:
        stream = cluster.state.streams.get(stream_id)
        if stream is not None and not stream.sealed:
            try:
                last = await cluster.take_over(f"last{len(cluster.clients)}", stream_id, limit_s=LAST_OWNER_S)
            except SealUnavailable as error:
                await _accept_longest(cluster, error)
                last = await cluster.take_over(f"last{len(cluster.clients)}", stream_id, limit_s=LAST_OWNER_S)
            await last.close()
            await last.client.close()


async def follow_streams(cluster: SimCluster) -> list[tuple[SimClient, Sighting, asyncio.Task[None]]]:
    """Somebody follows each stream while it gets its last owner: whatever the nodes have forgotten, it is told then."""
    followers = []
    for stream_id in cluster.ledger.streams:
        if stream_id in cluster.state.streams:
            client = await cluster.client(f"follower{len(cluster.clients)}")
            followers.append((client, *client.follow(stream_id)))
    return followers


async def end_followers(
    cluster: SimCluster, followers: Sequence[tuple[SimClient, Sighting, asyncio.Task[None]]]
) -> None:
    """They have seen everything. One that found nobody to read from before all was repaired begins again."""
    for client, sighting, task in followers:
        if task.done() and isinstance(task.exception(), NeveError):
            sighting, task = client.follow(sighting.stream_id)
        await _until_seen(cluster, sighting)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
        await client.close()


async def _until_seen(cluster: SimCluster, sighting: Sighting) -> None:
    def lacking() -> list[bytes]:
        return [each.payload[:40] for each in cluster.readings.lacking(sighting)]

    try:
        await cluster.until(lambda: not lacking(), f"{sighting.reader} has seen all", limit_s=FOLLOWED_S)
    except AssertionError as error:
        raise AssertionError(f"{error}, and not {lacking()} of stream {sighting.stream_id} (G2)") from None


async def _accept_longest(cluster: SimCluster, error: SealUnavailable) -> None:
    """What an operator does where rule 18 chooses no length though everybody is back: most replicas are doubtful, and
    one is not. The longest that any of them has covers whatever was acknowledged, if anything does."""
    check_unavailable(cluster, error)
    lengths = [int(found) for found in re.findall(r"(\d+) valid bytes", str(error))]
    assert lengths, f"nobody says how much there is: {error}"
    operator = await cluster.client(f"acceptor{len(cluster.clients)}")
    accepted = operator.neve.admin.accept_length(error.extent_id, max(lengths), reason="the story is over")
    await operator.run(accepted)
    await operator.close()


def check_unavailable(cluster: SimCluster, error: SealUnavailable) -> None:
    """An operator is needed only where the rule, as the model has it, chooses nothing from what was answered."""
    extent, dead = cluster.state.extents[error.extent_id], cluster.state.dead_nodes()
    told = [cluster.wire.fences.get((cluster.nodes[node_id].host, extent.extent_id)) for node_id in extent.node_ids]
    answers = [_answer(each) for each in told]
    chosen = choose_length(answers, dead=[node_id in dead for node_id in extent.node_ids])
    assert chosen is None, f"rule 18 chooses {chosen[0]} from {answers}, and nobody seals: {error}"


def _answer(told: en.LengthAnswer | None) -> Answer:
    """In the model's terms. One that is damaged is as good as none, as long as nobody knows what is acknowledged."""
    if told is None:
        return ()
    if told.HasField("seal"):
        return SEALED, told.seal.length, told.committed
    if told.kind == en.LengthAnswer.LENGTH:
        return LENGTH, told.length, told.committed
    if told.kind == en.LengthAnswer.DOUBTFUL:
        return DOUBTFUL, told.valid_length, told.committed
    return ABSENT, 0, told.committed


async def check_everything(cluster: SimCluster) -> None:
    await check_no_leaks(cluster)
    check_metadata(cluster)
    check_replicas(cluster)
    check_owners(cluster)
    await check_streams(cluster)
    check_readers(cluster)
    cluster.check_no_bugs()


async def check_no_leaks(cluster: SimCluster) -> None:
    """Nobody asks for anything any more: nothing is locked, open or under way (leaks.py), and the calls that are
    remembered are those that are stored."""
    try:
        await cluster.until(lambda: not left_over(cluster), "nothing is left over", limit_s=LEFT_S, step_s=LOOK_S)
    except AssertionError as error:
        raise AssertionError(f"{error}: {left_over(cluster)}") from None
    stored = [kv for kv in cluster.etcd.all_keys() if kv.key.startswith(cluster.etcd.root + r.REPLAY)]
    assert len(stored) == cluster.term.replay.count, f"{len(stored)} calls are stored, the leader knows others"


# --- metadata -------------------------------------------------------------------------------------------------


def check_metadata(cluster: SimCluster) -> None:
    stored = cluster.stored_state()
    stored.validate()
    held = cluster.state
    held.validate()
    assert held.streams == stored.streams
    assert held.extents == stored.extents
    assert held.nodes == stored.nodes
    assert held.tasks == stored.tasks
    made, ordered = cluster.etcd.made_with_ids()["stream"], len(cluster.wire.streams_ordered)
    assert made <= ordered, f"{made} streams were made by {ordered} calls (26)"
    for extent_id, length in cluster.etcd.seals.items():
        extent = stored.extents.get(extent_id)
        assert extent is None or (extent.seal is not None and extent.seal.length == length), extent


# --- replicas -------------------------------------------------------------------------------------------------


def check_replicas(cluster: SimCluster) -> None:
    for extent in cluster.stored_state().extents.values():
        check_replicas_of(cluster, extent)


def check_replicas_of(cluster: SimCluster, extent: Extent) -> None:
    held = {node_id: cluster.bytes_on(node_id, extent.extent_id) for node_id in extent.node_ids}
    if extent.seal is None:
        known = [data for data in held.values() if data is not None]
        longest = max(known, key=len, default=b"")
        for node_id, data in held.items():  # prefixes of one sequence
            assert data is None or longest.startswith(data), f"extent {extent.extent_id} differs on node {node_id}"
            there = data is not None or node_id in cluster.unreliable or cluster.nodes[node_id].gone
            assert there, f"extent {extent.extent_id} is open, and not on node {node_id}"
        return
    confirmed = {node_id: held[node_id] for node_id in extent.confirmed}
    for node_id, data in confirmed.items():
        assert data is not None, f"extent {extent.extent_id} is not on node {node_id}, which has confirmed it"
        assert len(data) == extent.seal.length, f"extent {extent.extent_id} on node {node_id}: {len(data)} bytes"
        problem = verify(data)
        assert problem is None, f"extent {extent.extent_id} on node {node_id}: {problem}"
    assert len(set(confirmed.values())) <= 1, f"extent {extent.extent_id} differs between {list(confirmed)} (G3)"


def records_on_disk(cluster: SimCluster, state: State, stream_id: int) -> list[tuple[Position, bytes]]:
    """The records of a stream as its files have them, up to what all replicas of the tail have."""
    blocks: list[Block] = []
    records: list[tuple[Position, bytes]] = []
    for extent_id in state.streams[stream_id].extent_ids:
        if extent_id in state.streams[stream_id].after_hole:  # what comes now goes on nothing
            records += _joined(blocks)
            blocks = []
        extent = state.extents[extent_id]
        nodes = extent.node_ids if extent.seal is None else extent.confirmed
        held = [cluster.bytes_on(node_id, extent_id) for node_id in nodes]
        data = min((each for each in held if each is not None), key=len, default=b"")
        blocks += [
            (Position(extent_id, each.offset), each.type, bytes(data[each.offset + HEADER_BYTES : each.end]))
            for each in walk(data)
        ]
    return [*records, *_joined(blocks)]


def _joined(blocks: Iterable[Block]) -> Iterable[tuple[Position, bytes]]:
    parts: list[Block] = []
    for block in blocks:
        position, kind, payload = block
        if kind == BlockType.FULL:
            parts.clear()
            yield position, payload
        elif kind == BlockType.FIRST:
            parts = [block]
        elif parts:
            parts.append(block)
            if kind == BlockType.LAST:
                yield parts[0][0], b"".join(part[2] for part in parts)
                parts = []


# --- streams --------------------------------------------------------------------------------------------------


async def check_streams(cluster: SimCluster) -> None:
    reader = await cluster.client(f"checker{len(cluster.clients)}")
    state = cluster.stored_state()
    ledger = cluster.ledger
    by_stream: dict[int, dict[bytes, Position]] = {}
    for stream_id in ledger.streams:
        if stream_id not in state.streams:
            known = stream_id in ledger.deleted or stream_id in ledger.merged
            begun = any(session.token for session in ledger.sessions_of(stream_id))
            assert known or not begun, f"stream {stream_id} is gone, and nobody asked for that"
            continue
        records = await reader.read(stream_id)
        by_stream[stream_id] = {bytes(record.payload): record.position for record in records}
        if ledger.removed.get(stream_id) or len(ledger.relatives(stream_id)) > 1 or stream_id in ledger.merged.values():
            check_changed_stream(cluster, stream_id, records)
        else:
            check_records(cluster, stream_id, records)
        on_disk = records_on_disk(cluster, state, stream_id)
        read = [(record.position, bytes(record.payload)) for record in records]
        assert on_disk == read, f"stream {stream_id}: files and readers differ"
    check_homes(cluster, by_stream)
    await reader.close()


def check_homes(cluster: SimCluster, by_stream: dict[int, dict[bytes, Position]]) -> None:
    """G2 for streams that were truncated, split or merged: what is acknowledged is where it was, unless removed."""
    ledger = cluster.ledger
    for session in ledger.sessions:
        home = session.stream_id
        while home not in by_stream and home in ledger.merged:
            home = ledger.merged[home]
        if home not in by_stream:
            continue
        removed = ledger.removed.get(home, set()) | ledger.removed.get(session.stream_id, set())
        for attempt in session.attempts:
            position = attempt.position
            # A record of several blocks may go over the end of its extent, into one that was taken out.
            if position is not None and removed.isdisjoint(spanned(cluster, position, len(attempt.payload))):
                found = by_stream[home].get(attempt.payload)
                assert found == position or (found is None and cluster.may_be_lost(attempt)), (
                    f"{attempt.payload[:40]!r}: acknowledged at {position}, is at {found}"
                )


def check_changed_stream(cluster: SimCluster, stream_id: int, records: list[Record]) -> None:
    """G6 for such a stream: nothing foreign, nothing twice, each session's records in their order."""
    ledger = cluster.ledger
    relatives = ledger.relatives(stream_id)
    last: dict[int, int] = {}
    seen: set[bytes] = set()
    for payload in payloads(records):
        attempt = ledger.find(payload)
        assert attempt is not None, f"stream {stream_id} has {payload[:40]!r}, which nobody appended"
        assert payload not in seen, f"stream {stream_id} has {payload[:40]!r} twice"
        seen.add(payload)
        session = ledger.sessions[attempt.session - 1]
        assert session.stream_id in relatives, f"stream {stream_id} has {payload[:40]!r} of stream {session.stream_id}"
        assert attempt.number > last.get(attempt.session, 0), f"stream {stream_id}: {payload[:40]!r} is out of order"
        last[attempt.session] = attempt.number


def check_records(cluster: SimCluster, stream_id: int, records: list[Record]) -> None:
    """G2, G5, G6 for one stream, as one reader has it."""
    ledger = cluster.ledger
    where: dict[bytes, Position] = {}
    for record in records:
        payload = bytes(record.payload)
        assert ledger.find(payload) is not None, f"stream {stream_id} has {payload[:40]!r}, which nobody appended"
        assert payload not in where, f"{payload[:40]!r} is there twice: at {where[payload]} and {record.position}"
        where[payload] = record.position
    for attempt in ledger.acknowledged(stream_id):
        found = where.get(attempt.payload)
        if found is None and cluster.may_be_lost(attempt):
            continue
        assert found is not None, f"{attempt.payload[:40]!r}, acknowledged at {attempt.position}, is lost"
        assert found == attempt.position, f"{attempt.payload[:40]!r}: acknowledged at {attempt.position}, is at {found}"
    order = payloads(records)
    expected: list[bytes] = []
    opened = [session for session in ledger.sessions_of(stream_id) if session.token]
    for session in sorted(opened, key=lambda session: session.token):
        expected += _kept(session, where)
    assert order == expected, f"stream {stream_id}: the records are not in the order of their appends"


def _kept(session: Session, where: dict[bytes, Position]) -> list[bytes]:
    """What is left of a session: a beginning of it, without gaps."""
    kept = [attempt.payload for attempt in session.attempts if attempt.payload in where]
    begun = [attempt.payload for attempt in session.attempts[: len(kept)]]
    assert kept == begun, f"session {session.number} of {session.owner} has a gap: {_first_gap(begun, kept)}"
    return kept


def _first_gap(begun: list[bytes], kept: list[bytes]) -> str:
    return next(f"{a[:40]!r} is missing, {b[:40]!r} is there" for a, b in zip(begun, kept, strict=True) if a != b)


# --- owners and readers ---------------------------------------------------------------------------------------


def check_owners(cluster: SimCluster) -> None:
    for attempt in cluster.ledger.acknowledged():
        assert not attempt.barred, (
            f"{attempt.payload[:40]!r} was acknowledged when its owner's holding of the lock was over,"
            " or its stream was deleted (2, 23, G5)"
        )


def spanned(cluster: SimCluster, position: Position, size_bytes: int) -> set[int]:
    """The extents that a record is in: it goes over the end of one only where that is sealed."""
    blocks = -(-size_bytes // OPTIONS.block_payload_bytes_max) or 1
    left_bytes = size_bytes + blocks * HEADER_BYTES
    extent_id, offset = position
    extents = {extent_id}
    while extent_id in cluster.etcd.seals and extent_id in cluster.etcd.behind:
        left_bytes -= cluster.etcd.seals[extent_id] - offset
        if left_bytes <= 0:
            break
        extent_id, offset = cluster.etcd.behind[extent_id], 0
        extents.add(extent_id)
    return extents


def _left(cluster: SimCluster, records: list[Record], removed: set[int]) -> list[tuple[Position, bytes]]:
    """Those of which no part is in an extent that somebody asked to take out."""
    return [
        (record.position, bytes(record.payload))
        for record in records
        if not removed or removed.isdisjoint(spanned(cluster, record.position, len(record.payload)))
    ]


def check_readers(cluster: SimCluster) -> None:
    """Runs last: the reader of check_streams is the judge of the others. Who has read a stream that was merged into
    another one is judged by that one's records, among which others may stand."""
    ledger = cluster.ledger
    last = {sighting.stream_id: sighting for sighting in ledger.sightings if sighting.reader.startswith("checker")}
    for sighting in ledger.sightings:
        home = sighting.stream_id
        removed = {*ledger.removed.get(home, ())}
        while home not in last and home in ledger.merged:
            home = ledger.merged[home]
            removed |= ledger.removed.get(home, set())
        if home not in last:
            assert home in ledger.deleted, f"{sighting.reader} has read stream {sighting.stream_id}, which is gone"
            continue
        there, seen = _left(cluster, last[home].records, removed), _left(cluster, sighting.records, removed)
        while seen and seen[-1] not in there and cluster.may_be_lost(ledger.find(seen[-1][1]), seen[-1][0]):
            seen.pop()  # the end of what it saw may be gone with the power
        if home == sighting.stream_id:
            _check_seen(sighting, seen, there)
        else:
            _check_seen_before_merge(sighting, seen, there)


def _check_seen(sighting: Sighting, seen: list[tuple[Position, bytes]], there: list[tuple[Position, bytes]]) -> None:
    if not seen:
        return
    first = there.index(seen[0]) if seen[0] in there else None
    assert first is not None, f"{sighting.reader} saw {seen[0]}, which is gone (G4)"
    assert first == 0 or not sighting.from_start, f"{sighting.reader} did not begin with the first record"
    for index, record in enumerate(seen):
        assert first + index < len(there), f"{sighting.reader} saw {record}, which is gone (G4)"
        assert there[first + index] == record, f"{sighting.reader} saw {record} in place of {there[first + index]}"


def _check_seen_before_merge(
    sighting: Sighting, seen: list[tuple[Position, bytes]], there: list[tuple[Position, bytes]]
) -> None:
    rest = iter(there)
    for record in seen:
        assert record in rest, f"{sighting.reader} saw {record}, which the merge has lost, or put elsewhere (G4)"
