"""Runs `async def` tests: on uvloop with a time limit, or on the deterministic loop when marked `sim(seed=N)`.

A limit stops a hung test; it is far above what any test needs and asserts nothing about speed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop
from hypothesis import settings

from tests.sim import loop as sim_loop

TEST_TIMEOUT_S = 240.0

# Hypothesis fails a test whose single example takes 200 ms: on a busy machine any may.
settings.register_profile("unhurried", deadline=None)
if settings.get_current_profile_name() == "default":
    settings.load_profile("unhurried")


async def _bounded(test: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(TEST_TIMEOUT_S):
        await test


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    mark = pyfuncitem.get_closest_marker("sim")
    if mark is not None:
        sim_loop.run(test, seed=mark.kwargs.get("seed", 0), real_limit_s=TEST_TIMEOUT_S)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_bounded(test))
    return True
