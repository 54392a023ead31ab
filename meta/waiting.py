"""Waiting and retrying while a lease lives.

Invariants: every loop in this module ends with the lease, so nothing is retried for ever;
            only requests that may be sent twice are retried: the callers compare revisions in every transaction.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from neve.meta.core_retry import Backoff, Delays
from neve.meta.lease import Lease
from neve.meta.store import MetaStore, Resync
from neve.meta.txn import KeyValue
from neve.proto.errors import LeaseLost, MaybeApplied, MetaUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

DELAYS = Delays(0.05, 1.0)


def _spread(lease_id: int) -> float:
    """A factor from 0.5 to 1.5, derived from the lease id.

    It keeps many processes from retrying at the same time, and the simulator stays deterministic.
    """
    return 0.5 + (lease_id * 2_654_435_761 % 4096) / 4096


async def while_alive(lease: Lease, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`. If the lease is lost meanwhile, cancel `work` and raise `LeaseLost` at once."""
    task = asyncio.get_running_loop().create_task(work)

    def stop(_: str) -> None:
        task.cancel()

    lease.lost.add_callback(stop)
    try:
        return await task
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if lease.lost.is_set() and caller is not None and not caller.cancelling():
            raise LeaseLost(lease_id=lease.lease_id, detail=lease.lost.reason) from None
        raise
    finally:
        lease.lost.remove_callback(stop)


class LeaseBackoff:
    """Pauses that double up to a bound and never outlast the lease."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._backoff = Backoff(DELAYS, lambda: _spread(lease.lease_id))

    async def pause(self, *, pause_s_max: float = math.inf) -> None:
        await asyncio.sleep(min(self._backoff.next_s(), self._lease.remaining_s(), pause_s_max))


async def until_settled(lease: Lease, attempt: Callable[[], Awaitable[T]], *, timeout_s: float = math.inf) -> T:
    """Repeat `attempt` until the store answers it. The attempt must be safe to repeat after it was applied.

    After `timeout_s` there is no further attempt, and the error of the last one is raised.
    """
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + timeout_s
    backoff = LeaseBackoff(lease)
    while True:
        lease.ensure_alive()
        try:
            return await attempt()
        except (MetaUnavailable, MaybeApplied) as error:
            if loop.time() >= give_up_s:
                raise
            log.info("meta_retried lease_id=%x error=%s", lease.lease_id, error)
        await backoff.pause(pause_s_max=max(0.0, give_up_s - loop.time()))


async def until_changed(store: MetaStore, kv: KeyValue, *, seen_revision: int) -> None:
    """Wait until `kv`, which was read at `seen_revision`, is deleted or put again."""
    async with store.watch(kv.key, start_revision=seen_revision + 1) as watch:
        async for item in watch:
            if not isinstance(item, Resync):
                return
            if not item.kvs or item.kvs[0].mod_revision != kv.mod_revision:
                return
    raise MetaUnavailable(detail="the watch ended with its store")
