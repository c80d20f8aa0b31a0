"""The contract of `xstage sweep`: agreed fields, exit codes, and progress that leaves standard output alone."""

import re
import subprocess
import sys

import pandas as pd
import pytest

import xstage as xs
from xstage.cli import main

STUDY = """question: How long do small bursts take?
scenario: isolated-burst
overrides: {engine: simpy}
axes:
  workload.producers: [1, 2, PRODUCERS]
  workload.burst: [1 KiB, 2 KiB]
"""


@pytest.fixture
def study(tmp_path):
    def write(producers=4):
        file = tmp_path / "mine.yaml"
        file.write_text(STUDY.replace("PRODUCERS", str(producers)))
        return str(file)

    return write


def test_it_answers_with_the_agreed_fields(answer, study, tmp_path):
    words = ("sweep", study(), "-o", str(tmp_path / "out"), "--workers", "1")
    code, found = answer(*words)
    assert code == 0
    assert (found["points"], found["done"], found["failed"], found["resumed"]) == (6, 6, 0, 0)
    assert found["schema_version"] == 1 and found["timing"]["wall_s"] > 0
    assert len(pd.read_parquet(found["table"])) == 6
    assert answer(*words)[1]["resumed"] == 6


def test_points_that_fail_are_shown_and_are_no_failure_of_the_sweep(study, tmp_path, capsys):
    code = main(["sweep", study(149), "-o", str(tmp_path / "out"), "--workers", "1"])
    out = capsys.readouterr().out
    assert code == 0
    assert out.startswith("mine: How long do small bursts take?\n")
    assert out.count("mine.yaml:5: workload.producers = 149") == 1
    lines = [line.split() for line in out.splitlines()]
    assert [*lines[lines.index(["what", "failed"]) + 2][:3]] == ["2", "4", "InputError"]  # points, the first, the error
    assert out.splitlines()[-1] == "2 points of 6 failed; the others are complete, so the exit code is 0."


def test_the_page_of_a_sweep_has_each_error_once_with_its_points(study, tmp_path):
    xs.sweep(study(149), tmp_path / "out", workers=1)
    xs.report(tmp_path / "out", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert text.count("mine.yaml:5: workload.producers = 149") == 1
    row = re.search(r"<tr[^>]*>((?:(?!</tr>).)*workload.producers = 149.*?)</tr>", text, re.DOTALL)[1]
    assert re.findall(r"<td[^>]*>([^<]*)", row)[:3] == ["2", "4", "InputError"]


def test_a_small_study_is_a_table_of_its_axes_and_its_metric(study, tmp_path, capsys):
    assert main(["sweep", study(149), "-o", str(tmp_path / "out"), "--workers", "1", "--metric", "stall_total_us"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    first = lines.index(["workload.producers", "workload.burst_bytes", "stall_total_us"])
    assert lines[first + 1 : first + 7] == [
        *([producers, size, "0.000"] for producers in "12" for size in ("1024", "2048")),
        *(["149", size] for size in ("1024", "2048")),
    ]


def test_a_metric_of_a_role_that_no_point_has_is_named(study, tmp_path, capsys):
    words = ["sweep", study(), "-o", str(tmp_path / "out"), "--workers", "1", "--metric", "roles.producer.stal_mean_us"]
    assert main(words) == 0
    said = "no point has the metric roles.producer.stal_mean_us; did you mean 'roles.producer.stall_mean_us'?"
    assert said in capsys.readouterr().err


def test_a_metric_that_there_is_not_ends_the_sweep_after_a_point(answer, study, tmp_path):
    out = tmp_path / "out"
    words = ("sweep", study(), "-o", str(out), "--workers", "1")
    said = "metric = 'makespan': is no number of these points; did you mean 'makespan_us'?"
    code, found = answer(*words, "--metric", "makespan")
    assert code == 2 and said in found["error"]["message"]
    assert len(pd.read_parquet(out / "points.parquet")) < 6
    assert answer(*words)[0] == 0
    code, found = answer(*words, "--metric", "makespan")
    assert code == 2 and said in found["error"]["message"]


def test_the_estimate_prints_the_first_error(study, capsys):
    assert main(["sweep", study(149), "--estimate"]) == 0
    assert "the first error  InputError: " in capsys.readouterr().out


def test_another_study_does_not_replace_the_points(answer, study, tmp_path):
    out = str(tmp_path / "out")
    assert answer("sweep", study(), "-o", out, "--workers", "1")[0] == 0
    other = tmp_path / "other.yaml"
    other.write_text(STUDY.replace("PRODUCERS", "3"))
    code, found = answer("sweep", str(other), "-o", out)
    assert code == 2 and "has the points of another study, mine" in found["error"]["message"]
    assert len(pd.read_parquet(tmp_path / "out" / "points.parquet")) == 6


def test_a_bad_study_is_exit_code_2_with_file_and_line(answer, study, tmp_path):
    file = study("'many'")
    code, found = answer("sweep", file, "-o", str(tmp_path / "out"), "--workers", "1")
    assert code == 0 and found["failed"] == 2  # one bad value is a bad point
    (tmp_path / "mine.yaml").write_text(STUDY.replace("workload.burst", "workload.brust"))
    code, found = answer("sweep", file, "-o", str(tmp_path / "out"))
    assert code == 2
    assert (found["error"]["file"], found["error"]["line"]) == (file, 6)


def test_the_estimate_needs_no_folder(answer, study, capsys):
    code, found = answer("sweep", study(), "--estimate")
    assert code == 0
    assert found["estimate"].keys() >= {"points", "to_run", "ops", "wall_s", "memory_bytes"}
    assert main(["sweep", study(), "--estimate"]) == 0
    assert "6, of which 6 are to be run" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options, said",
    [
        ((), "-o DIR"),
        (("--estimate", "--dask", "tcp://nowhere:1"), "--dask: does not go with --estimate"),
        (("--estimate", "--timeout", "1"), "--timeout: does not go with --estimate"),
        (("--estimate", "--max-memory", "1 GiB"), "--max-memory: does not go with --estimate"),
        (("--estimate", "--plot", "x.png"), "--plot: does not go with --estimate"),
        (("--estimate", "--metric", "makespan_us"), "--metric: does not go with --estimate"),
        (("-o", ""), "output = '': is no folder"),
        (("-o", "out", "--workers", "0"), "workers = 0"),
        (("-o", "out", "--max-memory", "much"), "--max-memory = 'much': is not a size"),
        (("-o", "out", "--max-memory", "0"), "--max-memory = '0': is no room for a process"),
        (("-o", "out", "--dask", ""), "dask = '': is no address"),
        (("-o", "/proc/nowhere",), "cannot be written"),
    ],
)  # fmt: skip
def test_bad_options_are_exit_code_2(answer, study, options, said):
    code, found = answer("sweep", study(), *options)
    assert code == 2
    assert said in found["error"]["message"]


def test_a_study_is_listed_and_shown(answer, capsys):
    names = [entry["name"] for entry in answer("scenarios")[1]["studies"]]
    assert "drain-rate-without-stall" in names
    assert main(["scenarios", "show", "drain-rate-without-stall"]) == 0
    assert capsys.readouterr().out.startswith("question: ")


def test_it_may_be_started_from_a_script_that_python_reads_from_standard_input(tmp_path, study):
    """Worker processes do not load the caller's main module again."""
    code = f"import xstage as xs\nprint(xs.sweep({study()!r}, {str(tmp_path / 'out')!r}, workers=2).done)\n"
    done = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True)
    assert done.stdout == "6\n", done.stderr
