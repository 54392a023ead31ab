"""What writers were told and readers saw in a story: the ground on which the checkers stand.

Invariants: every payload is unique, so that what is read tells which append it was;
            an append counts as acknowledged from the moment on which its future has a position: whoever waits for it
            may see it later, and a process that is stopped in between has been told before;
            what an owner still waits for when its holding of the lock is over is barred: it is never acknowledged
            (rule 2; G5, since nobody else opens the stream before, but by a take-over). A holding is over when its
            lease has ended in the metadata store, or its key was deleted there while it was the last one. Whoever is
            taken over from is excused for as long as its lease lives, and no longer: until it hears of it, it may
            acknowledge what all replicas had taken before (docs/protocol.md). However a stream was opened, nothing
            of an older owner is acknowledged that the newer one has not found.

Its log lines are events, for the coverage that a run of many stories shows: `barred_at_opening` and
`barred_after_takeover` have an older owner, alive, who waited for something that G5 forbids from then on;
`excused_at_opening` one who waited and was taken over from.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from neve.client.streams.types import Position, Record

log = logging.getLogger("neve.sim.ledger")  # below "neve": what is counted

BARRED_AT_OPENING = "barred_at_opening stream_id=%d token=%d waiting=%d"
BARRED_AFTER_TAKEOVER = "barred_after_takeover stream_id=%d token=%d waiting=%d"
EXCUSED_AT_OPENING = "excused_at_opening stream_id=%d token=%d waiting=%d"


@dataclass(eq=False, slots=True)
class Attempt:
    """One append, whatever became of it."""

    session: int
    number: int  # within its session
    payload: bytes
    future: asyncio.Future[Any] | None = None  # of a position
    barred: bool = False
    made_s: float = 0.0  # virtual: no replica has it before
    acknowledged_s: float = math.inf
    ends: tuple[tuple[int, int], ...] = ()  # of its blocks: extent and offset, as they were acknowledged
    seen_late: bool = False  # its future is a task's, which may be done later than it is acknowledged: not to be barred

    @property
    def settled(self) -> bool:
        return self.future is not None and self.future.done()

    @property
    def position(self) -> Position | None:
        """Where it is, if it was acknowledged."""
        future = self.future
        if future is None or not future.done() or future.cancelled() or future.exception() is not None:
            return None
        position = future.result()
        assert isinstance(position, Position), position
        return position


@dataclass(eq=False, slots=True)
class Session:
    """One opening of a stream by one writer."""

    number: int
    stream_id: int
    owner: str
    token: int = 0  # 0: it did not come to opening
    attempts: list[Attempt] = field(default_factory=list)  # in the order of their calls
    named: int = 0
    lives: Callable[[], bool] = lambda: True  # its process: a killed one acknowledges nothing anyway
    over: bool = False  # its holding of the lock
    succeeded: bool = False  # a newer one has opened the stream
    weak: bool = False  # without sync, in a story in which all may lose power at once
    found: Position | None = None  # the end of the stream when it was opened
    found_at: int = 0  # the metadata's revision at that moment

    def waiting(self) -> list[Attempt]:
        """What is neither acknowledged nor known not to be."""
        return [attempt for attempt in self.attempts if not (attempt.settled or attempt.seen_late)]


class Told(NamedTuple):
    """How far readers may go in an open extent, for all of its nodes know it; as long as these processes live."""

    end: int
    knowing: tuple[tuple[int, object], ...]  # nodes, and their processes


@dataclass(eq=False, slots=True)
class Sighting:
    """One reading of a stream, during the story: what it got, in order."""

    stream_id: int
    reader: str
    from_start: bool
    records: list[Record] = field(default_factory=list)
    begun_s: float = 0.0
    last_s: float = 0.0  # when its last record came
    revision: int | None = None  # of the metadata that it was told of the stream, first
    acknowledged: list[Attempt] = field(default_factory=list)  # before it began
    told: dict[int, Told] = field(default_factory=dict)  # by extent id, what nodes knew before it began


class Ledger:
    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.sightings: list[Sighting] = []
        self.streams: dict[int, None] = {}
        self.removed: dict[int, set[int]] = {}  # stream id → extents that somebody asked to take out of it
        self.deleted: dict[int, None] = {}  # streams that somebody asked to delete
        self.sealed: dict[int, None] = {}  # streams that somebody asked to seal
        self.merged: dict[int, int] = {}  # stream id → the one that somebody asked to absorb it
        self.twins: dict[int, int] = {}  # stream id → the one that somebody asked to split it from
        self.on_made: Callable[[Attempt], None] = lambda _: None
        self.on_reading: Callable[[Sighting], None] = lambda _: None  # it begins
        self.on_read: Callable[[Sighting], None] = lambda _: None  # it is over, and nobody was told an error
        self.on_left: Callable[[Sighting], None] = lambda _: None  # whoever followed the stream wants no more of it
        self._by_payload: dict[bytes, Attempt] = {}
        self._by_token: dict[int, Session] = {}

    def begin(self, stream_id: int, owner: str, *, lives: Callable[[], bool] = lambda: True) -> Session:
        self.streams[stream_id] = None
        session = Session(len(self.sessions) + 1, stream_id, owner, lives=lives)
        self.sessions.append(session)
        return session

    def opened(
        self, session: Session, token: int, *, over: bool = False, found: Position | None, revision: int = 0
    ) -> None:
        """Its owner knows that it has the stream, and has `found` its end. `over`: what it knows is old already."""
        holder = self._by_token.setdefault(token, session)
        assert holder is session, f"token {token} of session {session.number} was session {holder.number}'s (rule 1)"
        session.token = token
        session.over = over
        session.found, session.found_at = found, revision
        for older in self.sessions_of(session.stream_id):
            if 0 < older.token < token:
                older.succeeded = True
                self._note(BARRED_AT_OPENING if older.over else EXCUSED_AT_OPENING, older)

    def holding_over(self, token: int) -> None:
        """The metadata store knows no holding of the lock with this token any more, nor a lease of its owner."""
        session = self._by_token.get(token)
        if session is None:
            return
        session.over = True
        for attempt in session.waiting():
            attempt.barred = True
        if session.succeeded:
            self._note(BARRED_AFTER_TAKEOVER, session)

    def _note(self, line: str, older: Session) -> None:
        waiting = len(older.waiting())
        if waiting and older.lives():
            log.info(line, older.stream_id, older.token, waiting)

    def outruns(self, attempt: Attempt, position: Position, linked: Mapping[int, int]) -> Session | None:
        """The newer owner, if there is one, who has opened the stream and not found what is acknowledged there: of an
        older owner nothing is ever added to that (G5, also after a take-over). `linked`: at which revisions extents
        became a part of streams."""
        session = self.sessions[attempt.session - 1]
        for newer in self.sessions_of(session.stream_id):
            if newer.token <= session.token or newer.found is None:
                continue
            if position.extent_id == newer.found.extent_id:
                if position.offset >= newer.found.offset:
                    return newer
            elif linked.get(position.extent_id, 0) > newer.found_at:
                return newer
        return None

    def attempt(self, session: Session, size_bytes: int = 0) -> Attempt:
        """What a session may append next: unique, and padded to a size. It counts when it is `made`."""
        session.named += 1
        payload = f"s{session.stream_id}.w{session.number}.{session.named}.".encode()
        payload += b"." * (size_bytes - len(payload))
        return Attempt(session.number, session.named, payload)

    def made(self, session: Session, attempt: Attempt, future: asyncio.Future[Any]) -> None:
        """The writer has taken it."""
        attempt.future = future
        attempt.barred = session.over and not (attempt.settled or attempt.seen_late)
        session.attempts.append(attempt)
        self._by_payload[attempt.payload] = attempt
        self.on_made(attempt)

    def find(self, payload: bytes) -> Attempt | None:
        return self._by_payload.get(payload)

    def relatives(self, stream_id: int) -> set[int]:
        """The streams whose records may be in this one: those that it was split from or absorbed, and theirs."""
        found = {stream_id}
        while True:
            more = {self.twins[each] for each in found if each in self.twins}
            more |= {gone for gone, into in self.merged.items() if into in found}
            if more <= found:
                return found
            found |= more

    def sessions_of(self, stream_id: int) -> list[Session]:
        return [session for session in self.sessions if session.stream_id == stream_id]

    def acknowledged(self, stream_id: int | None = None) -> list[Attempt]:
        return [
            attempt
            for session in self.sessions
            if stream_id is None or session.stream_id == stream_id
            for attempt in session.attempts
            if attempt.position is not None
        ]

    def see(self, stream_id: int, reader: str, *, from_start: bool) -> Sighting:
        sighting = Sighting(stream_id, reader, from_start)
        self.sightings.append(sighting)
        self.on_reading(sighting)
        return sighting


def payloads(records: Sequence[Record]) -> list[bytes]:
    return [bytes(record.payload) for record in records]
