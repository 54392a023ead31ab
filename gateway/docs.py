"""The page at /docs: the OpenAPI description as plain HTML, made once. It needs no script and no other host."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "h2{margin-top:2.5rem}code,pre{font-family:ui-monospace,monospace;background:#f4f4f6;border-radius:4px}"
    "code{padding:.1em .3em}pre{padding:.8rem;overflow:auto}table{border-collapse:collapse;width:100%}"
    "td,th{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #ddd;vertical-align:top}"
    ".m{display:inline-block;min-width:4.5rem;font-weight:700}"
)
_CURL = {
    "listObjects": "curl 'http://HOST/v1/objects?prefix=photos/&limit=10'",
    "getObject": "curl -o cat.jpg http://HOST/v1/objects/photos/cat.jpg\n"
    "curl -r 0-99 http://HOST/v1/objects/photos/cat.jpg",
    "headObject": "curl -I http://HOST/v1/objects/photos/cat.jpg",
    "putObject": "curl -T cat.jpg http://HOST/v1/objects/photos/cat.jpg\n"
    "curl -T cat.jpg -H 'If-None-Match: *' http://HOST/v1/objects/photos/cat.jpg",
    "deleteObject": "curl -X DELETE http://HOST/v1/objects/photos/cat.jpg",
    "health": "curl http://HOST/health",
}


def page(document: dict[str, Any]) -> str:
    """The whole page."""
    info = document["info"]
    token = "securitySchemes" in document["components"]
    parts = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(info['title'])}</title>",
        f"<meta name='viewport' content='width=device-width'><style>{_STYLE}</style>",
        f"<h1>{escape(info['title'])}</h1><p>{escape(info['description'])}</p>",
        "<p>For programs: <a href='/openapi.json'>/openapi.json</a>.</p>",
    ]
    if token:
        parts.append("<p>Requests below <code>/v1</code> need <code>Authorization: Bearer TOKEN</code>.</p>")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(_operation(path, method, operation))
    parts.append("<h2>Schemas</h2>")
    for name, schema in document["components"]["schemas"].items():
        rows = [
            (f"<code>{escape(field)}</code>", escape(_type(about)), escape(about.get("description", "")))
            for field, about in schema["properties"].items()
        ]
        parts.append(f"<h3>{escape(name)}</h3>{_table(('field', 'type', ''), rows)}")
    return "\n".join([*parts, "</html>"])


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    title = f"<h2 id='{escape(operation['operationId'])}'><span class='m'>{method.upper()}</span> {escape(path)}</h2>"
    parts = [title, f"<p>{escape(operation['summary'])}.</p>", f"<pre>{escape(_CURL[operation['operationId']])}</pre>"]
    if parameters := operation.get("parameters"):
        rows = [
            (
                f"<code>{escape(each['name'])}</code>",
                escape(each["in"]),
                escape(_type(each["schema"])),
                escape(each["description"]),
            )
            for each in parameters
        ]
        parts.append(_table(("parameter", "in", "type", ""), rows))
    answers = [(status, escape(answer["description"])) for status, answer in sorted(operation["responses"].items())]
    parts.append(_table(("status", ""), answers))
    return "\n".join(parts)


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_type, schema["anyOf"])))
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}"
    return str(schema["type"])


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["<table><tr>", *(f"<th>{cell}</th>" for cell in head), "</tr>"]
    for row in rows:
        lines += ["<tr>", *(f"<td>{cell}</td>" for cell in row), "</tr>"]
    return "".join([*lines, "</table>"])
