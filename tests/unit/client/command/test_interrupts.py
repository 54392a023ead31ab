"""Ctrl-C ends stream-client at once and in order, also while it waits for a keyboard. In processes of their own: what
a thread in a read does to the end of an interpreter shows only there."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from neve.rpc.entry import INTERRUPTED

ROOT = Path(__file__).parents[4]
ENDS_S = 120.0  # a bound for a very slow machine, not an expectation

# A stream-client on the client of the other tests; it says on stdout what is submitted, and at its end what was asked.
CHILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts in the background
from neve.client.command import connection, main
from tests.unit.client.command import test_stream_commands as fakes

class Writer(fakes.Writer):
    def submit(self, payload):
        future = super().submit(payload)
        print("submitted", flush=True)
        return future

client = fakes.FakeClient()
client.acknowledge_after_s = float(sys.argv[1])
client.writer = lambda stream_id, **options: Writer(client, stream_id)
connection.connect = lambda args: client
code = main.main(sys.argv[2:])
print(client.log, flush=True)
sys.exit(code)
"""


@contextmanager
def stream_client(*words: str, stdin: int, acknowledge_after_s: float = 0.001) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", CHILD, str(acknowledge_after_s), *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=stdin, stdout=pipe, stderr=pipe, bufsize=0) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Where a test types, and where a command reads."""
    keyboard, screen = pty.openpty()
    yield keyboard, screen
    os.close(keyboard)
    os.close(screen)


def read_until(file: IO[bytes] | None, end: bytes) -> bytes:
    assert file is not None
    got = b""
    while not got.endswith(end) and (byte := file.read(1)):
        got += byte
    return got


@pytest.mark.parametrize("acknowledge_after_s", [0.001, 0.3])
def test_an_interrupted_append_from_a_terminal_counts_what_was_typed(
    terminal: tuple[int, int], acknowledge_after_s: float
) -> None:
    keyboard, screen = terminal
    with stream_client("append", "events", stdin=screen, acknowledge_after_s=acknowledge_after_s) as process:
        os.write(keyboard, b"a\nb\n")
        assert read_until(process.stdout, b"submitted\nsubmitted\n")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=ENDS_S)
    assert process.returncode == INTERRUPTED, err
    assert err == b"stream-client: before the end: 2 records, 2 bytes acknowledged, 9:0 to 9:1\n"


def test_an_interrupted_append_does_not_wait_for_a_pipe_that_gives_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR)
    try:
        with stream_client("append", "events", str(path), stdin=subprocess.DEVNULL) as process:
            os.write(pipe, b"a\n")
            assert read_until(process.stdout, b"submitted\n")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=ENDS_S)
    finally:
        os.close(pipe)
    assert process.returncode == INTERRUPTED, err
    assert b"1 records, 1 bytes acknowledged" in err


@pytest.mark.parametrize("words", [["delete", "events"], ["seal", "events"], ["truncate", "events", "--before", "9"]])
def test_an_interrupt_at_the_question_changes_nothing_whatever_is_typed_after_it(
    terminal: tuple[int, int], words: list[str]
) -> None:
    keyboard, screen = terminal
    with stream_client(*words, stdin=screen) as process:
        question = read_until(process.stderr, b"Type yes to continue: ")
        process.send_signal(signal.SIGINT)
        os.write(keyboard, b"yes\n")
        out, err = process.communicate(timeout=ENDS_S)
    assert b" will " in question
    assert (process.returncode, out, err) == (INTERRUPTED, b"['closed']\n", b"")


@pytest.mark.parametrize(("answer", "code", "log"), [(b"yes\n", 0, b"'delete 5'"), (b"no\n", 1, b"['closed']")])
def test_the_answer_at_the_terminal_decides(terminal: tuple[int, int], answer: bytes, code: int, log: bytes) -> None:
    keyboard, screen = terminal
    with stream_client("delete", "events", stdin=screen) as process:
        question = read_until(process.stderr, b"Type yes to continue: ")
        os.write(keyboard, answer)
        out, err = process.communicate(timeout=ENDS_S)
    assert question == b"Stream 5 'events' and its 2 extents will be deleted. Type yes to continue: "
    assert process.returncode == code, err
    assert log in out
