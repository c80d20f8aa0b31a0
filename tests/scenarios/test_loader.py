"""Facts about scenarios: what the catalogue holds, what a file becomes, and how a wrong one is refused."""

import math

import numpy as np
import pytest
import yaml
from xstage.scenarios.catalogue import entries, find_any
from xstage.scenarios.loader import build_program, load_scenario, parse_overrides
from xstage.scenarios.machine_files import load_machine
from xstage.scenarios.schema import Scenario
from xstage.scenarios.study import load_study
from xstage.sim.checked import check
from xstage.sim.errors import InputError
from xstage.sim.schedules.burst_train import BurstTrain

KIB = 2**10
SCENARIOS = [entry.name for entry in entries("scenario")]

WRITTEN = """\
question: How long?
machine:
  base: hgx-b200
  overrides:
    interconnect.drain_rate: 358 GB/s
workload:
  kind: burst_train
  producers: 4
  burst: 32 KiB
  gap: 1.5 us
  bursts: 3
  mode: synchronised
granule: 512 B
seed: 7
"""

WORKLOAD = {"kind": "burst_train", "burst": "1 KiB", "gap": "1 us"}


@pytest.fixture
def scenario_file(tmp_path):
    def write(text):
        file = tmp_path / "mine.yaml"
        file.write_text(text, encoding="utf-8")
        return str(file)

    return write


def refused(scenario, overrides=None):
    with pytest.raises(InputError) as caught:
        load_scenario(scenario, overrides, label="--set")
    return caught.value


def test_names_in_the_catalogue_are_unique():
    names = [entry.name for entry in entries()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_of_the_catalogue_builds_and_asks_a_question(name):
    resolved = load_scenario(name)
    program, fabric = build_program(resolved)
    assert resolved.scenario.name == name
    assert resolved.scenario.question.endswith("?")
    assert program.n_gpus == fabric.n_gpus <= resolved.scenario.workload.gpus
    assert len(program.ops) > 0


def test_a_file_becomes_a_machine_a_shape_and_a_fabric(scenario_file):
    resolved = load_scenario(scenario_file(WRITTEN))
    assert resolved.scenario.name == "mine"
    assert resolved.scenario.workload.shape() == BurstTrain(
        producers=4, burst_bytes=32 * KIB, gap_ps=1_500_000, bursts=3, mode="synchronised"
    )
    assert resolved.machine.drain_kbs() == 358_000_000
    assert (resolved.fabric().granule_bytes, resolved.fabric().n_gpus) == (512, 2)
    assert resolved.scenario.seed == 7


def test_what_a_file_leaves_out_has_defaults(scenario_file):
    workload = "workload: {kind: burst_train, producers: 1, burst: 1 KiB}\n"
    resolved = load_scenario(scenario_file("question: q?\nmachine: hgx-b200\n" + workload))
    scenario = resolved.scenario
    assert (scenario.engine, scenario.trace, scenario.seed, scenario.granule) == ("compiled", "summary", 0, None)
    assert resolved.fabric().granule_bytes == resolved.machine.granule_bytes


def test_a_bare_off_is_a_level_of_trace(scenario_file):
    """YAML reads a bare `off` as false."""
    assert load_scenario(scenario_file(WRITTEN + "trace: off\n")).scenario.trace == "off"
    assert load_scenario(scenario_file(WRITTEN), parse_overrides(["trace=off"])).scenario.trace == "off"


def test_a_mapping_and_a_scenario_do_as_well_as_a_file(scenario_file):
    from_file = load_scenario(scenario_file(WRITTEN))
    scenario = check(Scenario, from_file.scenario.model_dump(mode="json"))
    assert scenario == from_file.scenario
    assert load_scenario(scenario).machine.drain_kbs() == from_file.machine.drain_kbs()
    assert load_scenario(scenario.model_dump()).scenario == scenario


def test_a_machine_file_is_found_beside_the_scenario(scenario_file, tmp_path):
    (tmp_path / "box.yaml").write_text("base: hgx-h100\n", encoding="utf-8")
    resolved = load_scenario(scenario_file(WRITTEN.replace("base: hgx-b200", "base: box.yaml")))
    assert (resolved.machine.sms, resolved.machine.drain_kbs()) == (132, int(358_000_000 * 0.99))


@pytest.mark.parametrize("key", ["machine", "machine.base", "machine.interconnect"])
@pytest.mark.parametrize("named", ["./box.yaml", "box.yaml", "../here/box.yaml"])
@pytest.mark.parametrize("scenario", ["isolated-burst", "elsewhere/mine.yaml"])
def test_a_machine_file_of_an_override_is_found_where_the_command_runs(key, named, scenario, tmp_path, monkeypatch):
    """Not beside the scenario's own file, be that in the catalogue or elsewhere."""
    here = tmp_path / "here"
    (here / "elsewhere").mkdir(parents=True)
    number = "{value: 100 GB/s, source: mine}"
    (here / "box.yaml").write_text(f"base: hgx-b200\ninterconnect:\n  drain_rate: {number}\n", encoding="utf-8")
    written = "question: q?\nmachine: hgx-b200\nworkload: {kind: burst_train, producers: 1, burst: 1 KiB}\n"
    (here / "elsewhere" / "mine.yaml").write_text(written, encoding="utf-8")
    monkeypatch.chdir(here)
    assert load_scenario(scenario, {key: named}).machine.interconnect.drain_rate.value == 100_000_000


def test_a_recorded_routing_is_found_beside_the_file_that_names_it(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    np.save(tmp_path / "sub" / "topk.npy", np.arange(2 * 64 * 2).reshape(-1, 2) % 8)
    written = """\
question: q?
machine: hgx-b200
workload: {kind: megamoe, gpus: 2, hidden: 256, intermediate: 256, experts: 8, topk: 2, tokens: 64, policy: expert_wave,
  routing: {kind: recorded, file: topk.npy}}
"""
    (tmp_path / "sub" / "mine.yaml").write_text(written, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_scenario("sub/mine.yaml").program().n_gpus == 2
    of_option = load_scenario("sub/mine.yaml", {"workload.routing.file": "sub/topk.npy"})
    assert of_option.program().n_gpus == 2
    with pytest.raises(InputError, match=r"topk\.npy"):
        load_scenario("sub/mine.yaml", {"workload.routing.file": "topk.npy"}).program()


def test_overrides_replace_values_by_path(scenario_file):
    overrides = {
        "workload.burst": "64 KiB",
        "machine.base": "hgx-h100",
        "machine.stage.t0": "1 us",
        "granule": None,
    }
    resolved = load_scenario(scenario_file(WRITTEN), overrides)
    assert resolved.scenario.workload.burst == 64 * KIB
    assert resolved.machine.sms == 132
    assert resolved.machine.stage.t0.value == 1_000_000
    assert resolved.machine.drain_kbs() == int(358_000_000 * 0.99)
    assert resolved.scenario.granule is None


def test_a_named_machine_can_be_overridden_too():
    resolved = load_scenario("isolated-burst", {"machine.interconnect": "hgx-h100"})
    assert resolved.machine.drain_kbs() == int(350_000_000 * 0.99)
    assert resolved.machine.sms == 148
    assert load_scenario("isolated-burst", {"machine": "hgx-h100", "workload.producers": 132}).machine.sms == 132


@pytest.mark.parametrize(
    "overrides",
    [
        {"machine.interconnect.drain_rate": "100 GB/s", "workload.producers": 4, "machine": "hgx-h100"},
        {"machine.stage.t0": "1 us", "machine.stage": "hgx-h100"},
        {"workload.burst": "64 KiB", "workload": {"kind": "burst_train", "producers": 1, "burst": "1 KiB"}},
    ],
)
def test_overrides_mean_the_same_in_any_order(overrides):
    """A number set inside a machine, a part or a workload is kept when that is replaced too."""
    backwards = dict(reversed(overrides.items()))
    assert load_scenario("isolated-burst", overrides) == load_scenario("isolated-burst", backwards)


def test_a_number_that_a_file_replaces_stays_when_its_part_is_replaced(scenario_file):
    resolved = load_scenario(scenario_file(WRITTEN), {"machine.interconnect": "hgx-h100"})
    assert resolved.machine.interconnect.gpus.value == 8
    assert resolved.machine.drain_kbs() == int(358_000_000 * 0.99)
    assert resolved.machine.name == "hgx-b200 with interconnect = hgx-h100, interconnect.drain_rate = 358 GB/s"


def test_numbers_of_numpy_are_numbers():
    overrides = {
        "workload.producers": np.int64(4),
        "workload": WORKLOAD | {"bursts": np.array(2)},
        "machine.interconnect.duplex_efficiency": np.float32(0.5),
    }
    resolved = load_scenario({"question": "q?", "machine": "hgx-b200", "workload": WORKLOAD}, overrides)
    assert (resolved.scenario.workload.producers, resolved.scenario.workload.bursts) == (4, 2)
    assert resolved.machine.drain_kbs() == 358_500_000
    of_mapping = load_scenario(
        {"question": "q?", "machine": "hgx-b200", "workload": WORKLOAD | {"producers": np.int64(4)}}
    )
    assert of_mapping.scenario.workload.producers == 4
    assert refused("isolated-burst", {"machine.stage.t0": np.float64(4)}).value == 4.0


def test_a_loaded_scenario_remembers_its_overrides():
    """What a run says of an override without effect does not depend on who was given it."""
    overrides = {"machine.compute.l2": "10 MiB"}
    assert load_scenario("isolated-burst", overrides).given == ("isolated-burst", overrides)
    assert load_scenario("isolated-burst").given is None


def test_override_texts_are_read_as_yaml():
    texts = ["a.b=64 KiB", "c=3", "d=0.5", "e=[1, 2]", "f=", "g=x=y"]
    assert parse_overrides(texts) == {"a.b": "64 KiB", "c": 3, "d": 0.5, "e": [1, 2], "f": None, "g": "x=y"}


@pytest.mark.parametrize(
    "texts, said",
    [
        (["workload.burst"], "'workload.burst': has no '='"),
        (["a={"], "--set a:1: is not YAML"),
        (["a=1", "a=2"], "--set, a = '2': is given twice"),
    ],
)
def test_override_texts_that_mean_nothing_are_refused(texts, said):
    with pytest.raises(InputError) as caught:
        parse_overrides(texts)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "path, value, said",
    [
        ("workload.brust", "1 KiB", "--set workload.brust = '1 KiB': is not a known key; did you mean 'burst'?"),
        ("wrkload.burst", "1 KiB", "--set wrkload.burst = '1 KiB': is not a known key; did you mean 'workload.burst'?"),
        ("workload.burst", 32, "--set workload.burst = 32: is not a size"),
        ("workload.burst", "-1 KiB", "--set workload.burst = '-1 KiB': must be zero or more"),
        ("workload.burst", "1 us", "--set workload.burst = '1 us': is not a size"),
        ("workload.gap", math.nan, "--set workload.gap = nan: is not a time"),
        ("workload.producers", -1, "--set workload.producers = -1: must be at least 0"),
        ("workload.producers", 1.5, "--set workload.producers = 1.5: must be a whole number"),
        ("workload.producers", 149, "--set workload.producers = 149: is more than the 148 SMs a GPU of hgx-b200"),
        ("workload.gpus", 1, "--set workload.gpus = 1: must be at least 2"),
        ("workload.gpus", 9, "--set workload.gpus = 9: is more than the 8 GPUs of hgx-b200 (allowed: at most 8)"),
        ("workload.mode", "synchronized", "is not known; did you mean 'synchronised'?"),
        ("workload.kind", "burst", "--set workload.kind = 'burst': is not known"),
        ("workload", {"producers": 1}, "--set workload, workload.kind: is missing"),
        ("workload", 3, "--set workload = 3"),
        ("workload.burst.deep", 1, "workload.burst is not a mapping"),
        ("granule", "31 KiB", "--set granule = 31744: is more than the 30720 B of room in a stage of hgx-b200"),
        ("granule", "0 KiB", "--set granule = '0 KiB': must be above 0"),
        ("engine", "fast", "(allowed: 'simpy' or 'compiled')"),
        ("trace", True, "--set trace = True: is not known"),
        ("seed", -1, "--set seed = -1: must be at least 0"),
        ("seed", "x", "--set seed = 'x': must be a whole number"),
        ("question", "two\nlines", "must be one line"),
        ("machine", "hgx-b20", "--set machine = 'hgx-b20': is not in the catalogue; did you mean 'hgx-b200'?"),
        ("machine", [1], "--set machine: is no machine"),
        ("machine.interconnect.latency", "1 KiB", "--set machine.interconnect.latency = '1 KiB': is not a time"),
        ("machine.interconnect.latncy", "1 us", "did you mean 'latency'?"),
        ("machine.overrides", 3, "--set machine.overrides = 3: must be a mapping"),
        ("machine.compute", "hgx-h100", "producers = 148: is more than the 132 SMs"),
        ("a..b", 1, "is no path"),
        ("workload", [1], "must be a mapping"),
        ("disturb", {"slow_gpu": 3}, "must be a list"),
        ("disturb", {"slow_gpu": {"gpu": 1, "factor": "x"}}, "must be a number"),
    ],
)
def test_an_override_that_cannot_be_is_refused(path, value, said):
    assert said in str(refused("isolated-burst", {path: value}))


@pytest.mark.parametrize(
    "old, new, line, field",
    [
        ("  burst: 32 KiB", "  brust: 32 KiB", 9, "workload.brust"),
        ("  burst: 32 KiB", "", 6, "workload.burst"),
        ("  burst: 32 KiB", "  burst: 32", 9, "workload.burst"),
        ("  kind: burst_train", "  kind: megamoe9", 7, "workload.kind"),
        ("  producers: 4", "  producers: 149", 8, "workload.producers"),
        ("  mode: synchronised", "  mode: together", 12, "workload.mode"),
        ("358 GB/s", "358 GB", 5, "interconnect.drain_rate.value"),
        ("interconnect.drain_rate", "interconnect.rate", 5, "interconnect.rate"),
        ("base: hgx-b200", "base: hgx-b20", 3, "machine"),
        ("granule: 512 B", "granule: 1 MiB", 13, "granule"),
        ("question: How long?", "", None, "question"),
        ("seed: 7", "sead: 7", 14, "sead"),
        ("seed: 7", "seed: 7\nseed: 8", 15, "seed"),
    ],
)
def test_errors_name_file_line_and_field(scenario_file, old, new, line, field):
    assert old in WRITTEN
    file = scenario_file(WRITTEN.replace(old, new))
    error = refused(file)
    assert error.file == file
    assert error.field == field
    assert line is None or error.line == line


MOE = """question: How long?
machine: hgx-b200
workload:
  kind: megamoe
  hidden: 7168
  intermediate: 2048
  experts: 256
  topk: 8
  tokens: 64
  routing: balanced
  policy: alternating
"""


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("topk: 8", "topk: 300", ":8: workload.topk = 300: is more than the experts (allowed: 1 to 256)"),
        ("balanced", "balanced\n  starts: [1 us]", ":11: workload.starts = 1: needs one start"),
        ("256", "257", ":7: workload.experts = 257: "),
        ("balanced", "{kind: histogram, load: [1, -2]}", ":10: workload.routing.load[1] = -2.0: must be finite"),
        ("hgx-b200", "hgx-h100", ":11: workload.policy = 'alternating': is a schedule of SM100 kernels"),
    ],
)
def test_errors_of_the_model_name_the_key_as_it_was_written_too(scenario_file, old, new, said):
    assert old in MOE
    file = scenario_file(MOE.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_scenario(file).program()
    assert str(caught.value).startswith(file + said)


def test_an_error_of_the_model_names_the_option_that_gave_the_value(scenario_file):
    file = scenario_file(MOE)
    with pytest.raises(InputError, match=r"^--set workload\.topk = 300: is more than the experts"):
        load_scenario(file, {"workload.topk": 300}, label="--set").policies()
    with pytest.raises(InputError, match=r"^workload\.topk = 300: is more than the experts"):
        written = yaml.safe_load(MOE)
        load_scenario(written | {"workload": written["workload"] | {"topk": 300}}).program()


def test_a_link_that_there_is_not_is_named_where_it_was_written(scenario_file):
    file = scenario_file(MOE + "disturb:\n  degraded_link: {between: [0, 1], factor: 0.5}\n")
    with pytest.raises(InputError) as caught:
        load_scenario(file).fabric()
    assert str(caught.value).startswith(f"{file}:13: disturb.degraded_link.between = '0, 1': are not joined by a link")


def test_an_error_about_no_key_of_the_scenario_stands_where_the_workload_does(scenario_file):
    with pytest.raises(InputError) as caught:
        load_scenario(scenario_file(MOE.replace("balanced", "balanced\n  ranks: symmetric"))).program()
    assert caught.value.line == 3 and caught.value.field == "busiest over idlest rank"


@pytest.mark.parametrize("name", ["lead-map", "hgx-h100"])
def test_what_is_no_scenario_but_something_else_is_said_to_be_that(name):
    other = {"lead-map": "is a study, not a scenario: use `xstage sweep`", "hgx-h100": "is a machine, not a scenario"}
    assert other[name] in str(refused(name))


def test_a_scenario_is_no_study_and_a_study_no_scenario(scenario_file):
    with pytest.raises(InputError, match=r"1: is a scenario, not a study: use `xstage run`$"):
        load_study(scenario_file(MOE))
    with pytest.raises(InputError, match=r"is a scenario, not a study: use `xstage run`$"):
        load_study("isolated-burst")
    study = "question: q?\nscenario: isolated-burst\naxes: {workload.burst: [1 KiB, 2 KiB]}\n"
    assert "1: is a study, not a scenario: use `xstage sweep`" in str(refused(scenario_file(study)))


@pytest.mark.parametrize(
    "workload, title",
    [
        ({"kind": "megamoe", "model": "dsv4-flash", "tokens": 64}, "megamoe, w4a8"),
        ({"kind": "megamoe", "model": "dsv4-flash", "tokens": 64, "numbers": "w8a8"}, "megamoe, w8a8"),
        ({"kind": "attention_a2a", "model": "wan-14b"}, "attention with the All-to-All of its output, bf16"),
        ({"kind": "attention_a2a", "model": "wan-14b", "policy": "compute_only", "inputs": "fp8"}, "attention, fp8"),
        ({"kind": "tensor_parallel", "operation": "ag_gemm", "m": 8, "n": 8, "k": 8}, "AllGather + GEMM, bf16"),
        ({"kind": "burst_train", "producers": 1, "burst": "1 KiB"}, "burst_train"),
    ],
)
def test_a_title_says_what_is_run_and_in_which_numbers(workload, title):
    found = load_scenario({"question": "q?", "machine": "hgx-h100", "workload": workload}).scenario.workload
    assert found.title == title
    assert found.policy_name == (None if workload["kind"] == "burst_train" else found.policy.name)


def test_an_unknown_name_is_refused_with_the_closest_and_a_missing_file_as_missing():
    assert "did you mean 'isolated-burst'?" in str(refused("isolated-brust"))
    assert str(refused("nope.yaml")) == "nope.yaml: no such file"
    with pytest.raises(InputError, match=r"did you mean 'hgx-b200'\?"):
        find_any("hgx-b20")


@pytest.mark.parametrize("text", ["- 1\n", "text\n", "{}\n"])
def test_what_is_no_scenario_is_refused(scenario_file, text):
    assert refused(scenario_file(text)).file


def test_a_train_of_nothing_is_a_program():
    program, _ = build_program(load_scenario("isolated-burst", {"workload.producers": 0}))
    assert len(program.lanes) == 0


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("gap", "workload.gap"),
        ("brst", "workload.burst"),
        ("drain_rate", "machine.interconnect.drain_rate"),
        ("stage.capacity_gpu", "machine.stage.capacity_gpu"),
        ("wrokload.gap", "workload.gap"),
        ("wrokload.brst", "workload"),
        ("gap_us", "workload.gap"),
        ("R", "machine.interconnect.drain_rate"),
    ],
)
def test_a_key_without_its_path_is_answered_with_the_path(key, meant):
    with pytest.raises(InputError, match=f"did you mean '{meant}'"):
        load_scenario("periodic-train", {key: "3 us"})


def test_a_machine_is_no_scenario_and_a_scenario_no_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("base: hgx-b200\n")
    (tmp_path / "run.yaml").write_text("question: q\nmachine: hgx-b200\nworkload: {kind: burst_train}\n")
    with pytest.raises(InputError, match="is a machine, not a scenario"):
        load_scenario("mine.yaml")
    for wrong in (lambda: load_machine("run.yaml"), lambda: load_scenario("periodic-train", {"machine": "run.yaml"})):
        with pytest.raises(InputError, match="is a scenario, not a machine"):
            wrong()


def test_a_file_that_is_named_without_its_ending_is_suggested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-layer.yaml").write_text("question: q\n")
    with pytest.raises(InputError, match=r"is not in the catalogue; did you mean 'my-layer\.yaml'"):
        load_scenario("my-layer")
