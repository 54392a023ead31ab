"""A cache of blocks that were read one by one.

Invariants: bounded in bytes, evicting the least recently used; blocks are checked and never change, because bytes below
            `committed` stay as they are (guarantee G4).
Note:       Sequential reads bypass it: they would only evict blocks that are read again.
"""

from __future__ import annotations

from collections import OrderedDict

from neve.client.streams.core.reader import Block

ENTRY_BYTES = 200  # approximate overhead of an entry beside its payload


class BlockCache:
    """Checked blocks by extent and offset."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self.used_bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, extent_id: int, offset: int) -> Block | None:
        block = self._blocks.get((extent_id, offset))
        if block is None:
            self.misses += 1
            return None
        self.hits += 1
        self._blocks.move_to_end((extent_id, offset))
        return block

    def put(self, extent_id: int, block: Block) -> None:
        """Cache a block. Copies its payload, since a view would keep a whole reply alive."""
        size_bytes = len(block.payload) + ENTRY_BYTES
        key = (extent_id, block.offset)
        if size_bytes > self._bytes_max // 8 or key in self._blocks:
            return
        self._blocks[key] = block._replace(payload=bytes(block.payload))
        self.used_bytes += size_bytes
        while self.used_bytes > self._bytes_max:
            _, dropped = self._blocks.popitem(last=False)
            self.used_bytes -= len(dropped.payload) + ENTRY_BYTES

    def __len__(self) -> int:
        return len(self._blocks)
