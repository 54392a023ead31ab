"""Mutation testing of the decision cores: mutmut changes them in small ways, and their direct tests should notice.

    python -m tests.mutants                        all of them, and a table with the score of each (make mutants)
    python -m tests.mutants meta/core_retry        these
    python -m tests.mutants --minutes 10           stop after about so long: what was not checked does not count
    cd build/mutants && mutmut show NAME           what a survivor has changed

Invariants: only tests that test a core directly count: what a story of a whole cluster would find is another matter;
            a mutant that no test runs through counts as one that survived;
            the score is of what was checked, and how much that was stands beside it; the exit code is 1 if a core's
            mutants were not all come to.

The folders at the top are sub-packages of `neve` only once installed, and mutmut wants to see modules where they are
imported from: it gets a tree that looks like the installed package (as scripts/typecheck does).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
TREE = ROOT / "build" / "mutants"

UNIT = "tests/unit"
CORES: Mapping[str, Sequence[str]] = {
    "meta/core_retry": (f"{UNIT}/meta/test_core_retry.py",),
    "client/streams/core/batch": (
        f"{UNIT}/client/streams/test_core_batch.py",
        f"{UNIT}/client/streams/test_core_writer.py",
        f"{UNIT}/client/streams/test_segment_codec.py",
    ),
    "client/objects/core_routing": (f"{UNIT}/client/objects/test_core_routing.py",),
    "client/streams/core/reader": (f"{UNIT}/client/streams/test_core_reader.py",),
    "client/streams/core/writer": (f"{UNIT}/client/streams/test_core_writer.py",),
    "extent_node/core/answers": (f"{UNIT}/extent_node/core/test_answers.py",),
    "extent_node/core/append": (f"{UNIT}/extent_node/core/test_append.py",),
    "extent_node/core/control": (f"{UNIT}/extent_node/core/test_control.py",),
    "extent_node/core/copy": (f"{UNIT}/extent_node/core/test_copy.py",),
    "extent_node/core/state": (f"{UNIT}/extent_node/core/test_answers.py",),
    "partition_manager/core_balance": (f"{UNIT}/partition_manager/test_core_balance.py",),
    "partition_manager/core_regions": (f"{UNIT}/partition_manager/test_core_regions.py",),
    "partition_server/tables/core_compaction": (f"{UNIT}/partition_server/test_merge.py",),
    "partition_server/tables/core_merge": (f"{UNIT}/partition_server/test_merge.py",),
    "stream_manager/streams/core/digest": (f"{UNIT}/stream_manager/streams/test_core_digest.py",),
    "stream_manager/nodes/core/health": (f"{UNIT}/stream_manager/nodes/test_core_health.py",),
    "stream_manager/streams/core/open": (f"{UNIT}/stream_manager/streams/test_core_seal.py",),
    "stream_manager/nodes/core/recovery": (f"{UNIT}/stream_manager/nodes/test_core_recovery.py",),
    "stream_manager/streams/core/seal": (
        f"{UNIT}/stream_manager/streams/test_core_seal.py",
        f"{UNIT}/stream_manager/streams/test_accept_length.py",
    ),
}
# mutmut 3.8 asks tests for a private attribute of theirs, which pytest has not had since version 9. And no mutant is
# killed by luck.
CONFTEST = """
from _pytest.nodes import Node
from hypothesis import settings

if not hasattr(Node, "_nodeid"):
    Node._nodeid = property(lambda node: node.nodeid)
settings.register_profile("mutants", deadline=None, derandomize=True)
settings.load_profile("mutants")
"""
KILLED = frozenset({1, 3, 36, 24, -24, 152, 255})  # mutmut's codes: a test failed, or did not come to its end
LEFT = frozenset({None, 2})  # the run was over before it came to them
NOT_CHECKED = LEFT | {34}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("cores", nargs="*", help="paths, such as stream_manager/streams/core/seal")
    parser.add_argument("--minutes", type=float, default=60.0, help="at most about so long")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.cores if name not in CORES]:
        parser.error(f"there is no {', '.join(unknown)}: there are {', '.join(CORES)}")
    if options.minutes <= 0 or options.jobs < 1:
        parser.error("--minutes is more than 0, and --jobs 1 or more")
    chosen = [core for core in CORES if not options.cores or core in options.cores]
    build_tree(chosen)
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(options.jobs)]
    try:
        with (TREE / "log").open("w") as log:  # it draws its progress: many screens of it
            subprocess.run(command, cwd=TREE, check=True, timeout=60 * options.minutes, stdout=log)
    except subprocess.TimeoutExpired:
        print(f"stopped after {options.minutes:g} minutes")
    return report(chosen)


def build_tree(cores: Sequence[str]) -> None:
    """The package as it would be installed, the tests, and mutmut's configuration."""
    shutil.rmtree(TREE, ignore_errors=True)
    (TREE / "neve").mkdir(parents=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for package, folder in project["tool"]["setuptools"]["package-dir"].items():
        if package.count(".") == 1:  # a sub-folder comes with its parent
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / folder, TREE / "neve" / package.removeprefix("neve."), ignore=ignore)
    shutil.copytree(ROOT / "tests", TREE / "tests", ignore=shutil.ignore_patterns("__pycache__", ".hypothesis"))
    tests = sorted({test for core in cores for test in CORES[core]})
    (TREE / "conftest.py").write_text(CONFTEST)
    (TREE / "pyproject.toml").write_text(
        "[tool.mutmut]\n"
        'also_copy = ["conftest.py"]\n'
        'source_paths = ["neve"]\n'
        f"only_mutate = {json.dumps([f'neve/{core}.py' for core in cores])}\n"
        f"pytest_add_cli_args_test_selection = {json.dumps(tests)}\n"
        'pytest_add_cli_args = ["-p", "no:cacheprovider", "-p", "no:xdist"]\n'
        "[tool.pytest.ini_options]\n"
        f"markers = {json.dumps(project['tool']['pytest']['ini_options']['markers'])}\n"
    )


def report(cores: Sequence[str]) -> int:
    """A row for each; the survivors below. 1 if not all mutants of one were come to."""
    survivors: list[str] = []
    unchecked: list[str] = []
    print("| core | mutants | checked | killed | score |\n|---|---|---|---|---|")
    for core in cores:
        meta = TREE / "mutants" / "neve" / f"{core}.py.meta"
        codes = json.loads(meta.read_text())["exit_code_by_key"] if meta.exists() else {}
        checked = {name: code for name, code in codes.items() if code not in NOT_CHECKED}
        killed = Counter(code in KILLED for code in checked.values())[True]
        score = f"{killed / len(checked):.0%}" if checked else "-"
        print(f"| {core} | {len(codes)} | {len(checked)} | {killed} | {score} |")
        if not codes or not LEFT.isdisjoint(codes.values()):
            unchecked.append(core)
        survivors += [name for name, code in checked.items() if code not in KILLED]
    print("\nsurvivors:", *survivors, sep="\n  ")
    if unchecked:
        print(f"\nnot all come to: {', '.join(unchecked)}")
    return 1 if unchecked else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
