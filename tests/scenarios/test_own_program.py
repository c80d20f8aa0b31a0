"""A scenario whose workload is a Program of one's own."""

import numpy as np
import pytest
from xstage.scenarios.cautions import cautions
from xstage.scenarios.loader import build_program, load_scenario
from xstage.scenarios.schemas import schemas
from xstage.sim import program as p
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.program import Program
from xstage.sim.program_builder import ProgramBuilder, Seat

OWN = "question: How long?\nmachine: hgx-b200\nworkload: {kind: program, file: own.npz}\n"
BURST_TRAINS = [
    {"producers": 148, "burst": "48 KiB", "mode": "isolated"},
    {"producers": 148, "burst": "32 KiB", "gap": "1 us", "bursts": 4},
    {"producers": 20, "burst": "10 KiB", "gap": "1 us", "bursts": 3, "mode": "synchronised", "gpus": 4,
     "senders": "all", "destination": "all"},
]  # fmt: skip


def scenario(workload, **more):
    return {"question": "How long?", "machine": "hgx-b200", "workload": workload, **more}


def own(program, **more):
    return scenario({"kind": "program", "file": program, **more})


def small(sm=0, gpus=2, duration_ps=10, **meta):
    """One lane that stores 64 bytes to GPU 1."""
    b = ProgramBuilder(gpus)
    ops = [{"kind": p.STORE, "target": b.destination({1: 64}), "bytes": 64, "duration_ps": duration_ps}]
    task = b.tasks(b.op_list(ops), 1)
    b.groups(gpu=0, plan=b.plan(repeat=[b.queue([task])]), seats=[Seat("producer", sm=sm)])
    return b.build(**meta)


def outcome(written, engine="compiled"):
    return simulate(*build_program(written), engine).outcome


@pytest.mark.parametrize("train", BURST_TRAINS)
@pytest.mark.parametrize("issue_times", ["own", "machine"])
def test_the_program_of_a_burst_train_gives_its_integers(train, issue_times):
    kind = scenario({"kind": "burst_train", **train})
    program, fabric = build_program(kind)
    mine, my_fabric = build_program(own(program, issue_times=issue_times))
    assert mine == program and my_fabric.n_gpus == fabric.n_gpus
    assert not outcome(own(program, issue_times=issue_times)).same_as(outcome(kind))


def test_a_file_gives_what_the_program_gives_and_is_found_beside_the_scenario(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "own.yaml").write_text(OWN)
    small(schedule="mine").save(tmp_path / "sub" / "own.npz")
    monkeypatch.chdir(tmp_path)
    loaded = load_scenario("sub/own.yaml")
    assert loaded.program() == small(schedule="mine") == Program.load("sub/own.npz")
    assert repr(loaded) == "<Scenario own: Program mine, on 2 GPUs of hgx-b200>"
    of_option = load_scenario("sub/own.yaml", {"workload.file": "sub/own.npz"})
    assert of_option.program() == loaded.program()
    with pytest.raises(InputError, match=r"override workload.file = 'own.npz': cannot be read: No such file"):
        load_scenario("sub/own.yaml", {"workload.file": "own.npz"})


def test_a_file_that_changed_is_read_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(OWN)
    for duration_ps in (10, 20):
        small(duration_ps=duration_ps, schedule="x" * duration_ps).save("own.npz")
        assert load_scenario("own.yaml").program().ops["duration_ps"].tolist() == [duration_ps]


def test_issue_times_of_the_machine_are_those_of_its_t0_and_rate():
    loaded = load_scenario(own(small(duration_ps=0), issue_times="machine"), {"machine.stage.t0": "3 us"})
    assert loaded.program().ops["duration_ps"].tolist() == [int(loaded.machine.issue_time_ps(64))]
    assert loaded.program().ops["duration_ps"][0] > 3_000_000
    assert not cautions(loaded, loaded.program())


def test_the_number_of_gpus_is_that_of_the_program():
    assert load_scenario(own(small(gpus=5))).fabric().n_gpus == 5
    assert load_scenario(own(small(gpus=5), gpus=5)).scenario.workload.gpus == 5
    with pytest.raises(InputError, match=r"workload.gpus = 4: is the Program's own number \(allowed: 5, or nothing\)"):
        load_scenario(own(small(gpus=5), gpus=4))
    with pytest.raises(InputError, match=r"workload.gpus = 9: is more than the 8 GPUs of hgx-b200"):
        load_scenario(own(small(gpus=9)))


def test_a_loaded_scenario_can_take_another_program():
    loaded = load_scenario(own(small(gpus=5))).scenario
    assert load_scenario(loaded, {"workload.file": small(gpus=3)}).scenario.workload.gpus == 3


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({}, r"workload.file: is missing \(allowed: the file of a Program"),
        ({"file": 3}, r"workload.file = 3: is no Program"),
        ({"fiel": "own.npz"}, r"workload.fiel = 'own.npz': is not a known key; did you mean 'file'"),
        ({"file": "none.npz"}, r"workload.file = 'none.npz': cannot be read: No such file"),
        (
            {"file": "text.npz"},
            r"workload.file = 'text.npz': is no Program \(allowed: a file that Program.save wrote\)",
        ),
        ({"file": "other.npz"}, r"workload.file = 'other.npz': not a whole Program file"),
        ({"file": "a\0b.npz"}, r"workload.file = .*: cannot be read: .*null"),
        ({"file": "."}, r"workload.file = '.'"),
        ({"file": "own.npz", "issue_times": "none"}, r"workload.issue_times = 'none': is not known"),
    ],
)
def test_what_is_no_program_is_refused(tmp_path, monkeypatch, workload, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.npz").write_text("question: How long?\n")
    np.savez("other.npz", numbers=np.arange(3))
    small().save("own.npz")
    with pytest.raises(InputError, match=message):
        load_scenario(scenario({"kind": "program", **workload}))


def test_an_error_names_the_line_of_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(OWN)
    with pytest.raises(InputError, match=r"own.yaml:3: workload.file = '.*own.npz': cannot be read"):
        load_scenario("own.yaml")


def test_a_lane_on_an_sm_that_the_machine_lacks_is_refused():
    load_scenario(own(small(sm=147))).program()
    with pytest.raises(InputError, match=r"has a lane on SM 148 \(allowed: SM 0 to 147, which hgx-b200 has\)"):
        load_scenario(own(small(sm=148))).program()


def test_one_rank_against_its_mirror_is_refused():
    program, _ = build_program("megamoe-lag-h100")
    with pytest.raises(InputError, match="is one rank against its mirror"):
        load_scenario(own(program))


@pytest.mark.parametrize("given", [small(), "own.npz"])
def test_a_program_is_no_scenario_and_the_error_says_what_is(given):
    with pytest.raises(InputError, match=r"is .*a Program, which names no machine \(allowed: .*kind.*program"):
        load_scenario(given)


def test_numbers_of_a_machine_that_the_program_has_durations_in_place_of_are_told():
    changes = {"machine.stage.t0": "3 us", "machine.compute.hbm_rate": "2 TB/s", "machine.stage.capacity_gpu": "1 MiB"}

    def told(program=None, **more):
        loaded = load_scenario(own(program or small(), **more), changes)
        return cautions(loaded, loaded.program())

    t0, hbm = told()
    assert t0.startswith("machine.stage.t0 changes nothing") and "issue_times=machine" in t0
    assert hbm.startswith("machine.compute.hbm_rate changes nothing") and "issue_times" not in hbm
    assert told(issue_times="machine") == [hbm]
    assert told(small(duration_ps=0))[2].startswith("1 of 1 STOREs of the Program take no time to issue")


def test_another_machine_leaves_durations_as_they_are_and_it_is_told():
    loaded = load_scenario(own(small()), {"machine": "hgx-h100"})
    [said] = cautions(loaded, loaded.program())
    assert "as long as the Program says, on hgx-h100 as on any other machine" in said
    loaded = load_scenario(own(small()))
    assert not cautions(loaded, loaded.program())


def test_a_program_in_memory_has_a_text_that_tells_it_from_another():
    texts = {load_scenario(own(small(duration_ps=time))).scenario.model_dump_json() for time in (1, 1, 2)}
    assert len(texts) == 2 and all("in memory: <Program" in text for text in texts)


def test_the_schema_has_the_keys_that_a_file_may_have():
    assert set(schemas()["scenario"]["$defs"]["ProgramWorkload"]["properties"]) == {"kind", "file", "issue_times"}


def test_slow_and_late_gpus_change_a_program_too():
    late = own(small()) | {"disturb": {"late_gpu": {"gpu": 0, "by": "1 us"}}}
    assert outcome(late).lanes_end_ps == outcome(own(small())).lanes_end_ps + 1_000_000
