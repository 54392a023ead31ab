"""Connections to the members of an etcd cluster: one gRPC channel each, and fail-over between them.

Invariants: every attempt has a timeout, and so has the whole call;
            a request is sent again only if it is a read, or a write that was certainly not applied;
            nothing is sent on a channel that is not connected, so that "cannot connect" means "not sent".

There is a channel for each member instead of one channel with gRPC's load balancing, because a member that hangs or has
lost its leader still accepts connections, and a balancer would keep sending it calls. EtcdLink passes over a member
that has failed at once, for later calls too. Every request requires a member with a leader (`hasleader`), so that an
isolated member refuses instead of waiting. Host names work as well as addresses.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from neve.meta.core_retry import Delays
from neve.meta.etcd.config import EtcdConfig, EtcdTls, address
from neve.meta.etcd.errors import translate
from neve.proto import etcd_pb2 as pb
from neve.proto.errors import MaybeApplied, MetaUnavailable, NeveError, Unauthenticated

log = logging.getLogger(__name__)

T = TypeVar("T")
Metadata = tuple[tuple[str, str], ...]

END_OF_STREAM = grpc.aio.EOF  # type: ignore[attr-defined] # the stubs forgot it
ETCD_PACKAGE = "etcdserverpb"  # the services' package in the paths of their methods
TXN_PATH = f"/{ETCD_PACKAGE}.KV/Txn"
HAS_LEADER: Metadata = (("hasleader", "true"),)
USERS_OFF = "etcdserver: authentication is not enabled"
ROUNDS_MAX = 20  # over all members; usually the call's timeout ends it earlier, unless each attempt fails at once
KEEPALIVE_PERIOD_S = 10.0  # etcd closes connections that ping more often than every 5 s
KEEPALIVE_TIMEOUT_S = 5.0
MESSAGE_BYTES_MAX = 64 << 20  # of an answer: a page of keys, a batch of events
PAUSES = Delays(0.05, 1.0)


@dataclass(frozen=True, slots=True)
class Member:
    """One endpoint and its channel. The services are untyped stubs (`service_stub`)."""

    address: str
    channel: grpc.aio.Channel
    kv: Any
    encoded_txn: Any  # the method `Txn` of `kv` for an encoded request
    lease: Any
    watch: Any
    maintenance: Any
    auth: Any

    async def connected(self, timeout_s: float) -> bool:
        """Whether the channel is connected. Waits for at most one attempt to connect."""
        try:
            async with asyncio.timeout(timeout_s):
                while (state := self.channel.get_state(try_to_connect=True)) != grpc.ChannelConnectivity.READY:
                    if state in (
                        grpc.ChannelConnectivity.TRANSIENT_FAILURE,
                        grpc.ChannelConnectivity.SHUTDOWN,
                    ):
                        return False
                    await self.channel.wait_for_state_change(state)
        except TimeoutError:
            return False
        return True


Invoke = Callable[[Member, Metadata, float], Awaitable[T]]


class EtcdLink:
    """The connections to all members, the member to try first, and the user's token."""

    def __init__(self, config: EtcdConfig) -> None:
        self.config = config
        self.members = [_member(address(endpoint), config) for endpoint in config.endpoints]
        self._first = 0
        self._token = ""
        self._users_off = False  # etcd answered a login by saying that authentication is off
        self._login = asyncio.Lock()
        self._random = random.Random()
        self._closed = False

    async def call(
        self,
        invoke: Invoke[T],
        *,
        write: bool,
        has_leader: bool = True,
        timeout_s: float | None = None,
    ) -> T:
        """Run `invoke` on a member that answers. errors.py lists the errors that are raised otherwise."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + (self.config.call_timeout_s if timeout_s is None else timeout_s)
        failed: NeveError = MetaUnavailable(detail="no endpoint was tried in time")
        for attempt in range(ROUNDS_MAX * len(self.members)):
            if attempt and attempt % len(self.members) == 0:
                await self.pause(attempt // len(self.members))
            left_s = deadline_s - loop.time()
            if left_s <= 0 or self._closed:
                break
            member = self.members[self._first]
            # A write may take all the remaining time, because giving it up early leaves its outcome unknown.
            attempt_s = left_s if write else min(left_s, self.config.attempt_timeout_s)
            try:
                return await self._attempt(member, invoke, write=write, has_leader=has_leader, timeout_s=attempt_s)
            except MetaUnavailable as error:  # not applied, so safe to send again
                failed = error
                self._pass_over(member)
            except MaybeApplied:
                self._pass_over(member)  # a read that follows, to settle the outcome, should use another member
                raise
        if self._closed:
            raise MetaUnavailable(detail="this connection is closed")
        raise failed

    async def _attempt(
        self, member: Member, invoke: Invoke[T], *, write: bool, has_leader: bool, timeout_s: float
    ) -> T:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        if not await member.connected(min(timeout_s, self.config.connect_timeout_s)):
            raise MetaUnavailable(detail=f"cannot connect to etcd at {member.address}")
        token = await self.login(member)
        try:
            return await self._invoke(member, invoke, write, has_leader, deadline_s - loop.time())
        except Unauthenticated:
            if not self.config.user:
                raise
            # A token lives for some minutes. A request that was refused for its token was not applied: send it again.
            await self.renew_token(member, stale=token)
            return await self._invoke(member, invoke, write, has_leader, deadline_s - loop.time())

    async def _invoke(self, member: Member, invoke: Invoke[T], write: bool, has_leader: bool, timeout_s: float) -> T:
        try:
            return await invoke(member, self.metadata(has_leader=has_leader), max(0.0, timeout_s))
        except grpc.aio.AioRpcError as error:
            text = error.details() or ""
            raise translate(error.code(), f"{member.address}: {text}", write=write) from error
        except asyncio.CancelledError:
            # gRPC raises this also for a call that it cancelled itself because its channel was closed.
            if not self._closed or was_cancelled():
                raise
            detail = "the connection was closed during the call"
            raise (MaybeApplied(detail=detail) if write else MetaUnavailable(detail=detail)) from None

    def metadata(self, *, has_leader: bool = True) -> Metadata:
        token: Metadata = (("token", self._token),) if self._token else ()
        return (HAS_LEADER if has_leader else ()) + token

    async def login(self, member: Member) -> str:
        """The token to send; empty if no user is configured or etcd's authentication is off."""
        if self.config.user and not self._token and not self._users_off:
            await self.renew_token(member, stale="")
        return self._token

    async def renew_token(self, member: Member, *, stale: str) -> None:
        """Get a new token, unless another call replaced `stale` while this one waited."""
        async with self._login:
            if self._token != stale:
                return
            request = pb.AuthenticateRequest(name=self.config.user, password=self.config.password)
            try:
                answer = await member.auth.Authenticate(request, timeout=self.config.attempt_timeout_s)
            except grpc.aio.AioRpcError as error:
                if USERS_OFF in (error.details() or ""):
                    # Continue without a token: clients get their credentials before an operator turns authentication
                    # on. After that, etcd refuses a call without a token, and this method runs again.
                    log.warning("etcd_users_off address=%s user=%s", member.address, self.config.user)
                    self._users_off = True
                    self._token = ""
                    return
                # A login changes nothing, so its failure leaves no doubt about the outcome of the call.
                raise translate(error.code(), error.details() or "", write=False) from error
            self._users_off = False
            self._token = answer.token

    def first_member(self) -> Member:
        return self.members[self._first]

    def _pass_over(self, member: Member) -> None:
        if self.members[self._first] is member:  # otherwise another call has done so
            self._first = (self._first + 1) % len(self.members)

    def pass_over(self, member: Member, reason: object) -> None:
        """Use the next member from now on."""
        log.info("etcd_member_passed_over address=%s reason=%s", member.address, reason)
        self._pass_over(member)

    async def pause(self, round_number: int) -> None:
        """Wait before round 1, 2, …: pauses double and are spread, so that clients do not retry at the same time."""
        await asyncio.sleep(PAUSES.after(round_number, factor=self._random.uniform(0.5, 1.0)))

    async def close(self) -> None:
        self._closed = True
        for member in self.members:
            await member.channel.close(grace=None)


def was_cancelled() -> bool:
    """Whether the running task itself was cancelled, and not only a gRPC call that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _member(target: str, config: EtcdConfig) -> Member:
    options = (
        ("grpc.keepalive_time_ms", int(KEEPALIVE_PERIOD_S * 1000)),
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
        ("grpc.http2.max_pings_without_data", 0),  # a watch may have no data for hours and must be pinged
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 2000),
        ("grpc.enable_retries", 0),  # this module decides what may be sent twice
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),  # two stores in one process do not share a connection
    )
    if config.tls is None:
        channel = grpc.aio.insecure_channel(target, options=options)
    else:
        channel = grpc.aio.secure_channel(target, _credentials(config.tls), options=options)
    return Member(
        address=target,
        channel=channel,
        kv=service_stub(channel, pb.DESCRIPTOR.services_by_name["KV"]),
        encoded_txn=channel.unary_unary(TXN_PATH, None, pb.TxnResponse.FromString),
        lease=service_stub(channel, pb.DESCRIPTOR.services_by_name["Lease"]),
        watch=service_stub(channel, pb.DESCRIPTOR.services_by_name["Watch"]),
        maintenance=service_stub(channel, pb.DESCRIPTOR.services_by_name["Maintenance"]),
        auth=service_stub(channel, pb.DESCRIPTOR.services_by_name["Auth"]),
    )


def service_stub(channel: grpc.aio.Channel, service: ServiceDescriptor) -> Any:
    """An object with a callable for each method of one of etcd's services, by the method's name."""
    stub = SimpleNamespace()
    for method in service.methods:
        kind = f"{_arity(method.client_streaming)}_{_arity(method.server_streaming)}"
        call = getattr(channel, kind)(
            f"/{ETCD_PACKAGE}.{service.name}/{method.name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        setattr(stub, method.name, call)
    return stub


def _arity(is_stream: bool) -> str:
    return "stream" if is_stream else "unary"


def _credentials(tls: EtcdTls) -> grpc.ChannelCredentials:
    def pem(path: Path | None) -> bytes | None:
        return path.read_bytes() if path is not None else None

    return grpc.ssl_channel_credentials(
        root_certificates=pem(tls.ca_file),
        private_key=pem(tls.key_file),
        certificate_chain=pem(tls.cert_file),
    )
