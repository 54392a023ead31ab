"""The parts of the etcd client that decide without I/O: errors, versions, programs, configuration, batches."""

from __future__ import annotations

import stat
from pathlib import Path

import grpc
import pytest

from neve.meta.etcd import binary as etcd_binary
from neve.meta.etcd.binary import EtcdBinary, choose, find_etcd
from neve.meta.etcd.config import EtcdConfig, EtcdTls, address
from neve.meta.etcd.errors import translate
from neve.meta.etcd.version import BUILT_VERSION, parse_version, version_warning
from neve.meta.etcd.watch import BatchAssembler
from neve.meta.store import Event, EventKind
from neve.meta.txn import KeyValue
from neve.proto.errors import (
    Compacted,
    InvalidArgument,
    LeaseLost,
    MaybeApplied,
    MetaUnavailable,
    NeveError,
    NotFound,
    PermissionDenied,
    TooLarge,
    Unauthenticated,
)

Code = grpc.StatusCode


@pytest.mark.parametrize(
    ("code", "text", "of_read", "of_write"),
    [
        # Certainly not applied.
        (Code.UNAVAILABLE, "failed to connect to all addresses; last error: …", MetaUnavailable, MetaUnavailable),
        (Code.UNAVAILABLE, "etcdserver: no leader", MetaUnavailable, MetaUnavailable),
        (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests", MetaUnavailable, MetaUnavailable),
        # May have been applied: sent, and no answer that says otherwise.
        (Code.UNAVAILABLE, "Socket closed", MetaUnavailable, MaybeApplied),
        (Code.UNAVAILABLE, "etcdserver: request timed out", MetaUnavailable, MaybeApplied),
        (Code.UNAVAILABLE, "etcdserver: server stopped", MetaUnavailable, MaybeApplied),
        (Code.UNAVAILABLE, "etcdserver: leader changed", MetaUnavailable, MaybeApplied),
        (Code.UNKNOWN, "raft proposal dropped", MetaUnavailable, MaybeApplied),
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", MetaUnavailable, MaybeApplied),
        (Code.CANCELLED, "", MetaUnavailable, MaybeApplied),
        (Code.INTERNAL, "", MetaUnavailable, MaybeApplied),
        # Applied and answered with an error, see the module's text.
        (Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", MetaUnavailable, MaybeApplied),
        (Code.RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max (9 vs. 4)", TooLarge, MaybeApplied),
        (Code.RESOURCE_EXHAUSTED, "grpc: trying to send message larger than max (9 vs. 4)", TooLarge, MaybeApplied),
        # Refused: the request is at fault.
        (Code.RESOURCE_EXHAUSTED, "CLIENT: Sent message larger than max (9 vs. 4)", TooLarge, TooLarge),
        (Code.RESOURCE_EXHAUSTED, "grpc: received message larger than max (9 vs. 4)", TooLarge, TooLarge),
        (Code.INVALID_ARGUMENT, "etcdserver: request is too large", TooLarge, TooLarge),
        (Code.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request", InvalidArgument, InvalidArgument),
        (Code.NOT_FOUND, "etcdserver: requested lease not found", LeaseLost, LeaseLost),
        (Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Compacted, Compacted),
        (Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision", InvalidArgument, None),
        (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", Unauthenticated, Unauthenticated),
        (Code.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid …", Unauthenticated, Unauthenticated),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", PermissionDenied, PermissionDenied),
    ],
)
def test_an_error_says_whether_a_write_may_have_been_applied(
    code: grpc.StatusCode, text: str, of_read: type[NeveError], of_write: type[NeveError] | None
) -> None:
    assert type(translate(code, text, write=False)) is of_read
    assert type(translate(code, text, write=True)) is (of_write or of_read)
    assert text in translate(code, text, write=True).detail


@pytest.mark.parametrize("version", ["3.4.22", "3.4.23", "3.4.36", "3.5.6", "3.5.21", "3.6.0", "v3.5.10", "4.0.0"])
def test_sound_versions_of_etcd_pass(version: str) -> None:
    assert version_warning(version) is None


@pytest.mark.parametrize("version", ["3.4.0", "3.4.21", "3.5.0", "3.5.1", "3.5.5", "3.3.27", "2.3.8", "", "unknown"])
def test_versions_of_etcd_that_are_not_known_to_be_sound_are_warned_of(version: str) -> None:
    assert version_warning(version)


def test_a_warning_says_which_releases_are_unsound_and_why() -> None:
    assert "in 3.5.0 to 3.5.2 a member that is killed may come back with wrong data" in (version_warning("3.5.1") or "")
    assert "in 3.5.0 to 3.5.4 a single member" in (version_warning("3.5.4") or "")
    assert "use 3.5.6 or newer" in (version_warning("3.5.5") or "")
    assert "in 3.4.0 to 3.4.20 a single member" in (version_warning("3.4.9") or "")


def test_versions_are_compared_as_numbers() -> None:
    assert parse_version("etcd Version: 3.5.10\n") == (3, 5, 10)
    assert parse_version("3.5") is None


def _program(folder: Path, version: str) -> Path:
    folder.mkdir()
    path = folder / "etcd"
    path.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\necho 'Git SHA: none'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for programs, where nothing else is found: no etcd on PATH, in the cache or among the packages."""
    monkeypatch.delenv(etcd_binary.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(etcd_binary, "packaged_path", lambda: None)
    return tmp_path


def _built(folder: Path, version: str) -> Path:
    (folder / "cache" / "neve" / "etcd").mkdir(parents=True, exist_ok=True)
    return _program(folder / "cache" / "neve" / "etcd" / version, version)


@pytest.mark.parametrize(
    ("built", "on_path", "packaged", "expected"),
    [
        ("3.6.16", "3.5.21", "3.5.1", "3.6.16"),
        ("3.6.16", None, None, "3.6.16"),
        ("3.5.2", "3.5.21", "3.5.1", "3.5.21"),
        (None, "3.5.21", "3.5.1", "3.5.21"),
        (None, "3.5.2", "3.5.1", "3.5.1"),
        (None, "3.5.2", "3.5.9", "3.5.9"),
        (None, "3.5.8", "3.5.9", "3.5.8"),
        (None, None, "3.5.1", "3.5.1"),
        (None, "3.5.2", None, "3.5.2"),
    ],
)
def test_the_built_etcd_comes_first_then_path_then_the_package_and_sound_ones_before_others(
    monkeypatch: pytest.MonkeyPatch,
    machine: Path,
    built: str | None,
    on_path: str | None,
    packaged: str | None,
    expected: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if built:
        _built(machine, built)
    if on_path:
        monkeypatch.setenv("PATH", str(_program(machine / "bin", on_path).parent))
    package = _program(machine / "package", packaged) if packaged else None
    monkeypatch.setattr(etcd_binary, "packaged_path", lambda: package)
    binary = find_etcd()
    assert binary.version == expected
    assert ("etcd_unsound" in caplog.text) == (binary.warning is not None)


def test_of_several_built_ones_this_versions_own_comes_first_then_the_newest(machine: Path) -> None:
    for version in ("3.6.9", "3.6.10", "3.7.1", BUILT_VERSION):
        _built(machine, version)
    (machine / "cache" / "neve" / "etcd" / "notes").mkdir()
    (machine / "cache" / "neve" / "etcd" / "3.9.9").mkdir()  # without a program: a build that was interrupted
    assert [binary.version for binary in etcd_binary.found_etcds()] == [BUILT_VERSION, "3.7.1", "3.6.10", "3.6.9"]


def test_a_relative_cache_folder_is_ignored_as_the_xdg_rules_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert etcd_binary.built_path("1.2.3") == Path("/home/u/.cache/neve/etcd/1.2.3/etcd")


def test_the_environment_names_the_etcd_to_use(monkeypatch: pytest.MonkeyPatch, machine: Path) -> None:
    _built(machine, BUILT_VERSION)
    path = _program(machine / "mine", "3.5.3")
    monkeypatch.setenv(etcd_binary.ENVIRONMENT_VARIABLE, str(path))
    assert find_etcd().path == path


def test_no_etcd_at_all_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch, machine: Path) -> None:
    with pytest.raises(NotFound, match="`neve etcd install` builds one"):
        find_etcd()
    monkeypatch.setenv(etcd_binary.ENVIRONMENT_VARIABLE, str(machine / "absent"))
    with pytest.raises(NotFound, match=r"NEVE_ETCD is .*absent, which cannot be run"):
        find_etcd()
    assert choose([]) is None


def test_an_etcd_without_a_version_is_not_sound(tmp_path: Path) -> None:
    path = tmp_path / "etcd"
    path.write_text("#!/bin/sh\necho hello\n")
    path.chmod(0o755)
    binary = EtcdBinary.probe(path)
    assert binary is not None
    assert binary.warning


def test_a_configuration_that_cannot_work_names_the_setting() -> None:
    for bad in ({"endpoints": ()}, {"endpoints": ("localhost",)}, {"endpoints": ("https://a:1",)}):
        with pytest.raises(InvalidArgument, match=r"etcd\.endpoints"):
            EtcdConfig(**bad)
    with pytest.raises(InvalidArgument, match=r"etcd\.user"):
        EtcdConfig(("a:1",), user="root")
    with pytest.raises(InvalidArgument, match=r"etcd\.tls"):
        EtcdTls(cert_file=Path("c.pem"))
    assert "secret" not in repr(EtcdConfig(("a:1",), user="u", password="secret"))


def test_endpoints_may_be_urls_names_and_addresses() -> None:
    assert address("http://db-1.example:2379/") == "db-1.example:2379"
    assert address("https://10.0.0.1:2379") == "10.0.0.1:2379"
    assert address("[::1]:2379") == "[::1]:2379"
    for bad in (":1", "host:", "host:0", "host:70000", "host:x"):
        with pytest.raises(InvalidArgument):
            address(bad)


# --- batches ----------------------------------------------------------------------------------------------


def _events(*revisions: int) -> list[Event]:
    return [Event(EventKind.PUT, KeyValue(b"k%d" % n, b"", r, r, 1)) for n, r in enumerate(revisions)]


def _shape(assembler: BatchAssembler, *revisions: int, fragment: bool = False) -> list[tuple[int, int]]:
    return [(b.revision, len(b.events)) for b in assembler.feed(_events(*revisions), fragment=fragment)]


def test_a_message_is_cut_into_one_batch_a_revision() -> None:
    assembler = BatchAssembler(5)
    assert _shape(assembler, 5, 5, 7, 8, 8, 8) == [(5, 2), (7, 1), (8, 3)]
    assert assembler.next_revision == 9


def test_a_revision_in_fragments_is_one_batch() -> None:
    assembler = BatchAssembler(5)
    assert _shape(assembler, 5, 6, 6, fragment=True) == [(5, 1)]
    assert assembler.next_revision == 6, "6 is not whole: a resumption begins there"
    assert _shape(assembler, 6, 6, fragment=True) == []
    assert _shape(assembler, 6, 7) == [(6, 5), (7, 1)]


def test_a_stream_that_breaks_in_a_fragment_starts_its_revision_again() -> None:
    assembler = BatchAssembler(5)
    assert _shape(assembler, 5, 6, 6, fragment=True) == [(5, 1)]
    assembler.stream_started()
    assert _shape(assembler, 5, 6, 6, 6) == [(6, 3)], "5 was delivered, 6 comes whole"


def test_revisions_before_the_wanted_one_are_dropped() -> None:
    assembler = BatchAssembler(5)
    assert _shape(assembler, 3, 4) == []
    assert _shape(assembler, 4, 5) == [(5, 1)]
    assert assembler.next_revision == 6


def test_progress_moves_the_point_of_resumption_and_never_back() -> None:
    assembler = BatchAssembler(5)
    assembler.progressed(9)
    assert assembler.next_revision == 10
    assembler.progressed(4)
    assert assembler.next_revision == 10
    assert _shape(assembler, 9, 10) == [(10, 1)]
