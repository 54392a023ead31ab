"""The file of samples: everything written is read back; and the picture that is drawn from it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from neve.client.command import plot
from neve.client.command.core_statistics import Recorder, Sample
from neve.client.command.failures import CommandFailed
from neve.client.command.samples import BadSampleFile, SampleFile, SampleWriter

SAMPLES = [
    Sample(0.1, 1_000_000, 1, 1024),
    Sample(0.25, 2_500_000, 10, 10_240),
    Sample(1.5, 5_000_000_000, 1, 0, "ConnectionLost"),
    Sample(2.75, 123_456_789, 3, 99),
]


def write(path: Path, samples: list[Sample]) -> Path:
    recorder = Recorder()
    with SampleWriter(path, kind="wbench", options={"size": 1024, "sync": True}) as writer:
        for sample in samples:
            writer.add(sample)
            recorder.add(sample)
        writer.finish(recorder.report(3.0))
    return path


def picture(files: list[Path], output: Path) -> int:
    return plot.run(argparse.Namespace(files=files, output=output))


def test_every_sample_is_read_back_with_the_options_of_the_run(tmp_path: Path) -> None:
    file = SampleFile.open(write(tmp_path / "run.json", SAMPLES))
    assert (file.kind, file.options) == ("wbench", {"size": 1024, "sync": True})
    assert list(file.samples()) == SAMPLES


def test_a_file_that_was_cut_short_reads_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path = write(tmp_path / "run.json", SAMPLES)
    whole = path.read_text()
    path.write_text(whole[: whole.index("[2.75") + 9])
    assert list(SampleFile.open(path).samples()) == SAMPLES[:3]


@pytest.mark.parametrize("text", ["", "hello\n", "[1, 2, 3, 4]\n", '{"report": {}}\n', "\x00\xff"])
def test_another_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(BadSampleFile, match=r"other\.json is not a file of samples"):
        SampleFile.open(path)


def test_a_newer_format_and_a_damaged_line_are_refused(tmp_path: Path) -> None:
    newer = tmp_path / "newer.json"
    newer.write_text('{"neve_samples": 2}\n')
    with pytest.raises(BadSampleFile, match="format 2"):
        SampleFile.open(newer)
    damaged = write(tmp_path / "damaged.json", SAMPLES)
    damaged.write_text(damaged.read_text().replace("[1.5", '["x'))
    with pytest.raises(BadSampleFile, match="line 4"):
        list(SampleFile.open(damaged).samples())


def test_the_timeline_has_every_operation_in_its_interval_and_the_idle_ones_too(tmp_path: Path) -> None:
    timeline = plot.Timeline(interval_s=1.0)
    timeline.add_file(SampleFile.open(write(tmp_path / "run.json", SAMPLES)))
    intervals = timeline.intervals()
    assert [interval.operations for interval in intervals] == [11, 0, 3]
    assert [interval.errors for interval in intervals] == [0, 1, 0]
    assert [interval.latency_ns.count for interval in intervals] == [11, 0, 3]


def test_a_long_run_gets_longer_intervals_and_loses_nothing(tmp_path: Path) -> None:
    samples = [Sample(float(at_s), at_s, 1, 10) for at_s in range(0, 10_000, 3)]
    timeline = plot.Timeline(interval_s=0.1, intervals_max=50)
    timeline.add_file(SampleFile.open(write(tmp_path / "long.json", samples)))
    intervals = timeline.intervals()
    assert len(intervals) <= 50
    assert sum(interval.operations for interval in intervals) == len(samples)
    assert sum(interval.latency_ns.count for interval in intervals) == len(samples)
    assert intervals[-1].start_s <= samples[-1].at_s < intervals[-1].start_s + intervals[-1].length_s


def test_plot_draws_a_png_of_several_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    files = [write(tmp_path / name, SAMPLES) for name in ("one.json", "two.json")]
    output = tmp_path / "out.png"
    assert picture(files, output) == 0
    assert output.read_bytes().startswith(b"\x89PNG\r\n")
    assert len(output.read_bytes()) > 5_000
    assert "2 runs" in capsys.readouterr().out


def test_without_matplotlib_plot_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    with pytest.raises(CommandFailed, match=r"^plot needs matplotlib: pip install 'neve\[plot\]'$"):
        picture([write(tmp_path / "run.json", SAMPLES)], tmp_path / "out.png")


def test_plot_says_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(CommandFailed, match="no samples"):
        picture([write(tmp_path / "empty.json", [])], tmp_path / "out.png")
    with pytest.raises(OSError, match="No such file"):
        picture([tmp_path / "missing.json"], tmp_path / "out.png")
    assert not (tmp_path / "out.png").exists()
