"""Renewals that a deposed leader of etcd answers: a stand-in for etcd says in which term it renewed and which it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdConfig
from neve.proto import etcd_pb2 as pb
from neve.proto.errors import MetaUnavailable


class EtcdStandIn:
    """A member whose terms the test sets. `denies`: the user may not read the key that is asked for."""

    def __init__(self, *, renewed_in_term: int, term: int, ttl_s: int = 30, denies: bool = False) -> None:
        self.renewed_in_term = renewed_in_term
        self.term = term
        self.ttl_s = ttl_s
        self.denies = denies
        self.calls: list[str] = []

    async def status(self, _: Any, __: grpc.aio.ServicerContext[Any, Any]) -> Any:
        self.calls.append("status")
        return pb.StatusResponse(header=pb.ResponseHeader(raft_term=self.term), version="3.5.21")

    async def range(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        assert not request.serializable
        self.calls.append("range")
        if self.denies:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied")
        return pb.RangeResponse(header=pb.ResponseHeader(revision=1, raft_term=self.term))

    async def keep_alive(self, requests: Any, _: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        async for request in requests:
            self.calls.append("keep_alive")
            header = pb.ResponseHeader(raft_term=self.renewed_in_term)
            yield pb.LeaseKeepAliveResponse(header=header, ID=request.ID, TTL=self.ttl_s)

    def handlers(self) -> list[grpc.GenericRpcHandler[Any, Any]]:
        def unary(method: Any, request: Any, response: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(method, request.FromString, response.SerializeToString)

        stream = grpc.stream_stream_rpc_method_handler(
            self.keep_alive, pb.LeaseKeepAliveRequest.FromString, pb.LeaseKeepAliveResponse.SerializeToString
        )
        services = {
            "etcdserverpb.Maintenance": {"Status": unary(self.status, pb.StatusRequest, pb.StatusResponse)},
            "etcdserverpb.KV": {"Range": unary(self.range, pb.RangeRequest, pb.RangeResponse)},
            "etcdserverpb.Lease": {"LeaseKeepAlive": stream},
        }
        return [grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items()]


@asynccontextmanager
async def _connected(member: EtcdStandIn) -> AsyncIterator[EtcdStore]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(tuple(member.handlers()))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with await EtcdStore.connect(EtcdConfig((f"127.0.0.1:{port}",))) as store:
            member.calls.clear()
            yield store
    finally:
        await server.stop(grace=None)


async def test_a_renewal_counts_when_a_majority_of_the_same_term_answers_after_it() -> None:
    member = EtcdStandIn(renewed_in_term=7, term=7)
    async with _connected(member) as store:
        assert await store.keep_alive(5, timeout_s=5.0) == 30.0
        assert member.calls == ["keep_alive", "range"], "the proof comes after the renewal"


@pytest.mark.parametrize("denies", [False, True])
async def test_a_renewal_by_a_leader_that_was_deposed_does_not_count(denies: bool) -> None:
    member = EtcdStandIn(renewed_in_term=7, term=8, denies=denies)
    async with _connected(member) as store:
        with pytest.raises(MetaUnavailable):  # it is tried again until the time is over, which may be the last word
            await store.keep_alive(5, timeout_s=2.0)
        assert member.calls[:2] == ["keep_alive", "range"]


async def test_a_user_who_may_not_read_the_key_of_the_proof_keeps_the_lease() -> None:
    member = EtcdStandIn(renewed_in_term=7, term=7, denies=True)
    async with _connected(member) as store:
        assert await store.keep_alive(5, timeout_s=5.0) == 30.0
        assert member.calls == ["keep_alive", "range", "status"]


async def test_a_lease_that_etcd_does_not_know_needs_no_proof() -> None:
    member = EtcdStandIn(renewed_in_term=7, term=8, ttl_s=0)
    async with _connected(member) as store:
        assert await store.keep_alive(5, timeout_s=5.0) == 0.0
