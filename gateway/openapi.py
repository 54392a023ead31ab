"""The OpenAPI description of the gateway: what it takes, and every answer that it gives.

Written by hand rather than derived from code: keys are bytes and bodies are streams, which no framework's models
describe. schemathesis holds the gateway to it.
"""

from __future__ import annotations

from typing import Any

from neve.gateway.core_http import SECONDS_MAX, STATUSES_OF_ERRORS

TITLE = "Neve objects"
DESCRIPTION = (
    "Objects under byte keys. A key is 1 to 4096 bytes, percent-encoded in the path; slashes belong to it. "
    "An entity tag names one version of an object: use it in If-Match and If-None-Match. "
    "An error whose `outcome_unknown` is true may have been executed."
)

_TEXTS = {
    400: "The request is wrong; `message` says what.",
    401: "No token, or one that is not known.",
    403: "The gateway may not do this in its cluster.",
    404: "There is no such object.",
    408: "The body did not arrive in time.",
    412: "The condition is not met.",
    413: "Key or value are too large.",
    416: "No byte of the range is in the object.",
    500: "A bug.",
    502: "The cluster answered something unexpected.",
    503: "The cluster cannot do it at the moment; try again.",
    504: "The cluster did not answer in time.",
    507: "A quota is used up.",
}


def _error(status: int) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": _TEXTS[status],
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    if status == 416:
        answer["headers"] = {"Content-Range": {"schema": {"type": "string", "pattern": r"^bytes \*/[0-9]+$"}}}
    return answer


def _errors(*more: int) -> dict[str, Any]:
    common = [status for status in STATUSES_OF_ERRORS if status not in (404, 412)]
    return {str(status): _error(status) for status in sorted({*common, *more})}


def _no_body(description: str, headers: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"description": description, **({"headers": headers} if headers else {})}


_TAG_HEADER = {"ETag": {"schema": {"type": "string", "pattern": '^"[0-9]+-[0-9a-f]{8}"$'}, "required": True}}
_OBJECT_HEADERS = {
    **_TAG_HEADER,
    "Last-Modified": {"schema": {"type": "string"}, "required": True},
    "Accept-Ranges": {"schema": {"type": "string", "enum": ["bytes"]}, "required": True},
    "X-Neve-Version": {"schema": {"type": "integer", "minimum": 1}, "required": True},
    "X-Neve-Expires-Ms": {"schema": {"type": "integer", "minimum": 1}, "description": "only with a time to live"},
}
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def _parameter(name: str, where: str, schema: dict[str, Any], description: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "in": where, "schema": schema, "description": description, **more}


_TEXT = {"type": "string"}
_KEY = _parameter("key", "path", {"type": "string", "minLength": 1}, "percent-encoded bytes", required=True)
_TAGS = {"anyOf": [{"type": "string", "enum": ["*"]}, {"type": "string", "pattern": '^"[!#-~]+"$'}]}
_IF_MATCH = _parameter("If-Match", "header", _TAGS, "only over one of these versions; *: any")
_IF_NONE_MATCH = _parameter("If-None-Match", "header", _TAGS, "not over these versions; *: only if there is none")
_RANGE = _parameter("Range", "header", _TEXT, "bytes=FIRST-LAST, bytes=FIRST- or bytes=-LENGTH")


def document(*, needs_token: bool, list_keys_max: int) -> dict[str, Any]:
    described: dict[str, Any] = {
        "openapi": "3.0.3",
        "info": {"title": TITLE, "version": "1", "description": DESCRIPTION},
        "paths": {
            "/v1/objects": {"get": _list(list_keys_max)},
            "/v1/objects/{key}": {"get": _get(), "head": _head(), "put": _put(), "delete": _delete()},
            "/health": {"get": _health()},
        },
        "components": {"schemas": _SCHEMAS},
    }
    if needs_token:
        described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path in ("/v1/objects", "/v1/objects/{key}"):
            for operation in described["paths"][path].values():
                operation["security"] = [{"token": []}]
    return described


def _list(list_keys_max: int) -> dict[str, Any]:
    continuation = {"type": "string", "pattern": "^([0-9a-f]{2})*$"}
    limit = {"type": "integer", "minimum": 1, "maximum": list_keys_max}
    return {
        "operationId": "listObjects",
        "summary": "List objects in the order of their keys",
        "parameters": [
            _parameter("prefix", "query", _TEXT, "only keys that begin with these bytes"),
            _parameter("start", "query", _TEXT, "only keys from this one on"),
            _parameter("end", "query", _TEXT, "only keys before this one"),
            _parameter("limit", "query", limit, "at most so many (1000)"),
            _parameter("continuation", "query", continuation, "from the last answer: go on behind it"),
        ],
        "responses": {
            "200": {
                "description": "A page of objects.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Page"}}},
            },
            **_errors(),
        },
    }


def _get() -> dict[str, Any]:
    return {
        "operationId": "getObject",
        "summary": "Read an object, or a range of it",
        "parameters": [_KEY, _RANGE, _IF_MATCH, _IF_NONE_MATCH],
        "responses": {
            "200": {"description": "The object.", "headers": _OBJECT_HEADERS, "content": _BYTES},
            "206": {
                "description": "The range of the object.",
                "headers": {
                    **_OBJECT_HEADERS,
                    "Content-Range": {"schema": {"type": "string"}, "required": True},
                },
                "content": _BYTES,
            },
            "304": _no_body("The object is the one that the caller has.", _TAG_HEADER),
            **_errors(404, 412, 416),
        },
    }


def _head() -> dict[str, Any]:
    answers = {status: _no_body(answer["description"]) for status, answer in _errors(404, 412).items()}
    return {
        "operationId": "headObject",
        "summary": "What is known of an object",
        "parameters": [_KEY, _IF_MATCH, _IF_NONE_MATCH],
        "responses": {
            "200": _no_body("There is such an object.", _OBJECT_HEADERS),
            "304": _no_body("The object is the one that the caller has.", _TAG_HEADER),
            **answers,
        },
    }


def _put() -> dict[str, Any]:
    info = {"application/json": {"schema": {"$ref": "#/components/schemas/Object"}}}
    ttl = {"type": "number", "minimum": 0.001, "maximum": SECONDS_MAX}
    return {
        "operationId": "putObject",
        "summary": "Store an object of any size; it appears as a whole",
        "parameters": [
            _KEY,
            _parameter("ttl_s", "query", ttl, "seconds after which it is gone (never)"),
            _IF_MATCH,
            _IF_NONE_MATCH,
        ],
        "requestBody": {"required": False, "description": "without one, the object is empty", "content": _BYTES},
        "responses": {
            "200": {"description": "It is stored.", "headers": _TAG_HEADER, "content": info},
            "201": {"description": "It is stored, and there was none before.", "headers": _TAG_HEADER, "content": info},
            **_errors(408, 412),
        },
    }


def _delete() -> dict[str, Any]:
    return {
        "operationId": "deleteObject",
        "summary": "Delete an object",
        "parameters": [_KEY, _IF_MATCH],
        "responses": {"204": _no_body("It is gone."), **_errors(404, 412)},
    }


def _health() -> dict[str, Any]:
    schema = {"type": "object", "required": ["ready"], "properties": {"ready": {"type": "boolean"}}}
    return {
        "operationId": "health",
        "summary": "Whether the gateway serves",
        "responses": {"200": {"description": "It does.", "content": {"application/json": {"schema": schema}}}},
    }


_COUNT = {"type": "integer", "minimum": 0}
_OBJECT_PROPERTIES: dict[str, Any] = {
    "key": {"type": "string", "minLength": 1, "description": "as it stands in the path: percent-encoded"},
    "version": {"type": "integer", "minimum": 1},
    "size_bytes": _COUNT,
    "modified_ms": {**_COUNT, "description": "since 1970"},
    "expires_ms": {**_COUNT, "description": "since 1970; 0: never"},
    "etag": _TEXT,
}
_SCHEMAS: dict[str, Any] = {
    "Object": {
        "type": "object",
        "properties": _OBJECT_PROPERTIES,
        "required": list(_OBJECT_PROPERTIES),
        "additionalProperties": False,
    },
    "Page": {
        "type": "object",
        "properties": {
            "objects": {"type": "array", "items": {"$ref": "#/components/schemas/Object"}},
            "continuation": {"type": "string", "description": "empty: there are no more"},
        },
        "required": ["objects", "continuation"],
        "additionalProperties": False,
    },
    "Error": {
        "type": "object",
        "properties": {
            "error": {"type": "string", "description": "the class of the error"},
            "message": {"type": "string", "description": "for people"},
            "outcome_unknown": {"type": "boolean", "description": "it may have been executed"},
        },
        "required": ["error", "message", "outcome_unknown"],
        "additionalProperties": False,
    },
}
