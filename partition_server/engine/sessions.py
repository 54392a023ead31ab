"""Sessions: the results of clients' writes, so that a repeated call gets its first answer (scenario T50).

Invariants: only acknowledged results are kept for good, and only they go into a manifest: after a crash, any other
            result could contradict the log;
            a call below its client's completed mark, or below what was forgotten of the client, is refused;
            clients, results of a client, results of all, and the time that an idle client is remembered are bounded;
            each result is small, whatever the call was.
            A forgotten call that is repeated is refused, never executed twice. A client's floor stays when its results
            are dropped. A whole client is dropped only after a silence longer than any call is repeated; until then,
            there is no room for a new one. A load restores all that it finds, because they were admitted before.
Not here:   client 0, whose results are not remembered.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from neve.partition_server.engine.write import Outcome, PutGroup, Write, remembered
from neve.partition_server.log.log_format import Caller
from neve.proto.errors import InvalidArgument, NeveError, Overloaded

LOOKS_MAX = 256  # clients checked for silence; they are in order of their calls, except for pending ones
SILENT_PART = 10  # a tenth of the idle time: one minute of ten, twice the time of a call with all its attempts


@dataclass(slots=True)
class Session:
    """One client. Its calls below `floor` have ended."""

    floor: int = 0
    used_ms: int = 0
    results: dict[int, Outcome] = field(default_factory=dict)  # acknowledged, in the order of acknowledgement
    running: dict[int, Write] = field(default_factory=dict)

    def raise_floor(self, floor: int) -> int:
        """Raise the floor. Returns how many results that dropped."""
        if floor <= self.floor:
            return 0
        self.floor = floor
        results = self.results
        over = []
        for call_id in results:
            if call_id >= floor:
                break  # later results may also be below it, if out of order: they go with a later floor
            over.append(call_id)
        for call_id in over:
            del results[call_id]
        return len(over)

    def forget_all(self) -> int:
        """Drop all results, and raise the floor above them. Returns how many there were."""
        before = len(self.results)
        if before:
            self.floor = max(self.floor, max(self.results) + 1)
            self.results.clear()
        return before


class Sessions:
    def __init__(self, *, clients_max: int, results_max: int, results_total_max: int, idle_ms: int) -> None:
        self._clients_max = clients_max
        self._results_max = results_max
        self._results_total_max = results_total_max
        self.results = 0  # of all clients
        self._idle_ms = idle_ms
        self._silent_ms = idle_ms // SILENT_PART  # after this silence, none of a client's calls is repeated any more
        self._refused: OrderedDict[tuple[int, int], NeveError | None] = OrderedDict()  # by client and call
        self._clients: OrderedDict[int, Session] = OrderedDict()  # least recently used first

    def enter(self, caller: Caller, now_ms: int) -> tuple[Write, bool]:
        """Return the write of this call, and whether it is new; otherwise it is pending or done."""
        if not caller.client_id:
            return Write(caller), True
        self._admit(caller.client_id, now_ms)
        session = self._session(caller.client_id, now_ms)
        self.results -= session.raise_floor(caller.completed_below)
        call_id = caller.call_id
        if call_id < session.floor:
            detail = f"call {call_id} of client {caller.client_id:016x} has ended, like all below {session.floor}"
            raise InvalidArgument(what="call", detail=detail)
        outcome = session.results.get(call_id)
        if outcome is not None:
            write = Write(caller)
            write.outcome = outcome
            write.finish()
            return write, False
        if (caller.client_id, call_id) in self._refused:
            write = Write(caller)
            write.finish(self._refused[caller.client_id, call_id])
            return write, False
        running = session.running.get(call_id)
        if running is not None:
            return running.member(call_id) if isinstance(running, PutGroup) else running, False
        if len(session.running) >= self._results_max:
            raise Overloaded(what="session", detail=f"{len(session.running)} calls of one client are pending")
        write = session.running[call_id] = Write(caller)
        return write, True

    def enter_group(self, group: PutGroup, now_ms: int) -> bool:
        """Register all calls of the group as pending. False without any effect, unless all of them are new."""
        client_id, call_ids = group.caller.client_id, group.call_ids
        self._admit(client_id, now_ms)
        session = self._session(client_id, now_ms)
        self.results -= session.raise_floor(group.caller.completed_below)
        running = session.running
        if (
            min(call_ids) < session.floor
            or len(running) + len(call_ids) > self._results_max
            or not session.results.keys().isdisjoint(call_ids)
            or not running.keys().isdisjoint(call_ids)
            or (self._refused and any((client_id, call_id) in self._refused for call_id in call_ids))
        ):
            return False
        before = len(running)
        running.update(dict.fromkeys(call_ids, group))
        if len(running) - before == len(call_ids):
            return True
        for call_id in set(call_ids):  # a call may occur twice
            del running[call_id]
        return False

    def leave_group(self, group: PutGroup) -> None:
        """The group failed without effect: its calls may be tried again."""
        session = self._clients.get(group.caller.client_id)
        if session is not None:
            for call_id in group.call_ids:
                if session.running.get(call_id) is group:
                    del session.running[call_id]

    def group_acknowledged(self, group: PutGroup) -> None:
        self.leave_group(group)
        caller, call_ids = group.caller, group.call_ids
        if not call_ids:
            return
        outcomes = zip(call_ids, ((info,) for info in group.outcome), strict=True)
        self.remember_all(caller.client_id, caller.completed_below, dict(outcomes), 0)

    def remember_all(self, client_id: int, completed_below: int, results: dict[int, Outcome], now_ms: int) -> None:
        """Like `remember`, for several results of one client."""
        session = self._session(client_id, now_ms)
        self.results -= session.raise_floor(completed_below)
        if min(results) < session.floor:
            results = {call_id: outcome for call_id, outcome in results.items() if call_id >= session.floor}
        if len(session.results) + len(results) <= self._results_max:
            before = len(session.results)
            session.results.update(results)
            self.results += len(session.results) - before
            if self.results > self._results_total_max:
                self._make_room()
        else:
            for call_id, outcome in results.items():
                self.remember(Caller(client_id, call_id, completed_below), outcome, now_ms)

    def known(self, caller: Caller, now_ms: int) -> Write | None:
        """Return the write of a call that came before, if there was one."""
        session = self._clients.get(caller.client_id)
        if session is None or not (caller.call_id in session.results or caller.call_id in session.running):
            return None
        return self.enter(caller, now_ms)[0]

    def leave(self, write: Write) -> None:
        """The write failed without effect: its call may be tried again."""
        session = self._clients.get(write.caller.client_id)
        if session is not None and session.running.get(write.caller.call_id) is write:
            del session.running[write.caller.call_id]

    def refused(self, write: Write, error: NeveError | None) -> None:
        """The call was answered without a write; `error` None: it had nothing to do.

        A late copy of the call must not be executed. The log does not have this answer, so it is remembered only while
        the partition is loaded and there is room.
        """
        self.leave(write)
        if write.caller.client_id:
            self._refused[write.caller.client_id, write.caller.call_id] = error
            if len(self._refused) > self._results_total_max:
                self._refused.popitem(last=False)

    def acknowledged(self, write: Write) -> None:
        self.leave(write)
        self.remember(write.caller, write.outcome if len(write.outcome) < 2 else remembered(write.entries), 0)

    def remember(self, caller: Caller, outcome: Outcome, now_ms: int) -> None:
        if not caller.client_id:
            return
        session = self._session(caller.client_id, now_ms)
        self.results -= session.raise_floor(caller.completed_below)
        if caller.call_id >= session.floor:
            if caller.call_id not in session.results:
                self.results += 1
            session.results[caller.call_id] = outcome
            while len(session.results) > self._results_max:  # the client does not say what has ended: drop the oldest
                self.results -= session.raise_floor(max(next(iter(session.results)) + 1, session.floor + 1))
            if self.results > self._results_total_max:
                self._make_room()

    def restore(self, client_id: int, floor: int, used_ms: int, results: dict[int, Outcome]) -> None:
        """Restore a client from a manifest. After a merge, both partitions' results count."""
        session = self._session(client_id, used_ms)
        before = len(session.results)
        for call_id, outcome in results.items():
            session.results.setdefault(call_id, outcome)
        self.results += len(session.results) - before
        self.results -= session.raise_floor(floor)

    def expire(self, now_ms: int) -> None:
        """Forget clients that have been idle for long and have no pending calls."""
        while self._clients:
            client_id, session = next(iter(self._clients.items()))
            if session.running or session.used_ms + self._idle_ms > now_ms:
                return
            self._remove(client_id)

    def clear(self) -> None:
        """The partition has ended: drop everything."""
        self._clients.clear()
        self._refused.clear()
        self.results = 0

    def all(self) -> Iterator[tuple[int, Session]]:
        return iter(self._clients.items())

    def __len__(self) -> int:
        return len(self._clients)

    def _session(self, client_id: int, now_ms: int) -> Session:
        session = self._clients.get(client_id)
        if session is None:
            session = self._clients[client_id] = Session()
        else:
            self._clients.move_to_end(client_id)
        if now_ms > session.used_ms:
            session.used_ms = now_ms
        return session

    def _remove(self, client_id: int) -> None:
        self.results -= len(self._clients.pop(client_id).results)

    def _make_room(self) -> None:
        """Drop results of the least recently active clients."""
        for session in self._clients.values():
            if self.results <= self._results_total_max:
                return
            self.results -= session.forget_all()

    def _admit(self, client_id: int, now_ms: int) -> None:
        """Make room for a new client, by dropping the one that has been silent longest."""
        if len(self._clients) < self._clients_max or client_id in self._clients:
            return
        for other_id, session in itertools.islice(self._clients.items(), LOOKS_MAX):
            if not session.running and session.used_ms + self._silent_ms <= now_ms:
                self._remove(other_id)
                return
        detail = f"{len(self._clients)} clients called within the last {self._silent_ms / 1000:g} s"
        raise Overloaded(what="sessions", detail=detail)
