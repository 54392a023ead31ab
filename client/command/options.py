"""Parsers of what users type, such as sizes, durations, addresses and positions, and the options of every command.

Invariants: an impossible value is refused while the command line is parsed, with exit code 2 and before any effect.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from neve.client.command.failures import USAGE, CommandFailed
from neve.client.command.records import RECORD_BYTES_MAX
from neve.client.streams.types import Position
from neve.meta.etcd.config import EtcdAccess, EtcdTls
from neve.proto.errors import InvalidArgument
from neve.rpc.tls import TlsFiles, client_context
from neve.rpc.wire.sockets import split_address

MANAGERS_VARIABLE = "NEVE_MANAGERS"
MANAGERS_DEFAULT = "127.0.0.1:3401"
PARTITION_MANAGERS_VARIABLE = "NEVE_PARTITION_MANAGERS"
PARTITION_MANAGERS_DEFAULT = "127.0.0.1:3701"
CLUSTER_VARIABLE = "NEVE_CLUSTER"
CLUSTER_DEFAULT = "main"
TOKEN_VARIABLE = "NEVE_TOKEN"  # preferable to --token, which every user of the machine can see
CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE = "NEVE_CA", "NEVE_CERT", "NEVE_KEY"
ETCD_CA_VARIABLE, ETCD_CERT_VARIABLE, ETCD_KEY_VARIABLE = "NEVE_ETCD_CA", "NEVE_ETCD_CERT", "NEVE_ETCD_KEY"
ETCD_USER_VARIABLE, ETCD_PASSWORD_VARIABLE = "NEVE_ETCD_USER", "NEVE_ETCD_PASSWORD"  # the password has no option
TIMEOUT_S_DEFAULT = 15.0  # longer than a fail-over of the managers

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_DURATIONS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_POSITION = re.compile(r"(\d+)(?::(\d+))?")

ID_MAX = 2**64 - 1
SIZE_BYTES_MAX = 2**63
DURATION_S_MAX = 36_500 * 86_400.0  # a hundred years, which timers and time stamps can represent


class Parser(argparse.ArgumentParser):
    """Accepts an optional FILE after options too, as in `append STREAM --whole FILE`."""

    def _match_arguments_partial(self, actions: Sequence[argparse.Action], arg_strings_pattern: str) -> list[int]:
        # Python before 3.12 takes FILE as absent at the first option: the pattern has an O for each later option.
        counts = super()._match_arguments_partial(actions, arg_strings_pattern)
        while counts and counts[-1] == 0 and "O" in arg_strings_pattern:
            counts.pop()
        return counts


def size_bytes(text: str) -> int:
    """Parse `512`, `1k`, `64KiB` or `1.5 MiB`. Units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: try 512, 4KiB or 1MiB")
    size = float(match[1]) * _UNITS[match[2].lower()]
    if size > SIZE_BYTES_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is too large: the limit is 2^63 bytes")
    return int(size)


def positive_size_bytes(text: str) -> int:
    size = size_bytes(text)
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is too small: expected at least one byte")
    return size


def record_size_bytes(text: str) -> int:
    """Parse the size of a record that one process makes or holds."""
    size = positive_size_bytes(text)
    if size > RECORD_BYTES_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is larger than a record can be: {RECORD_BYTES_MAX} bytes")
    return size


def duration_s(text: str) -> float:
    """Parse `10`, `500ms`, `2m` or `1h`, above 0."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or match[2].lower() not in _DURATIONS or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration above 0: try 10, 500ms or 2m")
    seconds = float(match[1]) * _DURATIONS[match[2].lower()]
    if seconds > DURATION_S_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is too long: at most 36500d")
    return seconds


def whole_number(minimum: int, maximum: int) -> Callable[[str], int]:
    """Return a parser of integers in [minimum, maximum]."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?\d+", text) or not minimum <= int(text) <= maximum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {minimum} to {maximum}")
        return int(text)

    return parse


def addresses(text: str) -> tuple[str, ...]:
    """Parse `host:port`, several separated by commas."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise argparse.ArgumentTypeError("no address: try 127.0.0.1:3401, several separated by commas")
    for address in found:
        try:
            split_address(address)
        except InvalidArgument as error:
            raise argparse.ArgumentTypeError(f"{address!r} is not host:port") from error
    return found


def position(text: str) -> Position:
    """Parse `EXTENT` or `EXTENT:OFFSET`, as read and append print them."""
    match = _POSITION.fullmatch(text.strip())
    if match is None or int(match[1]) > ID_MAX or int(match[2] or 0) > ID_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a position: try 12 or 12:4096 (extent:offset)")
    return Position(int(match[1]), int(match[2] or 0))


def label(text: str) -> tuple[str, str]:
    """Parse `key=value`."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not key=value")
    return key, value


def new_stream_name(text: str) -> str:
    """Parse a stream's name. An empty one is an error, most likely an unset variable of a script."""
    if not text:
        raise argparse.ArgumentTypeError("a name must not be empty; omit it for a stream without a name")
    return text


def stream_id_or_name(text: str) -> int | str:
    """Parse digits as an id, and anything else as a name."""
    if not text:
        raise argparse.ArgumentTypeError("an empty name is not a stream")
    if text.isascii() and text.isdecimal():
        if int(text) > ID_MAX:
            raise argparse.ArgumentTypeError(f"{text} is too large for an id")
        return int(text)
    return text


def text_path(text: str) -> Path:
    """Parse a path that will be written into text files; elsewhere, any `Path` will do."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8") from None
    return Path(text)


def connection_options(
    environment: Mapping[str, str] = os.environ, *, of_partitions: bool = False
) -> argparse.ArgumentParser:
    """Return a parent parser with the options of commands that use the stream managers or the partition managers."""
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
        help=f"addresses of the {who} (default: ${variable}, or {default})",
    )
    group.add_argument(
        "--cluster",
        default=environment.get(CLUSTER_VARIABLE) or CLUSTER_DEFAULT,
        help=f"the expected name of the cluster (default: ${CLUSTER_VARIABLE}, or {CLUSTER_DEFAULT})",
    )
    add_token(group, environment)
    _add_files(
        group,
        environment,
        {
            "--ca": (CA_VARIABLE, "the authority that signed the servers' certificates: with it, TLS is spoken"),
            "--cert": (CERT_VARIABLE, "our certificate, where servers want one"),
            "--key": (KEY_VARIABLE, "its key"),
        },
    )
    group.add_argument(
        "--timeout",
        type=duration_s,
        default=TIMEOUT_S_DEFAULT,
        metavar="SECONDS",
        help=f"timeout of one request with all attempts (default: {TIMEOUT_S_DEFAULT:g})",
    )
    return parser


def add_token(parser: argparse._ActionsContainer, environment: Mapping[str, str] = os.environ) -> None:
    parser.add_argument(
        "--token", default=environment.get(TOKEN_VARIABLE, ""), help=f"our access token (default: ${TOKEN_VARIABLE})"
    )


def etcd_options(environment: Mapping[str, str] = os.environ) -> argparse.ArgumentParser:
    """Return a parent parser for commands that write. They take locks in etcd, which may require authentication."""
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("etcd, where writers have their locks; the managers tell its endpoints")
    _add_files(
        group,
        environment,
        {
            "--etcd-ca": (ETCD_CA_VARIABLE, "the authority that signed etcd's certificates: with it, TLS is spoken"),
            "--etcd-cert": (ETCD_CERT_VARIABLE, "our certificate, where etcd wants one"),
            "--etcd-key": (ETCD_KEY_VARIABLE, "its key"),
        },
    )
    group.add_argument(
        "--etcd-user",
        default=environment.get(ETCD_USER_VARIABLE, ""),
        metavar="NAME",
        help=f"user of etcd (default: ${ETCD_USER_VARIABLE}); the password is ${ETCD_PASSWORD_VARIABLE}",
    )
    return parser


def _add_files(
    group: argparse._ArgumentGroup, environment: Mapping[str, str], files: Mapping[str, tuple[str, str]]
) -> None:
    for option, (variable, what) in files.items():
        name = option.removeprefix("--").replace("-", "_")
        group.add_argument(
            option,
            dest=name if name.startswith("etcd_") else f"tls_{name}",  # a command may have another KEY argument
            type=Path,
            default=Path(environment[variable]) if environment.get(variable) else None,
            metavar="PEM",
            help=f"{what} (default: ${variable})",
        )


def tls_files(args: argparse.Namespace) -> TlsFiles | None:
    """Return the files of --ca, --cert and --key; None without them. Raises CommandFailed if they are unusable."""
    if args.tls_ca is None and args.tls_cert is None and args.tls_key is None:
        return None
    if args.tls_ca is None:
        raise CommandFailed("--cert and --key need --ca, the authority that signed the servers' certificates", USAGE)
    try:
        files = TlsFiles(ca=args.tls_ca, cert=args.tls_cert, key=args.tls_key)
    except ValueError:
        raise CommandFailed("--cert and --key go together", USAGE) from None
    _check_files(files)
    return files


def etcd_access(args: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> EtcdAccess:
    """Return what the options of `etcd_options` say. Raises CommandFailed if they are unusable."""
    if (args.etcd_cert is None) != (args.etcd_key is None):
        raise CommandFailed("--etcd-cert and --etcd-key go together", USAGE)
    if args.etcd_cert is not None and args.etcd_ca is None:
        raise CommandFailed("--etcd-cert and --etcd-key need --etcd-ca", USAGE)
    password = environment.get(ETCD_PASSWORD_VARIABLE, "")
    if bool(args.etcd_user) != bool(password):
        raise CommandFailed(f"--etcd-user and ${ETCD_PASSWORD_VARIABLE} go together", USAGE)
    if args.etcd_ca is None:
        return EtcdAccess(user=args.etcd_user, password=password)
    _check_files(TlsFiles(ca=args.etcd_ca, cert=args.etcd_cert, key=args.etcd_key))
    return EtcdAccess(EtcdTls(args.etcd_ca, args.etcd_cert, args.etcd_key), user=args.etcd_user, password=password)


def _check_files(files: TlsFiles) -> None:
    """Check the files before the command starts, so that the error names the wrong file."""
    for path in files.paths():
        try:
            path.read_bytes()
        except OSError as error:
            raise CommandFailed(f"{path}: {error.strerror}", USAGE) from error
    try:
        client_context(files)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        names = ", ".join(map(str, files.paths()))
        raise CommandFailed(f"{names}: not a certificate and key that belong together: {error}", USAGE) from error
