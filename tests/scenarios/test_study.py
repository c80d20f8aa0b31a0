"""What a study file means: which points there are, in which order, and where an error is said to be."""

import numpy as np
import pytest
from xstage.scenarios.catalogue import entries, find
from xstage.scenarios.study import load_study
from xstage.scenarios.study_values import Range, comparable, condition
from xstage.sim.checked import check
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate

STUDIES = [entry.name for entry in entries("study")]


def study(axes, **more):
    return load_study({"question": "q?", "scenario": "isolated-burst", "axes": axes, **more})


def rows(loaded):
    return [tuple(loaded.cells(point).values()) for point in loaded.points()]


def values(**written):
    return check(Range, written).values()


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_of_the_catalogue_asks_a_question_and_each_point_has_a_scenario(name):
    loaded = load_study(name)
    assert loaded.study.question.endswith("?")
    for point in loaded.points():
        loaded.resolve(point).fabric()


def test_axes_are_crossed_and_the_last_changes_fastest():
    loaded = study({"workload.producers": [1, 2], "workload.burst": ["1 KiB", "2 KiB"]})
    assert rows(loaded) == [(1, 1024), (1, 2048), (2, 1024), (2, 2048)]
    assert [point.number for point in loaded.points()] == [0, 1, 2, 3]
    assert loaded.resolve(list(loaded.points())[3]).scenario.workload.burst == 2048


def test_an_axis_may_be_an_array_of_numpy():
    assert rows(study({"workload.producers": np.arange(1, 3), "seed": list(np.arange(2))})) == [
        (1, 0), (1, 1), (2, 0), (2, 1),
    ]  # fmt: skip


RATE = {"machine.interconnect.drain_rate": ["50 GB/s", "100 GB/s"]}
MACHINES = {"machine": ["hgx-h100", "hgx-b200"]}


@pytest.mark.parametrize(
    ("axes", "more", "rates"),
    [
        (RATE | MACHINES, {}, [50, 50, 100, 100]),
        (MACHINES, {"overrides": {"machine.interconnect.drain_rate": "50 GB/s"}}, [50, 50]),
    ],
)
def test_a_number_is_set_on_the_machine_of_the_point(axes, more, rates):
    """Whichever is written first."""
    loaded = study({**axes, "workload.producers": [1]}, **more)
    machines = [loaded.resolve(point).machine for point in loaded.points()]
    assert [machine.interconnect.drain_rate.value for machine in machines] == [rate * 1_000_000 for rate in rates]


def test_zipped_axes_move_together():
    axes = {"workload.producers": [1, 2], "seed": [7, 8], "workload.burst": ["1 KiB", "2 KiB"]}
    loaded = study(axes, zip=[["workload.producers", "workload.burst"]])
    assert rows(loaded) == [(1, 7, 1024), (1, 8, 1024), (2, 7, 2048), (2, 8, 2048)]


def test_filters_keep_what_matches_an_include_and_no_exclude():
    axes = {"producers": {"path": "workload.producers", "values": [1, 2, 4]}, "workload.burst": ["1 KiB", "2 KiB"]}
    include = [{"producers": "<= 2"}, {"workload.burst": "2048 B"}]
    loaded = study(axes, include=include, exclude=[{"producers": [2, 4], "workload.burst": ">= 2 KiB"}])
    assert rows(loaded) == [(1, 1024), (1, 2048), (2, 1024)]
    assert [point.number for point in loaded.points()] == [0, 1, 2]


def test_a_column_of_quantities_has_their_unit_in_its_name():
    axes = {
        "rate": {"path": "machine.interconnect.drain_rate", "values": ["358 GB/s", "1 TB/s"]},
        "workload.gap": [0, "500 ns"],
        "workload.mode": ["isolated", "free_running"],
    }
    loaded = study(axes)
    assert [axis.column for axis in loaded.axes] == ["rate_gbs", "workload.gap_us", "workload.mode"]
    assert rows(loaded)[-1] == (1000.0, 0.5, "free_running")


def test_overrides_hold_for_every_point():
    loaded = study({"seed": [1, 2]}, overrides={"workload.producers": 3})
    assert {loaded.resolve(point).scenario.workload.producers for point in loaded.points()} == {3}


@pytest.mark.parametrize(
    "written, expected",
    [
        ({"start": 1, "stop": 7, "step": 2}, [1, 3, 5, 7]),
        ({"start": 1, "stop": 8, "step": 2}, [1, 3, 5, 7]),
        ({"start": 0.1, "stop": 0.3, "step": 0.1}, [0.1, 0.2, 0.3]),
        ({"start": 8, "stop": 2, "step": -3}, [8, 5, 2]),
        ({"start": 1, "stop": 100, "points": 3, "scale": "log"}, [1, 10, 100]),
        ({"start": 1, "stop": 3, "points": 9}, [1, 2, 3]),
        ({"start": "1 MiB", "stop": "2 MiB", "step": "512 KiB"}, ["1 MiB", "1.5 MiB", "2 MiB"]),
        ({"start": "100 GB/s", "stop": "400 GB/s", "points": 3, "scale": "log"}, ["100 GB/s", "200 GB/s", "400 GB/s"]),
        ({"start": 0, "stop": "2 us", "points": 3}, ["0 ps", "1 us", "2 us"]),
        ({"start": 5, "stop": 9, "points": 1}, [5]),
    ],
)
def test_ranges(written, expected):
    assert values(**written) == expected


@pytest.mark.parametrize(
    "written, said",
    [
        ({"start": 1, "stop": 2}, "needs either step or points"),
        ({"start": 1, "stop": 2, "step": 1, "points": 2}, "needs either step or points"),
        ({"start": 1, "stop": 2, "step": -1}, "step = -1: does not lead from start to stop"),
        ({"start": 1, "stop": 2, "step": 0}, "does not lead"),
        ({"start": "1 KiB", "stop": "2 us", "points": 2}, "start = '1 KiB': is no end of a range"),
        ({"start": "1 KiB", "stop": "2 KiB", "step": "1 us"}, "step = '1 us': does not fit the ends"),
        ({"start": 0, "stop": 2, "points": 2, "scale": "log"}, "must be above 0"),
        ({"start": 1, "stop": 2, "step": 1e-9}, "at most 100000"),
        ({"start": 1, "stop": 2, "step": 5e-324}, "at most 100000"),
        ({"start": 10**400, "stop": 2, "points": 2}, "is no end of a range"),
        ({"start": 1, "stop": 1e308, "step": 1e-300}, "is no end of a range"),
    ],
)
def test_ranges_that_are_none(written, said):
    with pytest.raises(InputError) as caught:
        values(**written)
    assert said in str(caught.value)


def test_a_condition_compares_quantities_however_they_are_written():
    assert condition("1024 KiB")("1 MiB")
    assert condition("> 1 MiB")("1025 KiB") and not condition("> 1 MiB")("1 MiB")
    assert condition(["a", 3])(3) and not condition(["a", 3])(True)
    assert not condition("> 1 MiB")("5 us")


WRITTEN = """question: q?
scenario: isolated-burst
axes:
  workload.producers: [1, 2]
  burst:
    path: workload.burst
    values: [1 KiB, 2 KiB, 3 KiB]
"""


@pytest.mark.parametrize(
    "changed, line, said",
    [
        (WRITTEN.replace("isolated-burst", "isolated-brust"), 2, "did you mean 'isolated-burst'?"),
        (WRITTEN.replace("workload.producers", "wrokload.producers"), 4, "did you mean 'workload'?"),
        (WRITTEN.replace("workload.producers", "workload.burst"), 5, "sets what axes.workload.burst sets too"),
        (WRITTEN.replace("workload.producers", "workload.producer"), 4, "did you mean 'producers'?"),
        (WRITTEN.replace("2 KiB", "1024 B"), 7, "is given twice"),
        (WRITTEN.replace("values", "value"), 7, "did you mean 'values'?"),
        (WRITTEN.replace("[1 KiB, 2 KiB, 3 KiB]", "[]"), 7, "axes.burst.values"),
        (WRITTEN.replace("values: [1 KiB, 2 KiB, 3 KiB]", "range: {start: 1, stop: 2}"), 7, "needs either step or points"),
        (WRITTEN + "zip: [[workload.producers, burst]]\n", 8, "has 3 values, and workload.producers has 2"),
        (WRITTEN + "zip: [[workload.producers, brust]]\n", 8, "did you mean 'burst'?"),
        (WRITTEN + "exclude:\n  - {burst: 1 KiB}\n  - {burst: 4 KiB}\n", 10, "matches no value of its axis"),
        (WRITTEN + "exclude: [{burst: '>= many'}]\n", 8, "cannot be compared"),
        (WRITTEN + "exclude: [{burst: '>= 1 KiB'}]\n", 8, "leaves no point"),
        (WRITTEN + "overrides: {workload.burst: 1 KiB}\n", 5, "sets what overrides.workload.burst sets too"),
        (WRITTEN + "overrides: {workload.mode: never}\n", 8, "workload.mode = 'never': is not known"),
        (WRITTEN + "axis: {}\n", 8, "did you mean 'axes'?"),
    ],
)  # fmt: skip
def test_an_error_comes_with_file_and_line(tmp_path, changed, line, said):
    file = tmp_path / "mine.yaml"
    file.write_text(changed)
    with pytest.raises(InputError) as caught:
        load_study(file)
    assert said in str(caught.value)
    assert (caught.value.file, caught.value.line) == (str(file), line)


def test_a_point_without_a_scenario_says_on_which_line_its_value_is(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(WRITTEN.replace("[1, 2]", "[1, 149]"))
    loaded = load_study(file)
    with pytest.raises(InputError) as caught:
        loaded.resolve(list(loaded.points())[-1])
    assert (caught.value.line, caught.value.value) == (4, 149)


def test_a_scenario_may_stand_in_the_study_or_beside_it(tmp_path):
    inline = "{question: 'q?', machine: hgx-b200, workload: {kind: burst_train, producers: 4, burst: 1 KiB}}"
    (tmp_path / "mine.yaml").write_text(WRITTEN.replace("isolated-burst", inline))
    (tmp_path / "beside.yaml").write_text(WRITTEN.replace("isolated-burst", "other.yaml"))
    (tmp_path / "other.yaml").write_text(
        "question: q?\nmachine: hgx-b200\nworkload: {kind: burst_train, producers: 4, burst: 1 KiB}\n"
    )
    for name in ("mine.yaml", "beside.yaml"):
        loaded = load_study(tmp_path / name)
        assert loaded.resolve(next(loaded.points())).scenario.workload.producers == 1


@pytest.mark.parametrize("name", STUDIES)
def test_the_first_line_of_a_study_is_the_question_that_it_answers(name):
    first = find(name, "study").read_text().splitlines()[0]
    assert first.startswith("question: ") and first.endswith("?")


SIZES = ("workload.tokens", "workload.gpus", "workload.burst", "workload.producers", "workload.m")


@pytest.mark.parametrize("name", STUDIES)
def test_the_smallest_point_of_every_study_runs(name):
    loaded = load_study(name)

    def size(point):
        changes = {path: change.data for path, change in loaded.changes(point).items()}
        return [comparable(changes[path])[1] for path in SIZES if path in changes]

    resolved = loaded.resolve(min(loaded.points(), key=size))
    assert simulate(resolved.program(), resolved.fabric(), trace="off").makespan_ps > 0


def test_a_cell_shows_a_mapping_in_one_line():
    loaded = study({"workload.producers": [1], "disturb": [{"late_gpu": {"gpu": 1, "by": "1 us"}}, {}]})
    assert [row[1] for row in rows(loaded)] == ["late_gpu=(gpu=1 by=1 us)", "{}"]
