"""`xstage run --estimate` says what a run will take without running it, and a long run says how far it is."""

import subprocess
import sys

import pytest
from xstage.scenarios.loader import load
from xstage.sim.outcome import OP_RECORD

import xstage as xs
from xstage.cli import main
from xstage.run_estimate import Built, estimate_run, expected_s

MOE = {
    "question": "q?",
    "machine": "hgx-b200",
    "workload": {"kind": "megamoe", "model": "dsv4-flash", "tokens": 64, "policy": "alternating"},
    "granule": "4 KiB",
}


@pytest.mark.parametrize("scenario", ["isolated-burst", "islands-all-to-all", "gemm-ar-lamport"])
def test_ops_are_exact_and_events_about_right(answer, scenario):
    found = answer("run", scenario, "--estimate")[1]["estimate"]
    ran = answer("run", scenario)[1]
    assert found["ops"] == ran["ops"]
    assert ran["events"] / 1.5 < found["events"] < 1.5 * ran["events"]
    assert found["memory_bytes"] > 2**20 and found["wall_s"] > 0
    assert ran["timing"]["peak_memory_bytes"] > 2**20


def test_a_full_trace_needs_more_memory():
    resolved = load(MOE)
    off, full = (estimate_run(resolved, trace=level) for level in ("off", "full"))
    assert full.memory_bytes - off.memory_bytes > full.ops * OP_RECORD.itemsize


def test_a_schedule_is_built_once():
    resolved = load(MOE)
    built = Built.of(resolved)
    assert built.program() is built.program()
    assert built.program() == resolved.program()
    assert built.scenario == resolved.scenario


def test_both_engines_can_be_asked(answer):
    built = Built.of(load("isolated-burst"))
    assert expected_s(built, "simpy") > expected_s(built, "compiled")
    code, found = answer("run", "isolated-burst", "--estimate", "--engine", "fast")
    assert code == 2 and "engine = 'fast': is not known" in found["error"]["message"]


def test_the_estimate_is_a_table_for_a_person(capsys):
    assert main(["run", "isolated-burst", "--estimate"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ops     148, and 7104 granules at most")
    assert "makespan" not in out


CLOCK = """
import sys
import xstage.clock
xstage.clock.PATIENCE_S = 0.0
with xstage.clock.clock("Simulating mine", 1000.0):
    sys.stdin.read()  # busy, until the test has seen the line
"""


def test_a_long_run_says_how_long_it_will_take_yet():
    words = [sys.executable, "-c", CLOCK]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        line = running.stderr.readline()
        running.stdin.close()
        assert running.wait() == 0
    assert line == "Simulating mine: 0 s, about 1000 s left\n"


@pytest.mark.slow
def test_a_rack_of_72_ranks_is_estimated_and_runs():
    """DSv4-Pro over all GPUs of an NVL72, with few tokens."""
    workload = MOE["workload"] | {
        "model": "dsv4-pro", "gpus": 72, "tokens": 32, "placement": {"kind": "eplb", "redundant": 48},
    }  # fmt: skip
    built = Built.of(load(MOE | {"machine": "gb200-nvl72", "workload": workload}))
    found = estimate_run(built)
    ran = xs.run(built)
    assert found.ops == ran.metrics["ops"]
    assert ran.metrics["events"] / 2 < found.events < 2 * ran.metrics["events"]
