"""Calls to the stream or partition managers: finds the leader, follows NotLeader, and repeats what may be repeated.

Invariants: a mutation carries one call id however often it is sent, so it is executed once (rule 26);
            every operation ends within its deadline; between rounds there is a pause with jitter;
            an error that another attempt cannot heal is raised at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Any

from neve.client.streams.options import ClientOptions
from neve.meta.core_retry import Backoff
from neve.proto import common_pb2, methods
from neve.proto import stream_manager_pb2 as sm
from neve.proto.errors import (
    Cancelled,
    ConnectFailed,
    DeadlineExceeded,
    InvalidArgument,
    MaybeApplied,
    MetaUnavailable,
    NeveError,
    NotLeader,
    TransportError,
    VersionConflict,
)
from neve.proto.method import Method, Rep, Req
from neve.rpc.pool import ChannelPool

log = logging.getLogger(__name__)

MANAGERS_MAX = 32
REPLY_BYTES_MAX = 4 << 20  # of one page of a list

# Another manager, or the same one in a moment, may answer; none of them says that the request is wrong. What a cluster
# lacks (nodes, room, lengths) is told to the caller, who knows how long it is worth waiting for.
_HEALED_BY_TRYING = (Cancelled, MaybeApplied, MetaUnavailable, NotLeader, VersionConflict)


def may_heal(error: NeveError) -> bool:
    """Whether the same request may succeed at another manager or a moment later."""
    return isinstance(error, _HEALED_BY_TRYING) or (isinstance(error, TransportError) and error.retriable)


class ManagerLink:
    """`managers`: wire addresses, at least one. Which of them leads is found out."""

    def __init__(
        self,
        channels: ChannelPool,
        managers: Sequence[str],
        *,
        options: ClientOptions,
        rng: random.Random,
        kind: str = "stream manager",
    ) -> None:
        if not managers:
            raise InvalidArgument(what="managers", detail="the address of at least one manager is needed")
        self._channels = channels
        self._managers = list(dict.fromkeys(managers))
        self._options = options
        self._rng = rng
        self._kind = kind  # for people: who does not answer
        self._leader = ""  # who leads, as far as we know
        self._reader = ""  # who has answered our last read
        self.client_id = rng.getrandbits(64)
        self._call_ids = 0
        self.revision_seen = 0  # of metadata: what we ask for later is not older

    def next_call(self) -> common_pb2.CallId:
        self._call_ids += 1
        return common_pb2.CallId(client_id=self.client_id, call_id=self._call_ids)

    def learn(self, managers: Sequence[str], leader: str = "") -> None:
        """Addresses that a manager has told: known ones stay."""
        self._managers = list(dict.fromkeys([*self._managers, *filter(None, managers)]))[:MANAGERS_MAX]
        if leader:
            self._leader = leader

    def ask_another(self) -> None:
        """Who answered our last read knew nothing new, and perhaps hears of nothing: the next one begins elsewhere."""
        if self._reader in self._managers:
            self._managers.remove(self._reader)
            self._managers.append(self._reader)
        self._reader = ""

    def note_revision(self, revision: int) -> None:
        self.revision_seen = max(self.revision_seen, revision)

    async def ask(self, method: Method[Req, Rep], request: Req, *, timeout_s: float | None = None) -> Rep:
        """A read that any manager answers."""
        return await self._call(method, request, leader=False, leads=False, timeout_s=timeout_s)

    async def ask_leader(self, method: Method[Req, Rep], request: Req, *, timeout_s: float | None = None) -> Rep:
        """A read that the leader answers best: followers know less, or later. While nobody is known to lead, any."""
        if not self._leader:
            described = await self.ask(methods.STREAM_MANAGER_DESCRIBE_CLUSTER, sm.DescribeClusterRequest())
            self.learn(described.managers, described.leader.address)
        return await self._call(method, request, leader=True, leads=False, timeout_s=timeout_s)

    async def order(
        self,
        method: Method[Req, Rep],
        request: Req,
        *,
        timeout_s: float | None = None,
        attempt_timeout_s: float | None = None,
    ) -> Rep:
        """A call for the leader. If the request has a call id and none is set, it gets one."""
        anything: Any = request
        if "call" in anything.DESCRIPTOR.fields_by_name and not anything.HasField("call"):
            anything.call.CopyFrom(self.next_call())
        return await self._call(
            method, request, leader=True, leads=True, timeout_s=timeout_s, attempt_timeout_s=attempt_timeout_s
        )

    async def _call(
        self,
        method: Method[Req, Rep],
        request: Req,
        *,
        leader: bool,
        leads: bool,
        timeout_s: float | None,
        attempt_timeout_s: float | None = None,
    ) -> Rep:
        """`leader`: ask the leader first. `leads`: nobody else answers this, so whoever does is the leader."""
        loop = asyncio.get_running_loop()
        options = self._options
        timeout_s = options.call_timeout_s if timeout_s is None else timeout_s
        attempt_timeout_s = options.attempt_timeout_s if attempt_timeout_s is None else attempt_timeout_s
        deadline_s = loop.time() + timeout_s
        backoff = Backoff(options.retry_delays, lambda: self._rng.uniform(0.5, 1.0))
        last: NeveError | None = None
        while True:
            tried: dict[str, None] = {}
            while (address := self._next_address(tried, leader=leader)) is not None:
                tried[address] = None
                left_s = deadline_s - loop.time()
                if left_s <= 0:
                    if last is not None:
                        raise _no_manager(last, self._managers, self._kind)
                    raise DeadlineExceeded(method=method.path, timeout_ms=int(timeout_s * 1000))
                try:
                    reply = await self._channels.channel(address).call(
                        method, request, timeout_s=min(left_s, attempt_timeout_s), reply_bytes_max=REPLY_BYTES_MAX
                    )
                except NotLeader as elsewhere:
                    last = last or elsewhere
                    self._leader = elsewhere.leader if elsewhere.leader != address else ""
                except NeveError as error:
                    if not may_heal(error):
                        raise
                    log.debug("manager_call_failed method=%s address=%s error=%s", method.path, address, error)
                    last = error
                    self._forget(address)
                else:
                    if leads:
                        self._leader = address
                    elif not leader:
                        self._reader = address
                    return reply.message
            pause_s = backoff.next_s()
            if loop.time() + pause_s >= deadline_s:
                assert last is not None
                raise _no_manager(last, self._managers, self._kind)
            await asyncio.sleep(pause_s)

    def _forget(self, address: str) -> None:
        if self._leader == address:
            self._leader = ""
        if self._reader == address:
            self._reader = ""

    def _next_address(self, tried: dict[str, None], *, leader: bool) -> str | None:
        """Who answered last, or leads; otherwise the next one that was not asked in this round."""
        preferred = self._leader if leader else self._reader or self._leader
        if preferred and preferred not in tried:
            return preferred
        return next((address for address in self._managers if address not in tried), None)


def _no_manager(last: NeveError, managers: Sequence[str], kind: str) -> NeveError:
    if isinstance(last, ConnectFailed):
        reason = f": {last.detail}" if last.detail else ""
        return ConnectFailed(address=", ".join(managers), detail=f"no {kind} answers there{reason}")
    return last
