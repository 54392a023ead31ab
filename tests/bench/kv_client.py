"""The client of the key-value benchmark: takes one sample for each line of JSON on its standard input.

    {"case": "run", "store": "neve", "addresses": ["127.0.0.1:3701"], "mix": "A", "workers": 256, "duration_s": 2.0}

"store" is neve or etcd: the same workers with the same mixes do the same to both. It answers {"value": number}, or
{"error": …} when the sample failed, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from neve.client import KeyValueClient, NeveError, NotFound, Object, ObjectInfo
from neve.client.command.core_statistics import Histogram
from neve.meta.etcd.connections import service_stub
from neve.proto import etcd_pb2
from neve.tools.objects.kv_bench import Store, Workload
from tests.bench import orders

GC_THRESHOLDS = (100_000, 20, 50)  # as in stream_rows/client.py
OBJECTS_PREFIX = b"bench/"
KV = etcd_pb2.DESCRIPTOR.services_by_name["KV"]
SEED = 1
WARM_UP_S = 0.3


class Unexpected(Exception):
    """What no benchmark can go on with."""


class EtcdObjects:
    """etcd as an object store: a put and a linearizable read are one call each, spread over the members."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._channels = [grpc.aio.insecure_channel(endpoint) for endpoint in endpoints]
        self._stubs = itertools.cycle([service_stub(channel, KV) for channel in self._channels])

    async def get(self, key: bytes) -> Object:
        reply = await next(self._stubs).Range(etcd_pb2.RangeRequest(key=key))
        if not reply.kvs:
            raise NotFound(kind="object", name=key.decode())
        return _object(reply.kvs[0])

    async def put(self, key: bytes, value: bytes) -> object:
        return await next(self._stubs).Put(etcd_pb2.PutRequest(key=key, value=value))

    async def scan_objects(self, *, prefix: bytes, start: bytes, limit: int) -> AsyncIterator[Object]:
        request = etcd_pb2.RangeRequest(key=start, range_end=prefix[:-1] + bytes([prefix[-1] + 1]), limit=limit)
        for kv in (await next(self._stubs).Range(request)).kvs:
            yield _object(kv)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)


def _object(kv: Any) -> Object:
    return Object(ObjectInfo(kv.key, kv.mod_revision, len(kv.value), 0, 0, 0), kv.value)


class Clients:
    """Connections that outlive a sample."""

    def __init__(self) -> None:
        self._neve: KeyValueClient | None = None
        self._etcd: EtcdObjects | None = None

    async def take(self, order: dict[str, Any]) -> float:
        case = order.pop("case")
        store = await self._store(order.pop("store"), order.pop("addresses"), order.pop("cluster", ""))
        if case == "load":
            return await load(store, **order)
        if case == "latency":
            return await latency(store, **order)
        return await run(store, **order)

    async def _store(self, name: str, addresses: Sequence[str], cluster: str) -> Store:
        if name == "etcd":
            if self._etcd is None:
                self._etcd = EtcdObjects(addresses)
            return self._etcd
        if self._neve is None:
            self._neve = await KeyValueClient(addresses, cluster=cluster).open()
        return self._neve

    async def close(self) -> None:
        if self._neve is not None:
            await self._neve.close()
        if self._etcd is not None:
            await self._etcd.close()


def _workload(store: Store, mix: str, *, objects: int, size_bytes: int) -> Workload:
    return Workload(store, mix, objects=objects, size_bytes=size_bytes, prefix=OBJECTS_PREFIX, seed=SEED)


async def load(store: Store, *, objects: int, size_bytes: int) -> float:
    """Puts a second while the objects are loaded."""
    begun_s = time.perf_counter()
    await _workload(store, "C", objects=objects, size_bytes=size_bytes).load()
    return objects / (time.perf_counter() - begun_s)


async def run(store: Store, *, mix: str, objects: int, size_bytes: int, workers: int, duration_s: float) -> float:
    """Operations a second with so many workers, each one operation after the other."""
    workload = _workload(store, mix, objects=objects, size_bytes=size_bytes)
    await _work(workload, workers, WARM_UP_S)
    begun_s = time.perf_counter()
    done = await _work(workload, workers, duration_s)
    return done / (time.perf_counter() - begun_s)


async def latency(store: Store, *, mix: str, objects: int, size_bytes: int, duration_s: float, share: float) -> float:
    """The quantile of the time that one operation takes when there is no other, in seconds."""
    workload = _workload(store, mix, objects=objects, size_bytes=size_bytes)
    await _work(workload, 1, WARM_UP_S)
    workload.latency_ns.clear()
    await _work(workload, 1, duration_s)
    all_ns = Histogram()
    for latency_ns in workload.latency_ns.values():
        all_ns.merge(latency_ns)
    return all_ns.quantile(share) / 1e9


async def _work(workload: Workload, workers: int, duration_s: float) -> int:
    end_s = time.perf_counter() + duration_s

    async def work() -> int:
        done = 0
        while time.perf_counter() < end_s:
            operations, _ = await workload.one()
            done += operations
        return done

    return sum(await asyncio.gather(*(work() for _ in range(workers))))


if __name__ == "__main__":
    gc.set_threshold(*GC_THRESHOLDS)
    orders.serve(Clients, Unexpected, NeveError, grpc.aio.AioRpcError)
