"""CRC32C of any buffer. No other module depends on what google-crc32c accepts.

google-crc32c accepts bytes and NumPy arrays but neither bytearray nor memoryview. A NumPy view costs about half a
microsecond and copies nothing. Below a few KiB a copy to bytes costs less than that, so small buffers are copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import google_crc32c
import numpy as np

COPY_BYTES_MAX = 8192

Buffer = bytes | bytearray | memoryview


crc32c_bytes = google_crc32c.value  # for `bytes` only: does not check the type


def crc32c(buffer: Buffer, crc: int = 0) -> int:
    """The checksum of `buffer`; with `crc`, of the data that `crc` covers followed by `buffer`."""
    if type(buffer) is not bytes:
        if len(buffer) <= COPY_BYTES_MAX:
            buffer = bytes(buffer)
        else:
            array = np.frombuffer(buffer, dtype=np.uint8)
            return google_crc32c.extend(crc, array)  # type: ignore[no-any-return]
    return google_crc32c.extend(crc, buffer)  # type: ignore[no-any-return]


def crc32c_of_all(buffers: Iterable[Buffer]) -> int:
    """The checksum of the concatenated buffers."""
    crc = 0
    for buffer in buffers:
        crc = crc32c(buffer, crc)
    return crc


def crc32c_shifted(crc: int, size_bytes: int) -> int:
    """`crc` shifted by so many bytes: the CRC of A + B is `crc32c_shifted(crc_of_a, len(B)) ^ crc_of_b`.

    It takes a few microseconds for any size. If B has 64 KiB or more, that is less than reading B again.
    """
    power = 0
    while size_bytes:
        if size_bytes & 1:
            low, second, third, high = _shift_tables(power)
            crc = low[crc & 0xFF] ^ second[crc >> 8 & 0xFF] ^ third[crc >> 16 & 0xFF] ^ high[crc >> 24]
        size_bytes >>= 1
        power += 1
    return crc


_POLYNOMIAL = 0x82F63B78  # of CRC32C, reflected

_Tables = tuple[list[int], list[int], list[int], list[int]]


@cache
def _shift_tables(power: int) -> _Tables:
    """The effect of 2**power zero bytes on a CRC: one table for each byte of the CRC.

    The map is linear, so the shifted CRC is the XOR of the four entries.
    """
    columns = _columns(power)
    index = np.arange(256, dtype=np.uint32)
    tables = []
    for byte in range(4):
        table = np.zeros(256, dtype=np.uint32)
        for bit in range(8):
            table ^= np.where(index >> bit & 1, np.uint32(columns[8 * byte + bit]), np.uint32(0))
        tables.append(table.tolist())
    return (tables[0], tables[1], tables[2], tables[3])


@cache
def _columns(power: int) -> tuple[int, ...]:
    """The images of the 32 single bits. The map for a power is the map for the power below, applied twice."""
    if power:
        columns = _columns(power - 1)
        return tuple(_apply(columns, column) for column in columns)
    columns = (_POLYNOMIAL, *(1 << bit for bit in range(31)))  # one zero bit
    for _ in range(3):  # two, four, eight: one byte
        columns = tuple(_apply(columns, column) for column in columns)
    return columns


def _apply(columns: tuple[int, ...], crc: int) -> int:
    result = 0
    for column in columns:
        if crc & 1:
            result ^= column
        crc >>= 1
    return result
