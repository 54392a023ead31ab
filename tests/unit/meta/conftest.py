"""The two stores behind one fixture: tests that take `backend` run on the in-memory twin and on a real etcd."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from neve.meta.etcd.client import EtcdStore
from neve.meta.etcd.config import EtcdConfig
from neve.meta.memory.client import MemoryStore
from neve.meta.store import MetaStore

_numbers = itertools.count(1)

VIRTUAL_TIME_S_MAX = 100_000.0


@pytest.hookimpl
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bound the simulated tests of this folder: a lease that is kept alive would let a broken one run for ever."""
    for item in items:
        if not isinstance(item, pytest.Function) or Path(__file__).parent not in item.path.parents:
            continue
        if item.get_closest_marker("sim") and inspect.iscoroutinefunction(item.obj):
            item.obj = _bounded(item.obj)


def _bounded(test: Any) -> Any:
    @functools.wraps(test)
    async def run(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(VIRTUAL_TIME_S_MAX):
            await test(*args, **kwargs)

    return run


class Backend:
    """Opens connections inside the test's loop. Keys begin with `prefix`, which no other test uses."""

    def __init__(self, name: str, endpoints: tuple[str, ...] = ()) -> None:
        self.name = name
        self.prefix = f"/test-{next(_numbers)}/".encode()
        self._endpoints = endpoints
        self._memory: MemoryStore | None = None

    def connect(self, **settings: float) -> AbstractAsyncContextManager[MetaStore]:
        return self._connect(settings)

    @asynccontextmanager
    async def _connect(self, settings: dict[str, float]) -> AsyncIterator[MetaStore]:
        async with await self._open(settings) as store:
            yield store

    async def _open(self, settings: dict[str, float]) -> MetaStore:
        if self.name == "etcd":
            return await EtcdStore.connect(EtcdConfig(self._endpoints, **settings))  # type: ignore[arg-type]
        self._memory = self._memory or MemoryStore()
        return self._memory.client()

    def key(self, name: str) -> bytes:
        return self.prefix + name.encode()


@pytest.fixture(params=[pytest.param("memory", marks=pytest.mark.sim(seed=1)), "etcd"])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "memory":
        return Backend("memory")
    return Backend("etcd", request.getfixturevalue("one_etcd").endpoints)
