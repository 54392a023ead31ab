"""A cache of decoded table blocks, shared by all partitions of a process.

Invariants: bounded in bytes, evicting the least recently used; blocks never change, and extent ids are never reused.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    @property
    def memory_bytes(self) -> int: ...


T = TypeVar("T", bound=Sized)

Key = tuple[int, int]  # extent, offset


class BlockCache(Generic[T]):
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[Key, T] = OrderedDict()
        self.used_bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: Key) -> T | None:
        block = self._blocks.get(key)
        if block is None:
            self.misses += 1
            return None
        self.hits += 1
        self._blocks.move_to_end(key)
        return block

    def put(self, key: Key, block: T) -> None:
        size_bytes = block.memory_bytes
        if size_bytes > self._bytes_max // 8 or key in self._blocks:
            return
        self._blocks[key] = block
        self.used_bytes += size_bytes
        while self.used_bytes > self._bytes_max:
            _, dropped = self._blocks.popitem(last=False)
            self.used_bytes -= dropped.memory_bytes

    def __len__(self) -> int:
        return len(self._blocks)
