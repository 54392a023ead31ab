"""The counts of `scripts/measure`, on a tree of a few lines."""

from __future__ import annotations

from pathlib import Path

from tests.measure import measure

CODE = '''"""A docstring is no statement."""

from __future__ import annotations
from dataclasses import dataclass
from neve.a.clock import Clock


@dataclass(frozen=True)
class Options:
    one: int = 1
    clock: Clock = Clock()


@dataclass
class Counters:
    found: int = 0


class Thing:
    """Has four attributes."""

    __slots__ = ("a", "b")
    word = "not one of an instance"

    def __init__(self) -> None:
        self.a, (self.b, self.c) = 1, (2, 3)

    def add(self, a, b, c, d, e, *, f) -> None:
        self.d: int = 0
        self.d += 1


def wide(a, b, c, d, e, f, /, *, g) -> None:
    pass
'''


def test_each_figure_counts_what_its_definition_says(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.setuptools.package-dir]\n"neve.a" = "a"\n')
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "__init__.py").touch()
    (tmp_path / "a" / "options.py").write_text(CODE)
    clock = "from dataclasses import dataclass\n\n@dataclass(frozen=True)\nclass Clock:\n    step_s: float = 0\n"
    (tmp_path / "a" / "clock.py").write_text(clock)
    (tmp_path / "a" / "x_pb2.py").write_text("generated = 1\n")
    (tmp_path / "README.md").write_text("é" * 100 + "\n" + "x" * 101 + "\n")
    found = measure(tmp_path)
    assert (found.largest_class_attributes, found.largest_class) == (4, "a/options.py: Thing")
    assert (found.largest_folder_modules, found.largest_folder) == (2, "a")
    assert found.functions_with_many_parameters == 1  # `add` has six beside self
    assert found.long_document_lines == 1
    assert found.statements == 18 + 3
    assert found.settings == 3  # one, clock and the step of the clock
    assert found.modules == 3
    assert found.lines == CODE.count("\n") + clock.count("\n")
