"""Random work of several clients on few keys, recorded; and the check that nothing was lost or made up.

`run_clients` is the same on the simulated loop and on real processes: it knows clients and a source of chance alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from neve.client.objects.client import KeyValueClient
from neve.proto import errors
from tests.history.history import Recorder, RecordingClient

MIX = ("get", "get", "get", "put", "put", "delete", "if_absent", "if_version", "if_version")


async def run_clients(
    clients: Sequence[KeyValueClient],
    recorder: Recorder,
    *,
    rng: random.Random,
    keys: Sequence[bytes],
    operations_each: int,
    pause_s_mean: float = 0.0,
    timeout_s: float | None = None,
    workers_each: int = 2,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """T48: each worker does one operation after the other; the values are all different."""

    async def work(kv: RecordingClient, chance: random.Random) -> None:
        versions: dict[bytes, int] = {}
        for number in range(operations_each):
            if stop():
                return
            key = chance.choice(keys)
            value = f"{kv.name}:{number}".encode()
            kind = chance.choice(MIX)
            if kind == "get":
                await kv.get(key)
            elif kind == "delete":
                await kv.delete(key, if_version=versions.get(key) if chance.random() < 0.3 else None)
            else:
                expected = versions.get(key) if kind == "if_version" else None
                version = await kv.put(key, value, if_absent=kind == "if_absent", if_version=expected)
                if version is not None:
                    versions[key] = version
            if pause_s_mean:
                await asyncio.sleep(chance.expovariate(1 / pause_s_mean))

    workers = [
        work(
            RecordingClient(client, recorder, name=f"c{number}.{worker}", timeout_s=timeout_s),
            random.Random(rng.getrandbits(64)),
        )
        for number, client in enumerate(clients)
        for worker in range(workers_each)
    ]
    await asyncio.gather(*workers)


async def read_all(client: KeyValueClient, recorder: Recorder, keys: Sequence[bytes]) -> None:
    """At the end, when all is well again: what was acknowledged must be found (T49)."""
    kv = RecordingClient(client, recorder, name="last")
    for key in keys:
        await kv.get(key)


class Journal:
    """T49 for many keys: a put of a new key each; in the end all acknowledged ones are there, and no others."""

    def __init__(self, on_error: Callable[[errors.NeveError], None] = lambda _: None) -> None:
        self.tried: dict[bytes, bytes] = {}
        self.acknowledged: set[bytes] = set()
        self._on_error = on_error

    async def put(self, client: KeyValueClient, key: bytes, value: bytes, *, timeout_s: float | None = None) -> bool:
        assert key not in self.tried, "a key is put once"
        self.tried[key] = value
        try:
            await client.put(key, value, timeout_s=timeout_s)
        except errors.NeveError as error:
            self._on_error(error)
            return False
        self.acknowledged.add(key)
        return True

    async def check(self, client: KeyValueClient, *, prefix: bytes = b"") -> None:
        found = {each.info.key: each.value async for each in client.scan_objects(prefix=prefix)}
        lost = sorted(key for key in self.acknowledged if key not in found)
        assert not lost, f"{len(lost)} acknowledged objects are gone, {lost[0]!r} for one"
        wrong = sorted(key for key, value in found.items() if self.tried.get(key) != value)
        assert not wrong, f"{len(wrong)} objects have a value that nobody put, {wrong[0]!r} for one"
