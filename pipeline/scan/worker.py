"""The one-time preparation of a Python process of Spark, before its first task.

Spark keeps the process for many tasks and has it collect cycles after each of them: with all that is imported, 30 ms,
many times what a task of indexes takes itself. What is there before the first task stays to the end: it is set aside.
And batches of megabytes come and go: that their memory is kept makes checking and copying payloads three times as fast.

Invariants: done once in a process, however many tasks run in it; results are the same without it.
"""

from __future__ import annotations

import functools
import gc

from neve.client.freed_memory import keep_freed_memory

KEPT_BYTES_MAX = 128 << 20  # a few batches


@functools.cache
def settle() -> None:
    keep_freed_memory(KEPT_BYTES_MAX)
    gc.collect()
    gc.freeze()
