"""What the simulation looks at in memory is there to be looked at: a name that was changed in the product would be
passed over in silence."""

from __future__ import annotations

import ast
import asyncio
from collections import defaultdict
from pathlib import Path

import pytest

from neve.proto import fields
from neve.stream_manager.metadata import records
from tests.sim.checks import held_memory as held
from tests.sim.checks import leaks, memory

ROOT = Path(__file__).parents[2]
FOLDERS = ("client", "extent_node", "meta", "partition_manager", "partition_server", "rpc", "stream_manager")
BOUNDS = (held.NODE, held.MANAGER, held.CLIENT, held.STOPPED_SERVER, held.STOPPED_MANAGER, held.KEY_VALUE)
NAMES = sorted({name.partition("[")[0] for name in (*held.NUMBERS, *(name for each in BOUNDS for name in each))})


def attributes() -> dict[str, set[str]]:
    """What the product's classes and those below them set of themselves, or declare, by their names."""
    found: dict[str, set[str]] = defaultdict(set)
    bases: dict[str, set[str]] = defaultdict(set)
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            if path.name.endswith("_pb2.py"):
                continue
            for each in ast.walk(ast.parse(path.read_text())):
                if isinstance(each, ast.ClassDef):
                    found[each.name] |= {_name(part) for part in ast.walk(each)}
                    bases[each.name] |= {ast.unparse(base).partition("[")[0] for base in each.bases}
    for name in list(found):
        below = list(bases[name])
        for base in below:
            found[name] |= found.get(base, set())
            below += bases.get(base, set()) - {*below}
    return found


def _name(part: ast.AST) -> str:
    if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
        return part.attr
    if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
        return part.target.id
    return ""


ATTRIBUTES = attributes()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_looked_at_is_there(name: str) -> None:
    class_name, _, attribute = name.partition(".")
    assert attribute in ATTRIBUTES[class_name], f"{name} is not in the product any more: look at what it is now"


def test_a_name_that_is_not_there_is_noticed() -> None:
    assert "_held" not in ATTRIBUTES["TurnLock"]
    assert "held" in ATTRIBUTES["TurnLock"]


def test_what_modules_and_classes_hold_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    before = memory.held_by_modules()
    assert before.keys() >= {*held.CACHES}
    assert not leaks.grown(before)
    kept: list[bytes] = []
    monkeypatch.setattr(records, "_kept", kept, raising=False)
    before = memory.held_by_modules()
    kept.extend([b""] * 100)
    assert leaks.grown(before) == ["neve.stream_manager.metadata.records._kept: 100"]


def test_caches_of_modules_are_emptied_when_they_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_SHARED_MAX", 10)
    for number in range(100):
        records.shared((number, "of a test"))
    assert len(records._shared_values) <= 10
    monkeypatch.setattr(fields, "_VARINTS_MAX", 10)
    for number in range(100):
        assert fields.VARINTS[1_000_000 + number]
    assert len(fields.VARINTS) <= 10


def test_queues_are_looked_at() -> None:
    class Asked:
        def __init__(self) -> None:
            self.queue: asyncio.Queue[int] = asyncio.Queue()

    Asked.__module__ = "neve.test"
    asked = Asked()
    asked.queue.put_nowait(1)
    assert memory.held_by(asked) == {"Asked.queue": 1}
