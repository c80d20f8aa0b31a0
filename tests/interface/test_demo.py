"""`xstage demo`: the paper's numbers out of simulated times, engines that agree, and files that are where it says."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from rich.progress import Progress
from xstage.hw_validate.cpu.architecture import UnsupportedProcessorError
from xstage.sim.calibrate import NoLawError

import xstage as xs
from xstage.cli import main
from xstage.demo.run import Demo, demo_parts
from xstage.demo.schedules import leads_sentence
from xstage.demo.section import Agreement, Job, Row, Section
from xstage.demo.validation import validation
from xstage.terminal.output import show


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The answer of one `xstage demo --json`, which is all that it prints."""
    command = [sys.executable, "-m", "xstage", "demo", "-o", str(tmp_path_factory.mktemp("demo")), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "" or done.stderr.startswith("Compiling the engine, once")
    return json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_the_answer_has_the_common_fields(found):
    assert found["schema_version"] == 1
    assert found["xstage_version"] == xs.__version__
    assert found["seed"] is None
    assert set(found["timing"]) >= {"wall_s", "bursts_s", "bursts_simpy_s", "bursts_compiled_s"}


def test_simulated_microbenchmarks_give_the_numbers_of_the_paper(found):
    """arXiv 2607.23264, as reported: T_iss0 0.76 us, R 717 GB/s, Q 4.25 MiB, knee 33 KiB or 4.77 MiB, G* 6.0 us."""
    rows = {row["name"]: row for row in found["sections"][0]["rows"]}
    reported = {"t_iss0_us": 0.76, "drain_gbs": 717, "capacity_mib": 4.25, "knee_kib": 33, "knee_mib": 4.77}
    assert {name: row["published"] for name, row in rows.items()} == reported | {"recovery_gap_us": 6.0}
    for row in rows.values():
        assert row["simulated"] == pytest.approx(row["published"], rel=0.01)
        assert row["error_pct"] == pytest.approx(100 * (row["simulated"] / row["published"] - 1))
    assert {name for name, row in rows.items() if row["predicted"]} == {"knee_kib", "knee_mib", "recovery_gap_us"}


def test_both_engines_agree_to_the_last_integer(found):
    assert found["ok"]
    [engines] = [section["engines"] for section in found["sections"] if section["engines"]]
    assert (engines["agree"], engines["differing"]) == (True, [])
    assert engines["programs"] >= 5 and engines["events"] > 100_000


def test_every_file_that_it_names_is_there_and_no_other(found):
    named = [Path(file) for section in found["sections"] for file in section["files"]]
    assert sorted(named) == sorted(Path(found["output"]).iterdir())
    measured = {"validation.html", "validation.csv"}  # none where this computer could not be measured
    assert {path.name for path in named} - measured == {
        f"{name}.{kind}"
        for name in ("knee", "recovery", "occupancy", "tensor-cores", "stall", "waterfall", "lead")
        for kind in ("png", "svg", "csv")
    }


def test_the_computer_at_hand_is_validated_or_it_is_said_why_not(found):
    section = found["sections"][-1]
    assert section["name"] == "validation"
    said = " ".join(section["notes"])
    assert ("Verdict:" in said) == bool(section["files"])
    assert "Verdict:" in said or "No numbers of this computer" in said


def test_the_data_beside_the_knee_figure_are_of_both_engines_and_near_the_law(found):
    points = pd.read_csv(Path(found["output"]) / "knee.csv").pivot(
        index="burst_kib", columns="series", values="t_iss_us"
    )
    in_both = points.dropna()
    assert len(in_both) >= 4
    assert (in_both["simpy"] == in_both["compiled"]).all()
    simulated = points.dropna(subset="compiled")
    assert (simulated["compiled"] / simulated["law"]).sub(1).abs().max() < 0.01


def test_the_stage_is_never_overfull_and_each_phase_looks_its_part(found):
    held = pd.read_csv(Path(found["output"]) / "occupancy.csv").groupby("phase")["held_pct"]
    assert held.max().max() <= 100
    assert held.max()["drain_limited"] == 100
    assert 90 < held.max()["recovered"] < 100
    assert held.max()["issue_bound"] < 10


def test_tiles_in_another_order_take_less_time_because_less_is_stalled(found):
    timelines = pd.read_csv(Path(found["output"]) / "tensor-cores.csv")
    makespan = timelines.groupby("policy")["makespan_us"].first()
    assert makespan["interleaved"] < makespan["expert_wave"]
    lanes = pd.read_csv(Path(found["output"]) / "stall.csv")
    stall = lanes[lanes["what"] == "stall"].groupby("policy")["mean_us"].sum()
    assert stall["interleaved"] < 0.38 * stall["expert_wave"]  # arXiv 2607.23264: falls by up to 62 %


def test_what_is_said_of_leads_is_what_was_tried():
    times = {0: 150.0, 192: 102.0, 384: 100.9, 768: 100.0, 1536: 100.8, 12288: 103.4, None: 99.0}
    said = leads_sentence(pd.DataFrame({"lead_rows": list(times), "makespan_us": list(times.values())}))
    assert "768 rows is the best" in said and "384 to 1536 rows are within 1 % of it" in said
    assert "50.0 % longer with 0 rows, 2.0 % longer with 192 rows, 3.4 % longer with 12288 rows." in said


def test_tensor_core_lanes_that_compute_are_not_called_their_use(found):
    [said] = [note for note in found["sections"][1]["notes"] if "Tensor Core" in note and "W4A8" in note]
    assert "Tensor Core lanes computing" in said and "Tensor Cores in use" not in said


def test_the_bars_of_the_waterfall_add_up(found):
    bars = pd.read_csv(Path(found["output"]) / "waterfall.csv")
    timelines = pd.read_csv(Path(found["output"]) / "tensor-cores.csv").set_index("policy")
    assert bars["us"].sum() == pytest.approx(timelines.loc["expert_wave", "makespan_us"].iloc[0], rel=1e-5)


@pytest.mark.parametrize(
    "error", [NoLawError("no knee: made up"), UnsupportedProcessorError("an abacus"), OSError("no memory")]
)
def test_a_computer_that_cannot_be_measured_does_not_make_the_demo_fail(monkeypatch, tmp_path, capsys, error):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr("xstage.hw_validate.validate.validate", refuse)
    with Progress(disable=True) as progress:
        found = validation(Job(tmp_path, progress))
    done = Demo(tmp_path, (found,), {"wall_s": 1.0})
    assert done.ok
    assert list(tmp_path.iterdir()) == []
    show(*demo_parts(done))
    assert str(error) in capsys.readouterr().out


def section(*differing):
    row = Row("knee_kib", "knee", "KiB", published=33.0, simulated=33.33, predicted=True)
    agreement = Agreement(programs=2, events=10, differing=differing, simpy_s=1.0, compiled_s=0.1)
    files = (Path("out/knee.png"), Path("out/knee.csv"))
    return Section("bursts", "Bursts", "a paper", (row,), ("A note.",), agreement, files)


def test_a_person_sees_numbers_agreement_and_files(capsys):
    done = Demo(Path("out"), (section(),), {"wall_s": 1.0})
    show(*demo_parts(done))
    out = capsys.readouterr().out
    for part in ("knee", "33.330", "+1.0 %", "A note.", "agree to the last integer", "out/knee.png", "out/knee.csv"):
        assert part in out
    assert done.ok


def test_engines_that_disagree_are_named_and_make_the_demo_fail(capsys):
    done = Demo(Path("out"), (section("isolated bursts of 16 KiB: events"),), {"wall_s": 1.0})
    assert not done.ok
    assert done.as_dict()["sections"][0]["engines"]["agree"] is False
    show(*demo_parts(done))
    assert "DISAGREE: isolated bursts of 16 KiB: events" in capsys.readouterr().out


def test_a_folder_that_cannot_be_made_is_bad_input(capsys, tmp_path):
    (tmp_path / "file").touch()
    assert main(["demo", "-o", str(tmp_path / "file" / "demo"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["field"] == "output"
