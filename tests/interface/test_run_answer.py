"""What the answer of `run` says beside its times: what was changed, what stayed in a GPU, and what to beware of."""

import pytest
from xstage.scenarios.loader import load_scenario

import xstage as xs
from xstage.answers.built import Built
from xstage.answers.run import roof_table, run_parts
from xstage.cli import main

BURST = "isolated-burst"


def shown(capsys, *words):
    assert main(["run", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_values_that_replace_those_of_the_scenario_stand_below_its_question(capsys):
    changes = ("workload.burst=32KiB", "workload.bursts=2", "seed=3", "machine.interconnect.drain_rate=700GB/s")
    question, changed, ran, *_ = shown(capsys, BURST, *(word for change in changes for word in ("--set", change)))
    assert question.startswith("isolated-burst, as written: How long does one burst of 48 KiB")
    assert changed == "changed: workload.burst = 32 KiB, workload.bursts = 2, seed = 3"
    assert "with interconnect.drain_rate = 700GB/s" in ran  # a machine says so itself


def test_a_part_that_was_replaced_as_a_whole_is_shown_as_one():
    changes = {"workload.policy": {"name": "serial"}, "disturb.late_gpu": {"gpu": 1, "by": "2 us"}, "workload.m": 1024}
    _, changed, *_ = run_parts(xs.run("gemm-rs-llama-serial", overrides=changes))
    assert changed == (
        "changed: workload.m = 1024, workload.policy = {name: serial}, disturb.late_gpu = [{gpu: 1, by: 2 us}]"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("machine.interconnect.drain_rate=700GB/s", "isolated-burst, as written: How long"),
        ("question=And now?", "isolated-burst: And now?"),
        ("engine=simpy", "isolated-burst: How long"),
    ],
)
def test_a_question_is_that_of_the_file_once_a_value_was_changed(capsys, change, said):
    assert shown(capsys, BURST, "--set", change)[0].startswith(said)


def test_nothing_is_said_of_changes_where_there_are_none(capsys):
    assert shown(capsys, BURST)[1].startswith("burst_train, on 2 GPUs")


@pytest.mark.parametrize(
    ("words", "stored"),
    [
        ((BURST,), "6.938 MiB"),
        (("gemm-rs-llama-fused", "--set", "workload.m=2048"), "256 MiB, 224 MiB of it to other GPUs"),
    ],
)
def test_what_stays_in_a_gpu_is_told_from_what_leaves_it(capsys, words, stored):
    [line] = [line for line in shown(capsys, *words) if line.startswith("stored ")]
    assert line.split(maxsplit=1)[1].rstrip() == stored


def test_the_answer_knows_its_warnings_as_the_command_line_says_them(capsys):
    found = xs.run(BURST, overrides={"machine.compute.hbm_rate": "1 TB/s"})
    [said] = found.warnings
    assert said.startswith("machine.compute.hbm_rate = 1 TB/s changes nothing")
    assert found.as_dict()["warnings"] == [said]
    assert f"warning: {said[:40]}" in found._repr_html_()
    assert main(["run", BURST, "--set", "machine.compute.hbm_rate=1 TB/s"]) == 0
    assert capsys.readouterr().err == f"xstage: warning: {said}\n"


def test_a_run_of_what_was_built_has_its_times_and_warnings():
    """So whoever builds first, to estimate, needs to add nothing to the answer."""
    changes = {"machine.compute.hbm_rate": "1 TB/s"}
    built = Built.of(load_scenario(BURST, changes))
    found = xs.run(built)
    assert found.warnings == xs.run(BURST, overrides=changes).warnings != ()
    assert found.warnings == xs.run(xs.load_scenario(BURST, changes)).warnings
    assert found.timing["build_s"] == built.build_s
    assert found.timing["wall_s"] >= built.build_s + found.timing["simulate_s"]
    assert found.program is built.program()
    with pytest.raises(xs.InputError, match="cannot change a loaded scenario"):
        xs.run(built, overrides=changes)


def test_stall_of_all_lanes_is_told_with_that_of_one(capsys):
    [line] = [line for line in shown(capsys, "periodic-train") if line.startswith("stalled for room")]
    run = xs.run("periodic-train")
    total, mean = run.metrics["stall_total_us"], run.metrics["roles"]["producer"]["stall_mean_us"]
    assert total > 10 * run.makespan_us > mean
    assert f"{total:.3f} us, summed over lanes; {mean:.3f} us per lane" in line


def test_the_time_of_a_task_is_said_to_hold_its_waits(capsys):
    assert "from a task's first op to its last, waits included, us, by phase" in shown(capsys, BURST)


def test_the_makespan_is_marked_in_the_picture():
    run = xs.run(BURST)
    figure = run.plot()
    [line] = figure.axes[0].lines
    assert line.get_xdata()[0] == run.makespan_us
    assert f"makespan: {run.makespan_us:.1f} µs" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_cautions_are_warnings_of_the_answer_too():
    changes = {"machine.interconnect.drain_rate": "700 GB/s", "workload.m": 1024}
    [said] = xs.run("gemm-rs-llama-serial", overrides=changes).warnings
    assert "ring_rate = 371 GB/s" in said


def test_an_answer_without_a_warning_has_none():
    found = xs.run(BURST)
    assert found.warnings == ()
    assert "warnings" not in found.as_dict()


def test_the_roof_of_what_sms_take_in_is_that_of_the_cache_not_of_the_second_gemm():
    found = xs.run("megamoe-flash-wave", overrides={"workload.tokens": 512}).metrics["roofs"]
    assert "L2 cache" in [row[0] for row in roof_table(found)[2]]


def test_what_a_workload_leaves_to_its_model_is_explained_with_its_source(capsys):
    lines = [line.split() for line in shown(capsys, "megamoe-lag-h100", "--explain")]
    assert ["model", "glm-5.3-flash", "github.com/sgl-project/DeepGEMM/pull/88"] in lines
    for size, value in {"hidden": 4096, "intermediate": 2048, "experts": 288, "topk": 8}.items():
        assert [size, str(value), "glm-5.3-flash"] in lines


def test_what_a_scenario_says_in_place_of_its_model_is_not_the_model_s(capsys):
    lines = [
        line.split() for line in shown(capsys, "attention-wan-serial", "--set", "workload.tokens=4096", "--explain")
    ]
    assert ["tokens", "4096"] in lines
    assert ["heads", "40", "wan-14b"] in lines
    assert ["causal", "False", "wan-14b"] in lines
