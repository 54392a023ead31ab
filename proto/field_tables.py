"""Encoders for records as protobuf messages, built from a table of their fields.

They serve the few messages of creations and rolls, which the generated code builds too slowly. All other messages use
the generated code. Tests decode the bytes of each table with the generated code.

Invariants: a field that has its default value is not written;
            fields are written in the order of the table, which is part of the stored format.

    FIELDS = (Field("name", text, stored=3, shown=2), Field("extent_ids", packed, stored=5, shown=4))
    encode = encoder(FIELDS, "stored")      # encode(record): the fields that have a number in this column, in order
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from neve.proto.fields import SMALL, SMALL_MAX, sized, varint

# --- kinds of fields: each makes, for a field's number, the function that writes a value other than the default -----

Write = Callable[[Any], bytes]
Wire = Callable[[int], Write]


def number(field: int) -> Write:
    tag = varint(field << 3)
    return lambda value: tag + (SMALL[value] if value <= SMALL_MAX else varint(value))


def flag(field: int) -> Write:
    tag = varint(field << 3) + b"\x01"
    return lambda value: tag


def text(field: int) -> Write:
    tag = varint(field << 3 | 2)
    return lambda value: tag + sized(value.encode())


def message(encode: Callable[[Any], bytes]) -> Wire:
    """A message that is absent if the value is None. `encode` makes its bytes from the value, which must be truthy."""

    def wire(field: int) -> Write:
        tag = varint(field << 3 | 2)
        return lambda value: tag + sized(encode(value))

    return wire


def messages(encode: Callable[[Any], bytes]) -> Wire:
    """A repeated message."""

    def wire(field: int) -> Write:
        tag = varint(field << 3 | 2)
        return lambda values: b"".join([tag + sized(encode(value)) for value in values])

    return wire


def packed(field: int) -> Write:
    """A repeated number."""
    tag = varint(field << 3 | 2)
    return lambda values: tag + sized(b"".join(map(varint, values)))


class GrowingLists:
    """A cache of encoded lists of numbers, by their first numbers.

    A list may be long, and is usually the list encoded before it with one more number at its end.
    """

    def __init__(self, *, lists_max: int = 8192, numbers_max: int = 1_000_000) -> None:
        self._lists_max = lists_max
        self._numbers_max = numbers_max  # some MiB
        self._found: dict[int, tuple[tuple[int, ...], bytes]] = {}  # by the first number of the list
        self._numbers = 0  # in all of them

    def encode(self, numbers: tuple[int, ...]) -> bytes:
        before, encoded = self._found.get(numbers[0], ((), b""))
        if before is numbers:
            return encoded
        if before == numbers[:-1]:
            encoded += varint(numbers[-1])
        else:
            encoded = b"".join([varint(each) for each in numbers])
        if self._numbers > self._numbers_max or len(self._found) >= self._lists_max:
            self._found.clear()
            self._numbers, before = 0, ()
        self._numbers += len(numbers) - len(before)
        self._found[numbers[0]] = (numbers, encoded)
        return encoded


_growing = GrowingLists()


def growing(field: int) -> Write:
    """A repeated number whose lists grow at their ends: their encoded bytes are cached."""
    tag = varint(field << 3 | 2)
    return lambda numbers: tag + sized(_growing.encode(numbers))


def text_pairs(field: int) -> Write:
    """A map of texts, or a repeated message with the same layout as a map's entries, from pairs."""
    tag, first, second = varint(field << 3 | 2), text(1), text(2)

    def pair(key: str, value: str) -> bytes:
        return (first(key) if key else b"") + (second(value) if value else b"")

    return lambda pairs: b"".join([tag + sized(pair(key, value)) for key, value in pairs])


# --- tables ---------------------------------------------------------------------------------------------------------


class Field(NamedTuple):
    """One field of a record. It may be part of two messages: the stored one, and the description for callers."""

    name: str  # of the record's attribute, and of the stored message's field unless `read` is set
    wire: Wire
    stored: int = 0  # the field's number in the stored message; 0: not stored
    shown: int = 0  # the field's number in the description; 0: not shown
    read: Callable[[Any], Any] | None = None  # reads the value from the stored message; None: its attribute `name`


def encoder(fields: Iterable[Field], column: Literal["stored", "shown"], given: str = "") -> Callable[..., bytes]:
    """A function that encodes a record: the fields that have a number in this column, in order.

    If `given` names a field, its value is passed as the second argument instead of read from the record.
    """
    parts = [
        (attrgetter(field.name) if field.name != given else None, field.wire(number))
        for field in fields
        if (number := getattr(field, column))
    ]

    def encode(record: Any, passed: Any = None) -> bytes:
        return b"".join([write(value) for get, write in parts if (value := get(record) if get is not None else passed)])

    return encode


def decoder(fields: Iterable[Field], given: str = "") -> Callable[[Any], dict[str, Any]]:
    """A function that reads the stored fields from the stored message, by name, except for `given`."""
    parts = [
        (field.name, field.read or attrgetter(field.name)) for field in fields if field.stored and field.name != given
    ]

    def decode(stored: Any) -> dict[str, Any]:
        return {name: read(stored) for name, read in parts}

    return decode
