"""The same as stream.py for programs without asyncio.

    python examples/stream_sync.py --managers 127.0.0.1:3401

Needs a running cluster (`neve up`). Exit code 0 if what was read is what was written.
"""

from __future__ import annotations

import argparse
import sys

from neve.client import NeveError, SyncClient


def show(managers: list[str], cluster: str, replicas: int) -> bool:
    with SyncClient(managers, cluster=cluster) as neve:
        stream = neve.create_stream(replicas=replicas, labels={"example": "stream_sync"})
        with neve.writer(stream.id) as writer:
            position = writer.append(b"hello")
            writer.append_many([b"a", b"b"])
            pending = writer.submit(b"c")
            writer.flush()
            print(f"appended from {position} to {pending.result()}")
        payloads = []
        for record in neve.read(stream.id, start=position):
            print(f"  {record.position} {record.payload!r}")
            payloads.append(bytes(record.payload))
        nodes = neve.admin.status().nodes
        print(f"the cluster has {len(nodes)} nodes")
        neve.delete(stream.id)
        return payloads == [b"hello", b"a", b"b", b"c"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Append to a stream and read it back, without asyncio.")
    parser.add_argument("--managers", default="127.0.0.1:3401", help="wire addresses, with commas between them")
    parser.add_argument("--cluster", default="main")
    parser.add_argument("--replicas", type=int, default=3)
    options = parser.parse_args()
    try:
        as_it_should_be = show(options.managers.split(","), options.cluster, options.replicas)
    except NeveError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0 if as_it_should_be else 1


if __name__ == "__main__":
    sys.exit(main())
