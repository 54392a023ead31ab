"""A candidate in a process of its own, for tests that stop it: it speaks in lines and obeys lines.

Says:  leading <create revision> · lost <reason> · ensure ok | ensure refused <error> · txn ok | txn refused
Obeys: write (check by the clock, then send the guarded transaction all the same) · quit
"""

from __future__ import annotations

import asyncio
import sys

from neve.meta.election import Election
from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdConfig
from neve.meta.txn import Put
from neve.proto.errors import NeveError


def say(line: str) -> None:
    print(line, flush=True)


async def main(endpoint: str, prefix: str, ttl_s: int) -> None:
    loop = asyncio.get_running_loop()
    orders: asyncio.Queue[str] = asyncio.Queue(maxsize=10)
    loop.add_reader(sys.stdin, lambda: orders.put_nowait(sys.stdin.readline().strip()))
    async with await EtcdStore.connect(EtcdConfig((endpoint,))) as store:
        lease = await store.grant_lease(ttl_s)
        leadership = await Election(store, prefix.encode()).campaign(b"child", lease)
        leadership.lost.add_callback(lambda reason: say(f"lost {reason}"))
        say(f"leading {leadership.create_revision}")
        while (order := await orders.get()) == "write":
            try:
                leadership.ensure()
                say("ensure ok")
            except NeveError as error:
                say(f"ensure refused {type(error).__name__}")
            result = await store.txn(leadership.guard(), [Put(prefix.encode() + b"-state", b"child")])
            say("txn ok" if result.succeeded else "txn refused")
        assert order == "quit", order


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
