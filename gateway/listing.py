"""GET /v1/objects: the list of objects, in the order of keys, a page at a time.

Invariants: a page continues after the last key of the page before it, so that pages together neither omit nor repeat
            an object that existed all the time;
            a page is bounded in keys and in bytes, because keys may be long.
"""

from __future__ import annotations

from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from neve.client.objects.client import KeyValueClient
from neve.client.objects.core_routing import key_after
from neve.gateway.config import Limits
from neve.gateway.core_http import key_of_token, key_to_text, query_fields, token_of_key, whole_number
from neve.gateway.objects import describe

LIMIT_DEFAULT = 1000


class Listing:
    def __init__(self, client: KeyValueClient, limits: Limits) -> None:
        self._client = client
        self._limits = limits

    async def get(self, request: Request) -> Response:
        fields = query_fields(request.scope["query_string"])
        most = self._limits.list_keys_max
        limit = whole_number(fields, "limit", default=min(LIMIT_DEFAULT, most), maximum=most)
        start = fields.get("start", b"")
        if behind := key_of_token(fields.get("continuation", b"")):
            start = max(start, key_after(behind))
        objects: list[dict[str, object]] = []
        last = b""
        left_bytes = self._limits.list_bytes_max
        found = self._client.scan(
            prefix=fields.get("prefix", b""), start=start, end=fields.get("end", b""), limit=limit + 1
        )
        async with aclosing(found) as infos:  # type: ignore[type-var]
            async for info in infos:
                if len(objects) == limit or left_bytes <= 0:
                    return JSONResponse({"objects": objects, "continuation": token_of_key(last)})
                last = info.key
                text = key_to_text(last)
                left_bytes -= len(text)
                objects.append({"key": text, **describe(info)})
        return JSONResponse({"objects": objects, "continuation": ""})
