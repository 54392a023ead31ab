"""Append to a stream and read it back.

    python examples/stream.py --managers 127.0.0.1:3401

Needs a running cluster (`neve up`). Exit code 0 if what was read is what was written.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from neve.client import Client, NeveError, Position


async def show(managers: list[str], cluster: str, replicas: int) -> bool:
    async with Client(managers, cluster=cluster) as neve:
        stream = await neve.create_stream(replicas=replicas, labels={"example": "stream"})
        print(f"stream {stream.id} with {stream.replicas} replicas")

        async with neve.writer(stream.id) as writer:  # takes the lock, fences older owners
            position = await writer.append(b"hello")  # durable on every replica from here on
            print(f"appended at {position}")
            positions = await writer.append_many([b"a", b"b"])  # one wait for many
            pending = writer.submit(b"c")  # a future; batches form by themselves
            await writer.flush()
            print(f"appended {len(positions)} together, and one at {pending.result()}")

        payloads = []
        async for record in neve.read(stream.id, start=position):
            print(f"  {record.position} {record.payload!r}")
            payloads.append(bytes(record.payload))

        print(f"follows the end: {await follow(neve, stream.id, pending.result())!r}")
        await neve.delete(stream.id)
        return payloads == [b"hello", b"a", b"b", b"c"]


async def follow(neve: Client, stream_id: int, start: Position) -> list[bytes]:
    """What comes while we watch, until the stream is sealed."""

    async def collect() -> list[bytes]:
        return [bytes(record.payload) async for record in neve.read(stream_id, start=start, follow=True)]

    collecting = asyncio.create_task(collect())
    async with neve.writer(stream_id) as writer:
        await writer.append_many([b"news", b"more news"])
        await neve.seal(stream_id)
    return await collecting


def main() -> int:
    parser = argparse.ArgumentParser(description="Append to a stream and read it back.")
    parser.add_argument("--managers", default="127.0.0.1:3401", help="wire addresses, with commas between them")
    parser.add_argument("--cluster", default="main")
    parser.add_argument("--replicas", type=int, default=3)
    options = parser.parse_args()
    try:
        as_it_should_be = asyncio.run(show(options.managers.split(","), options.cluster, options.replicas))
    except NeveError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0 if as_it_should_be else 1


if __name__ == "__main__":
    sys.exit(main())
