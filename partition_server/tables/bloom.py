"""Bloom filters of tables: one for each run of blocks, so that none takes long to make.

Invariants: a key that was added is always reported; about 1 % of other keys are too, with 10 bits for each key;
            stored filters do not depend on the process, as Python's own hashes do.
"""

from __future__ import annotations

import zlib

import google_crc32c
import numpy as np

from neve.partition_server.tables.entry_columns import U64

PROBES = 7
_MASK = (1 << 64) - 1
_MIX = 0x9E3779B97F4A7C15


def key_hash(key: bytes) -> int:
    """Return 64 bits of two mixed checksums with different polynomials. Each alone is linear, and takes 0.1 µs."""
    mixed: int = google_crc32c.value(key) | zlib.crc32(key) << 32
    mixed = ((mixed ^ mixed >> 33) * _MIX) & _MASK
    return mixed ^ mixed >> 29


def key_hashes(keys: list[bytes]) -> U64:
    low = np.fromiter(map(google_crc32c.value, keys), dtype=np.uint64, count=len(keys))
    high = np.fromiter(map(zlib.crc32, keys), dtype=np.uint64, count=len(keys))
    mixed: U64 = low | high << np.uint64(32)
    mixed = (mixed ^ mixed >> np.uint64(33)) * np.uint64(_MIX)
    return mixed ^ mixed >> np.uint64(29)


def make_filter(hashes: U64, bits_per_key: int) -> bytes:
    """Return the filter of these hashes, as whole bytes."""
    bits = max(64, (len(hashes) * bits_per_key + 7) // 8 * 8)
    low = hashes & np.uint64(0xFFFFFFFF)
    step = hashes >> np.uint64(32) | np.uint64(1)
    wanted = np.zeros(bits, dtype=np.bool_)
    for _ in range(PROBES):
        wanted[low * np.uint64(bits) >> np.uint64(32)] = True
        low = low + step & np.uint64(0xFFFFFFFF)
    return np.packbits(wanted, bitorder="little").tobytes()


def may_contain(data: bytes, start: int, size_bytes: int, hashed: int) -> bool:
    """Whether the filter in `data[start:start + size_bytes]` may have the key of this hash. False is certain."""
    bits = size_bytes * 8
    low = hashed & 0xFFFFFFFF
    step = hashed >> 32 | 1
    for _ in range(PROBES):
        bit = low * bits >> 32
        if not data[start + (bit >> 3)] >> (bit & 7) & 1:
            return False
        low = low + step & 0xFFFFFFFF
    return True
