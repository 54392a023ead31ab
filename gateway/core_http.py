"""Conversion between HTTP and the object store: keys in paths, ranges, entity tags, conditions, errors. Pure.

Invariants: a key survives the way into a path and back, whatever its bytes are;
            an entity tag names one version of one object: equal tags mean equal bytes;
            a malformed header is ignored where the RFC demands that; a condition is never ignored.
Note:       RFC 9110 is the reference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import quote_from_bytes, unquote_to_bytes

from neve.client.objects.types import ObjectInfo
from neve.proto import errors
from neve.proto.errors import InvalidArgument, NeveError

OBJECTS = b"/v1/objects/"
SECONDS_MAX = 1_000_000_000
_DECIMAL = re.compile(rb"[0-9]{1,10}(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,2})?")

# --- keys ----------------------------------------------------------------------------------------------------


def key_from_path(raw_path: bytes) -> bytes:
    """The key of `/v1/objects/<key>`, percent-decoded. Slashes belong to the key, encoded or not."""
    if not raw_path.startswith(OBJECTS):
        raise InvalidArgument(what="path", detail="expected /v1/objects/<key>")
    return unquote_to_bytes(raw_path[len(OBJECTS) :])


def key_to_text(key: bytes) -> str:
    """A key as written in paths and lists: percent-encoded where necessary."""
    text = quote_from_bytes(key, safe="/")
    # "." and ".." between slashes would be taken out by clients and proxies.
    return "/".join(part.replace(".", "%2E") if part in (".", "..") else part for part in text.split("/"))


def token_of_key(key: bytes) -> str:
    """A continuation: of letters and digits alone, so that it can be put into a query with or without encoding."""
    return key.hex()


def key_of_token(token: bytes) -> bytes:
    if not re.fullmatch(rb"([0-9a-f]{2})*", token):
        raise InvalidArgument(what="continuation", detail="it is not one that a list has given")
    return bytes.fromhex(token.decode())


def query_fields(query: bytes) -> dict[str, bytes]:
    """The fields of a query, percent-decoded to bytes; one that is given twice is refused."""
    fields: dict[str, bytes] = {}
    for pair in query.split(b"&"):
        if not pair:
            continue
        name, _, value = pair.partition(b"=")
        decoded = unquote_to_bytes(name.replace(b"+", b" ")).decode(errors="backslashreplace")
        if decoded in fields:
            raise InvalidArgument(what=decoded, detail="it is given twice")
        fields[decoded] = unquote_to_bytes(value.replace(b"+", b" "))
    return fields


def whole_number(fields: dict[str, bytes], name: str, *, default: int, maximum: int) -> int:
    """A number of the query from 1 to `maximum`."""
    if name not in fields:
        return default
    text = fields[name]
    if not re.fullmatch(rb"[0-9]{1,9}", text) or not 1 <= int(text) <= maximum:
        raise InvalidArgument(what=name, detail=f"{text[:40]!r} is not a whole number from 1 to {maximum}")
    return int(text)


def seconds(fields: dict[str, bytes], name: str) -> float | None:
    if name not in fields:
        return None
    text = fields[name]
    number = float(text) if _DECIMAL.fullmatch(text) else 0.0
    if not 0 < number <= SECONDS_MAX:
        raise InvalidArgument(what=name, detail=f"{text[:40]!r} is not a number of seconds above 0")
    return number


# --- entity tags and conditions --------------------------------------------------------------------------------

_TAG = re.compile(r'\s*(W/)?"([\x21\x23-\x7e\x80-\xff]*)"\s*(?:,|$)')


def entity_tag(info: ObjectInfo) -> str:
    """Version and checksum: strong, as RFC 9110 has it."""
    return f'"{info.version}-{info.crc32c:08x}"'


@dataclass(frozen=True, slots=True)
class Tags:
    """A list of entity tags, or `*`."""

    anything: bool = False
    strong: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, header: str | None, name: str) -> Tags | None:
        """None without the header; InvalidArgument for one that is malformed: a condition must not be lost."""
        if header is None:
            return None
        if header.strip() == "*":
            return cls(anything=True)
        strong: set[str] = set()
        weak: set[str] = set()
        at = 0
        while at < len(header):
            match = _TAG.match(header, at)
            if match is None:
                raise InvalidArgument(what=name, detail='expected * or entity tags such as "12-0a1b2c3d"')
            (weak if match[1] else strong).add(f'"{match[2]}"')
            at = match.end()
        if not strong and not weak:
            raise InvalidArgument(what=name, detail="it is empty")
        return cls(strong=frozenset(strong), weak=frozenset(weak))

    def match_strongly(self, info: ObjectInfo | None) -> bool:
        """As If-Match compares."""
        return info is not None and (self.anything or entity_tag(info) in self.strong)

    def match_weakly(self, info: ObjectInfo | None) -> bool:
        """As If-None-Match compares."""
        return info is not None and (self.anything or entity_tag(info) in self.strong | self.weak)


@dataclass(frozen=True, slots=True)
class Conditions:
    """The preconditions of a request."""

    match: Tags | None
    none_match: Tags | None
    unmodified_since_s: int | None = None  # counts without `match` alone
    modified_since_s: int | None = None  # of reads; counts without `none_match` alone

    @classmethod
    def parse(
        cls,
        if_match: str | None,
        if_none_match: str | None,
        if_unmodified_since: str | None = None,
        if_modified_since: str | None = None,
    ) -> Conditions:
        match, none_match = Tags.parse(if_match, "If-Match"), Tags.parse(if_none_match, "If-None-Match")
        return cls(
            match,
            none_match,
            http_date_s(if_unmodified_since) if match is None else None,
            http_date_s(if_modified_since) if none_match is None else None,
        )

    def __bool__(self) -> bool:
        return self != Conditions(None, None)

    @property
    def only_if_absent(self) -> bool:
        """The condition that the store itself checks, without a read before the write."""
        return self.none_match is not None and self.none_match.anything and self.match is None

    def preserved_by(self, info: ObjectInfo | None) -> bool:
        """Whether the object, None if there is none, is still what the caller has seen."""
        if self.match is not None:
            return self.match.match_strongly(info)
        since_s = self.unmodified_since_s
        return since_s is None or info is None or info.modified_ms // 1000 <= since_s

    def news_in(self, info: ObjectInfo) -> bool:
        """Whether a reader has not seen this object yet."""
        if self.none_match is not None:
            return not self.none_match.match_weakly(info)
        return self.modified_since_s is None or info.modified_ms // 1000 > self.modified_since_s

    def met_by(self, info: ObjectInfo | None) -> bool:
        """Whether a write may replace this object; None: there is no object."""
        return self.preserved_by(info) and (self.none_match is None or not self.none_match.match_weakly(info))


def http_date_s(header: str | None) -> int | None:
    """Seconds since the epoch; None for what is no date: the RFC has it ignored."""
    try:
        return int(parsedate_to_datetime(header or "").timestamp())
    except (ValueError, OverflowError):
        return None


# --- ranges ----------------------------------------------------------------------------------------------------

_RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})-(\d{0,18})\s*")


class Unsatisfiable(Exception):
    """416: no byte of the range is in the object."""


def byte_range(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """Offset and length of the requested range; None: everything. Several ranges and malformed ones are ignored."""
    match = _RANGE.fullmatch(header or "")
    if match is None or (not match[1] and not match[2]):
        return None
    if not match[1]:
        length = min(int(match[2]), size_bytes)
        if not length:
            raise Unsatisfiable
        return size_bytes - length, length
    first = int(match[1])
    last = int(match[2]) if match[2] else size_bytes - 1
    if match[2] and last < first:
        return None  # not a range at all
    if first >= size_bytes:
        raise Unsatisfiable
    return first, min(last, size_bytes - 1) - first + 1


# --- errors ----------------------------------------------------------------------------------------------------

_STATUS: tuple[tuple[type[NeveError], int], ...] = (
    (errors.NotFound, 404),
    (errors.ConditionFailed, 412),
    (errors.TooLarge, 413),
    (errors.QuotaExceeded, 507),
    (errors.Unauthenticated, 401),
    (errors.PermissionDenied, 403),
    (errors.InvalidArgument, 400),
    (errors.DeadlineExceeded, 504),
    (errors.RequestError, 502),  # the gateway's own mistake towards its cluster: WrongCluster, Unimplemented
    (errors.Internal, 500),
    (errors.UnknownError, 500),
    (errors.ProtocolViolation, 502),
)
STATUSES_OF_ERRORS = sorted({status for _, status in _STATUS} | {503})


def status_of(error: NeveError) -> int:
    """503 for all that a later attempt may heal."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 503)


def error_body(error: NeveError) -> dict[str, object]:
    return {"error": type(error).__name__, "message": str(error), "outcome_unknown": error.outcome_unknown}
