"""Answers about a Program of one's own: a kernel with Tensor Core and epilogue lanes, and two slots between them."""

import json

import numpy as np
import pytest
from xstage.sim.errors import InputError

import xstage as xs
from xstage.cli import main

SMS, TILES = 16, 4
MAIN_LOOP_PS, TILE_BYTES = 1_000_000, 64 * 1024
FREE, FULL = 0, 1
TRAIN = {"kind": "burst_train", "producers": 148, "burst": "32 KiB", "gap": "4 us", "bursts": 3, "mode": "synchronised"}


def gemm(tile_bytes=TILE_BYTES, issue_ps=0, role="mma"):
    """Two GPUs that store each tile to the other one. Lanes of `role` compute."""
    b = xs.ProgramBuilder(2)
    for gpu in range(2):
        to_peer = b.destination({1 - gpu: tile_bytes})
        mma = b.op_list(
            [
                {"kind": xs.ACQUIRE, "counter": FREE, "count": 1},
                {"kind": xs.COMPUTE, "duration_ps": MAIN_LOOP_PS},
                {"kind": xs.RELEASE, "counter": FULL, "count": 1},
            ]
        )
        b.op_list(
            [
                {"kind": xs.ACQUIRE, "counter": FULL, "count": 1},
                {"kind": xs.STORE, "target": to_peer, "bytes": tile_bytes, "duration_ps": issue_ps},
                {"kind": xs.RELEASE, "counter": FREE, "count": 1},
            ]
        )
        tiles = b.tasks(np.full(SMS * TILES, mma), 2, phase="tile")
        plan = b.plan(repeat=[b.queue(tiles + np.arange(SMS * TILES))])
        seats = [xs.Seat(role, sm=np.arange(SMS)), xs.Seat("epilogue", sm=np.arange(SMS))]
        b.groups(gpu, plan, seats, slots=(2, 0))
    return b.build(schedule="my-gemm")


def scenario(program, issue_times="machine", **machine):
    workload = {"kind": "program", "file": program, "issue_times": issue_times}
    chosen = {"base": "hgx-b200", "overrides": {"interconnect.drain_rate": "400 GB/s", **machine}}
    return {"question": "Who waits?", "machine": chosen, "workload": workload, "granule": "4 KiB"}


@pytest.fixture
def own_yaml(tmp_path, monkeypatch):
    """A scenario file in the working folder, and its Program beside it."""
    monkeypatch.chdir(tmp_path)
    gemm().save("own.npz")
    (tmp_path / "own.yaml").write_text(json.dumps(scenario("own.npz")))
    return tmp_path / "own.yaml"


def test_bars_add_up_and_leave_the_main_loops():
    found = xs.explain(scenario(gemm()))
    names = {bar.name: bar.ps for bar in found.bars}
    assert sum(names.values()) == found.total_ps == xs.run(scenario(gemm())).trace.makespan_ps
    assert names["compute"] == TILES * MAIN_LOOP_PS
    assert {"capacity", "drain_rate", "issue", "latency"} <= set(names)
    assert not {"hbm", "l2_cache", "imbalance", "sending"} & set(names)


@pytest.mark.parametrize("role", ["mma", "math"])
def test_what_a_program_computes_is_called_so_whatever_the_role_is(role):
    """`math` lanes of xstage's own schedules compute epilogues, too; of this Program nobody has said so."""
    found = xs.explain(scenario(gemm(role=role)))
    computed = next(bar for bar in found.bars if bar.name == "compute")
    assert (computed.cause, computed.ps) == ("computation", TILES * MAIN_LOOP_PS)
    assert not any("epilogue" in bar.cause or "main loops" in bar.cause for bar in found.bars)


def test_a_role_of_another_name_has_one_bar_for_all_that_it_does():
    bars = {bar.name: bar.cause for bar in xs.explain(scenario(gemm(role="worker"))).bars}
    assert bars["busy"] == "work" and "compute" not in bars


def test_explain_splits_a_burst_train_as_the_program_that_it_becomes():
    kind = {"question": "?", "machine": "hgx-b200", "workload": TRAIN}
    program, _ = xs.build_program(kind)
    own = {"question": "?", "machine": "hgx-b200", "workload": {"kind": "program", "file": program}}
    machine = own | {"workload": own["workload"] | {"issue_times": "machine"}}
    assert xs.explain(machine).bars == xs.explain(kind).bars
    of_its_own, whole = xs.explain(own), xs.explain(kind)
    assert [bar.name for bar in of_its_own.bars if bar.removed] == ["capacity", "drain_rate", "latency"]
    assert of_its_own.bars[:2] == whole.bars[:2]  # removed before T_iss0, which then stays in what is left
    assert of_its_own.total_ps == whole.total_ps


def test_what_is_needed_is_enough_when_it_is_set():
    given = scenario(gemm())
    [rate, _] = found = xs.needs(given).needs
    assert rate.name == "drain_rate" and rate.factor > 1
    for need in found:
        if need.settings:
            assert xs.run(given, overrides=need.settings).makespan_us == pytest.approx(need.time_us, abs=1e-9)
    assert rate.time_us <= 1.01 * rate.best_us
    less = {"machine.interconnect.drain_rate": f"{0.9 * 400 * rate.factor} GB/s"}
    assert xs.run(given, overrides=less).makespan_us > 1.01 * rate.best_us


def test_a_number_that_changes_nothing_is_told_once(own_yaml):
    changes = {"machine.stage.t0": "3 us", "machine.compute.hbm_rate": "2 TB/s", "workload.issue_times": "own"}
    said = xs.run(own_yaml, overrides=changes).warnings
    assert sum("machine.stage.t0" in one for one in said) == 1
    assert sum("machine.compute.hbm_rate" in one for one in said) == 1
    assert any("machine.stage.t0" in one for one in xs.explain(own_yaml, overrides=changes).warnings)
    assert not any("t0" in one for one in xs.run(own_yaml, overrides={"machine.stage.t0": "3 us"}).warnings)


@pytest.mark.parametrize("ask", [xs.tune, xs.compare])
def test_there_are_no_policies_to_choose_from(ask):
    with pytest.raises(
        InputError, match=r"workload.kind = 'program': has no policies \(allowed: attention_a2a, megamoe"
    ):
        ask(scenario(gemm()))


def test_commands_take_the_scenario(own_yaml, answer):
    _, ran = answer("run", "own.yaml", "--trace", "own.parquet")
    assert ran["makespan_us"] == xs.run(scenario(gemm())).makespan_us
    assert len(xs.read_trace("own.parquet").query("kind == 'store'")) == 2 * SMS * TILES
    assert answer("run", "own.yaml", "--estimate")[1]["estimate"]["ops"] == 2 * SMS * TILES * 6
    code, explained = answer("run", "own.yaml", "--explain")
    assert code == 0 and explained["explain"]["scenario"]["workload"]["file"].endswith("own.npz")
    assert answer("explain", "own.yaml")[1]["total_us"] == ran["makespan_us"]
    assert answer("needs", "own.yaml")[0] == 0
    assert answer("tune", "own.yaml")[0] == 2


def test_a_program_that_is_given_to_a_command_gets_the_scenario_that_it_needs(own_yaml, capsys):
    assert main(["run", "own.npz"]) == 2
    assert "a scenario with machine: and workload: {kind: program, file: own.npz}" in capsys.readouterr().err


def test_two_programs_differ_by_their_runs(own_yaml):
    half = xs.run(scenario(gemm(TILE_BYTES // 2)))
    changes = {change.what: change for change in xs.diff(xs.run(own_yaml), half).changes}
    assert changes["bytes_stored"].new * 2 == changes["bytes_stored"].old


def study(program):
    rates = {"path": "machine.interconnect.drain_rate", "values": ["400 GB/s", "800 GB/s"]}
    return {"name": "s", "question": "?", "scenario": scenario(program), "axes": {"rate": rates}}


def test_a_sweep_runs_a_program_and_runs_it_again_if_the_file_changed(own_yaml):
    first = xs.sweep(study("own.npz"), "out", workers=1)
    assert (first.done, first.resumed) == (2, 0)
    assert first.frame["makespan_us"].tolist()[0] == xs.run(own_yaml).makespan_us
    stored = first.frame["bytes_stored"]
    assert xs.sweep(study("own.npz"), "out", workers=1).resumed == 2
    gemm(TILE_BYTES // 2).save("own.npz")
    again = xs.sweep(study("own.npz"), "out", workers=1)
    assert again.resumed == 0
    assert (again.frame["bytes_stored"] * 2 == stored).all()


def test_files_of_programs_are_an_axis(own_yaml):
    gemm(TILE_BYTES // 2).save("half.npz")
    over = study("own.npz") | {"axes": {"workload.file": ["own.npz", "half.npz"]}}
    stored = xs.sweep(over, "out", workers=1).frame["bytes_stored"].tolist()
    assert stored == [2 * SMS * TILES * TILE_BYTES, SMS * TILES * TILE_BYTES]


def test_a_sweep_of_a_program_in_memory_says_that_it_needs_a_file(own_yaml):
    swept = xs.sweep(study(gemm()), "out", workers=1)
    assert swept.failed == 2 and all("its file: Program.save(FILE)" in error for error in swept.frame["error"])
