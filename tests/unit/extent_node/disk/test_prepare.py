"""What a node may format by itself, and what it must refuse (T32)."""

from __future__ import annotations

import os
import random
import shutil
import uuid
from pathlib import Path

import pytest

from neve.extent_node.config import load
from neve.extent_node.disk.disk import Disk, DiskRefused, read_disk_label
from neve.extent_node.disk.file_system import RealFileSystem
from neve.extent_node.disk.prepare import prepare
from neve.extent_node.journal.folder import format_journal, read_journal_label
from neve.extent_node.journal.format import SEGMENT_BYTES_MIN
from neve.extent_node.journal.journal import Journal
from neve.extent_node.journal.replay import read_chain
from neve.extent_node.store.load import load_disk
from neve.proto.errors import InvalidArgument
from tests.sim.disks.disk import SimFileSystem, SimulatedCrash

SEGMENT_BYTES = 1 << 20


async def run(
    tmp_path: Path,
    *disks: str,
    node_id: int = 0,
    automatic: bool = True,
    by_operator: tuple[str, ...] = (),
    format_journal: bool = False,
    cluster: str = "main",
    given: int = 7,
    uuids: dict[str, str] | None = None,
) -> int:
    async def fetch_node_id() -> int:
        return given

    return await prepare(
        RealFileSystem(),
        cluster=cluster,
        disk_folders=[str(tmp_path / disk) for disk in disks],
        journal_folder=str(tmp_path / "journal"),
        configured_node_id=node_id,
        automatic=automatic,
        by_operator=[str(tmp_path / disk) for disk in by_operator],
        format_missing_journal=format_journal,
        journal_segment_bytes=SEGMENT_BYTES,
        fetch_node_id=fetch_node_id,
        rng=random.Random(1),
        expected_uuids={str(tmp_path / disk): uuid for disk, uuid in (uuids or {}).items()},
    )


def use(tmp_path: Path, *, node_id: int) -> None:
    """As a process that started on it: from now on something may depend on the journal."""
    journal = Journal.open(RealFileSystem(), str(tmp_path / "journal"), cluster="main", node_id=node_id)
    journal.start(number_seen_max=0)
    journal.close()


async def test_a_new_node_formats_all_and_keeps_the_id_that_it_was_given(tmp_path: Path) -> None:
    assert await run(tmp_path, "d1", "d2", given=7) == 7
    assert (tmp_path / "d1" / "disk.json").exists()
    assert (tmp_path / "d2" / "disk.json").exists()
    assert (tmp_path / "journal" / "journal.json").exists()
    assert await run(tmp_path, "d1", "d2", given=8) == 7


async def test_a_configured_id_is_used_and_must_not_change(tmp_path: Path) -> None:
    assert await run(tmp_path, "d1", node_id=3) == 3
    with pytest.raises(DiskRefused, match=r"which node is this\?.*says 3.*the configuration says 4"):
        await run(tmp_path, "d1", node_id=4)


async def test_t32_a_wiped_disk_is_refused_by_name_and_not_formatted(tmp_path: Path) -> None:
    await run(tmp_path, "d1", "d2", node_id=3)
    use(tmp_path, node_id=3)
    label = (tmp_path / "d2" / "disk.json").read_bytes()
    (tmp_path / "d2" / "disk.json").unlink()
    with pytest.raises(DiskRefused, match=r"d2 has no disk\.json.*wiped or is not mounted.*--format-disk"):
        await run(tmp_path, "d1", "d2", node_id=3)
    assert not (tmp_path / "d2" / "disk.json").exists()
    assert await run(tmp_path, "d1", "d2", node_id=3, by_operator=("d2",)) == 3
    assert (tmp_path / "d2" / "disk.json").read_bytes() != label  # a new disk, with a new uuid


async def test_an_added_disk_is_formatted_by_the_operators_word_only(tmp_path: Path) -> None:
    await run(tmp_path, "d1", node_id=3)
    use(tmp_path, node_id=3)
    with pytest.raises(DiskRefused, match="--format-disk"):
        await run(tmp_path, "d1", "d2", node_id=3)
    await run(tmp_path, "d1", "d2", node_id=3, by_operator=("d2",))
    with pytest.raises(DiskRefused, match="is a disk already"):
        await run(tmp_path, "d1", "d2", node_id=3, by_operator=("d2",))
    with pytest.raises(DiskRefused, match="not one of the configured disks"):
        await run(tmp_path, "d1", "d2", node_id=3, by_operator=("d3",))


async def test_a_journal_that_is_not_there_is_refused_and_made_anew_by_the_operators_word_only(tmp_path: Path) -> None:
    await run(tmp_path, "d1", node_id=3)
    (tmp_path / "journal").rename(tmp_path / "elsewhere")
    with pytest.raises(DiskRefused, match=r"no journal\.json.*--format-journal"):
        await run(tmp_path, "d1", node_id=3)
    assert not (tmp_path / "journal").exists()
    assert await run(tmp_path, "d1", node_id=3, format_journal=True) == 3
    assert (tmp_path / "journal" / "journal.json").exists()


async def test_nothing_is_formatted_when_that_is_switched_off(tmp_path: Path) -> None:
    with pytest.raises(DiskRefused):
        await run(tmp_path, "d1", node_id=3, automatic=False)
    assert not (tmp_path / "d1").exists()


async def test_a_folder_with_other_files_is_never_formatted(tmp_path: Path) -> None:
    (tmp_path / "d1").mkdir()
    (tmp_path / "d1" / "thesis.txt").write_text("precious")
    with pytest.raises(DiskRefused, match=r"not empty.*thesis\.txt"):
        await run(tmp_path, "d1", node_id=3)
    assert os.listdir(tmp_path / "d1") == ["thesis.txt"]


# --- a first start that is cut short ---------------------------------------------------------------------------


async def first_start(fs: SimFileSystem, *, by_operator: bool) -> int:
    async def fetch_node_id() -> int:
        return 7

    folders = ["/d1", "/d2"]
    return await prepare(
        fs,
        cluster="main",
        disk_folders=folders,
        journal_folder="/journal",
        configured_node_id=7 if by_operator else 0,
        automatic=not by_operator,
        by_operator=folders if by_operator else (),
        format_missing_journal=by_operator,
        journal_segment_bytes=SEGMENT_BYTES_MIN,
        fetch_node_id=fetch_node_id,
        rng=random.Random(1),
    )


@pytest.mark.parametrize("by_operator", [False, True])
@pytest.mark.parametrize("ending", ["crash", "power_cut"])
async def test_a_first_start_that_ends_at_any_step_is_gone_on_with_by_the_same_command(
    by_operator: bool, ending: str
) -> None:
    whole = SimFileSystem()
    await first_start(whole, by_operator=by_operator)
    steps = [line.split() for line in whole.log if line[:6].strip()]
    for step in [
        int(number) for number, operation, path, *_ in steps if "/extents/" not in path or path.endswith("7f")
    ]:
        fs = SimFileSystem()
        fs.stop_at(step)
        with pytest.raises(SimulatedCrash):
            await first_start(fs, by_operator=by_operator)
        getattr(fs, ending)()
        assert await first_start(fs, by_operator=by_operator) == 7, step
        journal = read_journal_label(fs, "/journal")
        for folder in ("/d1", "/d2"):
            assert read_disk_label(fs, folder).journal_uuid == journal.uuid, step
        assert journal.never_used


async def test_t32_a_new_journal_for_old_disks_does_not_make_a_wiped_disk_a_new_one() -> None:
    """The journal was lost and made anew, and the node died just after its first disk named the new one."""
    fs = SimFileSystem()
    await first_start(fs, by_operator=False)
    fs.wipe("/journal")
    uuid_new = format_journal(
        fs, "/journal", cluster="main", node_id=7, journal_uuid=uuid.UUID(int=5), segment_bytes=SEGMENT_BYTES_MIN
    )
    fs.wipe("/d2")
    with pytest.raises(DiskRefused, match="has been used before"):
        await first_start(fs, by_operator=False)
    journal = Journal.open(fs, "/journal", cluster="main", node_id=7)
    disk = Disk.open(fs, "/d1", cluster="main", node_id=7)
    load_disk(disk, journal, 0)
    assert read_disk_label(fs, "/d1").journal_uuid == uuid_new
    fs.crash()
    with pytest.raises(DiskRefused, match="has been used before"):
        await first_start(fs, by_operator=False)


async def test_t32_a_new_journal_for_old_disks_that_are_not_mounted_next_does_not_make_their_folders_new_disks(
    tmp_path: Path,
) -> None:
    await run(tmp_path, "d1", "d2", given=7)
    use(tmp_path, node_id=7)
    shutil.rmtree(tmp_path / "journal")
    await run(tmp_path, "d1", "d2", format_journal=True)  # and this start ends before the disks name the new one
    for disk in ("d1", "d2"):
        (tmp_path / disk).rename(tmp_path / f"{disk}-elsewhere")
        (tmp_path / disk).mkdir()
    with pytest.raises(DiskRefused, match="has been used before"):
        await run(tmp_path, "d1", "d2")
    assert os.listdir(tmp_path / "d1") == []
    for disk in ("d1", "d2"):
        (tmp_path / disk).rmdir()
        (tmp_path / f"{disk}-elsewhere").rename(tmp_path / disk)
    assert await run(tmp_path, "d1", "d2") == 7
    fs = RealFileSystem()
    journal = Journal.open(fs, str(tmp_path / "journal"), cluster="main", node_id=7)
    assert read_chain(fs, str(tmp_path / "journal"), journal.label, journal.uuid_bytes).hole == ""
    journal.close()


# --- what says that a node existed -----------------------------------------------------------------------------

UUID = "6d0c3f0e-6f2b-4a57-9d0e-2f6d3f1f8a11"


def test_a_node_with_a_configured_id_formats_nothing_by_itself_unless_it_is_told_to() -> None:
    assert not load(None, GOOD)[0].formats_automatically
    assert load(None, [*GOOD, "format_empty_disks=true"])[0].formats_automatically
    by_manager = [*GOOD[:3], 'managers=["127.0.0.1:1"]']
    assert load(None, by_manager)[0].formats_automatically
    assert not load(None, [*by_manager, "format_empty_disks=false"])[0].formats_automatically


async def test_t32_a_wiped_device_with_disk_and_journal_is_not_taken_for_a_new_node_of_the_same_id(
    tmp_path: Path,
) -> None:
    node, _ = load(None, ["cluster=main", 'disks=["/d1"]', "journal=/j", "node_id=3"])
    await run(tmp_path, "d1", node_id=3, by_operator=("d1",), format_journal=True, automatic=node.formats_automatically)
    shutil.rmtree(tmp_path / "d1")
    shutil.rmtree(tmp_path / "journal")
    with pytest.raises(DiskRefused, match=r"d1 has no disk\.json.*wiped or is not mounted.*--format-disk"):
        await run(tmp_path, "d1", node_id=3, automatic=node.formats_automatically)
    assert not (tmp_path / "d1").exists()
    with pytest.raises(DiskRefused, match=r"no journal\.json.*--format-journal"):
        await run(tmp_path, "d1", node_id=3, automatic=node.formats_automatically, by_operator=("d1",))
    assert not (tmp_path / "d1").exists()  # the journal's refusal comes first


async def test_a_folder_whose_disk_is_known_by_its_uuid_is_never_formatted(tmp_path: Path) -> None:
    with pytest.raises(DiskRefused, match="which node is this"):
        await run(tmp_path, "d1", uuids={"d1": UUID})  # all of it is gone: another id must not be asked for
    await run(tmp_path, "d1", node_id=3)
    # The node starts without the other one: the store refuses it by name.
    assert await run(tmp_path, "d1", "d2", node_id=3, uuids={"d2": UUID}) == 3
    assert not (tmp_path / "d2").exists()
    with pytest.raises(DiskRefused, match=f"disk {UUID} is configured"):
        await run(tmp_path, "d1", "d2", node_id=3, uuids={"d2": UUID}, by_operator=("d2",))


# --- configuration -------------------------------------------------------------------------------------------

GOOD = ["cluster=main", 'disks=["/d1"]', "journal=/j", "node_id=1"]


def test_a_configuration_fills_node_and_store() -> None:
    node, store = load(None, [*GOOD, 'store.dirty_bytes_hard="2 GiB"', "listen.limits.connections_max=5"])
    assert (node.node_id, store.node_id, store.cluster, store.journal_folder) == (1, 1, "main", "/j")
    assert [disk.folder for disk in store.disks] == ["/d1"]
    assert store.dirty_bytes_hard == 2 << 30
    assert node.listen.limits.connections_max == 5


def test_a_disk_is_a_folder_or_a_folder_with_the_uuid_that_belongs_there() -> None:
    disks = f'disks=["/d1", {{folder="/d2", uuid="{UUID.upper()}"}}]'
    node, store = load(None, [*GOOD, disks])
    assert [(str(disk.folder), disk.uuid) for disk in node.disks] == [("/d1", ""), ("/d2", UUID)]
    assert [(disk.folder, disk.expected_uuid) for disk in store.disks] == [("/d1", ""), ("/d2", UUID)]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["cluster="], "cluster must not be empty"),
        (["disks=[]"], "at least one folder"),
        (['disks=["/d1", "/d1"]'], "names a folder twice"),
        (['disks=["/d1", {folder="/d1", uuid=""}]'], "names a folder twice"),
        ([f'disks=[{{folder="/d1", uuid="{UUID}"}}, {{folder="/d2", uuid="{UUID}"}}]'], "names a uuid twice"),
        (['disks=[{folder="/d1", uuid="not one"}]'], "'not one' is not a uuid"),
        (['disks=[{uuid="x"}]'], "config key disks[0].folder: is missing"),
        (["disks=[1]"], "config key disks[0]: must be a table"),
        (["store.verify_tasks=0"], "verify_tasks must be above 0"),
        (["node_id=0"], "either managers or node_id is needed"),
        (['managers=["nowhere"]'], "'nowhere' is not host:port"),
        (["store.node_id=2"], "config key store.node_id"),
        (["store.dirty_bytes_sotf=1"], "did you mean store.dirty_bytes_soft?"),
        (["store=1"], "config key store: must be a table"),
        (["log.level=LOUD"], "level must be DEBUG"),
        (["threads=0"], "threads must be above 0"),
    ],
)
def test_a_wrong_configuration_names_the_key(settings: list[str], complaint: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        load(None, [*GOOD, *settings])
    assert complaint in str(refused.value)


async def test_one_disk_whose_label_cannot_be_read_does_not_stop_the_node_and_is_not_formatted(tmp_path: Path) -> None:
    assert await run(tmp_path, "d1", "d2", given=7) == 7
    label = tmp_path / "d2" / "disk.json"
    damaged = label.read_text().replace("main", "mani", 1)
    label.write_text(damaged)
    assert await run(tmp_path, "d1", "d2", given=8) == 7
    assert label.read_text() == damaged
    with pytest.raises(DiskRefused, match="cannot be read"):
        await run(tmp_path, "d1", "d2", by_operator=("d2",))


async def test_a_node_of_which_nothing_can_be_read_is_refused_and_nothing_is_formatted(tmp_path: Path) -> None:
    assert await run(tmp_path, "d1", given=7) == 7
    (tmp_path / "d1" / "disk.json").write_text("{}")
    (tmp_path / "journal" / "journal.json").unlink()
    with pytest.raises(DiskRefused):
        await run(tmp_path, "d1", given=8)
    assert not (tmp_path / "journal" / "journal.json").exists()


async def test_a_journal_without_disks_is_no_new_node(tmp_path: Path) -> None:
    assert await run(tmp_path, "d1", given=7) == 7
    use(tmp_path, node_id=7)
    (tmp_path / "d1" / "disk.json").unlink()
    with pytest.raises(DiskRefused, match="has been used before"):
        await run(tmp_path, "d1", given=8)
