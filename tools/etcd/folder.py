"""The choice of the etcd that may open a data folder. A file beside the folder records the release that made it.

    DATA/etcd/        etcd's own data
    DATA/etcd.json    {"format": 1, "version": "3.6.16", "path": "…"}: the etcd that opened it last

etcd's rules: a newer patch or an older one of the same minor release may open a folder; a newer minor release upgrades
it, one minor release at a time and irreversibly; an older one must not open it. 3.4 and 3.5 do not stop at once on
newer data (3.4 silently opens a folder of 3.6), so Neve compares the releases before it starts etcd.

Invariants: a folder is opened by an etcd of the minor release that made it, or refused with a sentence that names the
            command to type; only `neve etcd upgrade` moves it to the next minor release;
            the database counts more than the file beside the folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neve.client.command.failures import CommandFailed
from neve.meta.etcd.binary import ENVIRONMENT_VARIABLE, EtcdBinary, choose, found_etcds, no_etcd
from neve.meta.etcd.version import BUILT_VERSION, INSTALL_COMMAND, parse_version
from neve.tools.etcd.database import DatabaseDamaged, cluster_version

FORMAT_VERSION = 1
Minor = tuple[int, int]


@dataclass(frozen=True, slots=True)
class EtcdFolder:
    """The known facts about a data folder."""

    path: Path
    has_data: bool
    minor: Minor | None  # the release that made it; None if that cannot be found out
    made_by: str  # for people: "etcd 3.5.1", "etcd 3.5"
    program: Path | None = None  # the etcd that opened it last


def record_path(folder: Path) -> Path:
    return folder.with_name(folder.name + ".json")


def database_path(folder: Path) -> Path:
    return folder / "member" / "snap" / "db"


def read_folder(folder: Path) -> EtcdFolder:
    record = _read_record(record_path(folder))
    version = parse_version(record["version"]) if record else None
    if not (folder / "member").exists():
        if record and not folder.exists():
            detail = f"{record_path(folder)} is there and {folder} is not"
            to_do = "bring it back, or remove the file to begin anew"
            raise CommandFailed(f"the data of etcd {record['version']} is gone: {detail}; {to_do}")
        return EtcdFolder(folder, False, None, "nobody")
    stored = _stored_version(database_path(folder))
    minor = stored[:2] if stored else version[:2] if version else None
    if record and version and version[:2] == minor:
        return EtcdFolder(folder, True, minor, f"etcd {record['version']}", Path(record["path"]))
    return EtcdFolder(folder, True, minor, f"etcd {_name(minor)}" if minor else "an unknown etcd")


def remember(folder: Path, binary: EtcdBinary) -> None:
    """Record in the file beside the folder which etcd opens it."""
    text = json.dumps({"format": FORMAT_VERSION, "version": binary.version, "path": str(binary.path)}) + "\n"
    path = record_path(folder)
    if path.exists() and path.read_text() == text:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)


def etcd_for(folder: Path) -> EtcdBinary:
    """The etcd of this machine that may open the folder. Without one, CommandFailed says what to do."""
    state = read_folder(folder)
    explicit = bool(os.environ.get(ENVIRONMENT_VARIABLE))
    if not state.has_data:
        binary = choose(found_etcds())
        if binary is None:
            raise no_etcd()
        return binary
    found = list(found_etcds())
    if state.program is not None and not explicit and all(state.program != binary.path for binary in found):
        last = EtcdBinary.probe(state.program) if state.program.exists() else None
        found += [last] if last is not None else []
    if not found:
        raise no_etcd()
    return decide(state, found, explicit=explicit)


def decide(state: EtcdFolder, found: Sequence[EtcdBinary], *, explicit: bool) -> EtcdBinary:
    """The first sound etcd of the folder's minor release. `explicit`: the user has named the only one to consider."""
    if state.minor is None:
        if explicit:
            return found[0]
        detail = f"name the one that did: {ENVIRONMENT_VARIABLE}=/path/to/etcd"
        raise CommandFailed(f"it cannot be found out which etcd made {state.path}; {detail}")
    binary = choose(binary for binary in found if minor_of(binary) == state.minor)
    if binary is not None:
        return binary
    raise CommandFailed(refusal(state, found))


def refusal(state: EtcdFolder, found: Sequence[EtcdBinary]) -> str:
    """Why none of these may open the folder, and what to type."""
    assert state.minor is not None
    wanted, following = _name(state.minor), _name((state.minor[0], state.minor[1] + 1))
    programs = ", ".join(f"{binary.version or 'unknown'} ({binary.path})" for binary in found)
    start = f"{state.path} was made by {state.made_by}, and the etcd here is {programs}"
    install = f"{ENVIRONMENT_VARIABLE}=/path/to/etcd-{wanted} names one"
    if BUILT_VERSION.startswith(f"{wanted}."):
        install = f"`{INSTALL_COMMAND}` builds one"
    newer = [minor for binary in found if (minor := minor_of(binary)) is not None and minor > state.minor]
    if not newer:
        return f"{start}: an older etcd does not open the data of a newer one; {install}"
    upgrade = f"neve etcd upgrade --data {state.path}"
    if min(newer) == (state.minor[0], state.minor[1] + 1):
        return f"{start}: `{upgrade}` upgrades it, for good; or {install}"
    upgrade = f"{ENVIRONMENT_VARIABLE}=/path/to/etcd-{following} {upgrade}"
    return f"{start}: etcd is upgraded one minor release at a time, so {following} is next: `{upgrade}`; or {install}"


def advice(binary: EtcdBinary, folder: Path) -> str | None:
    """A warning for a user whose etcd must not store data that matters; None for a sound etcd."""
    if binary.warning is None:
        return None
    if not read_folder(folder).has_data or BUILT_VERSION.startswith(f"{_name(minor_of(binary))}."):
        return f"{binary.warning}. `{INSTALL_COMMAND}` builds {BUILT_VERSION}: run it first"
    if BUILT_VERSION.startswith(f"{_name(_next(minor_of(binary)))}."):
        move = f"`neve etcd upgrade --data {folder}` moves the data to it"
        return f"{binary.warning}. `{INSTALL_COMMAND}` builds {BUILT_VERSION}, and {move}"
    return f"{binary.warning}. {ENVIRONMENT_VARIABLE}=/path/to/etcd names another"


def minor_of(binary: EtcdBinary) -> Minor | None:
    version = parse_version(binary.version)
    return version[:2] if version else None


def _next(minor: Minor | None) -> Minor | None:
    return (minor[0], minor[1] + 1) if minor else None


def _name(minor: Minor | None) -> str:
    return f"{minor[0]}.{minor[1]}" if minor else "unknown"


def _stored_version(database: Path) -> tuple[int, int, int] | None:
    try:
        return parse_version(cluster_version(database) or "")
    except (FileNotFoundError, DatabaseDamaged):
        return None  # the file beside the folder may know


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    try:
        record: Any = json.loads(text)
        if record["format"] != FORMAT_VERSION:
            raise CommandFailed(f"{path} has format {record['format']}, which a newer Neve wrote")
        return {"version": str(record["version"]), "path": str(record["path"])}
    except (ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f"{path} is damaged ({error}): remove it, and the data itself will be asked") from error
