"""The tests of each scenario: reads their names from the tree, and writes them into docs/scenarios.md.

A test that is named `test_t17_...` belongs to scenario T17, and one that is named `test_t48_t49_...` to both. The page
has a row for each scenario; its last two columns, tests and deliberate bugs, are made by `python tests/scenarios.py`.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "scenarios.md"
_ROW = re.compile(r"^\| (T\d+) \| (.+?) \| ([^|]*) \| ([^|]*) \|$")
_NAME = re.compile(r"test((?:_t\d+)+)_")


def named_tests() -> dict[int, Counter[str]]:
    """For each scenario: the test files, with the number of tests that are named after it."""
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (match := _NAME.match(node.name)):
                for number in re.findall(r"\d+", match[1]):
                    found[int(number)][str(path.relative_to(ROOT / "tests"))] += 1
    return found


def deliberate_bugs() -> dict[int, list[str]]:
    """For each scenario: the names of the deliberate bugs that it is the origin of."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests" / "sim" / "bugs").glob("*.py")):
        for name, origin in _origins(ast.parse(path.read_text())):
            for number in re.findall(r"\bT(\d+)\b", origin):
                found[int(number)].append(name)
    return found


def _origins(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "bug":
            values = [word.value for word in node.keywords if word.arg == "origin"]
            if values and isinstance(values[0], ast.Constant) and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value), str(values[0].value)


def rows(page: str) -> dict[int, str]:
    """The scenarios of the page, with what must hold."""
    return {int(match[1][1:]): match[2] for line in page.splitlines() if (match := _ROW.match(line))}


def rendered(page: str) -> str:
    """The page with its last two columns as they should be."""
    tests, bugs = named_tests(), deliberate_bugs()
    lines = []
    for line in page.splitlines():
        if match := _ROW.match(line):
            number = int(match[1][1:])
            files = ", ".join(f"{file} ({count})" for file, count in sorted(tests[number].items()))
            line = f"| {match[1]} | {match[2]} | {files} | {'; '.join(sorted(set(bugs[number])))} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the tests of each scenario into docs/scenarios.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is not current")
    options = parser.parse_args()
    page = PAGE.read_text()
    new = rendered(page)
    if not options.check:
        PAGE.write_text(new)
    elif new != page:
        print("docs/scenarios.md is not current: run `scripts/scenarios`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
