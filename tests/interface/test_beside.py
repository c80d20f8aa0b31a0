"""A measured trace beside a simulation: which op is which, and how far they differ."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from xstage.sim.calibrated_machine import write_machine
from xstage.sim.errors import InputError

import xstage as xs
from xstage.cli import main

from ..hw_validate.made_up_hardware import MadeUpHardware, made_up_machine

PUBLIC = Path(__file__).parents[2] / "docs" / "examples" / "traces"
SCENARIO = {
    "name": "train",
    "question": "How far is it?",
    "machine": "hgx-b200",
    "workload": {
        "kind": "burst_train",
        "producers": 2,
        "burst": "16 KiB",
        "gap": "2 us",
        "bursts": 5,
        "mode": "synchronised",
    },
}


@pytest.fixture(scope="module")
def run():
    return xs.run(SCENARIO, trace="full")


def slower(ops, factor):
    """The same ops, each `factor` times as long, one after the other on its lane."""
    took = (ops["end_us"] - ops["start_us"]) * factor
    end = took.groupby(ops["lane"]).cumsum()
    return ops.assign(start_us=end - took, end_us=end)


def named(run, name, factor, repeats=1):
    """What a profiler would give: bursts of GPU 0 by name, without task numbers."""
    spans = run.trace.spans()
    burst = (
        spans[spans["phase"] == "burst"]
        .groupby(["gpu", "task"])
        .agg(start_us=("start_us", "min"), end_us=("end_us", "max"))
    )
    burst = burst.reset_index().sort_values("start_us")
    table = pd.DataFrame({
        "gpu": burst["gpu"] + 3, "sm": -1, "lane": 0, "role": "stream 7", "task": -1, "phase": None, "expert": -1,
        "m_block": -1, "n_block": -1, "op": range(len(burst)), "name": name, "kind": "kernel", "bytes": 0,
        "start_us": burst["start_us"], "end_us": burst["start_us"] + factor * (burst["end_us"] - burst["start_us"]),
        "stall_us": np.nan, "wait_us": np.nan, "cause": None,
    })  # fmt: skip
    return pd.concat([table] * repeats, ignore_index=True)


def test_ops_with_task_numbers_are_joined_one_by_one(run):
    ops = run.trace.ops()
    found = xs.beside(slower(ops, 1.25), SCENARIO)
    assert len(found.ops) == len(ops[ops["kind"] != "task"])
    known = found.ops[found.ops["measured_issue_us"] > 0]
    np.testing.assert_allclose(known["error_pct"], 100 * (1 / 1.25 - 1))
    assert "store:burst" in set(found.parts["what"])


def test_names_that_are_parts_of_the_simulation_need_no_match(run):
    found = xs.beside(named(run, "burst", 1.1), SCENARIO)
    [part] = found.parts.to_dict("records")
    assert (part["what"], part["measured_ops"], part["simulated_ops"]) == ("burst", 10, 10)
    np.testing.assert_allclose(found.ops["error_pct"], 100 * (1 / 1.1 - 1), rtol=1e-6)
    assert found.median_abs_error_pct == pytest.approx(100 - 100 / 1.1)


def test_a_kernel_is_matched_to_the_whole_run_as_often_as_it_ran(run):
    kernel = named(run, "my_kernel", 1.0).iloc[[0, 0, 0]].assign(end_us=lambda t: t["start_us"] + 20.0)
    found = xs.beside(kernel, SCENARIO, {"my_kernel": "all"})
    assert len(found.ops) == 3
    np.testing.assert_allclose(found.ops["simulated_issue_us"], run.makespan_us)


def test_a_kernel_ends_when_its_stores_have_arrived(run):
    """A kernel that took exactly the makespan has no error; ops that a backend recorded end when the sender goes on."""
    metrics = run.metrics
    assert metrics["makespan_us"] > metrics["sender_visible_us"] + 0.1
    row = {"gpu": 0, "task": -1, "kind": "kernel", "start_us": 5.0, "end_us": 5.0 + metrics["makespan_us"]}
    found = xs.beside(pd.DataFrame([row | {"name": "mine"}]), SCENARIO, {"mine": "all"})
    assert found.ops["error_pct"].tolist() == pytest.approx([0.0], abs=1e-9)
    assert found.span.error_pct == pytest.approx(0.0, abs=1e-9)
    assert xs.beside(run.trace.ops(), SCENARIO).span.simulated_us == metrics["sender_visible_us"]


def test_the_two_gpus_of_a_symmetric_run_are_one_rank():
    sizes = {"workload.ranks": "symmetric", "workload.tokens": 2048}
    whole = xs.run("megamoe-flash-wave", overrides=sizes).metrics["makespan_us"]
    kernel = pd.DataFrame([{"name": "moe", "gpu": 0, "task": -1, "start_us": 5.0, "end_us": 5.0 + 2 * whole}])
    found = xs.beside(kernel, "megamoe-flash-wave", {"moe": "all"}, overrides=sizes)
    assert found.parts["simulated_ops"].tolist() == [1]
    assert found.ops["simulated_issue_us"].tolist() == pytest.approx([whole])
    assert found.ops["error_pct"].tolist() == pytest.approx([-50.0])


def test_parts_with_unequal_counts_are_compared_by_their_medians_alone(run):
    found = xs.beside(named(run, "b", 2.0).head(7), SCENARIO, {"b": "burst"})
    [part] = found.parts.to_dict("records")
    assert (part["measured_ops"], part["simulated_ops"], len(found.ops)) == (7, 10, 0)
    assert part["median_error_pct"] == pytest.approx(-50, abs=1)
    assert part["op_median_abs_error_pct"] is None


def test_a_kernel_is_matched_to_a_phase_as_one(run):
    """What lanes do before and after that phase is none of the kernel's."""
    kernel = named(run, "my_kernel", 1.0).iloc[[0, 0]]
    found = xs.beside(kernel, SCENARIO, {"my_kernel": "all:burst"})
    bursts = run.trace.spans().query("phase == 'burst' and gpu == 0")
    arrived = run.trace.granules()["visible_us"].max()
    np.testing.assert_allclose(found.ops["simulated_issue_us"], arrived - bursts["start_us"].min())
    assert len(found.ops) == 2


def test_a_star_stands_for_the_rest_of_a_name_and_a_whole_name_goes_first(run):
    first, second = "void f<float [4]>(int*)", "void g<float [8]>(int*)"
    both = pd.concat([named(run, first, 1.0), named(run, second, 2.0)], ignore_index=True)
    found = xs.beside(both, SCENARIO, {"void*(int*)": "burst", second: "all"})
    assert list(found.parts["what"]) == [f"{first} = burst", f"{second} = all"]
    assert list(xs.beside(both, SCENARIO, {"void f<*": "burst"}).unmatched) == [second]


def test_long_names_are_shown_by_their_beginning_and_end(run):
    name = "void cutlass::device_kernel<" + "x" * 500 + ", 128>(Params)"
    found = xs.beside(named(run, name, 1.0), SCENARIO, {"void*": "burst"})
    assert found.parts["what"][0] == f"{name} = burst"
    shown = found._repr_html_()
    assert "void cutlass::device_kernel&lt;x...xx, 128&gt;(Params) = burst" in shown and "x" * 30 not in shown


def test_a_public_trace_of_another_gpu_stands_beside_the_simulation_of_its_kernel():
    """Trimmed from the test data of TraceLens: ten runs of one GEMM on an MI300X, as torch.profiler saw them."""
    found = xs.beside(
        PUBLIC / "mi300x-gemm-few-tiles.json", PUBLIC / "mi300x-gemm-few-tiles.yaml", {"Cijk_Ailk*": "all:gemm"}
    )
    [part] = found.parts.to_dict("records")
    assert (part["measured_ops"], part["measured_median_us"], len(found.ops)) == (10, 1084.5, 10)
    assert found.span.measured_us == 10890.0 and found.span.error_pct is None, "ten runs against one"
    assert found.ops["error_pct"].between(-10, 10).all()
    assert list(found.unmatched) == ["Cijk_B_PostGSU2"]


def test_what_was_measured_and_joined_to_nothing_is_said(run):
    both = pd.concat([named(run, "burst", 1.0), named(run, "memset", 1.0).head(1)], ignore_index=True)
    assert set(xs.beside(both, SCENARIO).unmatched) == {"memset"}


@pytest.mark.parametrize(
    ("match", "said"),
    [({}, "share no name"), ({"a": "l9"}, "is no part of the simulation"), ({"c": "burst"}, "was not measured")],
)
def test_a_match_that_cannot_be_is_refused(run, match, said):
    with pytest.raises(InputError, match=said):
        xs.beside(named(run, "a", 1.0), SCENARIO, match)


def test_import_lays_a_profile_beside_a_scenario(tmp_path, capsys):
    events = [
        {"ph": "X", "cat": "kernel", "name": "attn", "pid": 0, "tid": 7, "ts": 100 + 200 * i, "dur": 60.0 + i,
         "args": {"device": 0, "stream": 7}}
        for i in range(3)
    ]  # fmt: skip
    (tmp_path / "profile.json").write_text(json.dumps({"traceEvents": events}))
    words = ["import", str(tmp_path / "profile.json"), "--beside", "attention-x-stage", "--set", "workload.tokens=4096",
             "--match", "attn=all", "--ops", str(tmp_path / "ops.parquet"), "--json"]  # fmt: skip
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["beside"]["joined_ops"], answer["beside"]["parts"][0]["measured_median_us"]) == (3, 61.0)
    assert len(pd.read_parquet(tmp_path / "ops.parquet")) == 3
    page = xs.report(tmp_path / "ops.parquet", tmp_path / "page.html")
    assert page.figures == 1 and page.title.startswith("Measured beside simulated")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-o", "t.parquet", "--match", "a=b"], "needs --beside SCENARIO"),
        (["--beside", "isolated-burst", "--match", "nothing"], "is not NAME=PART"),
        (["--beside", "isolated-burst", "--ops", "t.csv"], "has no suffix that can be written"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path, capsys, options, said):
    (tmp_path / "p.json").write_text(
        '[{"ph": "X", "cat": "kernel", "name": "a", "pid": 0, "ts": 1, "dur": 3, "args": {"device": 0, "stream": 7}}]'
    )
    assert main(["import", str(tmp_path / "p.json"), *options]) == 2
    assert said in capsys.readouterr().err


def test_a_profile_alone_is_summarised(tmp_path, capsys):
    (tmp_path / "p.json").write_text(
        '[{"ph": "X", "cat": "kernel", "name": "a", "pid": 0, "ts": 1, "dur": 3, "args": {"device": 0, "stream": 7}}]'
    )
    assert main(["import", str(tmp_path / "p.json")]) == 0
    out = capsys.readouterr().out
    assert "1 on 1 lane of 1 GPU" in out and "3.000 us" in out and "written to" not in out


def test_the_whole_span_is_compared_whatever_was_joined(run):
    measured = slower(run.trace.ops(), 2.0)
    found = xs.beside(measured, SCENARIO)
    assert found.span.simulated_us == pytest.approx(run.makespan_us, rel=0.1)
    assert found.span.measured_us == measured["end_us"].max() - measured["start_us"].min()
    assert found.as_dict()["span"]["error_pct"] == pytest.approx(found.span.error_pct)
    assert "from the first op to the last" in found._repr_html_()
    three = pd.concat([measured.assign(repeat=n, end_us=measured["end_us"] + n) for n in range(3)])
    assert xs.beside(three, SCENARIO).span.measured_us == found.span.measured_us + 1


def launched(run, gpus, launches):
    """A kernel of that many GPUs, each launch as long as the run, 10 us between launches."""
    took = run.metrics["makespan_us"]
    rows = [(gpu, launch * (took + 10)) for gpu in range(gpus) for launch in range(launches)]
    return pd.DataFrame({
        "gpu": [gpu for gpu, _ in rows], "sm": -1, "lane": 0, "role": "stream 7", "task": -1, "phase": None, "expert": -1,
        "m_block": -1, "n_block": -1, "op": range(len(rows)), "name": "kernel", "kind": "kernel", "bytes": 0,
        "start_us": [start for _, start in rows], "end_us": [start + took for _, start in rows],
        "stall_us": np.nan, "wait_us": np.nan, "cause": None,
    })  # fmt: skip


@pytest.mark.parametrize("gpus, launches, compared", [(1, 1, True), (4, 1, True), (1, 3, False), (2, 2, False)])
def test_a_span_of_several_launches_is_not_compared_with_one(gpus, launches, compared):
    """Three launches on one GPU are no more ops than one on each of four, and take three times as long."""
    scenario = SCENARIO | {"workload": SCENARIO["workload"] | {"gpus": 4, "senders": "all"}}
    run = xs.run(scenario, trace="full")
    found = xs.beside(launched(run, gpus, launches), scenario, {"kernel": "all"})
    assert (found.span.error_pct is not None) is compared
    assert len(found.ops) == gpus * launches
    if compared:
        assert found.span.error_pct == pytest.approx(0, abs=1)


def test_the_page_has_the_median_of_launches_as_the_terminal_does(run, tmp_path):
    measured = launched(run, 1, 3)
    found = xs.beside(measured, SCENARIO, {"kernel": "all"})
    found.write_ops(tmp_path / "ops.parquet")
    xs.report(tmp_path / "ops.parquet", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    table = text[text.index("errors by op") :]
    [part] = found.parts.to_dict("records")
    assert f"{part['measured_median_us']:.4g}" in table.partition("</table>")[0]


def test_a_trace_that_a_backend_recorded_stands_beside_the_simulation_of_its_machine(tmp_path):
    """On made-up hardware, whose drain rate is a tenth lower than that of the machine that is simulated."""
    machine, slower_machine = made_up_machine("45 GB/s"), made_up_machine("40.5 GB/s")
    write_machine(machine, tmp_path / "mine.yaml")
    scenario = {
        "name": "train",
        "question": "How far is it?",
        "machine": str(tmp_path / "mine.yaml"),
        "workload": {"kind": "burst_train", "producers": 1, "burst": "48 KiB", "gap": "0.2 us", "bursts": 8},
    }
    trace = xs.run(scenario, trace="full").trace
    hardware = MadeUpHardware(machine, runs_on=slower_machine, replay_noise=0.001)
    [measured] = hardware.replay([trace], np.random.default_rng(0))
    measured.to_parquet(tmp_path / "measured.parquet")
    found = xs.beside(tmp_path / "measured.parquet", scenario)
    by_part = found.parts.set_index("what")
    simulated_ns, measured_ns = (48 * 1024 / drain_gbs - 200 for drain_gbs in (45, 40.5))  # V/R - G, the steady state
    expected = 100 * (simulated_ns / measured_ns - 1)
    assert by_part.loc["store:burst", "median_error_pct"] == pytest.approx(expected, abs=0.5)
    assert by_part.loc["compute:gap", "median_error_pct"] == pytest.approx(0, abs=0.2)
