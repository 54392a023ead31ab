"""neve inspect: checks an extent file or a whole disk offline and lists its contents.

Exit code 0: all good. 1: something is bad. 2: wrong usage, or nothing could be read. 141: the reader of the
output has closed it, as in `neve inspect … | head`; the verdict is then unknown.

Invariants: writes nothing, takes no lock; results go to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from neve.extent_node.disk.file_system import FileSystem, RealFileSystem
from neve.tools.inspection import (
    CannotInspect,
    DiskFindings,
    ExtentFindings,
    blocks_of,
    disk_label_of,
    extent_paths,
    inspect_disk,
    inspect_extent,
)

GOOD, BAD, UNREADABLE = 0, 1, 2

PROGRESS_AFTER_S = 0.5  # short scans show none
PROGRESS_EVERY_S = 0.1
_BAR_CHARS = 30

_COLUMNS = ("extent", "state", "length", "valid", "blocks", "eversion", "token", "index", "verdict")
_WIDTHS = (16, 24, 12, 12, 9, 8, 10, 7, 7)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "inspect",
        help="check an extent file or a whole disk, offline",
        description="Check the attributes, blocks, checksums, digest and index of an extent file, or of all extents of "
        "a disk. Reads only.",
        epilog="Exit code: 0 all good, 1 something is bad, 2 wrong usage or nothing could be looked at, 141 the output "
        "was closed before the end.",
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="an extent file (.ext), or the folder of a disk")
    parser.add_argument("--blocks", action="store_true", help="list the blocks of each extent")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    fs = RealFileSystem()
    return inspect(fs, str(args.path), blocks=args.blocks, as_json=args.json, out=sys.stdout, err=sys.stderr)


def inspect(fs: FileSystem, path: str, *, blocks: bool, as_json: bool, out: TextIO, err: TextIO) -> int:
    """Run the whole command on any file system and return the exit code."""
    try:
        stat = fs.stat(path)
        if stat is None:
            raise CannotInspect(f"{path} does not exist")
        disk = inspect_disk(fs, path) if stat.is_dir else None
        progress = Progress(err, _total_bytes(fs, path, disk) if err.isatty() else 0)
        if disk is None:
            label = disk_label_of(fs, path)
            findings = iter([inspect_extent(fs, path, disk_label=label, on_progress=progress.add)])
            progress.clear()
        else:
            findings = _inspect_all(fs, disk, progress)
        printer = _print_json if as_json else _print_table
        is_good = printer(disk, findings, blocks, out)
        if disk is not None and disk.unreadable:
            raise CannotInspect(f"not all of the disk could be looked at: {disk.unreadable[0]}")
    except BrokenPipeError:
        raise
    except CannotInspect as error:
        print(f"neve inspect: {error}", file=err)
        return UNREADABLE
    except OSError as error:
        print(f"neve inspect: {error.filename or path} cannot be read: {error.strerror}", file=err)
        return UNREADABLE
    return GOOD if is_good else BAD


def _inspect_all(fs: FileSystem, disk: DiskFindings, progress: Progress) -> Iterator[ExtentFindings]:
    """Inspect one extent after another, so that a disk of any size needs the memory of one extent."""
    for path in extent_paths(fs, disk):
        try:
            found = inspect_extent(fs, path, disk_label=disk.label, on_progress=progress.add)
        except CannotInspect as error:
            disk.unreadable.append(str(error))
            continue
        progress.clear()
        yield found
    progress.clear()


def _total_bytes(fs: FileSystem, path: str, disk: DiskFindings | None) -> int:
    # A separate walk with separate findings; otherwise each finding would be reported twice.
    paths = [path] if disk is None else extent_paths(fs, DiskFindings(path))
    return sum(stat.size_bytes for stat in map(fs.stat, paths) if stat is not None)


# --- for people ------------------------------------------------------------------------------------------------


def _print_table(disk: DiskFindings | None, findings: Iterator[ExtentFindings], blocks: bool, out: TextIO) -> bool:
    if disk is not None:
        label = disk.label or {}
        named = ", ".join(f"{key} {label[key]}" for key in ("uuid", "cluster", "node_id") if key in label)
        print(f"disk {disk.path}: {named or 'without a label'}", file=out)
    print(_row(_COLUMNS), file=out)
    count = bad = warned = 0
    for found in findings:
        count, bad, warned = count + 1, bad + (not found.is_good), warned + bool(found.warnings)
        print(_row(_cells(found)), file=out)
        _print_notes(found.problems, found.warnings, out, indent="  ")
        if blocks and found.scan is not None:
            for offset, size_bytes, name in blocks_of(found.scan):
                print(f"    {offset:>12} {size_bytes:>9} {name}", file=out)
    if disk is not None:
        _print_notes(disk.problems, disk.warnings, out, indent="")
        counts = ", ".join(f"{number} in {name}" for name, number in disk.counts.items() if number)
        print(
            f"{count} extents: {count - bad} good, {bad} bad, {warned} with warnings; {counts or 'no others'}", file=out
        )
    return bad == 0 and (disk is None or disk.is_good)


def _cells(found: ExtentFindings) -> tuple[str, ...]:
    here = found.attributes
    verdict = "good" if found.is_good else "BAD"
    if here is None:
        name = os.path.basename(found.path)
        return (
            name.removesuffix(".ext"),
            found.state,
            "-",
            str(found.valid_length),
            str(found.blocks),
            "-",
            "-",
            "-",
            verdict,
        )
    return (
        f"{here.meta.extent_id:016x}",
        found.state,
        str(found.file_bytes if here.seal is None else here.seal.length),
        str(found.valid_length),
        str(found.blocks),
        str(here.meta.eversion if here.seal is None else here.seal.eversion),
        str(here.token),
        found.index_state,
        verdict,
    )


def _row(cells: tuple[str, ...]) -> str:
    left = {0, 1, 7, 8}
    return "  ".join(
        cell.ljust(width) if number in left else cell.rjust(width)
        for number, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
    ).rstrip()


def _print_notes(problems: list[str], warnings: list[str], out: TextIO, *, indent: str) -> None:
    for text in problems:
        print(f"{indent}BAD: {text}", file=out)
    for text in warnings:
        print(f"{indent}warning: {text}", file=out)


# --- for programs ------------------------------------------------------------------------------------------------


def _print_json(disk: DiskFindings | None, findings: Iterator[ExtentFindings], blocks: bool, out: TextIO) -> bool:
    """Write one JSON document as extents are inspected: the extents first, then the verdict."""
    is_good, first = True, True
    out.write('{\n "extents": [')
    for found in findings:
        is_good = is_good and found.is_good
        out.write(("" if first else ",") + "\n  " + json.dumps(_extent_fields(found, blocks)))
        first = False
    out.write("\n ],\n")
    if disk is not None:
        is_good = is_good and disk.is_good
        out.write(f' "disk": {json.dumps(_disk_fields(disk))},\n')
    out.write(f' "good": {json.dumps(is_good)}\n}}\n')
    return is_good


def _extent_fields(found: ExtentFindings, blocks: bool) -> dict[str, Any]:
    here = found.attributes
    fields: dict[str, Any] = {
        "path": found.path,
        "good": found.is_good,
        "state": found.state,
        "file_bytes": found.file_bytes,
        "valid_length": found.valid_length,
        "blocks": found.blocks,
        "index": found.index_state,
        "problems": found.problems,
        "warnings": found.warnings,
    }
    if here is not None:
        meta = here.meta
        fields |= {
            "extent_id": meta.extent_id,
            "eversion": meta.eversion,
            "incarnation": f"{meta.incarnation:016x}",
            "stream_id": meta.stream_id,
            "created_ms": meta.created_ms,
            "extent_bytes_max": meta.extent_bytes_max,
            "node_id": meta.node_id,
            "disk_uuid": meta.disk_uuid,
            "token": here.token,
            "fenced": here.fenced,
            "unsynced": here.unsynced,
            "doubtful": None if here.doubt is None else here.doubt.name.lower(),
            "seal": None
            if here.seal is None
            else {"length": here.seal.length, "eversion": here.seal.eversion, "digest": here.seal.digest.hex()},
        }
    if blocks and found.scan is not None:
        fields["block_list"] = [
            {"offset": offset, "size_bytes": size_bytes, "type": name}
            for offset, size_bytes, name in blocks_of(found.scan)
        ]
    return fields


def _disk_fields(disk: DiskFindings) -> dict[str, Any]:
    return {
        "path": disk.path,
        "good": disk.is_good,
        "label": disk.label,
        "locked": disk.is_locked,
        "counts": disk.counts,
        "problems": disk.problems,
        "warnings": disk.warnings,
        "unreadable": disk.unreadable,
    }


# --- progress ----------------------------------------------------------------------------------------------------


class Progress:
    """A bar on a terminal, once a scan takes longer than a moment. A total of 0 shows none."""

    def __init__(self, err: TextIO, total_bytes: int) -> None:
        self._err = err
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._next_s = time.monotonic() + PROGRESS_AFTER_S
        self._is_shown = False

    def add(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        now_s = time.monotonic()
        if self._total_bytes == 0 or now_s < self._next_s:
            return
        self._next_s = now_s + PROGRESS_EVERY_S
        share = min(1.0, self._done_bytes / self._total_bytes)
        bar = ("#" * int(share * _BAR_CHARS)).ljust(_BAR_CHARS)
        done, total = self._done_bytes >> 20, self._total_bytes >> 20
        self._err.write(f"\r[{bar}] {share:4.0%}  {done} of {total} MiB")
        self._err.flush()
        self._is_shown = True

    def clear(self) -> None:
        """Before a result is printed, and at the end."""
        if self._is_shown:
            self._err.write("\r\033[K")
            self._err.flush()
            self._is_shown = False
