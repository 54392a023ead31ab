"""What clients of a key-value store asked and were told, and when: the material of tests/history/linearizable.py.

    recorder = Recorder(clock)
    kv = RecordingClient(client, recorder, name="c1")
    await kv.put(b"k", b"v1"); await kv.get(b"k")
    assert_linearizable(recorder.history)

Invariants: an operation is in the history from the moment before it is sent; its end is noted when its answer is known;
            one that ends with an error whose outcome is unknown, or that never ends, is a "maybe": it may take effect
            at any time from its beginning on, or never; one that certainly was not executed is left out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from neve.client.objects.client import KeyValueClient
from neve.client.objects.types import Delete, Object, Put
from neve.proto import errors


class Kind(enum.Enum):
    GET = "get"
    HEAD = "head"  # a get that tells the version alone
    PUT = "put"
    DELETE = "delete"


READS = frozenset({Kind.GET, Kind.HEAD})


class Outcome(enum.Enum):
    MAYBE = "maybe"  # not known: also while it is under way
    DONE = "done"
    REFUSED = "refused"  # its condition was not met; `seen_version` is what was found
    NOTHING = "nothing"  # certainly not executed


@dataclasses.dataclass(slots=True, eq=False)
class Operation:
    """One operation on one key. `end_s` is infinite while nobody knows."""

    client: str
    kind: Kind
    key: bytes
    begin_s: float
    end_s: float = float("inf")
    value: bytes | None = None  # that a put writes
    if_absent: bool = False
    if_version: int | None = None
    outcome: Outcome = Outcome.MAYBE
    seen_value: bytes | None = None  # by a get; None: there was no object
    seen_version: int = 0  # of a get or head, of a put's own object, or of what a refused one found; 0: none
    existed: bool | None = False  # of a delete; None: it was not told

    def __str__(self) -> str:
        end = "…" if self.end_s == float("inf") else f"{self.end_s:.6f}"
        condition = " if absent" if self.if_absent else f" if version {self.if_version}" if self.if_version else ""
        told = {
            Kind.GET: f"{self.seen_value!r} @{self.seen_version}",
            Kind.HEAD: f"@{self.seen_version}",
            Kind.PUT: f"{self.value!r} @{self.seen_version}",
            Kind.DELETE: f"existed={self.existed} @{self.seen_version}",
        }[self.kind]
        return (
            f"[{self.begin_s:.6f}, {end}] {self.client} {self.kind.value}{condition} {self.key!r}: "
            f"{self.outcome.value} {told}"
        )


class Recorder:
    """Collects the operations of any number of clients."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or asyncio.get_running_loop().time
        self.history: list[Operation] = []

    def begin(self, client: str, kind: Kind, key: bytes, **fields: Any) -> Operation:
        operation = Operation(client, kind, key, self._clock(), **fields)
        self.history.append(operation)
        return operation

    def end(self, operation: Operation, outcome: Outcome, **fields: Any) -> None:
        operation.end_s = self._clock()
        operation.outcome = outcome
        for name, value in fields.items():
            setattr(operation, name, value)

    def failed(self, operation: Operation, error: errors.NeveError) -> None:
        """A maybe if it may have been executed, otherwise nothing. A read changes nothing either way."""
        if error.outcome_unknown and operation.kind not in READS:
            return
        self.end(operation, Outcome.NOTHING)

    def of_key(self, key: bytes) -> list[Operation]:
        return [operation for operation in self.history if operation.key == key]


class RecordingClient:
    """The same methods as the client, each noted. Errors are noted and not raised: a workload goes on."""

    def __init__(
        self, client: KeyValueClient, recorder: Recorder, *, name: str, timeout_s: float | None = None
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._timeout_s = timeout_s
        self.name = name
        self.error: errors.NeveError | None = None  # the last one of a get or a scan

    async def get(self, key: bytes) -> bytes | None:
        operation = self._recorder.begin(self.name, Kind.GET, key)
        try:
            found = await self._client.get(key, timeout_s=self._timeout_s)
        except errors.NotFound:
            self._recorder.end(operation, Outcome.DONE)
            return None
        except errors.NeveError as error:
            self.error = error
            self._recorder.failed(operation, error)
            return None
        self._recorder.end(operation, Outcome.DONE, seen_value=found.value, seen_version=found.info.version)
        return found.value

    async def head(self, key: bytes) -> int:
        """The version; 0 if there is no object, or it failed."""
        operation = self._recorder.begin(self.name, Kind.HEAD, key)
        try:
            info = await self._client.head(key, timeout_s=self._timeout_s)
        except errors.NotFound:
            self._recorder.end(operation, Outcome.DONE)
            return 0
        except errors.NeveError as error:
            self._recorder.failed(operation, error)
            return 0
        self._recorder.end(operation, Outcome.DONE, seen_version=info.version)
        return info.version

    async def put(
        self,
        key: bytes,
        value: bytes,
        *,
        if_absent: bool = False,
        if_version: int | None = None,
        chunk_bytes: int = 0,
    ) -> int | None:
        """The version; None if it failed. With `chunk_bytes` as a stream of chunks of this size."""
        operation = self._recorder.begin(
            self.name, Kind.PUT, key, value=value, if_absent=if_absent, if_version=if_version
        )
        conditions: dict[str, Any] = {"if_absent": if_absent, "if_version": if_version, "timeout_s": self._timeout_s}
        try:
            if chunk_bytes:
                chunks = [value[at : at + chunk_bytes] for at in range(0, len(value), chunk_bytes)]
                info = await self._client.put_stream(key, chunks, **conditions)
            else:
                info = await self._client.put(key, value, **conditions)
        except errors.ConditionFailed as error:
            self._recorder.end(operation, Outcome.REFUSED, seen_version=error.version)
            return None
        except errors.NeveError as error:
            self._recorder.failed(operation, error)
            return None
        self._recorder.end(operation, Outcome.DONE, seen_version=info.version)
        return info.version

    async def delete(self, key: bytes, *, if_version: int | None = None) -> None:
        operation = self._recorder.begin(self.name, Kind.DELETE, key, if_version=if_version)
        try:
            existed = await self._client.delete(key, if_version=if_version, timeout_s=self._timeout_s)
        except errors.ConditionFailed as error:
            self._recorder.end(operation, Outcome.REFUSED, seen_version=error.version)
        except errors.NeveError as error:
            self._recorder.failed(operation, error)
        else:
            self._recorder.end(operation, Outcome.DONE, existed=existed)

    async def batch(
        self, values: Mapping[bytes, bytes | None], *, expected: Mapping[bytes, int] | None = None
    ) -> dict[bytes, int] | None:
        """One operation for each key, all at the same time; None deletes. The versions of what was put; None if it was
        not done. `expected`: versions that keys must have; 0: what is put under it must be new."""
        expected = expected or {}
        operations: list[Operation] = []
        batch: list[Put | Delete] = []
        for key, value in values.items():
            version = expected.get(key)
            conditions: dict[str, Any] = {"if_version": version or None}
            if value is None:
                assert version != 0, "a delete expects something"
                batch.append(Delete(key, **conditions))
                operations.append(self._recorder.begin(self.name, Kind.DELETE, key, **conditions))
            else:
                conditions["if_absent"] = version == 0
                batch.append(Put(key, value, **conditions))
                operations.append(self._recorder.begin(self.name, Kind.PUT, key, value=value, **conditions))
        try:
            infos = await self._client.batch(batch, timeout_s=self._timeout_s)
        except errors.ConditionFailed as error:
            # Nothing of it was done. It does not say whose condition was not met, unless there is but one.
            for operation in operations:
                if len(expected) == 1 and operation.key in expected:
                    self._recorder.end(operation, Outcome.REFUSED, seen_version=error.version)
                else:
                    self._recorder.end(operation, Outcome.NOTHING)
            return None
        except errors.NeveError as error:
            for operation in operations:
                self._recorder.failed(operation, error)
            return None
        for operation, info in zip(operations, infos, strict=True):
            if operation.kind is Kind.DELETE:
                self._recorder.end(operation, Outcome.DONE, existed=None)
            else:
                self._recorder.end(operation, Outcome.DONE, seen_version=info.version)
        return {each.key: each.seen_version for each in operations if each.kind is Kind.PUT}

    async def scan(self, keys: Sequence[bytes], *, start: bytes = b"", end: bytes = b"") -> list[Object] | None:
        """All objects in the range, None if it failed. What it told of each of `keys`, all in the range, is a get at
        some moment of the scan."""
        operations = [self._recorder.begin(self.name, Kind.GET, key) for key in keys]
        scan = self._client.scan_objects(start=start, end=end, timeout_s=self._timeout_s)
        try:
            async with aclosing(scan) as objects:  # type: ignore[type-var]
                found = [each async for each in objects]
        except errors.NeveError as error:
            self.error = error
            for operation in operations:
                self._recorder.failed(operation, error)
            return None
        by_key = {each.info.key: each for each in found}
        for operation in operations:
            seen = by_key.get(operation.key)
            if seen is None:
                self._recorder.end(operation, Outcome.DONE)
            else:
                self._recorder.end(operation, Outcome.DONE, seen_value=seen.value, seen_version=seen.info.version)
        return found
