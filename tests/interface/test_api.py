"""The Python interface: what `import xstage` costs, and what each function returns."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from xstage.scenarios import catalogue
from xstage.scenarios.loader import Resolved

import xstage as xs
from xstage.cli import main

HEAVY = {"pandas", "scipy", "pyarrow", "networkx", "numba", "matplotlib"}


@pytest.mark.parametrize(
    "code",
    [
        "import xstage",
        "import xstage; xstage.__version__",
        "from xstage.cli import main; main(['--help'])",
        "from xstage.cli import main; main(['run', '--help'])",
        "from xstage.cli import main; main(['compare', '--help'])",
        "import xstage; xstage.compare, xstage.explain, xstage.tune",
        "from xstage.cli import main; main(['audit', '--machine', 'hgx-b200', '--producers', '1', '--bytes', '1 KiB',"
        " '--gap', '0 us'])",
        "from xstage.cli import main; main(['scenarios', '--json'])",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code):
    checked = f"import sys\n{code}\nprint('loaded:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", checked], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split("loaded:")[1].split())
    assert not loaded & HEAVY


def test_every_public_name_is_there():
    for name in xs.__all__:
        assert getattr(xs, name) is not None
    assert set(xs.__all__) <= set(dir(xs))
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = xs.nothing_like_this


def test_run_gives_numbers_and_tables():
    done = xs.run("isolated-burst", engine="simpy", overrides={"workload.producers": 8}, trace="full")
    assert done.makespan_us == done.metrics["makespan_us"] > 0
    assert len(done.trace.ops()) == 8
    assert done.as_dict()["machine"] == "hgx-b200"
    assert "isolated-burst" in done._repr_html_()
    assert repr(done).startswith("<Run of isolated-burst on hgx-b200, simpy engine: ")


def test_what_is_large_is_one_short_line_in_a_notebook():
    done = xs.run("isolated-burst", engine="simpy", overrides={"workload.producers": 8}, trace="full")
    assert repr(done.resolved) == "<Scenario isolated-burst: burst_train, on 2 GPUs of hgx-b200>"
    assert repr(xs.load_scenario("gemm-rs-llama-fused")) == (
        "<Scenario gemm-rs-llama-fused: GEMM + ReduceScatter, bf16, policy fused, on 8 GPUs of hgx-h100>"
    )
    assert repr(xs.load_machine("hgx-h100")) == "<Machine hgx-h100: 8 GPUs of 132 SMs, switch>"
    assert str(xs.load_machine("hgx-h100")) == repr(xs.load_machine("hgx-h100"))
    assert repr(done.program) == "<Program burst_train: 2 GPUs, 8 lanes, 8 tasks>"
    assert repr(done.trace) == f"<Trace, full, of the simpy engine: {done.makespan_us:.3f} us>"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: xs.run(None), "scenario: is of type NoneType"),
        (lambda: xs.load_scenario(3), "scenario = 3: is of type int"),
        (lambda: xs.load_machine({"base": "hgx-h100"}), "machine: is of type dict"),
        (lambda: xs.audit(None, 1, "1 KiB"), "machine: is of type NoneType"),
        (lambda: xs.layer("flux-1", None), "machine: is of type NoneType"),
        (lambda: xs.topology(None), "name: is of type NoneType"),
    ],
)
def test_what_is_neither_a_name_nor_a_path_is_refused(call, said):
    with pytest.raises(xs.InputError, match=rf"^{said} \(allowed: a name, or the path of a file\)$"):
        call()


def test_run_takes_a_mapping():
    done = xs.run({
        "question": "How long?",
        "machine": {"base": "hgx-h100", "overrides": {"stage.t0": "1 us"}},
        "workload": {"kind": "burst_train", "producers": 2, "burst": "1 KiB"},
        "engine": "simpy",
    })  # fmt: skip
    assert done.metrics["roles"]["producer"]["busy_mean_us"] == pytest.approx(1 + 1024 / 43e9 * 1e6, abs=1e-6)


def test_run_refuses_what_it_would_ignore():
    resolved = xs.load_scenario("isolated-burst")
    with pytest.raises(xs.InputError, match="overrides = 'seed': cannot change a loaded scenario"):
        xs.run(resolved, overrides={"seed": 1})


@pytest.mark.parametrize("option", [{"engine": "fast"}, {"trace": "everything"}])
def test_run_refuses_an_engine_or_a_level_before_it_builds(option, monkeypatch):
    monkeypatch.delattr(Resolved, "program")
    [(name, value)] = option.items()
    with pytest.raises(xs.InputError, match=f"^{name} = '{value}': is unknown"):
        xs.run("isolated-burst", **option)


def test_the_same_scenario_gives_the_same_numbers_twice():
    first, second = (xs.run("periodic-train", overrides={"workload.bursts": 3}) for _ in range(2))
    assert first.metrics == second.metrics


def test_audit_takes_names_and_machines():
    by_name = xs.audit("hgx-b200", producers=148, burst="32 KiB", gap="4 us")
    assert by_name == xs.audit(xs.load_machine("hgx-b200"), producers=148, burst="32 KiB", gap="4 us")
    assert not by_name.fits
    assert xs.audit("hgx-b200", 148, "32 KiB", "4 us", overrides={"interconnect.drain_rate": "1.2 TB/s"}).fits
    slow = {"interconnect.drain_rate": "600 GB/s"}
    changed = [
        xs.audit(machine, 148, "32 KiB", "4 us", overrides=slow)
        for machine in (xs.load_machine("hgx-b200"), "hgx-b200")
    ]
    assert changed[0] == changed[1] != by_name


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"producers": 149}, r"producers = 149: .*allowed: 0 to 148"),
        ({"producers": -1}, "producers = -1"),
        ({"producers": True}, "producers = True: must be a whole number"),
        ({"gpus": "8"}, "gpus = '8': must be a whole number"),
        ({"synchronised": "no"}, "synchronised = 'no': must be true or false"),
        ({"overrides": "stage.t0=1us"}, "overrides = 'stage.t0=1us': must be a mapping"),
        ({"burst": "1 us"}, "burst = '1 us': is not a size"),
        ({"gap": "-1 us"}, "gap = '-1 us'"),
        ({"machine": "hgx-b20"}, "did you mean 'hgx-b200'"),
    ],
)
def test_audit_refuses_what_cannot_be(arguments, said):
    with pytest.raises(xs.InputError, match=said):
        xs.audit(**{"machine": "hgx-b200", "producers": 1, "burst": "1 KiB", "gap": "1 us"} | arguments)


def test_the_catalogue_is_a_table():
    table = xs.catalogue()
    assert isinstance(table, pd.DataFrame)
    assert list(table.columns) == ["kind", "name", "text"]
    assert {"hgx-b200", "isolated-burst"} <= set(table["name"])


def test_a_bad_file_stops_only_what_needs_it(tmp_path, monkeypatch, capsys):
    """The list says what is wrong with it, and where."""
    for folder, source in (("machines", "hgx-b200"), ("microbenchmarks", "isolated-burst")):
        (tmp_path / folder).mkdir()
        text = Path(catalogue.__file__).with_name(folder).joinpath(f"{source}.yaml").read_text()
        (tmp_path / folder / f"{source}.yaml").write_text(text)
    (tmp_path / "machines" / "bad.yaml").write_text("stage:\n  t0: [\n")
    monkeypatch.setattr(catalogue, "files", lambda package: tmp_path)
    rows = xs.catalogue().set_index("name").text
    assert rows["bad"].startswith("UNREADABLE: ") and "bad.yaml:3: is not YAML" in rows["bad"]
    assert "UNREADABLE" not in rows["hgx-b200"] + rows["isolated-burst"]
    assert main(["scenarios"]) == 0 and "bad.yaml:3" in capsys.readouterr().out
    assert xs.load_scenario("isolated-burst").machine.name == "hgx-b200"
    assert main(["scenarios", "show", "bad", "--json"]) == 2


def test_rows_that_are_computed_for_nothing_are_said():
    """With a tile's height of rows an expert on average, about every second expert needs one more tile for a few rows."""
    changes = {"workload.tokens": 1024}
    found = xs.run("megamoe-flash-wave", overrides=changes)
    fill = found.metrics["m_block_fill"]
    assert 0 < fill["mean_rows"] <= fill["block_m"]
    rows, blocks = 1024 * 6, sum(found.program.meta["m_blocks"])
    assert fill["mean_rows"] == pytest.approx(rows / blocks, rel=0.02)
    assert f"{fill['mean_rows']:.1f} of {fill['block_m']}, mean" in found._repr_html_()
    assert "m_block_fill" not in xs.run("isolated-burst").metrics


def test_doctor_is_a_small_object():
    found = xs.doctor()
    assert found.ok
    assert "numpy" in found._repr_html_()


def test_a_run_says_how_even_ranks_are_before_and_after_experts_are_placed_by_load():
    changes = {"workload.tokens": 128, "workload.ranks": "all", "engine": "compiled", "granule": "4 KiB"}
    placed = {"workload.placement": {"kind": "eplb", "redundant": 32}}
    load = xs.run("megamoe-flash-skewed", overrides=changes | placed).metrics["rank_load"]
    assert sum(load["before"]) == pytest.approx(8 * 128 * 6)
    assert sum(load["after"]) == pytest.approx(8 * 128 * 6)
    assert 1 <= load["max_over_mean_after"] < load["max_over_mean_before"]
    assert "rank_load" not in xs.run("megamoe-flash-skewed", overrides=changes).metrics


def test_a_run_says_how_busy_the_busiest_expert_and_rank_are():
    changes = {"workload.tokens": 512, "workload.ranks": "all", "workload.gpus": 4, "trace": "off"}
    changes["workload.routing"] = {"kind": "histogram", "load": [2.0] * 64 + [1.0] * 192}
    found = xs.run("megamoe-flash-skewed", overrides=changes)
    routed = found.metrics["routed"]
    assert routed["rank_max_over_mean"] == pytest.approx(2 / 1.25, rel=0.03)  # experts are drawn without replacement
    assert routed["expert_max_over_mean"] >= routed["rank_max_over_mean"]
    assert f"{routed['rank_max_over_mean']:.3f} times the mean" in found._repr_html_()
