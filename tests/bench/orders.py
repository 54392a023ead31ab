"""What every benchmark's client process does: take one sample for each line of JSON on its standard input.

It answers {"value": number}, or {"error": …} when the sample failed, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Callable
from typing import Any, Protocol

import uvloop

from neve.proto.errors import NeveError


class Taker(Protocol):
    async def take(self, order: dict[str, Any]) -> float: ...
    async def close(self) -> None: ...


def serve(make: Callable[[], Taker], *failures: type[Exception]) -> None:
    """Until standard input ends. `make` runs on the loop; `failures` end a sample, as every error of Neve does."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(make, (NeveError, *failures)))


async def _serve(make: Callable[[], Taker], failures: tuple[type[Exception], ...]) -> None:
    taker = make()
    loop = asyncio.get_running_loop()
    gc.freeze()
    # Lines are awaited in a thread, so that between samples leases are renewed, and beats and pings go out.
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await _answer(taker, line, failures)), flush=True)
    await taker.close()


async def _answer(taker: Taker, line: str, failures: tuple[type[Exception], ...]) -> dict[str, object]:
    try:
        return {"value": await taker.take(json.loads(line))}
    except failures as error:
        return {"error": f"{type(error).__name__}: {error}"}
