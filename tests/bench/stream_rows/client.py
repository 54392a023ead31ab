"""The client of the streams' benchmark: takes one sample for each line of JSON on its standard input.

    {"case": "latency", "manager": "127.0.0.1:3401", "cluster": "bench", "sync": true, "duration_s": 1.0}

"case" names what `CASES` has, "manager" and "cluster" where; the rest are the arguments of that function. It answers
{"value": number}, or {"error": …} when the sample failed, and ends when its standard input does.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from typing import Any

from neve.client import Client, ClientOptions
from tests.bench import orders
from tests.bench.stream_rows import reads as stream_reads
from tests.bench.stream_rows import writes as stream_writes
from tests.bench.stream_rows.writes import ManyStreams

# Blocks that were read before would come from memory: reads are to be measured, not the client's cache.
OPTIONS = ClientOptions(cache_bytes_max=1)

# A sample makes up to a million futures: with Python's own thresholds, looking for garbage takes a third of the time.
GC_THRESHOLDS = (100_000, 20, 50)

CASES: dict[str, Callable[..., Awaitable[float]]] = {
    "append": stream_writes.append,
    "append_many": stream_writes.append_many,
    "submit": stream_writes.submit,
    "latency": stream_writes.latency,
    "make_sealed": stream_reads.make_sealed,
    "read_through": stream_reads.read_through,
    "random_reads": stream_reads.random_reads,
}


class Clients:
    """A client for each cluster that it has heard of, and what outlives a sample."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}
        self._many: dict[str, ManyStreams] = {}

    async def take(self, order: dict[str, Any]) -> float:
        case, manager, cluster = order.pop("case"), order.pop("manager"), order.pop("cluster")
        if cluster not in self._clients:
            client = Client([manager], cluster=cluster, options=OPTIONS)
            self._clients[cluster] = await client.open()
            self._many[cluster] = ManyStreams(client)
        if case == "many_streams":
            return await self._many[cluster].synced_appends(**order)
        return await CASES[case](self._clients[cluster], **order)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()


if __name__ == "__main__":
    gc.set_threshold(*GC_THRESHOLDS)
    orders.serve(Clients, stream_writes.Unexpected)
