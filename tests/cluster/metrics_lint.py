"""What `promtool check metrics` would say of a page of metrics: the format, the names, the help texts."""

from __future__ import annotations

import http.client
import re

from prometheus_client.parser import text_string_to_metric_families

_NAME = re.compile(r"neve_[a-z][a-z0-9_]*")
_ABBREVIATED = {*"smhdb", "ms", "us", "ns", "sec", "kb", "mb", "gb", "tb", "pb"}
_NOT_BASE = {
    "milliseconds",
    "microseconds",
    "nanoseconds",
    "minutes",
    "hours",
    "days",
    "kilobytes",
    "megabytes",
    "percent",
}
_TYPES = {"counter", "gauge", "histogram", "summary"}


def check_metrics(text: str) -> list[str]:
    """Everything that is wrong, in words."""
    wrong: list[str] = []
    if not text.endswith("\n"):
        wrong.append("the last line has no end")
    declared = re.findall(r"^# TYPE (\S+) (\S+)$", text, flags=re.MULTILINE)
    for name, kind in declared:  # as written: the parser hides what it repairs
        if kind == "counter" and not name.endswith("_total"):
            wrong.append(f"{name}: a counter ends in _total")
        if kind != "counter" and name.endswith(("_total", "_count", "_sum", "_bucket")):
            wrong.append(f"{name}: a {kind} must not end like a part of another type")
        if kind not in _TYPES:
            wrong.append(f"{name}: no type")
        wrong += [f"{name}: named {word}, a type" for word in name.split("_") if word in _TYPES]
        units = [word for word in name.split("_") if word in _ABBREVIATED or word in _NOT_BASE]
        wrong += [f"{name}: {word} is not a base unit written out" for word in units]
        if not _NAME.fullmatch(name):
            wrong.append(f"{name}: not neve_, or not lower case with underscores")
    names = [name for name, _ in declared]
    wrong += [f"{name}: declared twice" for name in sorted(set(names)) if names.count(name) > 1]
    for family in text_string_to_metric_families(text):
        if not family.documentation.strip():
            wrong.append(f"{family.name}: no help text")
        labels = {label for sample in family.samples for label in sample.labels}
        wrong += [
            f"{family.name}: label {label} is not lower case" for label in labels if not re.fullmatch(r"[a-z_]+", label)
        ]
        keys = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples]
        if len(set(keys)) < len(keys):
            wrong.append(f"{family.name}: a series is there twice")
    if not declared:
        wrong.append("there are no metrics")
    return wrong


def http_get(address: str, path: str) -> tuple[int, bytes]:
    """Status and body; (0, b"") if nobody answers."""
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
