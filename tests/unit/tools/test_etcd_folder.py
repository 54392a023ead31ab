"""Which etcd may open which data folder: decided from what is written beside it and in it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from neve.client.command.failures import CommandFailed
from neve.meta.etcd import binary as etcd_binary
from neve.meta.etcd.binary import EtcdBinary
from neve.meta.etcd.version import version_warning
from neve.tools import main
from neve.tools.etcd import folder as etcd_folder
from neve.tools.etcd import upgrade as etcd_upgrade
from neve.tools.etcd.database import LEAF
from neve.tools.etcd.folder import EtcdFolder, decide, etcd_for, read_folder, record_path, remember
from neve.tools.local import layout as local_layout
from neve.tools.local import up
from neve.tools.local.layout import Counts
from tests.unit.tools.test_etcd_database import inline, leaf, meta, page


def etcd(version: str, path: str = "") -> EtcdBinary:
    return EtcdBinary(Path(path or f"/bin/etcd-{version}"), version, version_warning(version))


def made_by(version: str) -> EtcdFolder:
    major, minor, _ = version.split(".")
    return EtcdFolder(Path("d/etcd"), True, (int(major), int(minor)), f"etcd {version}")


def fill(folder: Path, version: str | None) -> None:
    """A data folder whose database says that cluster version."""
    entries = ((b"clusterVersion", version.encode()),) if version else ()
    database = etcd_folder.database_path(folder)
    database.parent.mkdir(parents=True)
    pages = (meta(0, root=2, transaction=1), meta(1, root=2, transaction=0))
    database.write_bytes(b"".join(pages) + page(2, LEAF, 1, leaf((b"cluster", inline(*entries)), flags=1)))


@pytest.mark.parametrize(
    ("folder", "found", "chosen"),
    [
        ("3.5.21", ["3.6.16", "3.5.1", "3.5.22"], "3.5.22"),
        ("3.5.21", ["3.6.16", "3.4.23", "3.5.9"], "3.5.9"),
        ("3.5.1", ["3.6.16", "3.5.1"], "3.5.1"),
        ("3.6.5", ["3.6.16", "3.6.5"], "3.6.16"),
        ("3.4.23", ["3.6.16", "3.4.23", "3.5.1"], "3.4.23"),
    ],
)
def test_a_folder_is_opened_by_its_own_minor_release_a_sound_one_first(
    folder: str, found: list[str], chosen: str
) -> None:
    assert decide(made_by(folder), [etcd(each) for each in found], explicit=False).version == chosen


@pytest.mark.parametrize(
    ("folder", "found", "says"),
    [
        ("3.6.16", ["3.4.23", "3.5.1"], r"an older etcd does not open .* `neve etcd install` builds one"),
        ("3.5.1", ["3.4.23"], r"an older etcd does not open .* NEVE_ETCD=/path/to/etcd-3\.5 names one"),
        ("3.7.2", ["3.6.16"], r"an older etcd does not open .* NEVE_ETCD=/path/to/etcd-3\.7 names one"),
        ("3.5.1", ["3.6.16", "3.4.23"], r"`neve etcd upgrade --data d/etcd` upgrades it, for good; or NEVE_ETCD="),
        (
            "3.4.23",
            ["3.6.16"],
            r"one minor release at a time, so 3\.5 is next: `NEVE_ETCD=/path/to/etcd-3\.5 neve etcd",
        ),
        ("3.4.23", [""], "the etcd here is unknown"),
    ],
)
def test_a_folder_of_another_minor_release_is_refused_with_what_to_type(
    folder: str, found: list[str], says: str
) -> None:
    with pytest.raises(CommandFailed, match=says) as refused:
        decide(made_by(folder), [etcd(each) for each in found], explicit=False)
    assert f"d/etcd was made by etcd {folder}" in str(refused.value)


def test_a_folder_of_an_unknown_release_is_opened_only_by_a_program_that_the_user_names() -> None:
    unknown = EtcdFolder(Path("d/etcd"), True, None, "an unknown etcd")
    with pytest.raises(CommandFailed, match="NEVE_ETCD=/path/to/etcd"):
        decide(unknown, [etcd("3.6.16")], explicit=False)
    assert decide(unknown, [etcd("3.6.16")], explicit=True).version == "3.6.16"


def test_the_database_says_the_release_and_the_file_beside_it_the_patch_and_the_program(tmp_path: Path) -> None:
    folder = tmp_path / "etcd"
    assert not read_folder(folder).has_data
    fill(folder, "3.5.0")
    assert read_folder(folder) == EtcdFolder(folder, True, (3, 5), "etcd 3.5")
    remember(folder, etcd("3.5.9"))
    assert read_folder(folder) == EtcdFolder(folder, True, (3, 5), "etcd 3.5.9", Path("/bin/etcd-3.5.9"))
    remember(folder, etcd("3.6.1"))
    assert read_folder(folder) == EtcdFolder(folder, True, (3, 5), "etcd 3.5"), "the database comes first"
    etcd_folder.database_path(folder).write_bytes(b"damaged")
    assert read_folder(folder).minor == (3, 6), "then the file"
    record_path(folder).unlink()
    assert read_folder(folder).minor is None
    assert [path.name for path in tmp_path.iterdir()] == ["etcd"], "no temporary file is left"


def test_a_damaged_file_beside_the_data_and_one_of_a_newer_neve_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "etcd"
    fill(folder, "3.5.0")
    for text, says in (
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"format": 2}', "a newer Neve"),
        ('{"format": 1}', "damaged"),
    ):
        record_path(folder).write_text(text)
        with pytest.raises(CommandFailed, match=says):
            read_folder(folder)


def test_data_that_was_moved_away_is_not_begun_anew(tmp_path: Path) -> None:
    remember(tmp_path / "etcd", etcd("3.5.9"))
    with pytest.raises(CommandFailed, match=r"the data of etcd 3\.5\.9 is gone"):
        etcd_for(tmp_path / "etcd")
    (tmp_path / "etcd").mkdir()  # etcd was about to begin
    assert not read_folder(tmp_path / "etcd").has_data


def program(folder: Path, version: str) -> Path:
    path = folder / f"etcd-{version}"
    path.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """3.6.16, built, is the only etcd that is found."""
    monkeypatch.delenv(etcd_binary.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(etcd_binary, "packaged_path", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    built = program(tmp_path, "3.6.16")
    monkeypatch.setattr(etcd_binary, "built_paths", lambda: [built])
    return built


def test_the_etcd_that_opened_a_folder_last_is_used_again_when_it_is_found_nowhere_else(
    only: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "etcd"
    assert etcd_for(folder).path == only
    fill(folder, "3.5.0")
    with pytest.raises(CommandFailed, match="neve etcd upgrade"):
        etcd_for(folder)
    last = program(tmp_path, "3.5.9")
    remember(folder, etcd("3.5.9", str(last)))
    assert etcd_for(folder).path == last
    last.unlink()
    with pytest.raises(CommandFailed, match=r"was made by etcd 3\.5\.9"):
        etcd_for(folder)


def test_up_and_etcd_refuse_before_they_start_anything(
    only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "etcd", "3.5.0")
    monkeypatch.setattr(up, "LocalCluster", lambda *_: pytest.fail("it goes on"))
    monkeypatch.setattr("os.execve", lambda *_: pytest.fail("it goes on"))
    refused = f"neve: {tmp_path}/etcd was made by etcd 3.5, and the etcd here is 3.6.16 ({only}): "
    for words in (["up", "--free-ports", "--data", str(tmp_path)], ["etcd", "--data", str(tmp_path / "etcd")]):
        assert main.main(words) == 1
        assert capsys.readouterr().err.startswith(refused)
    assert not (tmp_path / "layout.json").exists()
    assert not record_path(tmp_path / "etcd").exists()


def test_an_unsound_etcd_is_no_place_for_data_that_matters_and_the_command_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "etcd"
    assert etcd_folder.advice(etcd("3.6.16"), folder) is None
    assert (etcd_folder.advice(etcd("3.5.1"), folder) or "").endswith("`neve etcd install` builds 3.6.16: run it first")
    fill(folder, "3.5.0")
    moves = etcd_folder.advice(etcd("3.5.1"), folder) or ""
    assert "in 3.5.0 to 3.5.2 a member that is killed may come back with wrong data" in moves
    assert moves.endswith(f"and `neve etcd upgrade --data {folder}` moves the data to it")
    assert "NEVE_ETCD=/path/to/etcd" in (etcd_folder.advice(etcd("3.4.9"), folder) or "")


@pytest.mark.parametrize("version", ["3.5.1", "3.6.16"])
def test_up_says_when_it_is_ready_which_etcd_it_runs_and_whether_that_is_unsound(tmp_path: Path, version: str) -> None:
    layout = local_layout.fixed_ports("main", Counts(managers=1, nodes=1), base_port=None)
    (tmp_path / up.PROCFILE).write_text("etcd: true\n")
    args = argparse.Namespace(data=tmp_path, json=False, exit_on_death=False, token="", split_keys="", quiet=False)
    cluster = up.LocalCluster(layout, args, etcd(version))
    text, facts = cluster._ready_text(), cluster._facts()
    assert f"  etcd                127.0.0.1:2379 (version {version})" in text
    assert facts["etcd_version"] == version
    warned = [line for line in text.splitlines() if line.startswith("not for data that matters: ")]
    if version == "3.5.1":
        assert warned == [f"not for data that matters: {facts['etcd_warning']}"]
        assert "in 3.5.0 to 3.5.2 a member that is killed" in warned[0]
        assert "`neve etcd install`" in warned[0]
    else:
        assert (warned, facts["etcd_warning"]) == ([], None)


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("3.4.0", r"needs 3\.5; NEVE_ETCD=/path/to/etcd-3\.5 names one"),
        ("3.6.0", r"needs 3\.7; NEVE_ETCD=/path/to/etcd-3\.7 names one"),
        (None, "it cannot be found out which etcd made"),
    ],
)
def test_an_upgrade_needs_the_next_minor_release(only: Path, tmp_path: Path, version: str | None, says: str) -> None:
    fill(tmp_path / "etcd", version)
    with pytest.raises(CommandFailed, match=says):
        etcd_upgrade._target(read_folder(tmp_path / "etcd"))


def test_an_upgrade_to_an_unsound_etcd_needs_its_name(
    only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "etcd", "3.4.0")
    unsound = program(tmp_path, "3.5.1")
    monkeypatch.setattr(etcd_binary, "built_paths", lambda: [only, unsound])
    assert main.main(["etcd", "upgrade", "--data", str(tmp_path / "etcd")]) == 1
    assert f"{unsound} is not used, because etcd 3.5.1 is unsound" in capsys.readouterr().err
    monkeypatch.setenv(etcd_binary.ENVIRONMENT_VARIABLE, str(unsound))
    assert etcd_upgrade._target(read_folder(tmp_path / "etcd")).version == "3.5.1"
    assert main.main(["etcd", "upgrade", "--data", str(tmp_path)]) == 1
    assert "there is no etcd data" in capsys.readouterr().err


def test_the_file_beside_the_data_is_json_with_a_format(tmp_path: Path) -> None:
    remember(tmp_path / "etcd", etcd("3.6.16", "/x/etcd"))
    assert json.loads((tmp_path / "etcd.json").read_text()) == {"format": 1, "version": "3.6.16", "path": "/x/etcd"}
