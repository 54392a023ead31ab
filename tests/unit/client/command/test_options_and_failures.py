"""What users type, and what they are told when it does not work."""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from neve.client.command import options
from neve.client.command.failures import CommandFailed, guarded, sentence
from neve.client.command.main import main, parser
from neve.client.command.tables import human_age, human_bytes, print_json, print_table
from neve.client.command.wbench import payload_count
from neve.proto import errors
from neve.rpc.command_line import parsed

MANAGERS = ("127.0.0.1:3401", "127.0.0.1:3402")


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (options.size_bytes, "0", 0),
        (options.size_bytes, "512", 512),
        (options.size_bytes, "4k", 4096),
        (options.size_bytes, "4KiB", 4096),
        (options.size_bytes, "1.5 MiB", 1_572_864),
        (options.size_bytes, "2GB", 2 << 30),
        (options.duration_s, "10", 10.0),
        (options.duration_s, "500ms", 0.5),
        (options.duration_s, "2m", 120.0),
        (options.duration_s, "1h", 3600.0),
        (options.addresses, "a:1", ("a:1",)),
        (options.addresses, "a:1, b:2,", ("a:1", "b:2")),
        (options.position, "12", (12, 0)),
        (options.position, "12:4096", (12, 4096)),
        (options.label, "team=search", ("team", "search")),
        (options.label, "note=a=b", ("note", "a=b")),
        (options.stream_id_or_name, "17", 17),
        (options.stream_id_or_name, "events", "events"),
        (options.whole_number(1, 9), "9", 9),
    ],
)
def test_what_users_type_is_understood(parse: Callable[[str], object], text: str, expected: object) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (options.size_bytes, "many"),
        (options.size_bytes, "-1"),
        (options.size_bytes, "99999999999GiB"),
        (options.size_bytes, "9" * 400),
        (options.record_size_bytes, "2GiB"),
        (options.duration_s, "9" * 400),
        (options.text_path, "caf\udce9"),
        (options.positive_size_bytes, "0"),
        (options.duration_s, "0"),
        (options.duration_s, "soon"),
        (options.duration_s, "3 weeks"),
        (options.addresses, ""),
        (options.addresses, "localhost"),
        (options.addresses, "a:99999"),
        (options.position, "a:b"),
        (options.position, str(2**64)),
        (options.label, "team"),
        (options.label, "=x"),
        (options.stream_id_or_name, ""),
        (options.stream_id_or_name, str(2**64)),
        (options.whole_number(1, 9), "0"),
        (options.whole_number(1, 9), "two"),
    ],
)
def test_what_cannot_be_right_is_refused_in_words(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        parse(text)
    assert len(str(refused.value)) > 10


def test_managers_come_from_the_option_the_environment_or_the_default() -> None:
    def parse(arguments: list[str], environment: dict[str, str]) -> argparse.Namespace:
        parser = argparse.ArgumentParser(parents=[options.connection_options(environment)])
        return parser.parse_args(arguments)

    assert parse([], {}).managers == ("127.0.0.1:3401",)
    environment = {"NEVE_MANAGERS": "a:1,b:2", "NEVE_CLUSTER": "lab", "NEVE_TOKEN": "t"}
    from_environment = parse([], environment)
    assert (from_environment.managers, from_environment.cluster, from_environment.token) == (
        ("a:1", "b:2"),
        "lab",
        "t",
    )
    assert parse(["--managers", "c:3"], environment).managers == ("c:3",)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.NotFound(kind="stream", name="evnts"), ["no such stream", "evnts"]),
        (errors.InvalidArgument(what="replicas", detail="must be from 1 to 9, not 99"), ["replicas", "1 to 9"]),
        (errors.NotEnoughNodes(wanted=5, available=4), ["5 are needed", "4 can"]),
        (errors.TooLarge(what="block", size_bytes=99, limit_bytes=50), ["block of 99 bytes", "50"]),
        (errors.Unauthenticated(detail="the token is not known here"), ["token", "--token"]),
        (errors.WrongCluster(expected="main", got="other"), ["'main'", "'other'", "--cluster", MANAGERS[0]]),
        (errors.ConnectFailed(address=MANAGERS[1]), ["no stream manager", *MANAGERS, "--managers"]),
        (errors.ConnectFailed(address="10.0.0.9:3501"), ["10.0.0.9:3501"]),
        (errors.NotLeader(), ["no stream manager leads"]),
        (errors.LockHeld(lock="stream/5", owner="laptop 77"), ["being written by laptop 77", "--takeover"]),
        (errors.SealUnavailable(extent_id=9), ["extent 9", "docs/operations.md"]),
        (errors.StreamSealed(stream_id=3), ["stream 3 is sealed"]),
        (errors.AlreadyExists(kind="stream", name="a"), ["stream a exists already"]),
        (errors.QuotaExceeded(what="team/search", used=3, limit=3), ["team/search", "3 of 3"]),
        (errors.LeaseLost(), ["lost the stream"]),
        (errors.ReplicaDamaged(extent_id=9, offset=3), ["extent 9, offset 3", "--positions"]),
        (errors.OutOfRange(extent_id=9, offset=30, readable=20), ["extent 9 ends at 20", "nothing at 30"]),
        (errors.Unimplemented(method="0x0208"), [MANAGERS[0], "0x0208", "the kind and the version"]),
        (errors.AppendOutcomeUnknown(), ["unknown"]),
        (TimeoutError(), ["--timeout"]),
        (FileNotFoundError(2, "No such file or directory", "x.txt"), ["x.txt: No such file"]),
    ],
)
def test_an_error_becomes_one_sentence_with_its_facts(
    error: BaseException, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> int:
        raise error

    assert guarded("stream-client", run, managers=MANAGERS) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("stream-client: ")
    assert captured.err.count("\n") == 1
    for word in words:
        assert word in captured.err


def test_every_error_class_gives_a_sentence_without_its_python_name_as_the_only_word() -> None:
    for cls in errors.all_errors().values():
        text = sentence(cls(), managers=MANAGERS)
        assert text
        assert "\n" not in text


def test_exit_codes_of_interruption_usage_and_success(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    def misused() -> int:
        raise CommandFailed("--lines and --whole\nexclude each other", 2)

    assert guarded("neve", interrupted) == 130
    assert guarded("neve", misused) == 2
    assert capsys.readouterr().err == "neve: --lines and --whole exclude each other\n"
    assert guarded("neve", lambda: 0) == 0


def test_too_little_memory_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def too_large() -> int:
        raise MemoryError

    assert guarded("stream-client", too_large) == 1
    assert capsys.readouterr().err == "stream-client: there is not enough memory for this\n"


@pytest.mark.parametrize(
    "words",
    [
        ["append", "S", "--whole", "FILE"],
        ["append", "--whole", "S", "FILE"],
        ["append", "S", "FILE", "--whole"],
        ["append", "S", "--takeover", "--whole", "--", "FILE"],
        ["append", "--managers", "a:1", "S", "--whole", "--token", "t", "FILE"],
    ],
)
def test_a_file_may_stand_behind_options(words: list[str]) -> None:
    args = parser().parse_args(words)
    assert (args.stream, str(args.file), args.whole) == ("S", "FILE", True)
    assert parser().parse_args(["append", "S", "--whole"]).file is None


@pytest.mark.parametrize(
    "words",
    [
        ["info", "caf\udce9"],
        ["list", "--label", "team=\udcff"],
        ["list", "--token", "secret\udcff"],
        ["list", "--cluster", "\udcff"],
        ["create", "--placement", "\udcff"],
    ],
)
def test_bytes_that_are_no_text_are_wrong_usage_and_are_not_repeated(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert "not UTF-8" in err
    assert "secret" not in err


def test_a_file_may_have_any_name() -> None:
    assert parsed(parser(), ["append", "S", "caf\udce9"]).file == Path("caf\udce9")


def test_wbench_makes_no_more_than_it_has_use_and_memory_for() -> None:
    assert payload_count(1024, 1) == 1
    assert payload_count(1024, 100) == 8
    assert payload_count(1 << 30, 100) == 1


def test_a_bug_is_not_hidden() -> None:
    def bug() -> int:
        raise AssertionError("ours")

    with pytest.raises(AssertionError, match="ours"):
        guarded("neve", bug)


def test_a_table_off_a_terminal_is_not_cut_and_numbers_stand_to_the_right() -> None:
    out = io.StringIO()
    print_table(["id", "name", "size"], [[7, "x" * 300, "1.5 GiB"], [1234, None, "2 B"]], out=out)
    lines = out.getvalue().splitlines()
    assert lines[1] == "   7  " + "x" * 300 + "  1.5 GiB"
    assert lines[2].startswith("1234  -")
    assert lines[2].endswith("    2 B")
    assert "\x1b" not in out.getvalue()


def test_an_empty_table_says_so_and_json_is_one_document() -> None:
    out = io.StringIO()
    print_table(["id"], [], out=out, nothing="no streams")
    assert out.getvalue() == "no streams\n"
    out = io.StringIO()
    print_json({"name": "Névé"}, out=out)
    assert out.getvalue() == '{\n "name": "Névé"\n}\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (human_bytes(0), "0 B"),
        (human_bytes(1023), "1023 B"),
        (human_bytes(1536), "1.5 KiB"),
        (human_bytes(5 * 2**40), "5.0 TiB"),
        (human_age(0.25), "250 ms"),
        (human_age(90), "90 s"),
        (human_age(3600), "60 min"),
        (human_age(10 * 86400), "10 d"),
    ],
)
def test_sizes_and_ages_for_people(text: str, expected: str) -> None:
    assert text == expected
