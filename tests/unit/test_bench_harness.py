"""The benchmark harness, without a benchmark: medians, ratios, verdicts, the table, the JSON, exit codes.

Nothing here measures time. The last tests run each limit once, as short as it goes, to see that it still runs.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bench import harness, limits, processes
from tests.bench.baselines import machine, tcp_pair
from tests.bench.harness import Measure, Plan, Prepare, Progress, Settings, order_of_round, take_samples
from tests.bench.report import (
    BenchError,
    Comparison,
    Derived,
    Quantity,
    Target,
    at_least,
    at_most,
    format_number,
    make_rows,
    missed,
    render_table,
    to_document,
)


def _quantities(*values: float, unit: str = "MB/s") -> list[Quantity]:
    return [Quantity(value, unit) for value in values]


SAMPLES = {"ours": _quantities(30, 10, 20), "limit": _quantities(50, 40, 30)}


# Rows.


def test_a_row_is_the_median_of_its_samples_over_the_median_of_its_baseline() -> None:
    (row, limit) = make_rows(SAMPLES, [Comparison("ours", "limit", at_least(0.4))])
    assert (row.name, row.value, row.unit, row.baseline, row.ratio) == ("ours", 20, "MB/s", 40, 0.5)
    assert row.met is True
    assert (limit.name, limit.value, limit.baseline, limit.ratio, limit.met) == ("limit", 40, None, None, None)


def test_the_median_of_an_even_number_of_samples_is_between_the_middle_two() -> None:
    (row,) = make_rows({"ours": _quantities(1, 2, 4, 100)})
    assert row.value == 3


def test_a_comparison_without_a_target_has_a_ratio_and_no_verdict() -> None:
    row = make_rows(SAMPLES, [Comparison("ours", "limit")])[0]
    assert row.ratio == 0.5
    assert row.met is None
    assert missed([row]) == []


def test_the_spread_of_a_ratio_pairs_the_samples_of_each_round() -> None:
    row = make_rows(SAMPLES, [Comparison("ours", "limit")])[0]
    assert row.ratios == (30 / 50, 10 / 40, 20 / 30)


def test_one_measure_may_be_compared_twice_under_two_names() -> None:
    samples = {**SAMPLES, "other": _quantities(10, 10, 10)}
    rows = make_rows(samples, [Comparison("ours", "limit"), Comparison("ours", "other", name="ours again")])
    assert [(row.name, row.baseline_name) for row in rows[:2]] == [("ours", "limit"), ("ours again", "other")]


def test_a_derived_baseline_is_computed_round_by_round() -> None:
    samples = {
        "append": _quantities(900, 700, unit="µs"),
        "ping": _quantities(100, 200, unit="µs"),
        "sync": _quantities(200, 100, unit="µs"),
    }
    bound = Derived("bound", ("ping", "sync"), lambda ping, sync: 2.5 * ping + 3.5 * sync, "µs")
    row = make_rows(samples, [Comparison("append", "bound", at_most(1))], [bound])[0]
    assert row.baseline == (950 + 850) / 2
    assert row.ratio == 800 / 900
    assert row.met is True


@pytest.mark.parametrize(
    ("target", "ratio", "met"),
    [
        (at_least(8), 8.0, True),
        (at_least(8), 7.99, False),
        (at_least(8), 80.0, True),
        (at_most(0.5), 0.5, True),
        (at_most(0.5), 0.51, False),
        (at_most(0.5), 0.01, True),
    ],
)
def test_a_target_is_a_bound_that_may_be_touched(target: Target, ratio: float, met: bool) -> None:
    samples = {"ours": _quantities(ratio), "limit": _quantities(1)}
    (row, _) = make_rows(samples, [Comparison("ours", "limit", target)])
    assert row.met is met
    assert missed([row]) == ([] if met else [row])


def test_numbers_of_different_units_are_not_divided() -> None:
    samples = {"ours": _quantities(1), "limit": _quantities(1, unit="µs")}
    with pytest.raises(ValueError, match="no ratio"):
        make_rows(samples, [Comparison("ours", "limit")])


def test_a_measure_that_changes_its_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="changes its unit"):
        make_rows({"ours": [Quantity(1, "s"), Quantity(1, "ms")]})


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_sample_that_cannot_be_a_rate_or_a_time_fails_the_run(value: float) -> None:
    with pytest.raises(BenchError):
        Quantity(value, "MB/s")


# The table and the document.


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1_234_567.8, "1,234,568"),
        (123.4, "123"),
        (78.94, "78.9"),
        (4.5678, "4.57"),
        (0.5, "0.500"),
        (0.01234, "0.0123"),
        (0.0, "0.00"),
    ],
)
def test_numbers_keep_three_digits(value: float, text: str) -> None:
    assert format_number(value) == text


def test_the_table_is_aligned_and_a_missed_target_stands_out() -> None:
    rows = make_rows(SAMPLES, [Comparison("ours", "limit", at_least(0.6))])
    assert render_table(rows).splitlines() == [
        "name   value  unit  min..max    baseline  ratio  min..max      target  met     against",
        "-----  -----  ----  ----------  --------  -----  ------------  ------  ------  -------",
        "ours    20.0  MB/s  10.0..30.0      40.0  0.500  0.250..0.667  ≥ 0.6   MISSED  limit",
        "limit   40.0  MB/s  30.0..50.0",
    ]


def test_json_rows_have_the_agreed_keys_first() -> None:
    rows = make_rows(SAMPLES, [Comparison("ours", "limit", at_most(0.6))])
    document = json.loads(json.dumps(to_document("demo", {"cores": 2}, rows)))
    assert document["benchmark"] == "demo"
    assert document["meta"] == {"cores": 2}
    ours, limit = document["rows"]
    assert list(ours)[:7] == ["name", "value", "unit", "baseline", "ratio", "target", "met"]
    assert (ours["target"], ours["direction"], ours["met"]) == (0.6, "at_most", True)
    assert (ours["samples"], ours["spread"]) == ([30, 10, 20], [10, 30])
    assert [limit[key] for key in ("baseline", "ratio", "target", "met", "ratio_spread")] == [None] * 5


# Taking samples.


def test_every_other_round_goes_backwards() -> None:
    assert [order_of_round(3, index) for index in range(3)] == [[0, 1, 2], [2, 1, 0], [0, 1, 2]]


def _scripted(name: str, values: list[float], journal: list[str]) -> Measure:
    remaining = iter(values)

    def take() -> Quantity:
        journal.append(name)
        return Quantity(next(remaining), "MB/s")

    return Measure(name, take)


def test_contestants_are_interleaved() -> None:
    journal: list[str] = []
    measures = [_scripted("a", [1, 2, 3], journal), _scripted("b", [4, 5, 6], journal)]
    samples = take_samples(measures, repeats=3, progress=Progress("demo", io.StringIO()))
    assert journal == ["a", "b", "b", "a", "a", "b"]
    assert samples == {"a": _quantities(1, 2, 3), "b": _quantities(4, 5, 6)}


def test_progress_is_silent_when_nobody_watches() -> None:
    stream = io.StringIO()
    progress = Progress("demo", stream)
    progress.show(1, 2, "a")
    progress.clear()
    assert stream.getvalue() == ""


def test_progress_fits_the_terminal_and_leaves_no_trace() -> None:
    leader, follower = os.openpty()
    with open(follower, "w") as terminal:
        progress = Progress("demo", terminal)
        progress.show(3, 12, "a measure with a long name " * 20)
        progress.clear()
        written = ""
        while not written.endswith("\r\x1b[K"):  # a terminal hands over what is there, in as many pieces as it likes
            written += os.read(leader, 4096).decode()
    os.close(leader)
    assert "3/12" in written
    assert "######...." in written
    assert "\n" not in written


def test_a_plan_refuses_two_measures_of_one_name() -> None:
    with pytest.raises(ValueError, match="one name"):
        Plan(measures=[_scripted("a", [], []), _scripted("a", [], [])])


def test_a_plan_refuses_to_compare_what_it_does_not_measure() -> None:
    with pytest.raises(ValueError, match="not measured: limit"):
        Plan(measures=[_scripted("a", [], [])], comparisons=[Comparison("a", "limit")])


# The command line.


def _benchmark(seen: list[Settings], take: Callable[[], Quantity] | None = None) -> Prepare:
    """A benchmark whose ratio is 2, with a target of at least 3; `seen` gets its settings."""

    @contextmanager
    def prepare(settings: Settings) -> Iterator[Plan]:
        seen.append(settings)
        (settings.directory / "leftover").write_text("a file that the benchmark forgot")
        yield Plan(
            measures=[
                Measure("ours", take or (lambda: Quantity(2, "MB/s"))),
                Measure("limit", lambda: Quantity(1, "MB/s")),
            ],
            comparisons=[Comparison("ours", "limit", at_least(3))],
        )

    return prepare


def test_a_missed_target_is_named_and_fails_only_a_strict_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert harness.main("demo", None, _benchmark([]), ["--repeats", "1"]) == 0
    printed = capsys.readouterr().out
    assert "targets: 0 of 1 met" in printed
    assert "missed: ours: 2 × limit, the target is ≥ 3" in printed
    assert harness.main("demo", None, _benchmark([]), ["--repeats", "1", "--strict"]) == 1


def test_json_is_written_with_facts_about_the_machine(tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    assert harness.main("demo", None, _benchmark([]), ["--quick", "--json", str(target)]) == 0
    document = json.loads(target.read_text())
    meta = document["meta"]
    assert meta["repeats"] == harness.REPEATS_QUICK
    assert meta["quick"] is True
    assert {"commit", "cores", "kernel", "python", "filesystem"} <= meta.keys()
    assert [row["name"] for row in document["rows"]] == ["ours", "limit"]
    assert len(document["rows"][0]["samples"]) == harness.REPEATS_QUICK
    assert list(tmp_path.iterdir()) == [target]


def test_json_to_a_pipe_goes_into_the_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert harness.main("demo", None, _benchmark([]), ["--repeats", "1", "--json", str(pipe)]) == 0
    assert json.loads(os.read(reader, 65536))["benchmark"] == "demo"
    os.close(reader)
    assert pipe.is_fifo()


def test_files_go_where_dir_says_and_are_removed(tmp_path: Path) -> None:
    seen: list[Settings] = []
    assert harness.main("demo", None, _benchmark(seen), ["--repeats", "1", "--dir", str(tmp_path)]) == 0
    assert seen[0].directory.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_cleans_up_and_reports_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> Quantity:
        raise KeyboardInterrupt

    arguments = ["--dir", str(tmp_path), "--json", str(tmp_path / "rows.json")]
    assert harness.main("demo", None, _benchmark([], interrupted), arguments) == 130
    assert list(tmp_path.iterdir()) == []
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "interrupted" in captured.err


def test_a_run_that_is_told_to_end_cleans_up(tmp_path: Path) -> None:
    def terminated() -> Quantity:
        os.kill(os.getpid(), signal.SIGTERM)
        return Quantity(1, "MB/s")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as exit_info:
        harness.main("demo", None, _benchmark([], terminated), ["--dir", str(tmp_path)])
    assert exit_info.value.code == 143
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_benchmark_that_cannot_run_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Quantity:
        raise BenchError("the server did not start")

    assert harness.main("demo", None, _benchmark([], broken), []) == 3
    assert "demo: the server did not start" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--repeats", "0"], ["--dir", "/nonexistent"], ["--json", "/nonexistent/rows.json"], ["--json", "/"]],
)
def test_wrong_arguments_are_refused_before_anything_runs(arguments: list[str]) -> None:
    seen: list[Settings] = []
    with pytest.raises(SystemExit) as exit_info:
        harness.main("demo", None, _benchmark(seen), arguments)
    assert exit_info.value.code == 2
    assert seen == []


# The machine.


def test_the_file_system_of_a_folder_is_that_of_the_deepest_mount(tmp_path: Path) -> None:
    mounts = f"/dev/a / ext4 rw\nproc /proc proc rw\nb {tmp_path.resolve()} tmpfs rw\nshort\n"
    assert machine.file_system_of(tmp_path, mounts) == "tmpfs"
    assert machine.file_system_of(Path("/"), mounts) == "ext4"
    assert machine.file_system_of(tmp_path, "") == machine.UNKNOWN


# Children.


def test_a_child_ends_with_the_block_that_started_it() -> None:
    with processes.start("fileinput") as child:  # copies its input, until that ends
        process = child._process
        assert process.poll() is None
    assert process.returncode == 0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_processes_are_kept_apart_for_a_block() -> None:
    everywhere = os.sched_getaffinity(0)
    with subprocess.Popen(["sleep", "60"]) as first, subprocess.Popen(["sleep", "60"]) as second:
        try:
            with processes.apart(first.pid, [second.pid]):
                cores = [os.sched_getaffinity(each.pid) for each in (first, second)]
            assert [len(cores[0]), cores[0] & cores[1], cores[0] | cores[1]] == [1, set(), everywhere]
            assert [os.sched_getaffinity(each.pid) for each in (first, second)] == [everywhere] * 2
        finally:
            first.kill()
            second.kill()


def test_a_child_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "END_TIMEOUT_S", 0.1)
    with processes.start("timeit", "-n1", "-r1", "import time; time.sleep(600)") as child:
        process = child._process
    assert process.returncode == -signal.SIGKILL


def test_a_child_that_fails_is_an_error_and_not_a_hang(capfd: pytest.CaptureFixture[str]) -> None:
    with processes.start("tests.bench.no_such_module") as child, pytest.raises(BenchError, match="ended with"):
        child.read_line()
    assert "no_such_module" in capfd.readouterr().err


# Each limit, once.


@pytest.fixture(params=["C", "Python"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tcp_pair.TcpPair:
    if request.param == "Python":
        return tcp_pair.python_pair()
    built = tcp_pair.build(tmp_path)
    if built.language != "C":
        pytest.skip("no C compiler here")
    return built


def test_both_tcp_pairs_run(pair: tcp_pair.TcpPair) -> None:
    assert limits.tcp_bandwidth(pair, duration_s=0.02).unit == "MB/s"
    assert limits.tcp_bandwidth(pair, congestion="default", receive_buffer_bytes=0, duration_s=0.02).value > 0
    assert limits.tcp_ping_pong(pair, duration_s=0.02).unit == "µs"


def test_a_congestion_control_that_is_not_there_is_an_error(pair: tcp_pair.TcpPair) -> None:
    with pytest.raises(BenchError, match="pair that measures loopback TCP failed"):
        limits.tcp_bandwidth(pair, congestion="nonesuch", duration_s=0.02)


def test_limits_of_disk_and_memory_run_and_leave_no_files(tmp_path: Path) -> None:
    assert limits.page_cache_write(tmp_path, cached=False, size_bytes=limits.MIB).unit == "MB/s"
    assert limits.page_cache_write(tmp_path, cached=True, size_bytes=limits.MIB).unit == "MB/s"
    assert limits.claim_free_pages(size_bytes=limits.MIB).unit == "MB/s"
    assert limits.fdatasync_prewritten(tmp_path, count=2).unit == "µs"
    assert limits.fdatasync_fallocated(tmp_path, count=2).unit == "µs"
    assert limits.fdatasync_growing(tmp_path, count=2).unit == "µs"
    assert limits.memory_copy(size_bytes=limits.MIB, duration_s=0).unit == "MB/s"
    assert limits.crc32c_bandwidth(duration_s=0).unit == "MB/s"
    assert limits.crc32c_call(count=10).unit == "µs"
    assert list(tmp_path.iterdir()) == []


def test_a_benchmark_explains_itself() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.bench.limits", "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=machine.ROOT,
    )
    for option in ("--json", "--quick", "--repeats", "--strict", "--dir"):
        assert option in ran.stdout
