"""Reads a listing of the stream manager in pages.

Invariants: all pages are of the revision of the first one, if the listing has revisions;
            a listing ends: a page that does not advance is the last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

PAGE = 500  # items; a manager may return fewer


async def pages(ask: Callable[[Any], Awaitable[Any]], request: Any, *, items: str, after: str) -> AsyncIterator[Any]:
    """Iterate over the items of a listing, by id.

    `items` is the field of the reply that contains them. `after`, such as `after_stream_id`, is the field of the
    request that says where the page begins; without "after_", it is the field with an item's id.
    """
    id_field = after.removeprefix("after_")
    while True:
        reply = await ask(request)
        page = getattr(reply, items)
        for item in page:
            yield item
        # An empty page need not be the last: the reply says how far the manager has scanned.
        last_id = getattr(reply, f"scanned_{id_field}", 0) or (getattr(page[-1], id_field) if page else 0)
        if not reply.more or last_id <= getattr(request, after):
            return
        setattr(request, after, last_id)
        if hasattr(request, "revision"):
            request.revision = reply.revision
