"""What a sweep promises about its rows: which there are, in which order, and what becomes of a point that fails."""

import json
import os
import pickle
import signal
import sqlite3
import subprocess
import sys

import pandas as pd
import pytest
from xstage.scenarios.study import load_study
from xstage.sim.errors import InputError, LimitError, XstageError
from xstage.sweeps.digest import model_sources
from xstage.sweeps.journal import FILE, Journal
from xstage.sweeps.pool import ProcessPool
from xstage.sweeps.run import prepare
from xstage.sweeps.task import Record

import xstage as xs

from .studies import ENDLESS, FAST, journal_rows, workers_of

REFUSED_WHEN_BUILT = """question: q?
scenario:
  question: q?
  machine: hgx-b200
  workload: {kind: tensor_parallel, operation: gemm_rs, m: 8192, n: 8192, k: 1001, policy: fused}
axes: {seed: [0]}
"""

LOADED_BY_A_TASK = """
import json, pickle, sys
from xstage.sweeps.task import compute

assert compute(pickle.load(sys.stdin.buffer)).ok
print(json.dumps([m.__file__ for name, m in sys.modules.items() if name.startswith("xstage") and m.__file__]))
"""


def without_times(frame):
    return frame.drop(columns=[name for name in frame.columns if name.startswith("timing.")])


def test_the_rows_are_the_same_whatever_the_number_of_workers(tmp_path):
    one = xs.sweep(FAST, tmp_path / "one", workers=1)
    two = xs.sweep(FAST, tmp_path / "two", workers=2)
    assert (one.points, one.done, one.failed, one.resumed) == (12, 12, 0, 0)
    pd.testing.assert_frame_equal(without_times(one.frame), without_times(two.frame))
    assert list(two.frame["point"]) == list(range(12))
    assert list(two.frame["workload.burst_bytes"][:5]) == [1024, 2048, 3072, 4096, 1024]


def test_a_row_says_what_a_run_of_its_point_says(tmp_path):
    row = xs.sweep(FAST, tmp_path, workers=1).frame.iloc[7]
    alone = xs.run(FAST["scenario"], overrides={"workload.producers": 2, "workload.burst": "4 KiB"})
    assert row["makespan_us"] == alone.makespan_us
    assert row["roles.producer.stall_mean_us"] == alone.metrics["roles"]["producer"]["stall_mean_us"]


def test_a_second_sweep_into_the_same_folder_computes_nothing(tmp_path):
    first = xs.sweep(FAST, tmp_path, workers=2)
    again = xs.sweep(FAST, tmp_path, workers=2)
    assert (again.done, again.resumed) == (12, 12)
    pd.testing.assert_frame_equal(first.frame, again.frame)


def test_a_study_that_has_grown_computes_only_what_is_new(tmp_path):
    xs.sweep(FAST, tmp_path, workers=1)
    grown = FAST | {"axes": FAST["axes"] | {"workload.producers": [1, 2, 3, 4]}}
    again = xs.sweep(grown, tmp_path, workers=1)
    assert (again.points, again.done, again.resumed) == (16, 16, 12)


def test_another_study_into_the_same_folder_is_refused_and_leaves_its_points(tmp_path):
    first = xs.sweep(FAST | {"name": "first"}, tmp_path / "named", workers=1)
    with pytest.raises(InputError, match="has the points of another study, first"):
        xs.sweep(FAST | {"name": "second", "axes": {"workload.producers": [3]}}, tmp_path / "named", workers=1)
    assert len(first.frame) == 12
    xs.sweep(FAST, tmp_path / "unnamed", workers=1)
    with pytest.raises(InputError, match=r"another study, asking 'q\?'"):
        xs.sweep(FAST | {"question": "Another one?"}, tmp_path / "unnamed", workers=1)


def test_points_that_are_the_same_scenario_are_computed_once(tmp_path):
    twice = FAST | {"axes": {"question": ["a?", "b?"], "workload.producers": [1, 2]}}
    found = xs.sweep(twice, tmp_path, workers=1)
    assert (found.points, found.done) == (4, 4)
    assert len(journal_rows(tmp_path)) == 2


def test_a_point_that_cannot_be_is_a_row_with_its_error(tmp_path):
    bad = FAST | {
        "axes": {"workload.producers": [149, 2], "workload.gap": ["0 us", "4000000 s"]},
        "overrides": {"workload.bursts": 2},
    }
    found = xs.sweep(bad, tmp_path, workers=1)
    frame = found.frame
    assert (found.points, found.done, found.failed) == (4, 1, 3)
    assert list(frame["error_type"].fillna("")) == ["InputError", "InputError", "", "LimitError"]
    assert "149" in frame["error"][0]
    assert frame["makespan_us"].notna().tolist() == [False, False, True, False]
    assert xs.sweep(bad, tmp_path, workers=1).resumed == 4


def test_a_point_that_takes_too_long_is_given_up_and_tried_again_by_the_next_sweep(tmp_path):
    found = xs.sweep(ENDLESS, tmp_path, workers=1, timeout_s=2)
    assert list(found.frame["error_type"].fillna("")) == ["", "Timeout", ""]
    assert "longer than 2 s" in found.frame["error"][1]
    assert xs.sweep(ENDLESS, tmp_path, workers=1, timeout_s=1).resumed == 2


def test_a_worker_that_dies_costs_the_point_it_was_at(tmp_path):
    study = load_study(ENDLESS)
    quick, endless, last = (prepare(study, point) for point in study.points())
    found = {}
    for records in ProcessPool(1, compiled=False).run(iter([quick, endless, last])):
        found |= {record.key: record for record in records}
        if quick.key in found and not records and endless.key not in found:
            for worker in workers_of(os.getpid()):
                os.kill(worker, signal.SIGKILL)
    assert found[quick.key].ok and found[last.key].ok
    assert found[endless.key].error_type == "WorkerDied"
    assert "killed by signal 9" in found[endless.key].error


def test_memory_limits_the_workers_or_refuses(tmp_path):
    assert xs.sweep(FAST, tmp_path / "fits", workers=2, max_memory="4 GiB").done == 12
    with pytest.raises(LimitError) as caught:
        xs.sweep(FAST, tmp_path / "tight", workers=2, max_memory="60 MiB")
    assert "60 MiB" in str(caught.value)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"workers": 0}, "workers = 0: must be at least 1"),
        ({"timeout_s": 0}, "is not a time limit"),
        ({"max_memory": "many"}, "is not a size"),
        ({"dask": "tcp://127.0.0.1:1", "workers": 2}, "workers: has no meaning with a Dask cluster"),
    ],
)
def test_options_that_mean_nothing_are_refused(tmp_path, options, said):
    with pytest.raises(InputError) as caught:
        xs.sweep(FAST, tmp_path / "out", **options)
    assert said in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_an_axis_may_not_have_the_name_of_a_metric(tmp_path):
    axes = {"makespan": {"path": "workload.gap", "values": ["1 us", "2 us"]}}
    with pytest.raises(InputError) as caught:
        xs.sweep(FAST | {"axes": axes}, tmp_path, workers=1)
    assert "is the name of a metric" in str(caught.value)


def test_one_sweep_at_a_time_holds_a_folder(tmp_path):
    with Journal(tmp_path), pytest.raises(InputError) as caught:
        xs.sweep(FAST, tmp_path)
    assert "is in use by another sweep" in str(caught.value)


def test_a_file_that_is_no_journal_is_left_alone(tmp_path):
    (tmp_path / FILE).write_text("my notes " * 100)
    with pytest.raises(InputError) as caught:
        xs.sweep(FAST, tmp_path)
    assert "is no journal of a sweep" in str(caught.value)
    assert (tmp_path / FILE).read_text().startswith("my notes")


def test_a_damaged_journal_is_refused_by_its_name(tmp_path):
    xs.sweep(FAST, tmp_path, workers=1)
    whole = (tmp_path / FILE).read_bytes()
    page = 4096
    damaged = {
        "every record": whole[: 2 * page] + bytes(len(whole) - 2 * page),
        "a page that is missing": whole[: len(whole) - page],
        "a record that is no JSON": whole.replace(b'{"', b'x"'),
    }
    for what, content in damaged.items():
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(InputError, match="is no journal of a sweep that can be read") as caught:
            xs.sweep(FAST, tmp_path, workers=1)
        assert caught.value.value == str(tmp_path / FILE), what


def test_the_journal_refuses_a_second_record_of_a_point(tmp_path):
    with Journal(tmp_path) as journal:
        journal.add([Record("a", {"ops": 1})], "first")
        with pytest.raises(XstageError) as caught:
            journal.add([Record("a", {"ops": 2})], "second")
    assert "computed twice" in str(caught.value)


def test_a_journal_of_a_later_format_is_refused(tmp_path):
    Journal(tmp_path).close()
    base = sqlite3.connect(tmp_path / FILE)
    base.execute("PRAGMA user_version = 99")
    base.close()
    with pytest.raises(InputError) as caught:
        Journal(tmp_path)
    assert "its format is 99" in str(caught.value)


def test_the_estimate_counts_what_is_left_and_writes_nothing(tmp_path):
    found = xs.estimate(FAST, tmp_path / "none")
    assert (found.points, found.to_run, found.sample_failed) == (12, 12, 0)
    assert found.ops == pytest.approx(12 * (1 + 2 + 4) / 3, rel=0.5)
    assert found.memory_bytes > 20 * 2**20 and found.wall_s > 0
    assert not (tmp_path / "none").exists()
    xs.sweep(FAST, tmp_path / "done", workers=1)
    done = xs.estimate(FAST, tmp_path / "done")
    assert (done.to_run, done.sampled, done.ops) == (0, 0, 0)


def test_the_estimate_says_why_points_fail(tmp_path):
    found = xs.estimate(FAST | {"axes": {"workload.producers": [2, 149]}})
    assert (found.sampled, found.sample_failed) == (2, 1)
    assert found.first_error.startswith("InputError: ") and "149" in found.first_error
    assert dict(found.facts())["the first error"] == found.first_error


def test_an_error_of_a_worker_says_file_and_line(tmp_path):
    """What only the schedule itself can refuse: the scenario's keys are fine one by one."""
    file = tmp_path / "study.yaml"
    file.write_text(REFUSED_WHEN_BUILT)
    with pytest.raises(InputError) as alone:
        study = load_study(file)
        study.resolve(next(study.points())).program()
    [said] = xs.sweep(file, tmp_path / "out", workers=1).frame["error"]
    assert said == str(alone.value)
    assert said.startswith(f"{file}:5: workload.")


def test_every_module_that_a_task_runs_is_in_the_digest():
    """All that is loaded once a task is done, in a process that does nothing else; a package's description says nothing."""
    study = load_study(FAST)
    task = pickle.dumps(prepare(study, next(study.points())))
    words = [sys.executable, "-c", LOADED_BY_A_TASK]
    done = subprocess.run(words, input=task, capture_output=True, check=True)
    loaded = {name for name in json.loads(done.stdout) if not name.endswith("__init__.py")}
    assert {os.path.basename(name) for name in loaded} > {"task.py", "loads.py", "engine_simpy.py"}
    assert loaded <= {str(file) for _, file in model_sources()}


def test_changed_sources_of_the_model_make_every_point_new(changed_model, tmp_path):
    xs.sweep(FAST, tmp_path / "out", workers=1)
    code = "import json, sys, xstage as xs; print(xs.sweep(json.loads(sys.argv[1]), sys.argv[2], workers=1).resumed)"
    words = [sys.executable, "-c", code, json.dumps(FAST), str(tmp_path / "out")]
    done = subprocess.run(words, env=os.environ | changed_model, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "0\n", done.stderr
    assert len(journal_rows(tmp_path / "out")) == 24


def test_three_hundred_points_in_the_compiled_engine(tmp_path):
    axes = {
        "producers": {"path": "workload.producers", "range": {"start": 1, "stop": 148, "points": 30}},
        "rate": {
            "path": "machine.interconnect.drain_rate",
            "range": {"start": "100 GB/s", "stop": "1 TB/s", "points": 10},
        },
    }
    study = {"question": "q?", "scenario": "isolated-burst", "axes": axes}
    found = xs.sweep(study, tmp_path, workers=2)
    assert (found.points, found.done) == (300, 300)
    frame = found.frame
    assert (frame["bytes_stored"] == frame["producers"] * 48 * 1024).all()
    stall = frame.pivot(index="producers", columns="rate_gbs", values="stall_total_us")
    assert (stall.diff(axis="columns").iloc[:, 1:] <= 1e-9).all(
        axis=None
    )  # a faster drain never makes a burst wait longer
    assert xs.sweep(study, tmp_path, workers=2).resumed == 300


def test_points_with_a_changed_link_name_the_collective_that_stayed(tmp_path):
    study = {
        "name": "s",
        "question": "q?",
        "scenario": "gemm-rs-llama-serial",
        "overrides": {"workload.m": 1024},
        "axes": {"link": {"path": "machine.interconnect.drain_rate", "values": ["350 GB/s", "700 GB/s"]}},
    }
    done = xs.sweep(study, tmp_path / "out", workers=1)
    assert done.failed == 0, done.frame
    [said] = done.cautions()
    assert "ring_rate = 371 GB/s" in said and said.endswith("(1 of 2 points)")


def test_memory_for_no_process_and_no_address_are_refused(tmp_path):
    for option, reason in (({"max_memory": "0"}, "is no room for a process"), ({"dask": ""}, "is no address")):
        with pytest.raises(InputError, match=reason):
            xs.sweep(FAST, tmp_path, **option)
