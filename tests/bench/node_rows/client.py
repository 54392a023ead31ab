"""The client of the node's benchmark: takes one sample for each line of JSON on its standard input.

    {"case": "latency", "address": "127.0.0.1:3501", "block_bytes": 1024, "sync": true, "duration_s": 1.0}

"case" names what `Client.take` knows, "address" the node; the rest are the arguments of that function. It answers
{"value": number}, or {"error": …} when the sample failed, and ends when its standard input does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.bench import orders
from tests.bench.node_rows import appends as node_appends
from tests.bench.node_rows import reads as node_reads
from tests.bench.node_rows.appends import ManyExtents, Writers
from tests.bench.node_rows.calls import NodeCalls, Unexpected

CASES: dict[str, Callable[..., Awaitable[float]]] = {
    "append": node_appends.bytes_per_second,
    "latency": node_appends.latency,
    "echo_latency": node_appends.echo_latency,
    "make_sealed": node_reads.make_sealed,
    "read_through": node_reads.read_through,
    "random_reads": node_reads.random_reads_per_second,
}


class Client:
    """A channel to each node that it has heard of, and what outlives a sample."""

    def __init__(self) -> None:
        self._calls: dict[str, NodeCalls] = {}
        self._many: dict[str, ManyExtents] = {}
        self._writers = Writers()

    async def take(self, order: dict[str, Any]) -> float:
        case, address = order.pop("case"), order.pop("address")
        match case:
            case "connect_writers":
                return await self._writers.connect(address, **order)
            case "write":
                return await self._writers.write(**order)
            case "disconnect_writers":
                return await self._writers.close()
        if address not in self._calls:
            self._calls[address] = NodeCalls(address)
            self._many[address] = ManyExtents(self._calls[address])
        if case == "synced_appends":
            return await self._many[address].synced_appends_per_second(**order)
        return await CASES[case](self._calls[address], **order)

    async def close(self) -> None:
        await self._writers.close()
        for calls in self._calls.values():
            await calls.close()


if __name__ == "__main__":
    orders.serve(Client, Unexpected)
