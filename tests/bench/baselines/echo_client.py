"""The caller of `echo_server`: takes one sample for each line of JSON on its standard input.

    {"case": "rate", "attachment_bytes": 1024, "window": 256, "duration_s": 1.0}     answers {"value": calls a second}
    {"case": "count", "attachment_bytes": 1024, "window": 256, "duration_s": 1.0}    answers {"value": calls}
    {"case": "latency", "attachment_bytes": 1024, "duration_s": 1.0}                 answers {"value": seconds, p50}

"count" has no warm-up: it is for who measures what the calls cost from outside. A failed sample answers
{"error": …}. It ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from neve.proto import methods
from neve.proto.diagnostics_pb2 import EchoRequest
from neve.rpc.service import Channel
from tests.bench import orders
from tests.bench.baselines.echo_server import CLUSTER

TIMEOUT_S = 30.0
WARM_UP_S = 0.2  # connects, grows windows and buffers, fills free lists


def make_channel(transport: str, address: str) -> Channel:
    """Imports only the transport that is asked for, as `echo_server` does."""
    match transport:
        case "wire":
            from neve.rpc.wire.client import WireChannel

            return WireChannel(address, cluster=CLUSTER)
        case "grpc":
            from neve.rpc.grpc.client import GrpcChannel

            return GrpcChannel(address, cluster=CLUSTER)
        case "bare_grpc":
            from tests.bench.baselines.bare_grpc import BareGrpcChannel

            return BareGrpcChannel(address)
    raise ValueError(f"no transport {transport!r}")


async def call_until(channel: Channel, attachment: bytes, is_over: Callable[[], bool]) -> int:
    """One caller: its next call starts when the last one is answered. Returns how many were."""
    calls = 0
    while not is_over():
        await channel.call(
            methods.DIAGNOSTICS_ECHO, EchoRequest(text="echo"), timeout_s=TIMEOUT_S, attachment=[attachment]
        )
        calls += 1
    return calls


async def count(channel: Channel, *, attachment_bytes: int, window: int, duration_s: float) -> int:
    """Calls with so many in flight; each caller is one task for the whole sample."""
    attachment = b"n" * attachment_bytes
    end_s = time.perf_counter() + duration_s

    def is_over() -> bool:
        return time.perf_counter() >= end_s

    calls = await asyncio.gather(*(call_until(channel, attachment, is_over) for _ in range(window)))
    return sum(calls)


async def rate(channel: Channel, *, attachment_bytes: int, window: int, duration_s: float) -> float:
    """Calls per second; those in flight at the end are awaited, and count with the time that they took."""
    started_s = time.perf_counter()
    calls = await count(channel, attachment_bytes=attachment_bytes, window=window, duration_s=duration_s)
    return calls / (time.perf_counter() - started_s)


async def latency(channel: Channel, *, attachment_bytes: int, duration_s: float) -> float:
    """The median time of a call when there is no other."""
    attachment = b"n" * attachment_bytes
    took_s: list[float] = []
    end_s = time.perf_counter() + duration_s
    while not took_s or time.perf_counter() < end_s:
        started_s = time.perf_counter()
        await channel.call(
            methods.DIAGNOSTICS_ECHO, EchoRequest(text="echo"), timeout_s=TIMEOUT_S, attachment=[attachment]
        )
        took_s.append(time.perf_counter() - started_s)
    return statistics.median(took_s)


class Echoes:
    """Calls over one channel."""

    def __init__(self, transport: str, address: str) -> None:
        self._channel = make_channel(transport, address)

    async def take(self, order: dict[str, Any]) -> float:
        channel, size, duration_s = self._channel, order["attachment_bytes"], order["duration_s"]
        if order["case"] == "latency":
            await latency(channel, attachment_bytes=size, duration_s=WARM_UP_S)
            return await latency(channel, attachment_bytes=size, duration_s=duration_s)
        window = order["window"]
        if order["case"] == "count":
            return await count(channel, attachment_bytes=size, window=window, duration_s=duration_s)
        await rate(channel, attachment_bytes=size, window=window, duration_s=WARM_UP_S)
        return await rate(channel, attachment_bytes=size, window=window, duration_s=duration_s)

    async def close(self) -> None:
        await self._channel.close()


if __name__ == "__main__":
    orders.serve(lambda: Echoes(sys.argv[1], sys.argv[2]))
