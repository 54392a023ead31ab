"""Calls to stream or partition managers: finds the leader, follows NotLeader, and retries what may be retried.

Invariants: a mutation carries the same call id in all attempts, so it is executed once (protocol rule 26);
            every operation ends within its deadline, with a jittered pause between rounds;
            an error that a retry cannot heal is raised at once.
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
REPLY_BYTES_MAX = 4 << 20  # one page of a list

# Another manager, or the same one a moment later, may succeed. Shortages of the cluster (nodes, room, lengths) are not
# listed: the caller knows how long they are worth waiting for.
_HEALED_BY_TRYING = (Cancelled, MaybeApplied, MetaUnavailable, NotLeader, VersionConflict)


def may_heal(error: NeveError) -> bool:
    """Whether the same request may succeed at another manager or later."""
    return isinstance(error, _HEALED_BY_TRYING) or (isinstance(error, TransportError) and error.retriable)


class ManagerLink:
    """A connection to a group of managers, of which one leads. `managers`: one or more wire addresses."""

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
            raise InvalidArgument(what="managers", detail="expected the address of at least one manager")
        self._channels = channels
        self._managers = list(dict.fromkeys(managers))
        self._options = options
        self._rng = rng
        self._kind = kind  # names the managers in errors
        self._leader = ""  # address of the leader, as far as known
        self._reader = ""  # address of the manager that answered the last read
        self.client_id = rng.getrandbits(64)
        self._call_ids = 0
        self.revision_seen = 0  # of metadata; later reads must not be older

    def next_call(self) -> common_pb2.CallId:
        self._call_ids += 1
        return common_pb2.CallId(client_id=self.client_id, call_id=self._call_ids)

    def learn(self, managers: Sequence[str], leader: str = "") -> None:
        """Add addresses that a manager returned."""
        self._managers = list(dict.fromkeys([*self._managers, *filter(None, managers)]))[:MANAGERS_MAX]
        if leader:
            self._leader = leader

    def ask_another(self) -> None:
        """Start the next read at another manager: the last one had no news, and may be cut off from the others."""
        if self._reader in self._managers:
            self._managers.remove(self._reader)
            self._managers.append(self._reader)
        self._reader = ""

    def note_revision(self, revision: int) -> None:
        self.revision_seen = max(self.revision_seen, revision)

    async def ask(self, method: Method[Req, Rep], request: Req, *, timeout_s: float | None = None) -> Rep:
        """Send a read that any manager can answer."""
        return await self._call(method, request, leader=False, leads=False, timeout_s=timeout_s)

    async def ask_leader(self, method: Method[Req, Rep], request: Req, *, timeout_s: float | None = None) -> Rep:
        """Send a read to the leader, which knows more than followers. If no leader is known, any manager answers."""
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
        """Send a call that only the leader executes. Sets a call id if the request has an unset field for one."""
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
        """`leader`: try the leader first. `leads`: only the leader answers this, so the one that does is the leader."""
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
        """Return the leader or the last to answer, then each other manager that was not tried in this round."""
        preferred = self._leader if leader else self._reader or self._leader
        if preferred and preferred not in tried:
            return preferred
        return next((address for address in self._managers if address not in tried), None)


def _no_manager(last: NeveError, managers: Sequence[str], kind: str) -> NeveError:
    if isinstance(last, ConnectFailed):
        reason = f": {last.detail}" if last.detail else ""
        return ConnectFailed(address=", ".join(managers), detail=f"no {kind} answers at this address{reason}")
    return last
