"""Resolves a node's address to its location, `/region/rack`, by a file, a script or a Python callable.

    file:/etc/neve/topology.toml      [nodes]                        (or JSON: {"nodes": {…}})
                                      "10.0.0.7:3501" = "/eu/r1"     an address, or
                                      "10.0.0.8" = "/eu/r2"          a host with any port
    script:/etc/neve/where            called with addresses as arguments; one line of output for each, as in Hadoop
    python:operations.racks:locate    called with one address; returns "/region/rack" or None; may be `async def`

Invariants: the resolver's answer overrides what the node says itself; what it does not know is left to the node;
            a resolver that fails or hangs fails no registration: the last answer is kept, and each failure is logged;
            answers are kept until `reload` or, for a file, until the file changes.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from neve.proto.errors import InvalidArgument, NeveError
from neve.rpc.wire.sockets import split_address

log = logging.getLogger(__name__)

RESOLVE_TIMEOUT_S = 3.0  # for scripts and callables; shorter than a node waits for the reply to its registration
ANSWERS_MAX = 100_000  # far more nodes than any cluster has
OUTPUT_BYTES_MAX = 64 << 10


class Place(NamedTuple):
    region: str
    rack: str


class Resolver(ABC):
    """A source of locations. Raises InvalidArgument if it cannot answer; None: it does not know the address."""

    @abstractmethod
    async def resolve(self, address: str) -> Place | None: ...

    def changed(self) -> bool:
        """Whether earlier answers may be outdated. Returns True once per change."""
        return False


class Topology:
    """Locations with a cache, and with tolerance of a failing resolver."""

    def __init__(self, resolver: Resolver | None) -> None:
        self._resolver = resolver
        self._answers: dict[str, Place | None] = {}
        self.failures = 0

    async def locate(self, address: str) -> Place | None:
        """The location of this address, if the resolver knows it."""
        if self._resolver is None:
            return None
        if self._resolver.changed():
            self._answers.clear()
        if address not in self._answers:
            try:
                place = await self._resolver.resolve(address)
            except NeveError as error:
                self.failures += 1
                log.error("topology_not_resolved address=%s error=%s", address, error)
                return None  # not cached: the next registration asks again
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            self._answers[address] = place
        return self._answers[address]

    def reload(self) -> None:
        """Drop all cached answers."""
        self._answers.clear()


def resolver_for(spec: str) -> Resolver | None:
    """The resolver for `file:…`, `script:…` or `python:module:function`; None if empty.

    Refuses others, at the start.
    """
    if not spec:
        return None
    kind, _, rest = spec.partition(":")
    if kind == "file" and rest:
        return FileResolver(Path(rest))
    if kind == "script" and rest:
        return ScriptResolver(rest)
    if kind == "python" and rest:
        return CallableResolver(rest)
    detail = f"{spec!r}: expected file:PATH, script:PATH or python:MODULE:FUNCTION"
    raise InvalidArgument(what="topology", detail=detail)


def parse_place(text: object, where: str) -> Place:
    parts = text.strip().split("/") if isinstance(text, str) else []
    if len(parts) != 3 or parts[0] or not all(parts[1:]):
        raise InvalidArgument(what="topology", detail=f"{where}: {text!r} is not of the form /region/rack")
    return Place(parts[1], parts[2])


class FileResolver(Resolver):
    """A resolver that reads a file, again after each change.

    If the new content is invalid, it logs that and keeps the old.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = self._look()
        self._places = self._read()

    async def resolve(self, address: str) -> Place | None:
        found = self._places.get(address)
        return found or self._places.get(_host_of(address))

    def changed(self) -> bool:
        stamp = self._look()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self._places = self._read()
        except InvalidArgument as error:
            log.error("topology_not_reloaded path=%s error=%s", self._path, error)
            return False
        log.info("topology_reloaded path=%s nodes=%d", self._path, len(self._places))
        return True

    def _look(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None  # `_read` reports the error
        return found.st_mtime_ns, found.st_size

    def _read(self) -> dict[str, Place]:
        try:
            text = self._path.read_text()
            table: object = json.loads(text) if self._path.suffix == ".json" else tomllib.loads(text)
        except OSError as error:
            raise InvalidArgument(what="topology", detail=f"{self._path}: {error.strerror}") from error
        except ValueError as error:  # of both formats, and of text that is not UTF-8
            raise InvalidArgument(what="topology", detail=f"{self._path}: {error}") from error
        nodes = table.get("nodes") if isinstance(table, Mapping) else None
        if not isinstance(nodes, Mapping):
            raise InvalidArgument(what="topology", detail=f"{self._path}: a table `nodes` is required")
        return {str(key): parse_place(value, f"{self._path}, {key}") for key, value in nodes.items()}


class ScriptResolver(Resolver):
    def __init__(self, path: str, *, timeout_s: float = RESOLVE_TIMEOUT_S) -> None:
        if not Path(path).is_file():
            raise InvalidArgument(what="topology", detail=f"script {path} does not exist")
        self._path = path
        self._timeout_s = timeout_s

    async def resolve(self, address: str) -> Place | None:
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(self._path, address, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise self._failed(str(error.strerror)) from error
        try:
            async with asyncio.timeout(self._timeout_s):
                out, err = await process.communicate()
        except TimeoutError as error:
            raise self._failed(f"no answer within {self._timeout_s:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise self._failed(f"exit code {process.returncode}: {err[:200].decode(errors='replace').strip()}")
        lines = out[:OUTPUT_BYTES_MAX].decode(errors="replace").split()
        if len(lines) > 1:
            raise self._failed(f"{len(lines)} answers for one address")
        return parse_place(lines[0], f"script {self._path} for {address}") if lines else None

    def _failed(self, why: str) -> InvalidArgument:
        return InvalidArgument(what="topology", detail=f"script {self._path}: {why}")


class CallableResolver(Resolver):
    def __init__(self, spec: str, *, timeout_s: float = RESOLVE_TIMEOUT_S) -> None:
        module, _, function = spec.partition(":")
        try:
            found = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidArgument(what="topology", detail=f"python:{spec}: {error}") from error
        if not callable(found):
            raise InvalidArgument(what="topology", detail=f"python:{spec} cannot be called")
        self._spec = spec
        self._timeout_s = timeout_s
        self._function: Callable[[str], object] = found

    async def resolve(self, address: str) -> Place | None:
        try:
            answer = self._function(address)
            if inspect.isawaitable(answer):
                async with asyncio.timeout(self._timeout_s):
                    answer = await _any(answer)
        except TimeoutError as error:
            detail = f"python:{self._spec}: no answer within {self._timeout_s:g} s"
            raise InvalidArgument(what="topology", detail=detail) from error
        except Exception as error:
            raise InvalidArgument(what="topology", detail=f"python:{self._spec}: {error!r}") from error
        return None if answer is None else parse_place(answer, f"python:{self._spec} for {address}")


async def _any(awaitable: Awaitable[object]) -> object:
    return await awaitable


def _host_of(address: str) -> str:
    try:
        return split_address(address)[0]
    except InvalidArgument:
        return address
