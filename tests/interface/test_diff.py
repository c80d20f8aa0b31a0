"""What `xstage diff` says of two things: exactly what differs, by how much, and nothing if nothing does."""

import io
import json

import pytest
from rich.console import Console
from xstage.scenarios.loader import load_scenario
from xstage.sim.errors import InputError

import xstage as xs
from xstage.cli import main
from xstage.differences.change import Change, relative_pct
from xstage.differences.diff import Difference, _percent

SMALL = {"workload.producers": 4, "engine": "simpy"}
WORDS = ["--set", "workload.producers=4", "--engine", "simpy"]


def run_to_file(answer, file, *more):
    code, found = answer("run", "isolated-burst", *WORDS, *more)
    assert code == 0
    file.write_text(json.dumps(found))
    return str(file)


def changes(found):
    return {change.what: (change.old, change.new) for change in found.changes}


def test_two_runs_differ_in_what_a_run_says_and_not_in_times(answer, tmp_path):
    one = run_to_file(answer, tmp_path / "one.json")
    other = run_to_file(answer, tmp_path / "other.json", "--set", "workload.burst=24 KiB")
    code, found = answer("diff", one, other)
    assert (code, found["kind"], found["schema_version"]) == (0, "run", 1)
    by_name = {row["what"]: row for row in found["differences"]}
    stored = by_name["bytes_stored"]
    assert (stored["old"], stored["new"], stored["relative_pct"]) == (4 * 48 * 1024, 4 * 24 * 1024, -50.0)
    assert not any(name.startswith("timing") for name in by_name)
    again = run_to_file(answer, tmp_path / "again.json")
    assert answer("diff", one, again)[1]["differences"] == []


def test_a_trace_says_the_same_of_a_run_as_its_answer_does(answer, tmp_path):
    file = tmp_path / "ops.parquet"
    one = run_to_file(answer, tmp_path / "one.json", "--trace", str(file))
    said, traced = json.loads((tmp_path / "one.json").read_text()), xs.diff(one, file)
    differing = changes(traced)
    assert {"ops", "stall_total_us", "bytes_stored", "sender_visible_us"} & differing.keys() == set()
    assert all(new is None for _, new in differing.values()), differing  # what ops alone do not tell
    assert differing.pop("roles.producer.not_running_mean_us")[1] is None
    assert not [name for name in differing if name.startswith(("roles.producer", "spans.burst"))]
    assert said["roles"]["producer"]["lanes"] == 4


def test_two_runs_in_python(tmp_path):
    one = xs.run("isolated-burst", overrides=SMALL)
    other = xs.run("isolated-burst", overrides=SMALL | {"workload.burst": "96 KiB"})
    found = xs.diff(one, other)
    assert changes(found)["bytes_stored"] == (4 * 48 * 1024, 4 * 96 * 1024)
    assert "bytes_stored" in found._repr_html_()
    assert list(found.frame["what"]) == [change.what for change in found.changes]
    assert not xs.diff(one, one)


def test_parts_of_a_list_go_by_their_names():
    found = changes(
        xs.diff(*(xs.run("isolated-burst", overrides={"workload.burst": burst}) for burst in ("48KiB", "96KiB")))
    )
    assert "roofs.egress.use_pct" in found and not [name for name in found if ".0." in name]


def test_names_that_do_not_fit_are_folded_and_not_cut():
    names = [f"roles.epilogue.{'long_' * 14}{end}" for end in "ab"]
    found = Difference("run", "old", "new", 2, tuple(Change(name, "x" * 40, "y" * 40) for name in names), ())
    console = Console(width=80, file=io.StringIO())
    for part in found.printed():
        console.print(part)
    printed = console.file.getvalue()
    assert "…" not in printed and all(len(line) <= 80 for line in printed.splitlines())
    first_column = "".join(line.split("  ")[0].strip() for line in printed.splitlines())
    assert all(name in first_column for name in names)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [(381649, 178.6, "-99.95 %"), (100, 0, "-100.0 %"), (1, 1.25, "+25.0 %"), (1e6, 1e-6, "-99.9999999999 %")],
)
def test_what_is_left_is_not_nothing(old, new, said):
    assert _percent(relative_pct(old, new)) == said


def test_two_machines_differ_in_quantities_whatever_their_unit():
    found = xs.diff("hgx-h100", "hgx-h800")
    rate = next(change for change in found.changes if change.what == "interconnect.drain_rate")
    assert (rate.old, rate.new) == ("350 GB/s", "165.5 GB/s")
    assert rate.relative_pct == pytest.approx(100 * (165.5 / 350 - 1))
    assert not xs.diff("hgx-h100", xs.load_machine("hgx-h100"))


def test_two_scenarios_differ_also_where_only_their_machines_do():
    found = xs.diff("isolated-burst", load_scenario("isolated-burst", {"machine.stage.capacity_sm": "60 KiB"}))
    assert changes(found) == {"machine.stage.capacity_sm": ("30 KiB", "60 KiB")}


def test_a_file_and_a_name_may_be_compared(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    main(["scenarios", "show", "isolated-burst"])
    file.write_text(capsys.readouterr().out.replace("48 KiB\n", "96 KiB\n"))
    assert main(["diff", "isolated-burst", str(file)]) == 0
    out = capsys.readouterr().out
    assert "workload.burst  48 KiB" in out and "96 KiB" in out and "+100.0 %" in out
    study = tmp_path / "study.yaml"
    study.write_text("question: q?\nscenario: isolated-burst\naxes: {workload.producers: [1]}\n")
    assert xs.diff("capacity-without-stall", str(study)).kind == "study"


def test_two_schedules_differ_in_rows(tmp_path):
    for name, burst in (("one", "48 KiB"), ("other", "24 KiB")):
        load_scenario("isolated-burst", SMALL | {"workload.burst": burst}).program().save(tmp_path / f"{name}.npz")
    found = xs.diff(tmp_path / "one.npz", tmp_path / "other.npz")
    assert changes(found)["bytes_stored"] == (4 * 48 * 1024, 4 * 24 * 1024)
    assert any(line.startswith("ops: ") and "bytes 49152 | 24576" in line for line in found.notes)
    assert not xs.diff(tmp_path / "one.npz", xs.Program.load(tmp_path / "one.npz"))


STUDY = {
    "question": "q?",
    "scenario": "isolated-burst",
    "overrides": {"engine": "simpy"},
    "axes": {"workload.producers": [1, 2, 40], "workload.burst": ["1 KiB", "64 KiB"]},
}


def test_two_sweeps_are_compared_point_by_point(tmp_path, answer):
    before = xs.sweep(STUDY, tmp_path / "before", workers=1)
    wide = {"engine": "simpy", "machine.stage.capacity_sm": "60 KiB"}
    grown = STUDY | {"overrides": wide, "axes": STUDY["axes"] | {"workload.producers": [1, 3, 2, 40]}}
    after = xs.sweep(grown, tmp_path / "after", workers=1)
    found = xs.diff(before, tmp_path / "after")
    stall = next(change for change in found.changes if change.what == "stall_total_us")
    one, other = (
        sweep.frame.set_index(["workload.producers", "workload.burst_bytes"])["stall_total_us"]
        for sweep in (before, after)
    )
    both = one.to_frame("old").join(other.to_frame("new"))
    assert stall.points == int((both["old"] != both["new"]).sum()) > 0
    worst = (100 * (both["new"] / both["old"] - 1)).abs().max()
    assert abs(stall.relative_pct) == pytest.approx(worst)
    assert "bytes_stored" not in {change.what for change in found.changes}
    assert any(note.startswith("2 of 8 points are in") for note in found.notes)
    assert found.as_dict()["points"] == {"both": 6, "old_only": 0, "new_only": 2}
    assert answer("diff", str(tmp_path / "before"), str(tmp_path / "before"))[1]["different"] == 0


def test_sweeps_that_share_only_some_points_are_not_the_same(tmp_path, capsys):
    xs.sweep(STUDY, tmp_path / "one", workers=1)
    xs.sweep(STUDY | {"axes": STUDY["axes"] | {"workload.producers": [2, 3]}}, tmp_path / "other", workers=1)
    found = xs.diff(tmp_path / "one", tmp_path / "other")
    assert found and not found.changes
    assert main(["diff", str(tmp_path / "one"), str(tmp_path / "other")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "are equal at the 2 points that both have" in out and "are the same" not in out
    assert "4 of 6 points are in" in out and "2 of 4 points are in" in out


def test_sweeps_without_a_common_point_are_told_apart(tmp_path, capsys):
    xs.sweep(STUDY, tmp_path / "one", workers=1)
    xs.sweep(STUDY | {"axes": STUDY["axes"] | {"workload.producers": [3]}}, tmp_path / "other", workers=1)
    assert main(["diff", str(tmp_path / "one"), str(tmp_path / "other")]) == 0
    assert "have no point in common" in " ".join(capsys.readouterr().out.split())


def test_sweeps_with_other_axes_cannot_be_compared(tmp_path):
    xs.sweep(STUDY, tmp_path / "one", workers=1)
    xs.sweep(STUDY | {"axes": {"workload.producers": [1]}}, tmp_path / "other", workers=1)
    with pytest.raises(
        InputError, match=r"varies workload.producers, and .*one varies workload.producers, workload.burst"
    ):
        xs.diff(tmp_path / "one", tmp_path / "other")


@pytest.mark.parametrize(
    "words, said",
    [
        (("hgx-h100", "isolated-burst"), "'isolated-burst': is a scenario, and hgx-h100 is a machine"),
        (("hgx-h100", "hgx-h10"), "did you mean 'hgx-h100'"),
        (("hgx-h100", "nope"), "is not in the catalogue (allowed: a name from `xstage scenarios`, a .yaml file"),
        (("nope.json", "nope.json"), "nope.json: cannot be read: No such file"),
        (("nope.npz", "nope.npz"), "nope.npz: no such file"),
        (("nope.parquet", "nope.parquet"), "nope.parquet: cannot be read"),
        (("nope.csv", "hgx-h100"), "nope.csv: is nothing that can be compared"),
    ],
)
def test_what_cannot_be_compared_is_exit_code_2(answer, words, said):
    code, found = answer("diff", *words)
    assert code == 2
    assert said in found["error"]["message"]


@pytest.mark.parametrize(
    "text, said",
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is no answer of xstage"),
        ('{"error": {"message": "m"}}', "is the answer of a command that failed"),
        ('{"traceEvents": []}', "is a Kineto trace"),
    ],
)
def test_json_that_is_no_answer_is_refused(tmp_path, text, said):
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        xs.diff(file, file)


def test_a_folder_that_is_no_sweep_does_not_hide_a_name_of_the_catalogue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hgx-h100").mkdir()
    assert xs.diff("hgx-h100", "hgx-h800").kind == "machine"
    (tmp_path / "hgx-h100" / "points.parquet").write_text("no table")
    with pytest.raises(InputError, match="is no table of a sweep"):
        xs.diff("hgx-h100", "hgx-h800")


def test_a_folder_without_a_table_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"has no points\.parquet"):
        xs.diff(tmp_path, tmp_path)
    (tmp_path / "points.parquet").write_text("no table")
    with pytest.raises(InputError, match="is no table of a sweep"):
        xs.diff(tmp_path, tmp_path)


def test_a_change_that_is_no_finite_number_is_none():
    assert relative_pct(1e-300, 1e300) is None
    assert relative_pct(1e308, -1e308) is None
    assert relative_pct(2, 3) == 50
