"""Files of samples, as wbench and rbench write them with --json and plot reads them: one JSON value a line.

    {"neve_samples": 1, "kind": "wbench", "options": {…}}        the first line
    [0.104233, 0.000871, 1, 1024]                                 end and duration in seconds, operations, bytes
    [0.204911, 5.001201, 1, 1024, "ConnectionLost"]               one that failed
    {"report": {…}}                                                the last line, unless the run was killed

Invariants: every sample of a run is in its file; memory holds only the file's buffer;
            a truncated file can be read up to its last complete line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from neve.client.command.core_statistics import NS, Report, Sample

FORMAT_VERSION = 1
_BUFFER_BYTES = 1 << 20


class BadSampleFile(Exception):
    """Not a file of samples, or one of an unknown version. The message names the file and the line."""


class SampleWriter:
    """Writes the samples of one run, as a context that closes the file."""

    def __init__(self, path: Path, *, kind: str, options: Mapping[str, Any]) -> None:
        self._file: TextIO = path.open("w", buffering=_BUFFER_BYTES)
        self._write({"neve_samples": FORMAT_VERSION, "kind": kind, "options": dict(options)})

    def add(self, sample: Sample) -> None:
        # Formatted by hand: json.dumps takes four times as long, and this runs for each call of a benchmark.
        line = f"[{sample.at_s:.6f}, {sample.latency_ns / NS:.9f}, {sample.operations}, {sample.size_bytes}"
        self._file.write(f"{line}, {json.dumps(sample.error)}]\n" if sample.error else f"{line}]\n")

    def finish(self, report: Report) -> None:
        self._write({"report": report.fields()})

    def _write(self, value: object) -> None:
        self._file.write(json.dumps(value) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class SampleFile:
    """A file of samples whose first line is valid."""

    path: Path
    kind: str
    options: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> SampleFile:
        """Open a file. Raises OSError if it cannot be read, and BadSampleFile if it has other content."""
        with path.open(errors="replace") as file:
            head = _value(file.readline())
        if not isinstance(head, dict) or "neve_samples" not in head:
            raise BadSampleFile(f"{path} is not a file of samples: write one with wbench --json FILE")
        if head["neve_samples"] != FORMAT_VERSION:
            raise BadSampleFile(f"{path} has format {head['neve_samples']}; the known format is {FORMAT_VERSION}")
        return cls(path, str(head.get("kind", "")), head.get("options", {}))

    def samples(self) -> Iterator[Sample]:
        """Iterate over the samples, so that a file of any size can be read."""
        with self.path.open(errors="replace") as file:
            file.readline()
            for number, line in enumerate(file, start=2):
                value = _value(line)
                if isinstance(value, dict):
                    continue
                if value is None and not line.endswith("\n"):
                    return  # the run was killed while it wrote this line
                yield _sample(value, f"{self.path}, line {number}")


def _value(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _sample(value: Any, where: str) -> Sample:
    try:
        at_s, took_s, operations, size_bytes, *error = value
        return Sample(float(at_s), int(took_s * NS), int(operations), int(size_bytes), str(error[0]) if error else "")
    except (TypeError, ValueError) as wrong:
        raise BadSampleFile(f"{where}: not a sample") from wrong
