"""What a Python caller may pass: a wrong argument is an `InputError` that names it, before anything runs."""

import pandas as pd
import pytest

import xstage as xs

MEGAMOE = "megamoe-flash-wave"
BURST = {"kind": "burst_train", "producers": 2, "burst": "1 KiB"}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: xs.run("isolated-burst", overrides="gap=8us"), "overrides = 'gap=8us': must be a mapping"),
        (lambda: xs.run("isolated-burst", overrides={3: 4}), "overrides = {3: 4}: must be a mapping"),
        (lambda: xs.load_machine("hgx-b200", "a=b"), "overrides = 'a=b': must be a mapping"),
        (lambda: xs.compare(MEGAMOE, 3), "policies = 3: must be a name, or a list of names"),
        (lambda: xs.compare(MEGAMOE, [3]), "policies = 3: must be text"),
        (lambda: xs.compare(MEGAMOE, trace="everything"), "trace = 'everything': is unknown"),
        (lambda: xs.explain(MEGAMOE, 3), "policy = 3: must be text"),
        (lambda: xs.explain(MEGAMOE, order=3), "order = 3: must be a name"),
        (lambda: xs.tune(MEGAMOE, most_runs=0), "most_runs = 0: must be at least 2"),
        (lambda: xs.tune(MEGAMOE, most_runs="3"), "most_runs = '3': must be a whole number"),
        (lambda: xs.tune(MEGAMOE, most_runs=True), "most_runs = True: must be a whole number"),
        (lambda: xs.estimate_run("isolated-burst", "fast"), "engine = 'fast': is unknown"),
        (lambda: xs.layer("flux-1", tokens="a"), "tokens = 'a': must be a whole number"),
        (lambda: xs.layer("flux-1", gpus=8.0), "gpus = 8.0: must be a whole number"),
        (lambda: xs.layer("flux-1", seed=-1), "seed = -1: must be at least 0"),
        (lambda: xs.figures("out", 3), "only = 3: must be a name"),
        (lambda: xs.figures(3, "knee"), "folder = 3: is of type int"),
        (lambda: xs.figures("out", "knee", redraw="no"), "redraw = 'no': must be true or false"),
        (lambda: xs.figures("out", "knee", workers=0), "workers = 0: must be at least 1"),
        (lambda: xs.paper_lead(leads=3), "leads = 3: must be a list of rows"),
        (lambda: xs.paper_lead(leads=[]), "must be a list of rows"),
        (lambda: xs.paper_lead(leads=[-1]), "leads = -1: must be at least 0"),
        (lambda: xs.paper_speedups("out", []), "routings: names no routing"),
        (lambda: xs.paper_tiles([]), "model: names no model"),
        (lambda: xs.paper_tiles(seeds=0), "seeds = 0: must be at least 1"),
        (lambda: xs.paper_tiles(exponent="a"), "exponent = 'a': must be a number"),
        (lambda: xs.published(gpu=3), "gpu = 3: must be text"),
        (lambda: xs.published(3), "data = 3: is of type int"),
        (lambda: xs.read_trace(3), "file = 3: is of type int"),
        (lambda: xs.report({}, "x.html"), "type = 'dict': is nothing that a page is made of"),
        (lambda: xs.report("x.json", 3), "output = 3: is of type int"),
        (lambda: xs.sweep("mi300x-mesh", 3), "output = 3: is of type int"),
        (lambda: xs.sweep("mi300x-mesh", "out", timeout_s="a"), "timeout = 'a': must be a number"),
        (lambda: xs.sweep("mi300x-mesh", "out", dask=3), "dask = 3: must be text"),
        (lambda: xs.sweep("mi300x-mesh", "out", metric=3), "metric = 3: must be text"),
        (lambda: xs.estimate("mi300x-mesh", workers="a"), "workers = 'a': must be a whole number"),
        (lambda: xs.write_trace(3, "x.parquet"), "type = 'int': is no trace"),
        (lambda: xs.beside(3, "isolated-burst"), "file = 3: is of type int"),
        (lambda: xs.beside(pd.DataFrame(), "isolated-burst", "a=b"), "match = 'a=b': must be a mapping"),
        (lambda: xs.build_program(3), "scenario = 3: is of type int"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_refused_by_its_name(call, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(xs.InputError) as error:
        call()
    assert said in str(error.value)
    assert not list(tmp_path.iterdir())


def test_one_name_stands_for_a_list_of_it(tmp_path):
    assert [run.policy for run in xs.compare(MEGAMOE, "interleaved", overrides={"workload.tokens": 1024}).runs] == [
        "interleaved"
    ]
    [drawn] = xs.figures(tmp_path, "knee", formats="svg").drawn
    assert {file.suffix for file in drawn.files} == {".svg", ".csv"}
    assert [run.policy for run in xs.layer("flux-1", policies="serial", tokens=1024).runs] == ["serial"]
    train = {"workload.producers": 8, "workload.bursts": 3}
    [bar, *left] = xs.explain("periodic-train", order="drain_rate", overrides=train).bars
    assert bar.name == "drain_rate" and not any(other.removed for other in left)


def test_one_name_that_is_wrong_is_named_whole():
    for call in (lambda: xs.explain("isolated-burst", order="RQ"), lambda: xs.compare(MEGAMOE, "RQ")):
        with pytest.raises(xs.InputError, match="= 'RQ': is no "):
            call()


@pytest.fixture
def narrow():
    """A machine that no file has."""
    return xs.load_machine("hgx-b200", {"interconnect.drain_rate": "100 GB/s"})


def scenario(machine):
    return {"question": "How long?", "machine": machine, "workload": BURST | {"producers": 148, "burst": "64 KiB"}}


def test_a_machine_of_ones_own_runs_like_one_that_a_scenario_describes(narrow):
    described = {"base": "hgx-b200", "overrides": {"interconnect.drain_rate": "100 GB/s"}}
    own, written = xs.run(scenario(narrow)), xs.run(scenario(described))
    assert own.metrics == written.metrics
    assert own.metrics != xs.run(scenario("hgx-b200")).metrics
    assert own.as_dict()["machine"] == narrow.name


def test_a_scenario_keeps_the_machine_that_it_was_given(narrow):
    resolved = xs.load_scenario(scenario(narrow))
    assert xs.load_scenario(resolved.scenario).machine == narrow
    assert xs.load_scenario(xs.Scenario.model_validate(resolved.scenario.model_dump(mode="json"))).machine == narrow
    assert not xs.diff(resolved, xs.load_scenario(scenario(narrow)))


def test_a_machine_of_ones_own_can_be_changed_on_top(narrow):
    path, value = "interconnect.drain_rate", "200 GB/s"
    changed = xs.load_machine(narrow, {path: value})
    assert changed.drain_kbs() == 200_000_000
    for machine in (narrow, {"base": narrow}):
        assert xs.load_scenario(scenario(machine), {f"machine.{path}": value}).machine.drain_kbs() == 200_000_000
    replaced = xs.load_scenario("isolated-burst", {"machine": narrow})
    assert replaced.machine == narrow
    assert xs.needs(scenario(narrow)).resolved.machine == narrow


def test_a_study_takes_a_machine_of_ones_own(narrow, tmp_path):
    study = {
        "name": "own",
        "question": "How long?",
        "scenario": scenario(narrow),
        "axes": {"workload.producers": [1, 2]},
    }
    swept = xs.sweep(study, tmp_path, workers=1).frame
    one = xs.run(scenario(narrow), overrides={"workload.producers": 2})
    assert swept["makespan_us"][1] == one.makespan_us


def test_a_machine_of_ones_own_has_layers_and_a_topology(narrow):
    assert xs.layer("flux-1", narrow, policies="serial", tokens=1024).machine == narrow.name
    found = xs.topology(narrow)
    assert found.links().rate_gbs.max() == 100
    assert found.plot().axes


def test_a_machine_of_ones_own_is_refused_where_it_does_not_fit(narrow):
    with pytest.raises(xs.InputError, match="is more than the 8 GPUs of hgx-b200 with"):
        xs.load_scenario(scenario(narrow), {"workload.gpus": 9})


def test_a_number_of_a_machine_may_be_named_as_in_a_scenario():
    path, value = "interconnect.drain_rate", "358 GB/s"
    assert xs.load_machine("hgx-b200", {f"machine.{path}": value}).drain_kbs() == 358_000_000
    short, long = (xs.audit("hgx-b200", 8, "1 KiB", overrides={name: value}) for name in (path, f"machine.{path}"))
    assert short.stage == long.stage
    with pytest.raises(xs.InputError, match=r"override interconnect\.drain_rate: is given twice"):
        xs.load_machine("hgx-b200", {path: "1 GB/s", f"machine.{path}": value})


def test_a_machine_shows_its_own_names():
    names = [name for name in dir(xs.load_machine("hgx-b200")) if not name.startswith("_")]
    assert {"compute", "stage", "interconnect", "name", "sms", "gpus", "numbers", "x_stage", "fabric"} <= set(names)
    assert not any(name.startswith("model_") for name in names)
    assert "copy" not in names
