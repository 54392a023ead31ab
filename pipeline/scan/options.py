"""The options of a scan with `spark.read.format("neve")`, checked before anything is read.

Invariants: an option that is not known, or a value that cannot be, is refused by name: a typing error never becomes a
            scan of something else;
            frozen, and made of plain values, because it is sent to tasks on other machines.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neve.client.command import options as command_options
from neve.meta.etcd.config import EtcdAccess, EtcdTls
from neve.pipeline.scan.columns import (
    BLOCKS,
    BYTES_COLUMNS,
    ENTRIES,
    EXTENTS,
    FILES,
    KEY_COLUMNS,
    METADATA_COLUMNS,
    PAYLOAD_COLUMNS,
    REPLICAS,
    ROWS,
    SCHEMAS,
)
from neve.proto.errors import InvalidArgument
from neve.rpc.tls import TlsFiles

DISKS_VARIABLE = "NEVE_DISKS"

ANY, EACH = "any", "each"

# The options that select rows, for each kind of rows: at most one of them; none means everything.
_EXTENTS_BY = ("stream", "partition", "node", "extents")
_CHOICES = {BLOCKS: _EXTENTS_BY, EXTENTS: _EXTENTS_BY, REPLICAS: _EXTENTS_BY, FILES: ("node",), ENTRIES: ("partition",)}

# One task's work: a fraction of a second, so that a lost task costs little, and ten times what Spark does for any task.
SLICE_BYTES = 128 << 20
SLICE_BYTES_INDEX = 512 << 20  # if indexes suffice: without the bytes, blocks of 1 KiB cost a fifth
BATCH_BYTES = 8 << 20  # of payload in one Arrow batch: Java and Python hold a few of them
BATCH_BYTES_MAX = 1 << 30  # Arrow's binary arrays count their bytes in 31 bits
BATCH_ROWS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    managers: tuple[str, ...]
    cluster: str = command_options.CLUSTER_DEFAULT
    token: str = field(default="", repr=False)  # Spark prints what a failed task was given
    ca: str = ""  # PEM files of the machine that a task runs on, for TLS to the servers
    cert: str = ""
    key: str = ""
    etcd_ca: str = ""  # and to etcd, which only planning reads
    etcd_cert: str = ""
    etcd_key: str = ""
    etcd_user: str = ""
    etcd_password: str = field(default="", repr=False)
    rows: str = BLOCKS
    stream: str = ""  # id or name; these four choose, and none of them means everything
    node_id: int = 0
    partition_id: int = 0
    extents: tuple[int, ...] = ()
    columns: tuple[str, ...] = METADATA_COLUMNS
    replica: str = ANY  # "any", "each", or a node's id
    revision: int = 0  # of metadata; 0: the newest
    slice_bytes: int = 0  # of one task; 0: by what is read of them
    batch_bytes: int = BATCH_BYTES
    batch_rows: int = BATCH_ROWS
    disks: tuple[str, ...] = ()  # patterns of folders where this machine may have nodes' disks
    open_extents: bool = True
    verify: bool = False  # of rows=replicas: read every byte
    bytes_per_trigger: int = 0  # of a stream's micro-batch; 0: all there is

    @property
    def stream_key(self) -> int | str:
        return int(self.stream) if self.stream.isdecimal() else self.stream

    def connection(self) -> ScanOptions:
        """The subset of these options that says how to reach the cluster."""
        return ScanOptions(managers=self.managers, **{name: getattr(self, name) for name in _REACH})

    def tls(self) -> TlsFiles | None:
        """For the servers of the cluster; None: TLS is not spoken."""
        files = TlsFiles(ca=_path(self.ca), cert=_path(self.cert), key=_path(self.key))
        return files if files.paths() else None

    def etcd(self) -> EtcdAccess:
        files = (_path(self.etcd_ca), _path(self.etcd_cert), _path(self.etcd_key))
        return EtcdAccess(EtcdTls(*files) if any(files) else None, self.etcd_user, self.etcd_password)

    def task_bytes(self, names: Sequence[str]) -> int:
        """Of extents, in one task that gives these columns."""
        if self.slice_bytes:
            return self.slice_bytes
        return SLICE_BYTES_INDEX if self.rows == BLOCKS and BYTES_COLUMNS.isdisjoint(names) else SLICE_BYTES

    @property
    def replica_node_id(self) -> int:
        """The node whose replicas are wanted; 0: not one node's."""
        return int(self.replica) if self.replica.isdecimal() else 0


_REACH = (
    *("cluster", "token", "ca", "cert", "key"),
    *("etcd_ca", "etcd_cert", "etcd_key", "etcd_user", "etcd_password"),
)


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def parse(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> ScanOptions:
    """From Spark's options; their names in any case, as Spark treats them."""
    given = {name.lower(): value for name, value in options.items()}
    unknown = sorted(set(given) - set(_PARSERS))
    if unknown:
        raise InvalidArgument(what=unknown[0], detail=f"no such option; there are {', '.join(sorted(_PARSERS))}")
    given.setdefault("managers", environment.get(command_options.MANAGERS_VARIABLE, command_options.MANAGERS_DEFAULT))
    given.setdefault("cluster", environment.get(command_options.CLUSTER_VARIABLE, command_options.CLUSTER_DEFAULT))
    for name, variable in _VARIABLES.items():
        given.setdefault(name, environment.get(variable, ""))
    values: dict[str, Any] = {}
    for name, text in given.items():
        field, parser = _PARSERS[name]
        try:
            values[field] = parser(text)
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise InvalidArgument(what=name, detail=str(error)) from None
    made = ScanOptions(**values)
    try:
        made.tls()
    except ValueError as error:
        raise InvalidArgument(what="cert", detail=str(error)) from None
    made.etcd().to(["127.0.0.1:2379"])  # checks the other options even if the endpoints are not known yet
    chosen = [name for name in _CHOICES[BLOCKS] if name in given]
    if len(chosen) > 1:
        raise InvalidArgument(what=chosen[1], detail=f"{chosen[0]} is given, too: choose by one of them")
    choices = _CHOICES[made.rows]
    if chosen and chosen[0] not in choices:
        raise InvalidArgument(what=chosen[0], detail=f"rows={made.rows} are chosen by {' or '.join(choices)} alone")
    return made


def _one_of(*words: str) -> Callable[[str], str]:
    def parse_word(text: str) -> str:
        if text.strip().lower() not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return text.strip().lower()

    return parse_word


def _flag(text: str) -> bool:
    return _one_of("true", "false")(text) == "true"


def _name(text: str) -> str:
    """Of a variable that was not set there is nothing left, and nothing would mean everything."""
    if not text.strip():
        raise ValueError("it is empty; to scan everything, leave it out")
    return text.strip()


def _ids(text: str) -> tuple[int, ...]:
    return tuple(_id(part.strip()) for part in _name(text).split(","))


_id = command_options.whole_number(1, 2**63 - 1)


def _batch_bytes(text: str) -> int:
    size = command_options.positive_size_bytes(text)
    if size > BATCH_BYTES_MAX:
        raise ValueError(f"{text!r} is more than an Arrow batch can hold, {BATCH_BYTES_MAX >> 20}MiB")
    return size


def _replica(text: str) -> str:
    text = text.strip().lower()
    if text not in (ANY, EACH) and (not text.isdecimal() or int(text) == 0):
        raise ValueError(f"{text!r} is neither any, each, nor a node's id")
    return text


def _patterns(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _columns(text: str) -> tuple[str, ...]:
    """`metadata` (the default), `payload` (both), `log` (with key columns), or names."""
    words = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    if words == ("metadata",):
        return METADATA_COLUMNS
    if words == ("payload",):
        return PAYLOAD_COLUMNS
    if words == ("log",):
        return (*METADATA_COLUMNS, *KEY_COLUMNS)
    unknown = [word for word in words if word not in SCHEMAS[BLOCKS]]
    if unknown or not words:
        name = unknown[0] if unknown else ""
        raise ValueError(f"{name!r} is no column; there are {', '.join(SCHEMAS[BLOCKS])}")
    return tuple(dict.fromkeys(words))


_VARIABLES = {
    "token": command_options.TOKEN_VARIABLE,
    "disks": DISKS_VARIABLE,
    "ca": command_options.CA_VARIABLE,
    "cert": command_options.CERT_VARIABLE,
    "key": command_options.KEY_VARIABLE,
    "etcdca": command_options.ETCD_CA_VARIABLE,
    "etcdcert": command_options.ETCD_CERT_VARIABLE,
    "etcdkey": command_options.ETCD_KEY_VARIABLE,
    "etcduser": command_options.ETCD_USER_VARIABLE,
    "etcdpassword": command_options.ETCD_PASSWORD_VARIABLE,
}

_Parser = Callable[[str], Any]
_PARSERS: dict[str, tuple[str, _Parser]] = {
    "managers": ("managers", command_options.addresses),
    "cluster": ("cluster", str.strip),
    "token": ("token", str),
    "ca": ("ca", str.strip),
    "cert": ("cert", str.strip),
    "key": ("key", str.strip),
    "etcdca": ("etcd_ca", str.strip),
    "etcdcert": ("etcd_cert", str.strip),
    "etcdkey": ("etcd_key", str.strip),
    "etcduser": ("etcd_user", str.strip),
    "etcdpassword": ("etcd_password", str),
    "rows": ("rows", _one_of(*ROWS)),
    "stream": ("stream", _name),
    "node": ("node_id", _id),
    "partition": ("partition_id", _id),
    "extents": ("extents", _ids),
    "columns": ("columns", _columns),
    "replica": ("replica", _replica),
    "revision": ("revision", command_options.whole_number(0, 2**63 - 1)),
    "slicebytes": ("slice_bytes", command_options.positive_size_bytes),
    "batchbytes": ("batch_bytes", _batch_bytes),
    "batchrows": ("batch_rows", command_options.whole_number(1, 1 << 24)),
    "disks": ("disks", _patterns),
    "openextents": ("open_extents", _flag),
    "verify": ("verify", _flag),
    "maxbytespertrigger": ("bytes_per_trigger", command_options.positive_size_bytes),
}
