"""Reads a listing of the stream manager page by page.

Invariants: all pages are of the revision of the first one, where the listing has revisions;
            a listing ends: a page that does not advance is the last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

PAGE = 500  # items; a manager may give fewer


async def pages(ask: Callable[[Any], Awaitable[Any]], request: Any, *, items: str, after: str) -> AsyncIterator[Any]:
    """Items of a listing, by id. `items` is the field of the reply that has them; `after`, as in `after_stream_id`, is
    the field of the request that says where the page begins, and without "after_" the field of an item that has its id.
    """
    id_field = after.removeprefix("after_")
    while True:
        reply = await ask(request)
        page = getattr(reply, items)
        for item in page:
            yield item
        # A page may be empty and not the last one: then the reply says how far the manager has looked.
        last_id = getattr(reply, f"scanned_{id_field}", 0) or (getattr(page[-1], id_field) if page else 0)
        if not reply.more or last_id <= getattr(request, after):
            return
        setattr(request, after, last_id)
        if hasattr(request, "revision"):
            request.revision = reply.revision
