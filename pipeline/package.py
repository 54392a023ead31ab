"""Neve as one archive for `spark-submit --py-files`: `python -m neve.pipeline.package neve.zip`.

Invariants: the archive has all of neve's code and nothing else; what neve needs from PyPI must be on the workers, as
            compiled code does not load from archives (docs/spark.md has the list);
            the same code gives the same bytes, so that Spark can see whether it has the archive already.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import neve

ARCHIVE = "neve.zip"
PACKAGES = (
    *("client", "extent_node", "gateway", "meta", "partition_manager", "partition_server"),
    *("pipeline", "proto", "rpc", "stream_manager", "tools"),
)
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build(path: Path) -> Path:
    """Write the archive; returns its path."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in _files():
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, source.read_bytes())
    return path


def _files() -> Iterator[tuple[str, Path]]:
    """(name in the archive, file) of all our modules, wherever they are installed."""
    yield "neve/__init__.py", Path(neve.__file__)
    for package in PACKAGES:
        module = importlib.import_module(f"neve.{package}")
        assert module.__file__ is not None, package
        folder = Path(module.__file__).parent
        for source in sorted(folder.rglob("*.py")):
            yield f"neve/{package}/{source.relative_to(folder).as_posix()}", source


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m neve.pipeline.package", description="Write neve as an archive for spark-submit --py-files."
    )
    parser.add_argument("path", nargs="?", type=Path, default=Path(ARCHIVE), help=f"default: {ARCHIVE}")
    print(build(parser.parse_args(arguments).path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
