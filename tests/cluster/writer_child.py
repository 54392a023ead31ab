"""A checking writer as a process of its own, to be paused or killed:

    python -m tests.cluster.writer_child NAME STREAM MANAGER…

Says on stdout `ack NUMBER EXTENT:OFFSET` for each acknowledged record, `unknown NUMBER ERROR` for each whose outcome it
does not know, and `end` when its writer is over. It does not open the stream again.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from neve.client.streams.client import Client
from tests.cluster.checking import CheckingWriter
from tests.cluster.stream_cluster import CLIENT_OPTIONS, CLUSTER


async def main(stream_id: int, managers: list[str], name: str) -> None:
    async with Client(managers, cluster=CLUSTER, options=CLIENT_OPTIONS) as client:
        writer = CheckingWriter(client, stream_id, name, reopens=False)
        running = asyncio.ensure_future(writer.run())
        told = 0
        while not running.done():
            await asyncio.wait({running}, timeout=0.02)
            told = _tell_acknowledged(writer, told)
        await running
        for number, error in writer.written.unknown.items():
            print(f"unknown {number} {error}", flush=True)
        print("end", flush=True)


def _tell_acknowledged(writer: CheckingWriter, told: int) -> int:
    acknowledged = list(writer.written.acknowledged.items())
    for number, position in acknowledged[told:]:
        print(f"ack {number} {position}")
    sys.stdout.flush()
    return len(acknowledged)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[2]), sys.argv[3:], sys.argv[1]))
