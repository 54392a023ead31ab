"""Every block of README.md works: the commands and programs run as printed, in their order, on one local cluster.

Only what belongs to the reader's machine is exchanged: ports, folders, the length of a measurement, the path of the
virtual environment, and that the wheel's dependencies come from this environment and not from a package index. `make`
lines and benchmarks are not run here: they are commands of their own.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.cluster.local_cluster import LocalCluster

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240.0
RUN_ELSEWHERE = ("make ", "tests.bench.")
UP = ".venv/bin/neve up --data /tmp/neve"


class Block(NamedTuple):
    language: str
    text: str


def blocks_of(page: str) -> Iterator[Block]:
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL):
        yield Block(match[1], match[2])


def test_every_block_of_the_readme_works(tmp_path: Path) -> None:
    blocks = [block for block in blocks_of((ROOT / "README.md").read_text()) if block.language]
    assert {block.language for block in blocks} == {"sh", "python"}
    with LocalCluster(tmp_path / "data") as cluster:
        own = {
            "127.0.0.1:3401": cluster.facts["managers"][0],
            "127.0.0.1:3701": cluster.facts["partition_managers"][0],
            "127.0.0.1:3950": cluster.facts["gateway"],
            "--duration 10": "--duration 1",
            "pip install --quiet": "pip install --quiet --no-deps",
            ".venv/bin/": f"{Path(sys.executable).parent}/",
            "/tmp/": f"{tmp_path}/",
        }
        ran = []
        for block in blocks:
            text = block.text
            if any(word in text for word in RUN_ELSEWHERE):
                continue
            if text.strip() == UP:
                ran.append("up")  # the context above is that command, on free ports
                continue
            text = re.sub("|".join(map(re.escape, own)), lambda match: own[match[0]], text)
            ran.append(block.language)
            environment = {
                **cluster.environment,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYTHONPATH": sysconfig.get_paths()["purelib"],
            }
            print(_run(block.language, text, tmp_path, environment))
    assert ran.count("up") == 1
    assert ran.count("python") >= 4
    assert ran.count("sh") >= 4


def _run(language: str, text: str, folder: Path, environment: dict[str, str]) -> str:
    if language == "python":
        program = folder / "program.py"
        program.write_text(text)
        command = [sys.executable, str(program)]
    else:
        command = ["bash", "-euo", "pipefail", "-c", text]
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert result.returncode == 0, f"{text}\nended with {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout
