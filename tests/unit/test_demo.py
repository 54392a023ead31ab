"""The demo's checks are able to fail: a stream that is not what was acknowledged ends it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from neve.client.streams.types import Position, Record

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("neve_demo_under_test", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


class Reading:
    def __init__(self, demo: ModuleType, numbers: list[int], *, damaged: bool = False) -> None:
        self._records = [
            Record(Position(1, n), demo.payload_of(n)[: 20 if damaged else None], Position(1, n)) for n in numbers
        ]

    async def read(self, stream_id: int) -> AsyncIterator[Record]:
        for record in self._records:
            yield record


def writer_of(demo: ModuleType, *, acknowledged: int, unknown: int = 0) -> Any:
    writer = demo.CheckingWriter(None, 1)
    writer.acknowledged = {number: Position(1, number) for number in range(acknowledged)}
    writer.unknown = set(range(acknowledged, acknowledged + unknown))
    return writer


async def test_a_stream_as_it_was_acknowledged_passes(demo: ModuleType) -> None:
    await demo.read_back(Reading(demo, [0, 1, 2, 3]), 1, writer_of(demo, acknowledged=3, unknown=2))


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([0, 1], "1 acknowledged"),
        ([0, 1, 1, 2], "1 records doubled"),
        ([0, 2, 1], "out of order"),
        ([0, 1, 2, 9], "1 from"),
    ],
)
async def test_what_is_lost_doubled_out_of_order_or_foreign_fails(
    demo: ModuleType, numbers: list[int], words: str
) -> None:
    with pytest.raises(demo.DemoFailed, match=words):
        await demo.read_back(Reading(demo, numbers), 1, writer_of(demo, acknowledged=3))


async def test_what_is_damaged_or_elsewhere_fails(demo: ModuleType) -> None:
    with pytest.raises(demo.DemoFailed, match="2 records damaged"):
        await demo.read_back(Reading(demo, [0, 1], damaged=True), 1, writer_of(demo, acknowledged=2))
    writer = writer_of(demo, acknowledged=2)
    writer.acknowledged[1] = Position(5, 5)
    with pytest.raises(demo.DemoFailed, match="1 records elsewhere"):
        await demo.read_back(Reading(demo, [0, 1]), 1, writer)


def test_a_demo_that_fails_says_so_and_ends_with_1(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(folder: Path) -> None:
        raise demo.DemoFailed("3 records lost")

    monkeypatch.setattr(demo, "show", fails)
    monkeypatch.setattr(demo.signal, "signal", lambda *_: None)
    assert demo.main() == 1
    assert "the demo FAILED: 3 records lost" in capsys.readouterr().out
