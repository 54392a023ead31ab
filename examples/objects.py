"""Put objects under keys, get them back, change them under a condition, list them, and stream a large one.

    python examples/objects.py --managers 127.0.0.1:3701

It needs a running cluster (`neve up`). Exit code 0 if every step had the expected result.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator

from neve.client import ConditionFailed, KeyValueClient, NeveError, NotFound, Put

PIECE, PIECES = b"snow" * 250_000, 20  # 20 MB


async def show(managers: list[str], cluster: str) -> bool:
    async with KeyValueClient(managers, cluster=cluster) as kv:
        info = await kv.put(b"example/greeting", b"hello")  # durable on every replica from here on
        found = await kv.get(b"example/greeting")
        print(f"{found.value!r} is version {info.version}")

        # Concurrent puts are sent together, in one frame for each server.
        await asyncio.gather(*(kv.put(b"example/number/%03d" % n, b"%d" % n) for n in range(100)))
        keys = [each.key async for each in kv.scan(prefix=b"example/number/", limit=5)]
        print(f"the first of them: {keys}")

        # The second put fails, and its error has the version of the object.
        await kv.put(b"example/greeting", b"good morning", if_version=info.version)
        try:
            await kv.put(b"example/greeting", b"good evening", if_version=info.version)
            lost = False
        except ConditionFailed as error:
            print(f"too late: {error}")
            lost = True

        # Atomic, for keys of one partition.
        await kv.batch([Put(b"example/pair/left", b"1"), Put(b"example/pair/right", b"2")])

        # Values of any size pass through in parts.
        size = (await kv.put_stream(b"example/large", pieces())).size_bytes
        stream = await kv.get_stream(b"example/large", offset=size - 8)
        print(f"{size} bytes, the last ones are {await stream.read()!r}")

        removed = 0
        async for each in kv.scan(prefix=b"example/"):
            removed += await kv.delete(each.key)
        try:
            await kv.get(b"example/greeting")
            gone = False
        except NotFound:
            gone = True
        print(f"{removed} objects removed")
        return lost and gone and removed == 104 and size == len(PIECE) * PIECES


async def pieces() -> AsyncIterator[bytes]:
    """A source of bytes: a file, a socket, another object."""
    for _ in range(PIECES):
        yield PIECE


def main() -> int:
    parser = argparse.ArgumentParser(description="Put objects under keys and get them back.")
    parser.add_argument("--managers", default="127.0.0.1:3701", help="wire addresses, with commas between them")
    parser.add_argument("--cluster", default="main")
    options = parser.parse_args()
    try:
        as_it_should_be = asyncio.run(show(options.managers.split(","), options.cluster))
    except NeveError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0 if as_it_should_be else 1


if __name__ == "__main__":
    sys.exit(main())
