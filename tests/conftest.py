"""Settings for all tests: how they run, in which order, and what they leave behind.

- An `async def` test runs on uvloop with a time limit, on the deterministic loop when it is marked `sim(seed=N)`, or
  with real sockets and a clock that waits for them when it is marked `own_clock`.
  The limit stops a hung test; it is far above what any test needs and asserts nothing about speed.
- Tests that share processes run in one worker of pytest-xdist, and long tests start first.
- A folder of a test or of a module is removed as soon as the test or the module has passed.
- A test that sets up logging for its process does not do so for the tests after it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import shutil
from collections.abc import Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from tests.cluster.etcd import EtcdCluster
from tests.own_clock import OwnClockLoop
from tests.sim import loop as sim_loop

TEST_TIMEOUT_S = 240.0

# Where tests start processes or simulate long stories; the folders whose tests take longest come first. What comes last
# is short, so that no worker ends long after the others.
FOLDERS_IN_ORDER = ("spark", "cluster", "sim", "model")

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
    new_loop = OwnClockLoop if pyfuncitem.get_closest_marker("own_clock") else uvloop.new_event_loop
    if mark is not None:
        sim_loop.run(test, seed=mark.kwargs.get("seed", 0), real_limit_s=TEST_TIMEOUT_S)
    else:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_bounded(test))
    return True


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives tests to the workers of pytest-xdist one by one, but those that share processes to one worker.

    It replaces `--dist loadgroup`, which groups nothing with pytest 9: there a test's id does not show the group.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        source = _source(self.config.rootpath / module)
        if module.startswith("tests/spark/") and "def spark(" not in source:
            return "tests/spark"  # one Spark session
        return module if 'scope="module"' in source else nodeid


@functools.cache
def _source(module: Path) -> str:
    return module.read_text() if module.exists() else ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that take longest come first."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    folder = item.nodeid.removeprefix("tests/").partition("/")[0]
    if folder in FOLDERS_IN_ORDER:
        return FOLDERS_IN_ORDER.index(folder)
    return len(FOLDERS_IN_ORDER) + (item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def one_etcd() -> Iterator[EtcdCluster]:
    """One etcd for all tests of this process: for tests that break connections to it, not the etcd itself."""
    with EtcdCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def module_tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that the tests of a module share. It is removed after the last of them, unless one has failed."""
    failed_before = request.session.testsfailed
    folder = tmp_path_factory.mktemp(request.path.stem)
    yield folder
    if request.session.testsfailed == failed_before:
        shutil.rmtree(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Undo `set_up_logging` after each test.

    Its handler keeps the stderr that pytest captures for the test. When a later test logs, that stream is closed, and
    `logging` prints a traceback for each line.
    """
    root = logging.root
    handlers, level = list(root.handlers), root.level
    flags = logging.logThreads, logging.logProcesses, logging.logMultiprocessing, logging._srcfile
    try:
        return (yield)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.logThreads, logging.logProcesses, logging.logMultiprocessing, logging._srcfile = flags
