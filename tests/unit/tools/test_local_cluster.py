"""`neve up` without its servers: layouts, Procfiles, ports, and the supervisor on small processes."""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from neve.client.command.failures import CommandFailed
from neve.extent_node import config as node_config
from neve.gateway import config as gateway_config
from neve.partition_manager import config as manager_config
from neve.partition_server import config as server_config
from neve.tools import main
from neve.tools.local import layout as local_layout
from neve.tools.local import up
from neve.tools.local.layout import Counts, LayoutDamaged, kind_of
from neve.tools.local.supervisor import Ended, Supervisor, parse_procfile

ROOT = Path(__file__).resolve().parents[3]
DEFAULT = local_layout.fixed_ports("main", up.COUNTS_DEFAULT, base_port=None)


def test_the_procfile_of_the_repository_is_the_default_layout() -> None:
    listed = local_layout.processes(DEFAULT, data=".neve", python=".venv/bin/python")
    written = [line for line in (ROOT / "Procfile").read_text().splitlines() if not line.startswith("#")]
    assert written == local_layout.procfile(listed).splitlines()


def test_the_default_ports_are_the_documented_ones() -> None:
    assert DEFAULT.etcd_address == "127.0.0.1:2379"
    assert DEFAULT.manager_addresses == ("127.0.0.1:3401", "127.0.0.1:3402", "127.0.0.1:3403")
    assert DEFAULT.node_addresses[0] == "127.0.0.1:3501"
    assert DEFAULT.partition_manager_addresses == ("127.0.0.1:3701", "127.0.0.1:3702")
    assert DEFAULT.partition_server_addresses == ("127.0.0.1:3801", "127.0.0.1:3802")
    assert DEFAULT.partition_servers[0] == local_layout.Doors(3801, 3851, 3901)
    assert (DEFAULT.gateway_address, DEFAULT.gateway_status_port) == ("127.0.0.1:3950", 3951)
    assert len(set(DEFAULT.ports)) == 2 + 3 * 11 + 2


def test_the_largest_layout_has_no_port_twice() -> None:
    counts = Counts(managers=9, nodes=49, partition_managers=9, partition_servers=9)
    layout = local_layout.fixed_ports("x", counts, base_port=20_000)
    assert len(set(layout.ports)) == 2 + 3 * (9 + 49 + 9 + 9) + 2
    assert min(layout.ports) == 20_000


def test_a_layout_survives_its_file_and_a_damaged_one_is_refused() -> None:
    counts = Counts(managers=1, nodes=2, partition_managers=1, partition_servers=2)
    layout = local_layout.free_ports_layout("c", counts, free_ports=lambda n: range(5000, 5000 + n))
    assert local_layout.decode(layout.encode()) == layout
    assert layout.ports == tuple(range(5000, 5022))
    assert (len(layout.partition_managers), len(layout.partition_servers)) == (1, 2)
    for text in ("", "[]", "{}", '{"format": 1}', layout.encode().replace("wire", "wier")):
        with pytest.raises(LayoutDamaged):
            local_layout.decode(text)
    with pytest.raises(LayoutDamaged, match="format 7"):
        local_layout.decode(layout.encode().replace('"format": 1', '"format": 7'))


def test_honcho_reads_back_every_word_of_every_command_also_odd_ones() -> None:
    listed = local_layout.processes(DEFAULT, data="/tmp/a folder/it's", python="python")
    parsed = parse_procfile(local_layout.procfile(listed))
    assert parsed == {process.name: list(process.command) for process in listed}
    assert [kind_of(name) for name in parsed] == [
        *("etcd", *["manager"] * 3, *["node"] * 4),
        *(*["pmanager"] * 2, *["pserver"] * 2, "gateway"),
    ]


def test_the_settings_of_a_node_are_what_a_node_understands() -> None:
    listed = local_layout.processes(
        DEFAULT,
        data="/d",
        python="python",
        settings={"node": ["scrub_bytes_per_s=0"], "node2": ["store.dirty_bytes_hard=3 GiB"]},
    )
    loaded = {}
    for process in listed:
        if process.kind == "node":
            assignments = [
                word for before, word in zip(process.command, process.command[1:], strict=False) if before == "--set"
            ]
            loaded[process.name] = node_config.load(None, assignments)
    node, store = loaded["node2"]
    assert node.managers == list(DEFAULT.manager_addresses)
    assert (node.node_id, node.cluster, node.listen.wire) == (0, "main", "127.0.0.1:3502")
    assert (node.scrub_bytes_per_s, store.dirty_bytes_hard) == (0, 3 << 30)
    assert loaded["node1"][1].dirty_bytes_hard != 3 << 30
    assert len({str(each.journal) for each, _ in loaded.values()}) == 4


def test_the_settings_of_partition_processes_are_what_they_understand() -> None:
    for process in local_layout.processes(DEFAULT, data="/d", python="python"):
        assignments = [word for before, word in itertools.pairwise(process.command) if before == "--set"]
        if process.name == "pmanager2":
            manager = manager_config.load(None, assignments)
            assert manager.stream_managers == list(DEFAULT.manager_addresses)
            assert manager.listen.wire == "127.0.0.1:3702"
        elif process.name == "pserver2":
            server = server_config.load(None, assignments)
            assert server.partition_managers == list(DEFAULT.partition_manager_addresses)
            assert (server.server_id, server.listen.grpc) == (2, "127.0.0.1:3852")
        elif process.name == "gateway":
            gateway = gateway_config.load(None, assignments)
            assert gateway.managers == list(DEFAULT.partition_manager_addresses)
            assert (gateway.listen.http, gateway.listen.status) == ("127.0.0.1:3950", "127.0.0.1:3951")


def test_without_managers_the_nodes_are_told_their_ids() -> None:
    layout = local_layout.fixed_ports("main", Counts(managers=0, nodes=2), base_port=None)
    commands = [shlex.join(process.command) for process in local_layout.processes(layout, data="d", python="p")]
    assert ["node_id=1" in commands[1], "node_id=2" in commands[2]] == [True, True]
    assert not any("managers=" in command for command in commands)


@pytest.mark.parametrize("wrong", ["x=1", "node=1", "nodes1", "etcd.a=1", "=", "node1=a.b"])
def test_a_setting_for_nobody_is_refused(wrong: str) -> None:
    with pytest.raises(CommandFailed, match="--set") as refused:
        up.settings_by_kind([wrong])
    assert refused.value.code == 2


def test_settings_go_to_a_kind_or_to_one_process() -> None:
    assert up.settings_by_kind(["node.a.b=1", "node.c=2", "manager1.log.level=DEBUG"]) == {
        "node": ["a.b=1", "c=2"],
        "manager1": ["log.level=DEBUG"],
    }


def run_up(*arguments: str) -> int:
    return main.main(["up", *arguments])


@pytest.mark.parametrize("who", ["node5", "node01", "manager9", "pserver1", "gateway1"])
@pytest.mark.parametrize("printed", [True, False])
def test_a_setting_for_a_process_that_is_not_started_is_refused(
    who: str, printed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "_check_ports", lambda layout: pytest.fail("it goes on"))
    words = ["--data", str(tmp_path), "--managers", "1", "--partition-servers", "0", "--set", f"{who}.x=1"]
    assert run_up(*words, *(["--print-procfile"] if printed else [])) == 2
    out, err = capsys.readouterr()
    assert err == f"neve: --set {who}.x=1: no {who} is started, only manager1, node1, node2, node3, node4\n"
    assert out == ""
    assert not (tmp_path / "layout.json").exists()


def test_settings_of_up_reach_the_processes_that_they_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_up("--print-procfile", "--set", "node4.x=1", "--set", "pserver.y=2", "--set", "gateway.z=3") == 0
    commands = parse_procfile(capsys.readouterr().out)
    assert [name for name, command in commands.items() if "x=1" in command] == ["node4"]
    assert [name for name, command in commands.items() if "y=2" in command] == ["pserver1", "pserver2"]
    assert [name for name, command in commands.items() if "z=3" in command] == ["gateway"]
    assert run_up("--print-procfile", "--partition-servers", "0", "--set", "pserver.y=2") == 0  # all of them: none


def test_a_folder_keeps_its_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another name, or fewer nodes than it has, is refused in a sentence, and nothing is started."""
    saved = local_layout.free_ports_layout("lab", Counts(managers=1, nodes=3), free_ports=up.free_ports)
    (tmp_path / "layout.json").write_text(saved.encode())
    assert run_up("--data", str(tmp_path), "--cluster", "other") == 1
    assert "is cluster 'lab', not 'other'" in capsys.readouterr().err
    assert run_up("--data", str(tmp_path), "--nodes", "2") == 1
    assert "has 3 nodes" in capsys.readouterr().err
    (tmp_path / "layout.json").write_text("damaged")
    assert run_up("--data", str(tmp_path)) == 1
    assert "layout.json cannot be used" in capsys.readouterr().err
    assert not (tmp_path / "etcd").exists()


def test_a_port_in_use_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        peer, *doors = up.free_ports(4)
        saved = local_layout.Layout("main", port, peer, (), (local_layout.Doors(*doors),))
        (tmp_path / "layout.json").write_text(saved.encode())
        assert run_up("--data", str(tmp_path)) == 1
    assert f"port {port} is in use" in capsys.readouterr().err


# --- the supervisor ----------------------------------------------------------------------------------------------


def python(code: str) -> list[str]:
    return [sys.executable, "-u", "-c", code]


SLEEP = python("import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(0)); print('up'); time.sleep(600)")
STUBBORN = python("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)")


class Rig:
    def __init__(self, commands: dict[str, Sequence[str]], log_folder: Path | None = None) -> None:
        self.out = io.StringIO()
        self.ended: list[Ended] = []
        self.supervisor = Supervisor(commands, out=self.out, log_folder=log_folder, on_ended=self.ended.append)

    async def start_all(self) -> None:
        for name in self.supervisor.children:
            await self.supervisor.start(name)

    async def until(self, words: str) -> None:
        while words not in self.out.getvalue():
            await asyncio.sleep(0.01)

    def pid(self, name: str) -> int:
        process = self.supervisor.children[name].process
        assert process is not None
        return process.pid


async def test_lines_are_prefixed_and_a_clean_stop_goes_kind_by_kind() -> None:
    say = "import signal, sys, time\ndef stop(*_):\n    print('stopping')\n    sys.exit(0)\n"
    say += "signal.signal(signal.SIGTERM, stop)\nprint('up')\ntime.sleep(600)\n"
    rig = Rig({"etcd": python(say), "node1": python(say), "node2": python(say), "manager1": python(say)})
    await rig.start_all()
    for name in rig.supervisor.children:
        await rig.until(f"{name.ljust(8)} | up")
    assert await rig.supervisor.stop(("manager", "node", "etcd"))
    order = [line.split()[1] for line in rig.out.getvalue().splitlines() if "stopping" in line]
    assert order[0] == "manager1"
    assert sorted(order[1:3]) == ["node1", "node2"]
    assert order[3:] == ["etcd"]
    assert rig.ended == []


async def test_a_process_that_dies_is_reported_and_the_others_go_on() -> None:
    rig = Rig({"node1": SLEEP, "node2": SLEEP, "node3": python("print('x'); exit(3)")})
    await rig.start_all()
    await rig.until("node1 | up")
    await rig.until("node2 | up")
    pid = rig.pid("node1")
    os.kill(pid, signal.SIGKILL)
    await rig.until(f"node1 (pid {pid}) ended by SIGKILL; the others go on")
    await rig.until("ended with exit code 3")
    assert {(ended.name, ended.code) for ended in rig.ended} == {("node1", -9), ("node3", 3)}
    assert rig.supervisor.children["node2"].runs
    await rig.supervisor.start("node1")
    assert rig.pid("node1") != pid
    await rig.until("node1 | up")
    assert await rig.supervisor.stop(("node",))  # what ended before was reported, and is not held against the others
    assert not any(child.runs for child in rig.supervisor.children.values())


async def test_a_paused_process_stops_and_a_stubborn_one_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig({"node1": SLEEP, "node2": STUBBORN})
    await rig.start_all()
    await rig.until("node1 | up")
    await rig.until("node2 | up")
    os.kill(rig.pid("node1"), signal.SIGSTOP)
    monkeypatch.setattr("neve.tools.local.supervisor.STOP_TIMEOUT_S", 2.0)
    assert await rig.supervisor.stop(("node",)) is False
    assert "node2" in rig.out.getvalue()
    assert "did not stop within 2 s: it is killed" in rig.out.getvalue()
    assert "node1 (pid" not in rig.out.getvalue()


def lives(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_process_dies_with_its_supervisor() -> None:
    code = f"""
import asyncio, os, signal, sys
from neve.tools.local.supervisor import Supervisor
async def main():
    supervisor = Supervisor({{"node1": {SLEEP!r}}}, out=sys.stderr)
    print(await supervisor.start("node1"), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    outer = await asyncio.create_subprocess_exec(*python(code), stdout=asyncio.subprocess.PIPE)
    assert outer.stdout is not None
    pid = int(await outer.stdout.readline())
    assert lives(pid)
    outer.kill()
    await outer.wait()
    while lives(pid):
        await asyncio.sleep(0.01)


async def test_quiet_processes_write_to_files(tmp_path: Path) -> None:
    rig = Rig({"node1": python("print('a'); print('b' * 3_000_000); print('c')")}, log_folder=tmp_path)
    await rig.start_all()
    while not rig.ended:
        await asyncio.sleep(0.01)
    lines = (tmp_path / "node1.log").read_text().splitlines()
    assert (lines[0], lines[-1]) == ("a", "c")
    assert "| a" not in rig.out.getvalue()
