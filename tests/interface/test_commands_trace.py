"""`xstage run --trace FILE` and `xstage import FILE -o TRACE`, as a person or a script calls them."""

import json
import os

import numpy as np
import pandas as pd
import pytest
from xstage.plots.traces import write

import xstage as xs
from xstage.cli import main
from xstage.commands import trace as commands_trace


@pytest.mark.parametrize("suffix", ["parquet", "pftrace", "json"])
def test_run_writes_the_trace_that_the_suffix_asks_for(tmp_path, capsys, suffix):
    file = tmp_path / f"trace.{suffix}"
    assert main(["run", "isolated-burst", "--trace", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trace"] == str(file)
    assert file.stat().st_size > 1000


def test_another_suffix_is_refused_before_anything_runs(tmp_path, capsys):
    assert main(["run", "isolated-burst", "--trace", str(tmp_path / "trace.csv")]) == 2
    assert "has no suffix that can be written (allowed: .parquet, .pftrace, .json)" in capsys.readouterr().err


def test_an_empty_name_is_said_to_be_none(capsys):
    assert main(["run", "isolated-burst", "--trace", ""]) == 2
    assert capsys.readouterr().err == "xstage: --trace: names no file (allowed: .parquet, .pftrace, .json)\n"


def test_a_place_that_no_file_can_take_is_refused_before_anything_runs(tmp_path, capsys):
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "file").touch()
    for name in ("folder.json", "file/trace.json", "x" * 300 + ".json"):
        assert main(["run", "isolated-burst", "--trace", str(tmp_path / name), "--json"]) == 2
        assert json.loads(capsys.readouterr().out)["error"]["field"] == "--trace"


def test_a_large_trace_is_announced_with_its_size(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(write, "LARGE_BYTES", 1000)
    file = tmp_path / "trace.json"
    assert main(["run", "isolated-burst", "--trace", str(file)]) == 0
    assert f"Writing {file}, about 0 MB" in capsys.readouterr().err


@pytest.fixture
def profile(tmp_path):
    """A torch.profiler file with two kernels on one stream."""
    kernels = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "pid": 1,
            "tid": 7,
            "ts": ts,
            "dur": 3,
            "args": {"device": 1, "stream": 7},
        }
        for name, ts in (("gemm", 100), ("combine", 110))
    ]
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"traceEvents": kernels}))
    return file


def test_import_writes_an_op_table_and_says_what_takes_longest(tmp_path, profile, capsys):
    file = tmp_path / "trace.parquet"
    assert main(["import", str(profile), "-o", str(file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["format"], answer["ops"], answer["lanes"], answer["gpus"]) == ("kineto", 2, 1, 1)
    assert answer["makespan_us"] == 13.0
    assert answer["names"][0] == {"name": "combine", "ops": 1, "total_us": 3.0, "median_us": 3.0}
    assert pd.read_parquet(file)["name"].tolist() == ["gemm", "combine"]


def test_a_name_with_a_line_break_stays_on_its_row(tmp_path, profile, capsys):
    profile.write_text(profile.read_text().replace("combine", "my\\ncombine"))
    assert main(["import", str(profile)]) == 0
    assert "my combine" in capsys.readouterr().out


def test_an_imported_table_goes_on_to_perfetto(tmp_path, profile, capsys):
    for source, target in ((profile, "a.parquet"), (tmp_path / "a.parquet", "a.pftrace")):
        assert main(["import", str(source), "-o", str(tmp_path / target)]) == 0
    assert "2 on 1 lane of 1 GPU" in capsys.readouterr().out
    assert (tmp_path / "a.pftrace").stat().st_size > 100


def test_names_of_a_flashinfer_buffer_are_given_on_the_command_line(tmp_path, capsys):
    entries = [1 << 32 | 1, 1_000 << 32 | 0, 4_000 << 32 | 1]
    np.save(tmp_path / "buffer.npy", np.array(entries, dtype=np.uint64))
    arguments = [
        "import",
        str(tmp_path / "buffer.npy"),
        "-o",
        str(tmp_path / "t.parquet"),
        "--event-names",
        "mma",
        "--json",
    ]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["names"] == [
        {"name": "mma", "ops": 1, "total_us": 3.0, "median_us": 3.0}
    ]


def test_a_bad_input_is_one_error_object(tmp_path, capsys):
    assert main(["import", str(tmp_path / "none.sqlite"), "-o", str(tmp_path / "t.parquet"), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["reason"].startswith("cannot be read") and error["file"].endswith("none.sqlite")


@pytest.mark.parametrize(
    "words, name",
    [
        (["import", "FILE", "-o"], "profile.json"),
        (["import", "other.json", "--beside", "FILE", "-o"], "scenario.json"),
        (["import", "FILE", "--beside", "isolated-burst", "--ops"], "ops.parquet"),
        (["run", "FILE", "--trace"], "scenario.json"),
    ],
)
def test_a_file_that_is_read_is_not_written(tmp_path, capsys, words, name):
    file, link = tmp_path / name, tmp_path / f"link-{name}"
    file.write_text("as it was")
    link.symlink_to(file)
    for output in (file, link):
        assert main([*(word.replace("FILE", str(file)) for word in words), str(output), "--json"]) == 2
        error = json.loads(capsys.readouterr().out)["error"]
        assert (error["field"], error["reason"]) == (words[-1], "is the file that is read")
        assert file.read_text() == "as it was"


def test_two_outputs_are_two_files(tmp_path, capsys):
    both = str(tmp_path / "both.parquet")
    assert main(["import", "profile.json", "--beside", "isolated-burst", "-o", both, "--ops", both]) == 2
    assert "--ops: is the file of -o too" in capsys.readouterr().err


def test_a_pipe_cannot_be_imported(capsys):
    assert main(["import", os.devnull]) == 2
    assert "is a pipe or a device (allowed: the name of a file)" in capsys.readouterr().err


def test_a_table_of_something_else_is_refused(tmp_path, capsys):
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    assert main(["import", str(tmp_path / "other.parquet"), "-o", str(tmp_path / "t.parquet")]) == 2
    assert "op table = 'gpu': is no column of it" in capsys.readouterr().err
    assert not (tmp_path / "t.parquet").exists()


def test_the_summary_of_an_empty_table_is_empty():
    table = pd.DataFrame({name: [] for name in ("gpu", "lane", "kind", "start_us", "end_us")})
    assert commands_trace._summary(table)["names"] == []


def test_one_gpu_of_a_run_is_written_alone(tmp_path, capsys):
    file = tmp_path / "one.parquet"
    small = ["run", "uniform-all-to-all", "--set", "workload.producers=2", "--engine", "simpy"]
    assert main([*small, "--trace", str(file), "--gpu", "3"]) == 0
    assert set(pd.read_parquet(file)["gpu"]) == {3}
    assert main([*small, "--trace", str(file), "--gpu", "8"]) == 2
    assert main([*small, "--gpu", "1"]) == 2
    said = capsys.readouterr().err
    assert "--gpu = 8: is not a GPU of this run (allowed: 0 to 7)" in said and "needs --trace FILE" in said


@pytest.mark.parametrize("suffix", ["pftrace", "json"])
def test_the_share_that_is_written_is_reported(tmp_path, suffix):
    shares = []
    trace = xs.run("isolated-burst", overrides={"workload.producers": 4}, engine="simpy", trace="full").trace
    xs.write_trace(trace, tmp_path / f"t.{suffix}", shares.append)
    assert shares and shares == sorted(shares) and shares[-1] == 1.0
