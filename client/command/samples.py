"""The file of samples that wbench and rbench write with --json, and plot reads: JSON, one value a line.

    {"neve_samples": 1, "kind": "wbench", "options": {…}}        the first line
    [0.104233, 0.000871, 1, 1024]                                 ended at, took (both in seconds), operations, bytes
    [0.204911, 5.001201, 1, 1024, "ConnectionLost"]               one that failed
    {"report": {…}}                                                the last line, unless the run was killed

Invariants: every sample of a run is in its file; only a buffer of the file's is in memory;
            a file that was cut short reads up to its last whole line.
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
    """Not a file of samples, or one of a version that is not known here; the message names the file and the line."""


class SampleWriter:
    """Writes one run. A context that closes the file."""

    def __init__(self, path: Path, *, kind: str, options: Mapping[str, Any]) -> None:
        self._file: TextIO = path.open("w", buffering=_BUFFER_BYTES)
        self._write({"neve_samples": FORMAT_VERSION, "kind": kind, "options": dict(options)})

    def add(self, sample: Sample) -> None:
        # By hand: json.dumps takes four times as long, and this runs once for each call of a benchmark.
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
    """A file whose first line was read and is good."""

    path: Path
    kind: str
    options: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> SampleFile:
        """OSError if it cannot be read, BadSampleFile if it is something else."""
        with path.open(errors="replace") as file:
            head = _value(file.readline())
        if not isinstance(head, dict) or "neve_samples" not in head:
            raise BadSampleFile(f"{path} is not a file of samples: write one with wbench --json FILE")
        if head["neve_samples"] != FORMAT_VERSION:
            raise BadSampleFile(f"{path} has format {head['neve_samples']}, and {FORMAT_VERSION} is what is known here")
        return cls(path, str(head.get("kind", "")), head.get("options", {}))

    def samples(self) -> Iterator[Sample]:
        """One after the other, so that a file of any size can be read."""
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
