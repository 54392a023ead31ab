"""Ids: handed out once, and after `renew` above all that anybody handed out before."""

from __future__ import annotations

import asyncio

from neve.meta.memory.client import MemoryStore
from neve.meta.memory.link import FaultPlan
from neve.stream_manager.metadata.ids import IdSource
from tests.unit.stream_manager.manager_rig import ROOT, simulated


@simulated
async def test_a_range_that_was_on_its_way_before_renewing_is_not_used() -> None:
    etcd = MemoryStore()
    slow = IdSource(etcd.client(plan=FaultPlan(delay_s_min=1.0, delay_s_max=1.0), call_timeout_s=60.0), ROOT)
    early = asyncio.ensure_future(slow.take())
    await asyncio.sleep(3.5)  # its range is taken, and the answer is under way
    handed_out = await IdSource(etcd.client(), ROOT).take()
    assert not early.done()
    slow.renew()
    assert await slow.take() > handed_out
    assert await early > handed_out
