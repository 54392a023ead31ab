"""The gateway as an ASGI application: routes, authentication, errors. uvicorn serves it; tests call it.

Invariants: every answer that is not an object is JSON, also those to requests that no route takes;
            with a token file, no request below /v1 is executed or answered without a valid token;
            an exception outside of the taxonomy is logged in full and answered with 500, without its text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from neve.client.objects.client import KeyValueClient
from neve.gateway import docs, openapi
from neve.gateway.config import Limits
from neve.gateway.core_http import error_body, status_of
from neve.gateway.listing import Listing
from neve.gateway.objects import BodyStalled, Objects
from neve.proto.errors import NeveError, Unauthenticated
from neve.rpc.auth import Authenticator

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1
CLIENT_CLOSED = 499  # nginx's code; the client has gone and does not read it


class KeyConvertor(Convertor[str]):
    """Matches the whole rest of the path, including line ends. Its value is unused: the key comes from the raw path."""

    regex = r"(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("neve_key", KeyConvertor())


class Guarded:
    """Everything below /v1 needs a token."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # By the decoded path, which is what routes go by: /%761/objects is /v1/objects.
        if scope["type"] == "http" and scope["path"].startswith("/v1"):
            headers = [value for name, value in scope["headers"] if name == b"authorization"]
            scheme, _, token = (headers[0] if len(headers) == 1 else b"").decode("latin-1").partition(" ")
            try:
                scope["principal"] = self._authenticator.authenticate(
                    token.strip() if scheme.lower() == "bearer" else ""
                )
            except Unauthenticated as error:
                await _error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def make_app(
    client: KeyValueClient,
    *,
    limits: Limits,
    authenticator: Authenticator,
    needs_token: bool,
    facts: Callable[[], Mapping[str, object]],
) -> ASGIApp:
    objects, listing = Objects(client, limits), Listing(client, limits)
    document = openapi.document(needs_token=needs_token, list_keys_max=limits.list_keys_max)
    page = docs.page(document)

    async def health(request: Request) -> Response:
        return JSONResponse({"ready": True, **facts()})

    async def openapi_json(request: Request) -> Response:
        return JSONResponse(document)

    async def docs_page(request: Request) -> Response:
        return HTMLResponse(page)

    async def object_endpoint(request: Request) -> Response:
        if request.method == "PUT":
            return await objects.put(request)
        if request.method == "DELETE":
            return await objects.delete(request)
        return await objects.get(request)

    app = Starlette(
        routes=[
            Route("/v1/objects", listing.get, methods=["GET"]),
            Route("/v1/objects/{key:neve_key}", object_endpoint, methods=["GET", "HEAD", "PUT", "DELETE"]),
            Route("/health", health, methods=["GET"]),
            Route("/openapi.json", openapi_json, methods=["GET"]),
            Route("/docs", docs_page, methods=["GET"]),
        ],
        exception_handlers={
            NeveError: _on_neve_error,
            BodyStalled: _on_stalled,
            ClientDisconnect: _on_disconnect,
            HTTPException: _on_http_error,
            Exception: _on_bug,
        },
    )
    app.router.redirect_slashes = False
    return Guarded(app, authenticator) if needs_token else app


def _error_response(error: NeveError) -> JSONResponse:
    status = status_of(error)
    headers = {}
    if status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="neve"'
    return JSONResponse(error_body(error), status, headers)


async def _on_neve_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, NeveError)
    if status_of(error) >= 500:
        log.warning("request_failed method=%s error=%s", request.method, error)
    return _error_response(error)


async def _on_stalled(request: Request, error: Exception) -> Response:
    headers = {"Connection": "close"}
    return JSONResponse(_body("Timeout", "the body did not arrive in time; nothing was stored"), 408, headers)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    return Response(None, CLIENT_CLOSED)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: see /docs" if error.status_code in (404, 405) else error.detail
    return JSONResponse(_body("Http", message), error.status_code, dict(error.headers or {}))


async def _on_bug(request: Request, error: Exception) -> Response:
    return JSONResponse(_body("Internal", "a bug in the gateway; its log has more"), 500)


def _body(error: str, message: str) -> dict[str, object]:
    return {"error": error, "message": message, "outcome_unknown": False}
