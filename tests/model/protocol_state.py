"""The state of the protocol's model: one extent X in full, everything behind it as one log that is always right.

A stream begins with the tail X on three replicas. When X is sealed, what follows is `after`: an ideal log that takes a
block if its token is not older than the newest owner's. So the model shows what can go wrong with one extent, which is
where all the rules are; a successor is an X of its own.

Blocks are numbers: 10 * session + place in the session, so that session 1 appends 11, 12, ... An offset counts blocks.
A message, once sent, may arrive at any time, any number of times, or never: nothing removes it. Therefore messages are
not kept as such: what was sent can be seen from the sender's state, and a late or repeated one is a step that is
allowed for ever. The answers that a manager or a writer has got so far stand in the columns.

Invariants: everything that belongs to one replica is in its column, so that sorting columns makes states equal that
            differ only by the replicas' names.
"""

from __future__ import annotations

from typing import NamedTuple

NONE = -1  # no length, no E

# Session.status
OPENING, OPEN, OVER = 0, 1, 2
# Session.where: the replicated extent, or the log behind it
IN_X, BEHIND = 0, 1
# Where an acknowledged block is: in X, behind it, or in an extent that was prepared and may never be linked
PREPARED = 2
# Manager.task
IDLE, RAISING, FENCING_FOR_ALLOC, FENCING_ITSELF, FENCING_FOR_OPEN, UNSURE = 0, 1, 2, 3, 4, 5
# Answer kinds
LENGTH, DOUBTFUL, ABSENT, FENCED, SEALED, REFUSED = 1, 2, 3, 4, 5, 6

Answer = tuple[int, ...]  # (kind, length, committed); () is silence


class Replica(NamedTuple):
    exists: int = 1
    token: int = 0
    fenced: int = 0
    sealed: int = NONE
    doubtful: int = 0
    unsynced: int = 0
    data: tuple[int, ...] = ()
    durable: int = 0  # so many blocks survive a power cut for certain
    committed: int = 0


GONE = Replica(exists=0)


class Column(NamedTuple):
    """One replica, and all that others know or wait for of it."""

    replica: Replica = Replica()
    dead: int = 0  # declared so, in metadata
    bit: int = 0  # confirmed, in metadata
    answered: tuple[int, ...] = ()  # to each session: the end that it was told to have
    answers: tuple[Answer, ...] = ((), ())  # to each manager, in its present task


class Session(NamedTuple):
    """One opening of the stream by a writer."""

    token: int
    status: int = OPENING
    where: int = IN_X
    base: int = 0  # where it went on in X
    framed: tuple[int, ...] = ()  # blocks in X, from `base` on
    acked: int = 0  # the end in X that it has acknowledged
    sealing: int = NONE  # E, once it has asked for the next extent
    waiting: int = NONE  # an end in X that becomes acknowledged when all have confirmed
    rest: tuple[int, ...] = ()  # to be sent again, behind X
    made: int = 0  # blocks so far
    stray: tuple[tuple[int, int], ...] = ()  # (offset, block) of messages that their sender has forgotten
    taken_over: int = 0  # put out while its lease was alive: it hears of that late


class Manager(NamedTuple):
    term: int = 0  # the one it believes to lead; 0: none
    length: int = NONE  # at which X is sealed, as far as it knows
    took: int = 0  # all replicas took part in that seal
    task: int = IDLE
    session: int = NONE  # for whom
    end: int = NONE  # E


class State(NamedTuple):
    columns: tuple[Column, ...]
    sessions: tuple[Session, ...] = ()
    managers: tuple[Manager, ...] = (Manager(), Manager())
    # metadata
    lock: int = 0  # the token of its holder, or 0
    term: int = 0  # of whoever leads
    length: int = NONE  # at which X is sealed
    took: int = 0
    # what is on its way to writers
    grants: tuple[tuple[int, int, int], ...] = ()  # (session, where, length): "go on here"
    replies: tuple[tuple[int, int, int], ...] = ()  # (session, length, took): "X is sealed"
    # behind X
    after: tuple[int, ...] = ()
    after_token: int = 0
    prepared: tuple[int, ...] = ()
    # what happened so far
    acks: tuple[tuple[int, int, int], ...] = ()  # (where, offset, block), sorted
    seen: tuple[int, ...] = ()  # what readers have got of X
    opened: int = NONE  # the newest session that has opened
    opened_at: int = 0  # ... with this length of X
    bad: str = ""  # a step did what no step may do
    # what may still happen
    cuts: int = 0
    restarts: int = 0
    losses: int = 0
    deaths: int = 0


def put(values: tuple, at: int, value: object) -> tuple:  # type: ignore[type-arg]
    """The tuple with one element replaced."""
    return (*values[:at], value, *values[at + 1 :])
