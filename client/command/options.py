"""What users type: sizes, durations, addresses, positions; and the options that every command has. Pure.

Invariants: what cannot be right is refused while the command line is parsed: exit code 2, and nothing was done.
Neighbours: main.py, and the command neve, put these on their parsers.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping

from neve.client.types import Position
from neve.proto.errors import InvalidArgument
from neve.rpc.wire.sockets import split_address

MANAGERS_VARIABLE = "NEVE_MANAGERS"
MANAGERS_DEFAULT = "127.0.0.1:3401"
PARTITION_MANAGERS_VARIABLE = "NEVE_PARTITION_MANAGERS"
PARTITION_MANAGERS_DEFAULT = "127.0.0.1:3701"
CLUSTER_VARIABLE = "NEVE_CLUSTER"
CLUSTER_DEFAULT = "main"
TOKEN_VARIABLE = "NEVE_TOKEN"  # rather than --token, which everybody on the machine can see
TIMEOUT_S_DEFAULT = 15.0  # above a fail-over of the managers

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_DURATIONS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_POSITION = re.compile(r"(\d+)(?::(\d+))?")

ID_MAX = 2**64 - 1


def size_bytes(text: str) -> int:
    """`512`, `1k`, `64KiB`, `1.5 MiB`. Units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: try 512, 4KiB or 1MiB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def positive_size_bytes(text: str) -> int:
    size = size_bytes(text)
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is too small: at least one byte is needed")
    return size


def duration_s(text: str) -> float:
    """`10`, `500ms`, `2m`, `1h`; above 0."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or match[2].lower() not in _DURATIONS or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration above 0: try 10, 500ms or 2m")
    return float(match[1]) * _DURATIONS[match[2].lower()]


def whole_number(minimum: int, maximum: int) -> Callable[[str], int]:
    """A parser of numbers in [minimum, maximum]."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?\d+", text) or not minimum <= int(text) <= maximum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {minimum} to {maximum}")
        return int(text)

    return parse


def addresses(text: str) -> tuple[str, ...]:
    """`host:port`, several with commas."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise argparse.ArgumentTypeError("no address: try 127.0.0.1:3401, several with commas")
    for address in found:
        try:
            split_address(address)
        except InvalidArgument as error:
            raise argparse.ArgumentTypeError(f"{address!r} is not host:port") from error
    return found


def position(text: str) -> Position:
    """`EXTENT` or `EXTENT:OFFSET`, as read and append print them."""
    match = _POSITION.fullmatch(text.strip())
    if match is None or int(match[1]) > ID_MAX or int(match[2] or 0) > ID_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a position: try 12 or 12:4096 (extent:offset)")
    return Position(int(match[1]), int(match[2] or 0))


def label(text: str) -> tuple[str, str]:
    """`key=value`."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not key=value")
    return key, value


def stream_id_or_name(text: str) -> int | str:
    """Digits are an id; anything else is a name."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name is no stream")
    if text.isascii() and text.isdecimal():
        if int(text) > ID_MAX:
            raise argparse.ArgumentTypeError(f"{text} is too large for an id")
        return int(text)
    return text


def connection_options(
    environment: Mapping[str, str] = os.environ, *, of_partitions: bool = False
) -> argparse.ArgumentParser:
    """A parent parser with the options of every command that talks to a cluster: to the stream managers, or to the
    partition managers."""
    variable, default, who = (
        (PARTITION_MANAGERS_VARIABLE, PARTITION_MANAGERS_DEFAULT, "partition managers")
        if of_partitions
        else (MANAGERS_VARIABLE, MANAGERS_DEFAULT, "stream managers")
    )
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("the cluster")
    group.add_argument(
        "--managers",
        type=addresses,
        default=environment.get(variable) or default,
        metavar="HOST:PORT,…",
        help=f"{who} to ask (default: ${variable}, or {default})",
    )
    group.add_argument(
        "--cluster",
        default=environment.get(CLUSTER_VARIABLE) or CLUSTER_DEFAULT,
        help=f"the name that the cluster must have (default: ${CLUSTER_VARIABLE}, or {CLUSTER_DEFAULT})",
    )
    group.add_argument(
        "--token", default=environment.get(TOKEN_VARIABLE, ""), help=f"who we are (default: ${TOKEN_VARIABLE})"
    )
    group.add_argument(
        "--timeout",
        type=duration_s,
        default=TIMEOUT_S_DEFAULT,
        metavar="SECONDS",
        help=f"for one request, attempts included (default: {TIMEOUT_S_DEFAULT:g})",
    )
    return parser
