"""What a Python process of Spark is told once."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from neve.pipeline.scan import worker

worker.settle()
first = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
worker.settle()
print(first, gc.get_freeze_count())
"""


def test_what_is_there_before_the_first_task_is_set_aside_once() -> None:
    """In a process of its own: it is about all of one."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    first, again = map(int, done.stdout.split())
    assert first == again > 1000
