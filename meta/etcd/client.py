"""The metadata store on etcd.

Invariants: it has the semantics of `store.MetaStore`; the conformance tests run on it and on the in-memory store;
            reads are linearizable unless the caller asks for a serializable one;
            leases are measured by CLOCK_BOOTTIME, which continues while the machine is suspended;
            a renewal counts only with a proof that the etcd member that renewed was still the leader.

The messages are those of proto/etcd.proto. The client libraries that were tried lack TLS or reads at a revision, or
have a watcher that neither resumes nor lists again, so Neve uses none.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc

from neve.meta.etcd import codec
from neve.meta.etcd.config import EtcdConfig
from neve.meta.etcd.connections import END_OF_STREAM, EtcdLink, Member, Metadata
from neve.meta.etcd.version import version_warning
from neve.meta.etcd.watch import EtcdWatch
from neve.meta.lease import HeldLeases, Lease
from neve.meta.store import MetaStore, RangePage, check_read, check_start_revision, check_ttl
from neve.meta.txn import (
    Compare,
    KeyRange,
    Keys,
    Operation,
    Put,
    TxnResult,
    as_range,
    check_int64,
    check_lease_id,
    check_txn,
    check_write,
)
from neve.proto import etcd_pb2 as pb
from neve.proto.errors import LeaseLost, MetaUnavailable, NeveError, PermissionDenied

log = logging.getLogger(__name__)


# A partial of a C function, because every call to a leader reads it several times.
boot_clock: Callable[[], float] = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class EtcdStore(MetaStore):
    """Make one with `await EtcdStore.connect(config)` on the loop that uses it."""

    def __init__(self, config: EtcdConfig) -> None:
        self.clock = boot_clock
        self._link = EtcdLink(config)
        self._leases = HeldLeases()
        self._watches: set[EtcdWatch] = set()

    @classmethod
    async def connect(cls, config: EtcdConfig) -> EtcdStore:
        """Connect to at least one member. Logs a warning about unsound versions of etcd."""
        store = cls(config)
        try:
            await store._check_versions()
            await store.revision()
        except PermissionDenied:
            pass  # connected and logged in; this user may not read the key that was tried
        except BaseException:
            await store.close()
            raise
        return store

    async def range(self, keys: Keys, *, limit: int = 0, revision: int = 0, serializable: bool = False) -> RangePage:
        check_read(limit=limit, revision=revision)
        request = codec.range_request(as_range(keys), limit=limit, revision=revision, serializable=serializable)
        found = await self._link.call(
            lambda member, metadata, timeout_s: member.kv.Range(request, metadata=metadata, timeout=timeout_s),
            write=False,
            has_leader=not serializable,  # a serializable read must also work without a leader
        )
        return RangePage(
            codec.key_values(found.kvs),
            more=found.more,
            count=found.count,
            revision=revision or found.header.revision,
        )

    async def txn(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TxnResult:
        check_txn(compares, success, failure)
        request = codec.txn_request(compares, success, failure)
        try:
            result = await self._link.call(
                lambda member, metadata, timeout_s: member.kv.Txn(request, metadata=metadata, timeout=timeout_s),
                write=True,
            )
        except LeaseLost as error:
            raise self._lease_ended(error, (*success, *failure)) from error
        responses = tuple(codec.operation_result(response) for response in result.responses)
        return TxnResult(result.succeeded, result.header.revision, responses)

    async def write(
        self,
        guard: Sequence[Compare],
        revisions: Mapping[bytes, int],
        values: Mapping[bytes, bytes | None],
        reads: Sequence[bytes] = (),
    ) -> TxnResult:
        check_write(guard, revisions, values, reads)
        request = codec.write_request(guard, revisions, values, reads)
        result = await self._link.call(
            lambda member, metadata, timeout_s: member.encoded_txn(request, metadata=metadata, timeout=timeout_s),
            write=True,
        )
        if result.succeeded:
            return TxnResult(True, result.header.revision, ())
        responses = tuple(codec.operation_result(response) for response in result.responses)
        return TxnResult(False, result.header.revision, responses)

    async def mod_revisions(self, guard: Sequence[Compare], keys: Sequence[bytes]) -> list[int] | None:
        check_write(guard, {}, {}, keys)
        request = codec.revisions_request(guard, keys)
        result = await self._link.call(
            lambda member, metadata, timeout_s: member.encoded_txn(request, metadata=metadata, timeout=timeout_s),
            write=True,  # errors mean the same as for every other transaction
        )
        return codec.mod_revisions(result) if result.succeeded else None

    def _lease_ended(self, error: LeaseLost, operations: Sequence[Operation]) -> LeaseLost:
        """The error with the lease's id, which etcd does not name, if the transaction has only one lease."""
        lease_ids = {op.lease_id for op in operations if isinstance(op, Put) and op.lease_id}
        if len(lease_ids) != 1:
            return error
        lease_id = lease_ids.pop()
        self._leases.ended(lease_id)
        return LeaseLost(lease_id=lease_id, detail=error.detail)

    async def grant_lease(self, ttl_s: int) -> Lease:
        check_ttl(ttl_s)
        sent_s = self.clock()
        # A grant with an unknown outcome is harmless, because a lease that is not renewed expires.
        granted = await self._link.call(
            lambda member, metadata, timeout_s: member.lease.LeaseGrant(
                pb.LeaseGrantRequest(TTL=ttl_s), metadata=metadata, timeout=timeout_s
            ),
            write=True,
        )
        return self._leases.add(Lease(self, lease_id=granted.ID, ttl_s=granted.TTL, sent_s=sent_s, clock=self.clock))

    async def keep_alive(self, lease_id: int, *, timeout_s: float) -> float:
        async def once(member: Member, metadata: Metadata, attempt_s: float) -> float:
            """One stream for one renewal: it fails over like a read and leaves nothing to clean up."""
            loop = asyncio.get_running_loop()
            deadline_s = loop.time() + attempt_s
            call = member.lease.LeaseKeepAlive(metadata=metadata, timeout=attempt_s)
            try:
                await call.write(pb.LeaseKeepAliveRequest(ID=lease_id))
                response: Any = await call.read()
            except asyncio.InvalidStateError as error:  # gRPC raises it for a write to a stream that has ended
                raise MetaUnavailable(detail=f"{member.address} ended the keep-alive: {error}") from error
            finally:
                call.cancel()
            if response is END_OF_STREAM:
                raise MetaUnavailable(detail=f"{member.address} ended the keep-alive without an answer")
            if response.TTL > 0:
                left_s = max(0.0, deadline_s - loop.time())
                await self._prove_term(member, metadata, response.header.raft_term, timeout_s=left_s)
            return float(response.TTL)

        return await self._link.call(once, write=False, timeout_s=timeout_s)

    async def _prove_term(self, member: Member, metadata: Metadata, term: int, *, timeout_s: float) -> None:
        """Raise `MetaUnavailable` unless the leader of `term` still led after it had renewed the lease.

        etcd's leader renews a lease in memory, without asking the other members. After a pause, a deposed leader that
        does not know it yet may renew a lease that its successor lets expire (etcd issue 15247; always before 3.4.31
        and 3.5.13, while later releases check first). If the same member then answers a linearizable read in the same
        term, a majority of that term agreed after the renewal. The header's term is that of the last applied entry, and
        such a read waits until a successor's first entry is applied, so a new leader always shows as a new term.
        """
        read = codec.range_request(KeyRange(b"\x00"), limit=1, revision=0, serializable=False)
        try:
            proof = await member.kv.Range(read, metadata=metadata, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.PERMISSION_DENIED:
                raise
            # This user may not read this key. etcd answers so after a majority has agreed, but without the term.
            proof = await member.maintenance.Status(pb.StatusRequest(), metadata=metadata, timeout=timeout_s)
        if proof.header.raft_term != term:
            detail = f"{member.address} renewed in term {term}, and now it is term {proof.header.raft_term}"
            raise MetaUnavailable(detail=detail)

    async def revoke(self, lease_id: int) -> None:
        check_lease_id(lease_id)
        try:
            await self._link.call(
                lambda member, metadata, timeout_s: member.lease.LeaseRevoke(
                    pb.LeaseRevokeRequest(ID=lease_id), metadata=metadata, timeout=timeout_s
                ),
                write=True,
            )
        except LeaseLost:
            log.debug("lease_already_gone lease_id=%x", lease_id)

    async def compact(self, revision: int) -> None:
        check_int64("revision", revision)
        # `physical`: etcd answers when the space is free, so that a test sees the finished compaction.
        await self._link.call(
            lambda member, metadata, timeout_s: member.kv.Compact(
                pb.CompactionRequest(revision=revision, physical=True), metadata=metadata, timeout=timeout_s
            ),
            write=True,
        )

    def watch(self, keys: Keys, *, start_revision: int) -> EtcdWatch:
        check_start_revision(start_revision)
        wanted = as_range(keys)
        watch = EtcdWatch(
            self._link,
            wanted,
            start_revision=start_revision,
            relist=lambda: self.range_all(wanted),
            probe=lambda: self.range(wanted, limit=1),
            on_close=self._watches.discard,
        )
        self._watches.add(watch)
        return watch

    async def close(self) -> None:
        await self._leases.abandon_all("its store was closed")
        for watch in list(self._watches):
            await watch.close()
        await self._link.close()

    async def _check_versions(self) -> None:
        """Ask every member for its version, as they differ during an upgrade. A member may fail to answer."""
        await asyncio.gather(*(self._check_version(member) for member in self._link.members))

    async def _check_version(self, member: Member) -> None:
        timeout_s = self._link.config.attempt_timeout_s
        try:
            if not await member.connected(self._link.config.connect_timeout_s):
                raise MetaUnavailable(detail="cannot connect")
            status = await member.maintenance.Status(pb.StatusRequest(), timeout=timeout_s)
        except (NeveError, grpc.aio.AioRpcError) as error:
            log.warning("etcd_version_unknown address=%s error=%s", member.address, error)
            return
        log.info("etcd_member address=%s version=%s", member.address, status.version)
        if (warning := version_warning(status.version)) is not None:
            log.warning("etcd_unsound address=%s warning=%s", member.address, warning)
