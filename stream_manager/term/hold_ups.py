"""Extents whose recovery, collection or confirmation is held up: the reason in words, and when to try again.

Drains and `neve status` show the reasons. The delays keep a failing extent from being tried in a storm.

Invariants: bounded: the oldest entry is dropped when there are too many, and is noted again if the problem persists;
            each new reason of an extent is logged once, however often it is noted.
"""

from __future__ import annotations

import logging

from neve.meta.core_retry import Delays, Retries

log = logging.getLogger(__name__)

PROBLEMS_MAX = 10_000


class Problems:
    def __init__(self, delays: Delays) -> None:
        self._retries = Retries[int](delays, keys_max=PROBLEMS_MAX)  # by extent id
        self._texts: dict[int, str] = {}

    def note(self, extent_id: int, text: str, now_s: float) -> None:
        """Note a failed attempt. The next one is due after a delay, which doubles each time."""
        before = self._texts.pop(extent_id, None)
        self._retries.postpone(extent_id, now_s)
        if len(self._texts) >= PROBLEMS_MAX:
            del self._texts[next(iter(self._texts))]
        self._texts[extent_id] = text
        if before != text:
            log.warning("extent_held_up extent_id=%d problem=%s", extent_id, text)

    def due(self, extent_id: int, now_s: float) -> bool:
        """Whether the extent may be tried now."""
        return self._retries.is_due(extent_id, now_s)

    def overdue(self, now_s: float) -> list[int]:
        """Extents whose delay has passed."""
        return self._retries.due(now_s)

    def solved(self, extent_id: int) -> None:
        self._retries.forget(extent_id)
        self._texts.pop(extent_id, None)

    def text(self, extent_id: int) -> str:
        return self._texts.get(extent_id, "")
