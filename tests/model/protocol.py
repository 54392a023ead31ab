"""Rules 1 to 20 of docs/protocol.md as a model: three replicas, writers, two managers, and all that may go wrong.

    ProtocolModel(Bounds(...)).steps(state)            # with all rules
    ProtocolModel(Bounds(...), without="16-settle")    # with one of them switched off

What may happen at any moment: a message is late, repeated or lost; a lease ends; a writer dies; another manager is
elected while the old one does not know; a node's process restarts; its power fails, and what was not synced may be
gone; its disk is lost; a node is declared dead although it lives. `Bounds` says how much of each.

Must hold in every state (`broken`): G1, G3, G4, G5, G6, G8, and that replicas are prefixes of one sequence.

Not here:   what makes bytes durable on a node (node.py), and deletion (collect.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.model.protocol_seal import choose_length
from tests.model.protocol_state import (
    ABSENT,
    BEHIND,
    DOUBTFUL,
    FENCED,
    FENCING_FOR_ALLOC,
    FENCING_FOR_OPEN,
    FENCING_ITSELF,
    GONE,
    IDLE,
    IN_X,
    LENGTH,
    NONE,
    OPEN,
    OPENING,
    OVER,
    PREPARED,
    RAISING,
    REFUSED,
    SEALED,
    UNSURE,
    Answer,
    Column,
    Manager,
    Replica,
    Session,
    State,
    put,
)

Step = tuple[str, State]
REPLICAS = 3
NO_ANSWERS: tuple[Answer, ...] = ((), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much may happen. Zero or False: not at all."""

    blocks: tuple[int, ...] = (1,)  # that each session may append; so many sessions
    terms: int = 1  # elections, the first one included
    sync: bool = True
    seals: bool = False  # writers ask for the next extent
    own_seals: bool = False  # managers seal by themselves
    leases: bool = False  # leases end
    takeovers: bool = False
    cuts: int = 0  # power cuts
    cut_together: bool = False  # a power cut takes all nodes
    restarts: int = 0
    losses: int = 0  # disks
    deaths: int = 0  # nodes declared dead
    readers: bool = False
    same_process: bool = False  # the second session is a reopening by the first one's process
    begun: bool = True  # the first writer has opened the stream
    keep_one: bool = False  # power cuts leave some replica that has lost nothing that is acknowledged
    unknown: bool = False  # a transaction's answer is lost
    fine: bool = False  # a replica seals and is confirmed in two steps, also while its manager leads


class ProtocolModel:
    """See the module. States are `State`."""

    def __init__(self, bounds: Bounds, *, without: str = "") -> None:
        self.bounds = bounds
        self.without = without

    def initial(self) -> State:
        bounds = self.bounds
        sessions = len(bounds.blocks)
        column = Column(answered=(0,) * sessions)
        state = State(
            columns=(column,) * REPLICAS,
            cuts=bounds.cuts,
            restarts=bounds.restarts,
            losses=bounds.losses,
            deaths=bounds.deaths,
        )
        state = self._elected(state, 0)
        if bounds.begun:
            raised = Column(replica=Replica(token=1), answered=(0,) * sessions)
            writer = Session(1, status=OPEN)
            state = state._replace(columns=(raised,) * REPLICAS, sessions=(writer,), lock=1, opened=0)
        return state

    def canonical(self, state: State) -> State:
        return state._replace(columns=tuple(sorted(state.columns)))

    def steps(self, state: State) -> Iterator[Step]:
        yield from self._locks(state)
        for number, session in enumerate(state.sessions):
            yield from self._writes(state, number, session)
            yield from self._deliveries(state, number, session)
        for number, manager in enumerate(state.managers):
            if manager.term:
                yield from self._manages(state, number, manager)
        yield from self._elections(state)
        yield from self._troubles(state)
        if self.bounds.readers:
            yield from self._reads(state)

    # --- locks -----------------------------------------------------------------------------------------------

    def _locks(self, state: State) -> Iterator[Step]:
        number = len(state.sessions)
        if number < len(self.bounds.blocks):
            reopens = self.bounds.same_process and number > 0
            if not state.lock:
                yield f"writer {number + 1} takes the lock", self._begun(state, number, token=number + 1)
            elif reopens:
                token = state.lock if self.without == "1-new-token" else number + 1
                before = self._over(state, number - 1)
                yield f"the writer opens again, token {token}", self._begun(before, number, token=token)
            elif self.without == "1-adopt":
                yield f"writer {number + 1} adopts the lock", self._begun(state, number, token=state.lock)
            elif self.bounds.takeovers:
                holder = next(i for i, each in enumerate(state.sessions) if each.token == state.lock)
                out = state.sessions[holder]._replace(taken_over=1)
                before = state._replace(sessions=put(state.sessions, holder, out))
                yield f"writer {number + 1} takes the lock over", self._begun(before, number, token=number + 1)
        for at, session in enumerate(state.sessions):
            if session.taken_over and session.status != OVER:
                yield f"writer {at + 1} hears that its lock is gone", self._over(state, at)
            if self.bounds.leases and state.lock == session.token and session.status != OVER:
                # The writer's own clock ends it before the store's ends the lease (2).
                ended = state if self.without == "2-deadline" else self._over(state, at)
                yield f"writer {at + 1} loses its lease", ended._replace(lock=0)

    def _begun(self, state: State, number: int, *, token: int) -> State:
        return state._replace(lock=token, sessions=(*state.sessions, Session(token)))

    def _over(self, state: State, number: int) -> State:
        ended = state.sessions[number]._replace(status=OVER)
        return state._replace(sessions=put(state.sessions, number, ended))

    # --- writers ---------------------------------------------------------------------------------------------

    def _writes(self, state: State, number: int, session: Session) -> Iterator[Step]:
        name = f"writer {number + 1}"
        if session.status == OPENING:
            for at, where, length in state.grants:
                if at == number:
                    yield f"{name} opens {'X' if where == IN_X else 'behind X'}", self._opens(state, at, where, length)
        if session.status != OPEN:
            return
        if session.where == IN_X:
            yield from self._writes_in_x(state, number, session)
        else:
            yield from self._writes_behind(state, number, session)
        if session.waiting != NONE and all(column.bit for column in state.columns) and self._owns(state, session):
            told = session._replace(waiting=NONE)
            after = self._acknowledge(state, number, told, session.waiting)
            yield f"{name} acknowledges up to {session.waiting}: all have confirmed", after

    def _writes_in_x(self, state: State, number: int, session: Session) -> Iterator[Step]:
        name = f"writer {number + 1}"
        if session.sealing == NONE and session.made < self.bounds.blocks[number]:
            made = session.made + 1
            block = 10 * (number + 1) + made
            framed = session._replace(made=made, framed=(*session.framed, block))
            yield f"{name} frames {block}", self._with(state, number, framed)
            if self.without == "6-cancel" and session.base + len(session.framed) > session.acked:
                at = session.base + len(session.framed) - 1
                stray = (*session.stray, (at, session.framed[-1]))
                again = session._replace(made=made, framed=(*session.framed[:-1], block), stray=stray)
                yield f"{name} cancels {session.framed[-1]} and frames {block}", self._with(state, number, again)
        ends = sorted(column.answered[number] for column in state.columns)
        end = ends[1 if self.without == "5-all" else 0]
        if session.acked < end and (session.sealing == NONE or self.without == "16-silent"):
            yield f"{name} acknowledges up to {end}", self._acknowledge(state, number, session, end)
        if self.bounds.seals and session.sealing == NONE:
            asked = session._replace(sealing=session.acked)
            yield f"{name} asks for the next extent, E={session.acked}", self._with(state, number, asked)
        if session.sealing != NONE:
            for at, length, took in state.replies:
                if at == number:
                    yield f"{name} hears L={length}", self._settle(state, number, session, length, took)
            if self.without == "8-prepared" and session.made < self.bounds.blocks[number]:
                made = session.made + 1
                block = 10 * (number + 1) + made
                after = self._with(state, number, session._replace(made=made))
                after = self._told(after._replace(prepared=(*after.prepared, block)), PREPARED, 0, block)
                yield f"{name} appends {block} to the prepared extent", after

    def _settle(self, state: State, number: int, session: Session, length: int, took: int) -> State:
        inside = max(length - session.base, 0)
        rest = session.framed[inside:]
        if self.without == "16-resend":
            rest = session.framed[session.sealing - session.base :]
        moved = session._replace(where=BEHIND, rest=rest)
        if length <= session.acked:
            return self._with(state, number, moved)
        if took or self.without == "16-settle":
            return self._acknowledge(state, number, moved, length)
        return self._with(state, number, moved._replace(waiting=length))

    def _writes_behind(self, state: State, number: int, session: Session) -> Iterator[Step]:
        if session.token < state.after_token:
            return
        if session.rest:
            block, after = session.rest[0], session._replace(rest=session.rest[1:])
        elif session.made < self.bounds.blocks[number]:
            block, after = 10 * (number + 1) + session.made + 1, session._replace(made=session.made + 1)
        else:
            return
        done = self._with(state, number, after)
        done = self._check_owner(done, number, NONE)
        at = len(state.after)
        yield (
            f"writer {number + 1} appends {block} behind X",
            self._told(done._replace(after=(*state.after, block)), BEHIND, at, block),
        )

    def _opens(self, state: State, number: int, where: int, length: int) -> State:
        session = state.sessions[number]
        opened = session._replace(status=OPEN, where=where, base=length, acked=length)
        columns = state.columns
        if where == IN_X:
            columns = tuple(each._replace(answered=put(each.answered, number, length)) for each in columns)
        after = self._with(state, number, opened)._replace(columns=columns)
        if where == BEHIND:
            after = after._replace(after_token=max(state.after_token, session.token))
        if number > state.opened:
            after = after._replace(opened=number, opened_at=length if where == IN_X else state.length)
        return after

    def _acknowledge(self, state: State, number: int, session: Session, end: int) -> State:
        after = self._check_owner(state, number, end)
        for offset in range(session.acked, end):
            at = offset - session.base
            if at < len(session.framed):
                after = self._told(after, IN_X, offset, session.framed[at])
        return self._with(after, number, session._replace(acked=end))

    def _check_owner(self, state: State, number: int, end: int) -> State:
        """G5. Who was put out by a take-over may still learn that a block is there, which his successor has found."""
        if number >= state.opened:
            return state
        if state.sessions[number].taken_over and NONE < end <= state.opened_at:
            return state
        return state._replace(bad=f"G5: writer {number + 1} acknowledges although writer {state.opened + 1} has opened")

    def _told(self, state: State, where: int, offset: int, block: int) -> State:
        return state._replace(acks=tuple(sorted((*state.acks, (where, offset, block)))))

    def _with(self, state: State, number: int, session: Session) -> State:
        return state._replace(sessions=put(state.sessions, number, session))

    def _owns(self, state: State, session: Session) -> bool:
        return state.lock == session.token or self.without == "3-every-answer"

    # --- appends at replicas ---------------------------------------------------------------------------------

    def _deliveries(self, state: State, number: int, session: Session) -> Iterator[Step]:
        sent = [(session.base + at, block) for at, block in enumerate(session.framed)] + [*session.stray]
        for at, column in enumerate(state.columns):
            for offset, block in sent:
                yield from self._delivery(state, number, session, at, column, offset, block)
            if self.bounds.readers or self.bounds.restarts:
                yield from self._commit_told(state, session, at, column)

    def _delivery(
        self, state: State, number: int, session: Session, at: int, column: Column, offset: int, block: int
    ) -> Iterator[Step]:
        replica = column.replica
        if not self._accepts(replica, session.token):
            return
        length = len(replica.data)
        token = max(replica.token, session.token)
        name = f"replica {at + 1} takes {block} at {offset}"
        data = replica.data
        if offset < length and data[offset] != block:
            if self.without == "4-truncate":
                data = (*data[:offset], block)
            else:
                if session.status != OVER:
                    yield f"replica {at + 1} refuses {block}: Conflict", self._over(state, number)  # rule 7
                return
        elif offset < length and self.without == "4-truncate":
            data = data[: offset + 1]  # a late repetition cuts what came after it
        elif offset > length and self.without != "4-gap":
            return
        elif offset >= length:
            data = (*data, block)
        ended = replica._replace(token=token, data=data)
        end = max(column.answered[number], offset + 1)
        durable = min(replica.durable, len(data))
        answered = column._replace(replica=ended._replace(durable=durable), answered=put(column.answered, number, end))
        if not self.bounds.sync:
            unsynced = 0 if self.without == "10-mark" else 1
            yield name, self._column(state, at, answered._replace(replica=answered.replica._replace(unsynced=unsynced)))
            return
        if self.bounds.cuts and data != replica.data:  # written, and not synced yet
            yield f"{name}, in memory", self._column(state, at, column._replace(replica=answered.replica))
        if self.without == "5-durable" or (self.without == "5-retry" and data == replica.data):
            yield name, self._column(state, at, answered)
            return
        yield name, self._column(state, at, answered._replace(replica=ended._replace(durable=len(data))))

    def _accepts(self, replica: Replica, token: int) -> bool:
        if not replica.exists:
            return False
        if replica.fenced and self.without != "4-fenced":
            return False
        if replica.sealed != NONE and self.without != "4-fenced":
            return False
        if replica.doubtful and self.without != "4-doubtful":
            return False
        return token >= replica.token or self.without == "4-token"

    def _commit_told(self, state: State, session: Session, at: int, column: Column) -> Iterator[Step]:
        replica = column.replica
        told = min(session.acked, len(replica.data))
        if told > replica.committed and self._accepts(replica, session.token):
            known = column._replace(replica=replica._replace(committed=told))
            yield f"replica {at + 1} is told that {told} are acknowledged", self._column(state, at, known)

    def _column(self, state: State, at: int, column: Column) -> State:
        return state._replace(columns=put(state.columns, at, column))

    # --- managers --------------------------------------------------------------------------------------------

    def _elections(self, state: State) -> Iterator[Step]:
        if state.term < self.bounds.terms:
            for number in range(len(state.managers)):
                yield f"manager {number + 1} is elected", self._elected(state, number)

    def _elected(self, state: State, number: int) -> State:
        term = state.term + 1
        manager = Manager(term=term, length=state.length, took=state.took)
        return self._manager(state._replace(term=term), number, manager, forget=True)

    def _manager(self, state: State, number: int, manager: Manager, *, forget: bool = False) -> State:
        after = state._replace(managers=put(state.managers, number, manager))
        if forget:
            cleared = tuple(each._replace(answers=put(each.answers, number, ())) for each in state.columns)
            after = after._replace(columns=cleared)
        return after

    def _manages(self, state: State, number: int, manager: Manager) -> Iterator[Step]:
        if manager.task == IDLE:
            yield from self._begins(state, number, manager)
        elif manager.task == UNSURE:
            known = Manager(term=manager.term, length=state.length, took=state.took)
            yield f"manager {number + 1} learns that it has sealed X", self._manager(state, number, known)
        else:
            yield from self._asks(state, number, manager)
            yield from self._decides(state, number, manager)
        if manager.length != NONE:
            yield from self._seals(state, number, manager)

    def _begins(self, state: State, number: int, manager: Manager) -> Iterator[Step]:
        name = f"manager {number + 1}"
        for at, session in enumerate(state.sessions):
            if session.status == OPENING:
                if manager.length == NONE:
                    task = manager._replace(task=RAISING, session=at)
                    yield f"{name} opens for writer {at + 1}", self._manager(state, number, task)
                elif manager.term == state.term and state.lock == session.token:
                    yield f"{name} opens behind X for writer {at + 1}", self._grant(state, at, BEHIND, manager.length)
            if session.sealing != NONE and session.where == IN_X:
                if manager.length == NONE:
                    task = manager._replace(task=FENCING_FOR_ALLOC, session=at, end=session.sealing)
                    yield f"{name} seals for writer {at + 1}", self._manager(state, number, task)
                elif self._owns(state, session):
                    reply = self._reply(state, at, manager.length, manager.took)
                    yield f"{name} repeats L={manager.length} to writer {at + 1}", reply
        if self.bounds.own_seals and manager.length == NONE:
            task = manager._replace(task=FENCING_ITSELF)
            yield f"{name} seals by itself", self._manager(state, number, task)

    def _grant(self, state: State, session: int, where: int, length: int) -> State:
        return state._replace(grants=tuple(sorted({*state.grants, (session, where, length)})))

    def _reply(self, state: State, session: int, length: int, took: int) -> State:
        return state._replace(replies=tuple(sorted({*state.replies, (session, length, took)})))

    def _asks(self, state: State, number: int, manager: Manager) -> Iterator[Step]:
        raising = manager.task == RAISING
        token = state.sessions[manager.session].token if manager.session != NONE else 0
        for at, column in enumerate(state.columns):
            if column.answers[number]:
                continue
            replica, answer = self._raised(column.replica, token) if raising else self._fenced(column.replica, token)
            asked = column._replace(replica=replica, answers=put(column.answers, number, answer))
            what = "Raise" if raising else "Fence"
            yield f"replica {at + 1} answers manager {number + 1}'s {what}", self._column(state, at, asked)

    def _raised(self, replica: Replica, token: int) -> tuple[Replica, Answer]:
        if not replica.exists:
            return replica, (ABSENT, 0, 0)
        if replica.token > token:
            return replica, (REFUSED, 0, 0)
        if replica.fenced or replica.sealed != NONE:
            return replica, (FENCED, len(replica.data), 0)
        if replica.doubtful and self.without != "15-doubtful":
            return replica._replace(token=token), (DOUBTFUL, len(replica.data), 0)
        return self._persisted(replica)._replace(token=token), (LENGTH, len(replica.data), 0)

    def _fenced(self, replica: Replica, token: int) -> tuple[Replica, Answer]:
        length = len(replica.data)
        if not replica.exists:
            return replica, (ABSENT, 0, 0)
        if replica.sealed != NONE:
            return replica, (SEALED, replica.sealed, 0)
        if token and replica.token > token and self.without not in ("14-fence-token", "19-lock-and-fence"):
            return replica, (REFUSED, 0, 0)
        fenced = replica._replace(fenced=1, token=max(replica.token, token))
        if replica.doubtful:
            return fenced, (DOUBTFUL, length, replica.committed)
        return self._persisted(fenced)._replace(unsynced=0), (LENGTH, length, replica.committed)

    def _persisted(self, replica: Replica) -> Replica:
        if self.without == "14-page-cache":
            return replica
        return replica._replace(durable=len(replica.data))

    def _decides(self, state: State, number: int, manager: Manager) -> Iterator[Step]:
        if manager.task == RAISING:
            yield from self._decides_open(state, number, manager)
            return
        answers = [column.answers[number] for column in state.columns]
        if any(answer and answer[0] == REFUSED for answer in answers):
            return  # a newer owner's token was met: NotOwner
        dead = [bool(column.dead) for column in state.columns]
        chosen = choose_length(answers, dead=dead, end=manager.end, without=self.without)
        if chosen is None:
            return
        length, took = chosen
        session = None if manager.session == NONE else state.sessions[manager.session]
        name = f"manager {number + 1} decides L={length}"
        if not self._may_seal(state, manager, session):
            done = manager._replace(task=IDLE, session=NONE, end=NONE)
            if manager.term != state.term:
                done = Manager()
            yield f"{name}, in vain", self._manager(state, number, done, forget=True)
            return
        after = state
        if state.length not in (NONE, length):
            after = after._replace(bad=f"G3: sealed at {state.length}, then at {length}")
        after = after._replace(length=length, took=int(took))
        if self.bounds.unknown:
            careless = self.without in ("19-again", "19-again-and-extent")
            unsure = Manager(term=manager.term, task=IDLE if careless else UNSURE)
            yield f"{name}, and does not hear that it did", self._manager(after, number, unsure, forget=True)
        done = Manager(term=manager.term, length=length, took=int(took))
        after = self._manager(after, number, done, forget=True)
        if self.without == "19-bits":
            marked = [
                each._replace(bit=int(bool(answer) and answer[0] == LENGTH))
                for each, answer in zip(after.columns, answers, strict=True)
            ]
            after = after._replace(columns=tuple(marked))
        if manager.task == FENCING_FOR_ALLOC:
            after = self._reply(after, manager.session, length, int(took))
            after = after._replace(after=after.prepared, prepared=())
            linked = [(BEHIND if where == PREPARED else where, at, block) for where, at, block in after.acks]
            after = after._replace(acks=tuple(sorted(linked)))
        elif manager.task == FENCING_FOR_OPEN:
            after = self._grant(after, manager.session, BEHIND, length)
        if any(where == PREPARED for where, _, _ in after.acks):
            after = after._replace(bad="G2: acknowledged in an extent that no stream has")
        yield name, after

    def _may_seal(self, state: State, manager: Manager, session: Session | None) -> bool:
        """The compares of rule 19's transaction."""
        if manager.term != state.term and self.without not in ("19-leader", "19-leader-and-extent"):
            return False
        anyhow = ("19-extent", "19-leader-and-extent", "19-again-and-extent")
        if state.length != NONE and self.without not in anyhow:
            return False
        return session is None or state.lock == session.token or self.without in ("19-lock", "19-lock-and-fence")

    def _decides_open(self, state: State, number: int, manager: Manager) -> Iterator[Step]:
        answers = [column.answers[number] for column in state.columns]
        session = state.sessions[manager.session]
        name = f"manager {number + 1}"
        fence = manager._replace(task=FENCING_FOR_OPEN)
        yield f"{name} has X sealed for writer {manager.session + 1}", self._manager(state, number, fence, forget=True)
        length = self._length_to_go_on(answers)
        if length == NONE:
            return
        idle = self._manager(state, number, manager._replace(task=IDLE, session=NONE, end=NONE), forget=True)
        proved = manager.term == state.term and state.length == NONE and state.lock == session.token
        if proved or self.without == "15-proof":
            yield (
                f"{name} lets writer {manager.session + 1} go on at {length}",
                self._grant(idle, manager.session, IN_X, length),
            )

    def _length_to_go_on(self, answers: list[Answer]) -> int:
        """Rule 15; NONE: not at all."""
        good = [answer[1] for answer in answers if answer and answer[0] == LENGTH]
        if self.without == "15-fenced":
            good = [answer[1] for answer in answers if answer and answer[0] in (LENGTH, FENCED)]
        if self.without == "15-all" and len(good) == len(answers) - 1:
            return min(good)
        if len(good) < len(answers):
            return NONE
        if min(good) != max(good) and self.without != "15-equal":
            return NONE
        return min(good)

    def _seals(self, state: State, number: int, manager: Manager) -> Iterator[Step]:
        """Rule 20: the orders, the confirmations, the filling."""
        length = manager.length
        sources = [each.replica for each in state.columns if each.bit and each.replica.sealed == length]
        if self.without == "20-source":
            sources = [each.replica for each in state.columns if len(each.replica.data) >= length]
        for at, column in enumerate(state.columns):
            replica = column.replica
            if replica.exists and replica.sealed == NONE:
                if len(replica.data) >= length or self.without == "20-short":
                    data = replica.data if self.without == "20-cut" else replica.data[:length]
                    sealed = column._replace(replica=_sealed(data, length, replica.token))
                    if not self.bounds.fine and manager.term == state.term:
                        sealed = self._confirmed(state, sealed)
                    yield f"replica {at + 1} seals at {length}", self._column(state, at, sealed)
            elif replica.sealed == length and not column.bit and manager.term == state.term:
                yield f"replica {at + 1} is confirmed", self._column(state, at, self._confirmed(state, column))
            if sources and (not replica.exists or (replica.sealed == NONE and len(replica.data) < length)):
                filled = column._replace(replica=_sealed(sources[0].data[:length], length, replica.token))
                if not self.bounds.fine and manager.term == state.term:
                    filled = self._confirmed(state, filled)
                yield f"replica {at + 1} is filled", self._column(state, at, filled)

    def _confirmed(self, state: State, column: Column) -> Column:
        """The first one's digest stands; who has another one is put into quarantine."""
        confirmed = [each.replica.data for each in state.columns if each.bit and each.replica.exists]
        if confirmed and confirmed[0] != column.replica.data and self.without != "20-digest":
            return column._replace(replica=GONE)
        return column._replace(bit=1)

    # --- trouble ---------------------------------------------------------------------------------------------

    def _troubles(self, state: State) -> Iterator[Step]:
        for at, column in enumerate(state.columns):
            replica = column.replica
            if state.deaths and not column.dead:
                after = self._column(state, at, column._replace(dead=1))
                yield f"node {at + 1} is declared dead", after._replace(deaths=state.deaths - 1)
            if not replica.exists:
                if self.without in ("17-disk", "17-disk-and-18-short") and not column.bit:
                    revived = column._replace(replica=Replica())
                    yield f"a late Create finds node {at + 1}'s new disk", self._column(state, at, revived)
                continue
            if state.restarts and replica.committed:
                after = self._column(state, at, column._replace(replica=replica._replace(committed=0)))
                yield f"node {at + 1} restarts", after._replace(restarts=state.restarts - 1)
            if state.losses:
                after = self._column(state, at, column._replace(replica=GONE))
                yield f"node {at + 1} loses its disk", after._replace(losses=state.losses - 1)
            if state.cuts and not self.bounds.cut_together:
                for length in range(replica.durable, len(replica.data) + 1):
                    cut = column._replace(replica=self._without_power(replica, length))
                    after = self._column(state, at, cut)._replace(cuts=state.cuts - 1)
                    if cut != column and not (self.bounds.keep_one and _is_lost(after)):
                        yield f"node {at + 1} loses power and keeps {length}", after
        if state.cuts and self.bounds.cut_together:
            dark = tuple(
                each._replace(replica=self._without_power(each.replica, each.replica.durable))
                if each.replica.exists
                else each
                for each in state.columns
            )
            yield "all nodes lose power", state._replace(columns=dark, cuts=state.cuts - 1)

    def _without_power(self, replica: Replica, length: int) -> Replica:
        doubtful = replica.doubtful
        if replica.unsynced and replica.sealed == NONE and self.without != "12-doubt":
            doubtful = 1
        fenced, token = replica.fenced, replica.token
        if self.without == "14-attributes":
            fenced = token = 0
        return replica._replace(
            data=replica.data[:length], committed=0, doubtful=doubtful, fenced=fenced, token=token, durable=length
        )

    # --- readers ---------------------------------------------------------------------------------------------

    def _reads(self, state: State) -> Iterator[Step]:
        for at, column in enumerate(state.columns):
            replica = column.replica
            if not replica.exists:
                continue
            if replica.sealed != NONE or column.bit:
                got = replica.data
            else:
                got = replica.data if self.without == "9-committed" else replica.data[: replica.committed]
            common = min(len(got), len(state.seen))
            if got[:common] != state.seen[:common]:
                bad = state._replace(bad=f"G4: a reader saw {state.seen}, another one {got}")
                yield f"a reader reads from replica {at + 1}", bad
            elif len(got) > len(state.seen):
                yield f"a reader reads {got} from replica {at + 1}", state._replace(seen=got)

    # --- what must hold --------------------------------------------------------------------------------------

    def broken(self, state: State) -> str:
        if state.bad:
            return state.bad
        replicas = [column.replica for column in state.columns]
        return (
            _differing(replicas)
            or self._not_everywhere(state, replicas)
            or (_broken_seal(state) if state.length != NONE else "")
        )

    def _not_everywhere(self, state: State, replicas: list[Replica]) -> str:
        """G1: what is acknowledged is on every replica, but for those that lost it and know that they may have."""
        for where, offset, block in state.acks:
            if where != IN_X:
                continue
            for replica in replicas:
                if not replica.exists or (replica.doubtful and not self.bounds.sync):
                    continue
                if len(replica.data) <= offset or replica.data[offset] != block:
                    return f"G1: {block} is acknowledged, and not on every replica"
                if self.bounds.sync and replica.durable <= offset:
                    return f"G1: {block} is acknowledged with sync, and not durable on every replica"
        return ""


def _is_lost(state: State) -> bool:
    """No replica has all that is acknowledged in X, or may be: all have answered for it."""
    answered = [min(column.answered[number] for column in state.columns) for number in range(len(state.sessions))]
    end = max(*answered, *(offset + 1 for where, offset, _ in state.acks if where == IN_X), len(state.seen))
    return not any(len(column.replica.data) >= end for column in state.columns)


def _sealed(data: tuple[int, ...], length: int, token: int) -> Replica:
    return Replica(token=token, fenced=1, sealed=length, data=data, durable=len(data))


def _differing(replicas: list[Replica]) -> str:
    longest = max((each.data for each in replicas), key=len)
    for replica in replicas:
        if longest[: len(replica.data)] != replica.data:
            return f"one sequence: replicas hold {longest} and {replica.data}"
    return ""


def _broken_seal(state: State) -> str:
    length = state.length
    held = [each.replica for each in state.columns if each.replica.exists]
    confirmed = [each.replica for each in state.columns if each.replica.exists and each.bit]
    for where, offset, block in state.acks:
        if where == IN_X and offset >= length:
            return f"G8: sealed at {length}, below the acknowledged {block}"
    if len(state.seen) > length:
        return f"G4: sealed at {length}, and a reader saw {state.seen}"
    for replica in confirmed:
        if len(replica.data) != length or replica.data != confirmed[0].data:
            return f"G3: sealed at {length}, confirmed with {replica.data}"
    in_x = [ack for ack in state.acks if ack[0] == IN_X]
    if (in_x or state.seen) and not any(len(each.data) >= length for each in held):
        return f"G2: nobody holds the {length} blocks that X was sealed with"
    if not confirmed:
        return ""
    content = confirmed[0].data
    if state.seen != content[: len(state.seen)]:
        return f"G4: a reader saw {state.seen}, X is {content}"
    for _, offset, block in in_x:
        if content[offset] != block:
            return f"G2: {block} is acknowledged at {offset}, X is {content}"
    return _disordered((*content, *state.after))


def _disordered(stream: tuple[int, ...]) -> str:
    """G6: each session's blocks, from its first one on, without gap or repetition, and sessions one after another."""
    last = 0
    for block in stream:
        if block not in (last + 1, (block // 10) * 10 + 1) or block <= last:
            return f"G6: the stream is {stream}"
        last = block
    return ""
