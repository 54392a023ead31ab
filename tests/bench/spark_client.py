"""The client of Spark's benchmark: fills a stream and reads it in a plain loop. Orders as stream_rows/client.py has."""

from __future__ import annotations

import gc
import time
from typing import Any

from neve.client import Client
from neve.proto.errors import AppendOutcomeUnknown
from tests.bench import orders
from tests.bench.stream_rows.client import GC_THRESHOLDS
from tests.bench.stream_rows.reads import until_confirmed

RECORDS_AT_A_TIME = 2_000
WRITERS_MAX = 20


class Reads:
    """One client, for one cluster."""

    def __init__(self) -> None:
        self._client: Client | None = None

    async def take(self, order: dict[str, Any]) -> float:
        if self._client is None:
            self._client = await Client([order["manager"]], cluster=order["cluster"]).open()
        if order["case"] == "fill":
            return await self._fill(self._client, order["size_bytes"], order["record_bytes"], order["extent_bytes"])
        return await self._loop(self._client, int(order["stream_id"]), order["extents"])

    async def _fill(self, client: Client, size_bytes: int, record_bytes: int, extent_bytes: int) -> float:
        """A sealed stream of one replica; its id."""
        stream = await client.create_stream(replicas=1, sync=False, extent_bytes_max=extent_bytes)
        records = [bytes([number % 251]) * record_bytes for number in range(RECORDS_AT_A_TIME)]
        left, tries = size_bytes // (record_bytes * RECORDS_AT_A_TIME), 0
        while left:
            try:
                async with client.writer(stream.id) as writer:
                    while left:
                        await writer.append_many(records)
                        left -= 1
            except AppendOutcomeUnknown:  # a machine that stood still for longer than a lease: records more, none less
                tries += 1
                if tries >= WRITERS_MAX:
                    raise
        await client.seal(stream.id)
        for extent_id in (await client.stream(stream.id)).extent_ids:
            await until_confirmed(client, extent_id)
        return float(stream.id)

    async def _loop(self, client: Client, stream_id: int, extents: int) -> float:
        """Rows a second of the first extents of the stream, as anybody would read them."""
        stream = await client.stream(stream_id)
        rows = size_bytes = 0
        wanted = set(stream.extent_ids[:extents])
        begun_s = time.perf_counter()
        async for record in client.read(stream_id):
            if record.position.extent_id not in wanted:
                break
            rows += 1
            size_bytes += len(record.payload)
        return rows / (time.perf_counter() - begun_s)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


if __name__ == "__main__":
    gc.set_threshold(*GC_THRESHOLDS)
    orders.serve(Reads)
