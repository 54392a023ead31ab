"""A token bucket on the loop's clock, for work that must leave bandwidth to others (copies, scrubbing).

    pacer = Pacer(bytes_per_s=50 << 20, burst_bytes=1 << 20)
    await pacer.take(len(chunk))         # returns when that many bytes may be moved

Invariants: in any time t at most `burst_bytes + bytes_per_s · t` bytes pass, plus one `take` of any size;
            callers pass in the order of their calls: small ones do not overtake a large one;
            a cancelled call returns its tokens.
"""

from __future__ import annotations

import asyncio


class Pacer:
    """One bucket, shared by any number of tasks of one loop. A rate of 0 means no bound."""

    def __init__(self, *, bytes_per_s: float, burst_bytes: int) -> None:
        assert bytes_per_s >= 0, bytes_per_s
        assert burst_bytes >= 0, burst_bytes
        self.bytes_per_s = bytes_per_s
        self._burst_bytes = burst_bytes
        self._tokens = float(burst_bytes)  # below 0: promised to waiting calls
        self._filled_s: float | None = None

    async def take(self, size_bytes: int) -> None:
        """Wait for the caller's turn. Its tokens are taken at once and may become a debt that later calls wait for."""
        if self.bytes_per_s == 0 or size_bytes == 0:
            return
        self._fill()
        self._tokens -= size_bytes
        if self._tokens >= 0:
            return
        try:
            await asyncio.sleep(-self._tokens / self.bytes_per_s)
        except asyncio.CancelledError:
            self._tokens += size_bytes
            raise

    def _fill(self) -> None:
        now_s = asyncio.get_running_loop().time()
        passed_s = 0.0 if self._filled_s is None else now_s - self._filled_s
        self._filled_s = now_s
        self._tokens = min(float(self._burst_bytes), self._tokens + passed_s * self.bytes_per_s)
