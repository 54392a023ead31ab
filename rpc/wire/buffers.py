"""A pool of receive buffers, because touching fresh memory costs more than the copy into it.

Invariant:  a chunk is handed out only if no view of it exists. Python's own reference count shows that, because each
            memoryview (and each NumPy array over one) keeps a reference to its bytearray. No code releases a chunk
            explicitly, so none can release it too early.
"""

from __future__ import annotations

import sys
from collections import deque

from neve.rpc.limits import KIB, MIB

STREAM_CHUNK_BYTES = 256 * KIB  # one read receives many small frames
CHUNK_STEP_BYTES = 64 * KIB
POOL_BYTES_MAX = 64 * MIB  # and one chunk for small frames

_LOOKS_MAX = 8
_NONE = bytearray()


def _references_when(held: bool) -> int:
    """The getrefcount of a chunk that was just popped into a local name; `held`: and that has a view elsewhere.

    It is measured, because interpreters differ in the references that they count.
    """
    chunks = deque([bytearray(8)])
    view = memoryview(chunks[0]) if held else None
    chunk = chunks.pop()
    references = sys.getrefcount(chunk)
    del view
    return references


_IDLE_REFERENCES = _references_when(held=False)
if _references_when(held=True) <= _IDLE_REFERENCES:
    raise ImportError("this Python does not count the references that receive buffers are pooled by")


class ChunkPool:
    """Chunks by size. Shared by all connections of a process; used from one thread."""

    def __init__(self, bytes_max: int = POOL_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._by_size: dict[int, deque[bytearray]] = {}
        # One separate chunk for small frames: most reads take it, empty it and give it back at once.
        self._stream = _NONE

    def take_stream(self) -> bytearray:
        """As `take(STREAM_CHUNK_BYTES)`, but faster."""
        chunk, self._stream = self._stream, _NONE
        if chunk and sys.getrefcount(chunk) == _IDLE_REFERENCES:
            return chunk
        if chunk:
            self.give(chunk)
        return self.take(STREAM_CHUNK_BYTES)

    def give_stream(self, chunk: bytearray) -> None:
        """As `give`, for a chunk from `take_stream`."""
        if not self._stream and len(chunk) == STREAM_CHUNK_BYTES:
            self._stream = chunk
        else:
            self.give(chunk)

    def take(self, size_bytes: int) -> bytearray:
        """A chunk of at least this size, with any content."""
        size_bytes = -(-size_bytes // CHUNK_STEP_BYTES) * CHUNK_STEP_BYTES
        chunks = self._by_size.get(size_bytes)
        if chunks:
            # The newest chunk is the most likely one in the CPU's cache. One that is still in use goes to the back.
            for _ in range(min(len(chunks), _LOOKS_MAX)):
                chunk = chunks.pop()
                if sys.getrefcount(chunk) == _IDLE_REFERENCES:
                    self._bytes -= size_bytes
                    if not chunks:
                        del self._by_size[size_bytes]
                    return chunk
                chunks.appendleft(chunk)
        return bytearray(size_bytes)

    def give(self, chunk: bytearray) -> None:
        """Return a chunk to the pool. Views of it may still exist."""
        while self._bytes + len(chunk) > self._bytes_max and self._bytes:
            self._evict()
        if self._bytes + len(chunk) <= self._bytes_max:
            self._by_size.setdefault(len(chunk), deque()).append(chunk)
            self._bytes += len(chunk)

    def _evict(self) -> None:
        """Drop one chunk of the oldest size class. Its memory is freed with the last view of it."""
        size_bytes = next(iter(self._by_size))
        chunks = self._by_size[size_bytes]
        chunks.popleft()
        self._bytes -= size_bytes
        if not chunks:
            del self._by_size[size_bytes]
