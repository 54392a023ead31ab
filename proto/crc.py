"""CRC32C of any buffer. The one place that knows what google-crc32c accepts.

It takes bytes and NumPy arrays but refuses bytearray and memoryview. A NumPy view costs about half a microsecond and no
copy, a copy to bytes costs less than that below a few KiB: hence the switch.
"""

from __future__ import annotations

from collections.abc import Iterable

import google_crc32c
import numpy as np

COPY_BYTES_MAX = 8192

Buffer = bytes | bytearray | memoryview


crc32c_bytes = google_crc32c.value  # for bytes alone: no look at the type


def crc32c(buffer: Buffer, crc: int = 0) -> int:
    """The checksum of `buffer`, or of what `crc` covers followed by `buffer`."""
    if type(buffer) is not bytes:
        if len(buffer) <= COPY_BYTES_MAX:
            buffer = bytes(buffer)
        else:
            array = np.frombuffer(buffer, dtype=np.uint8)
            return google_crc32c.extend(crc, array)  # type: ignore[no-any-return]
    return google_crc32c.extend(crc, buffer)  # type: ignore[no-any-return]


def crc32c_of_all(buffers: Iterable[Buffer]) -> int:
    """The checksum of the buffers as if they were one."""
    crc = 0
    for buffer in buffers:
        crc = crc32c(buffer, crc)
    return crc
