"""The command that runs fused kernels, policy by policy, on emulated devices: what it reports and what it refuses."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from xstage.hw_validate.cuda import cupy_devices, fused_run, steady
from xstage.hw_validate.cuda.fused_calls import ATTENTION_POLICIES, MEGAMOE_POLICIES, AttentionCall, MegaMoeCall
from xstage.hw_validate.cuda.fused_run import kept_at_home, lowered_policy, machine_for, main, ready, run_policies
from xstage.hw_validate.cuda.replay_job import TIMES, Settings
from xstage.scenarios.machine_files import load_machine
from xstage.sim.errors import InputError
from xstage.sim.schedules.attention_a2a import Attention
from xstage.sim.schedules.megamoe import MegaMoe

from .emulated import BUILDS, needs_compiler
from .emulated_devices import EmulatedDevices

pytestmark = needs_compiler

CALLS = {
    "megamoe": (
        MegaMoeCall(MegaMoe(tokens=20, hidden=128, intermediate=128, experts=4, topk=2, ranks=2, numbers="bf16")),
        {"expert_wave": MEGAMOE_POLICIES["expert_wave"]},
    ),
    "attention": (
        AttentionCall(Attention(tokens=20, heads=2, head_dim=64, ranks=2)),
        {name: ATTENTION_POLICIES[name] for name in ("reserved_sms", "piggyback")},
    ),
}


def devices(sms=4, **changes):
    return EmulatedDevices(BUILDS, sms=sms, shared_per_block_bytes=227 << 10, **changes)


@pytest.mark.parametrize("kernel", CALLS)
def test_policies_run_on_devices_and_write_their_report(kernel, tmp_path):
    made, (call, policies) = devices(), CALLS[kernel]
    calibrated = load_machine("hgx-h100")
    report = run_policies(made, call, policies, "host", tmp_path, repeats=1, calibrated=calibrated)
    assert report["sms_per_rank"] == 2 and not made.live
    for name in policies:
        told = report["policies"][name]
        for side in ("far", "control", "bare"):
            assert told[side]["relative_error"] < 0.005
            assert told[side]["whole_us"] > told["simulated"].get("span_us", 0) > 0
            assert told[side]["sm_mhz"] > 0 and told[side]["registers"] == 0 and told[side]["post_us"] >= 0
            assert ("l2_inputs_late_total_us" in told[side]) == (kernel == "megamoe" and side != "bare")
        assert told["far"]["makespan_us"] > told["far"]["span_us"] > 0 and told["simulated"]["makespan_us"] > 0
        assert {"makespan_us", "span_us", "span_p95_us", "stores_total_us", "mma_stall_us"} <= set(told["error_pct"])
        assert told["stall_us"]["measured"] == pytest.approx(
            told["far"]["stores_total_us"] - told["control"]["stores_total_us"]
        )
        assert told["stall_us"]["verdict"] in ("agrees", "does not")
        low, high = told["stall_us"]["simulated_between"]
        assert low <= told["stall_us"]["simulated"] <= high
        assert {f"{name}-far.parquet", f"{name}-control.parquet"} <= {path.name for path in tmp_path.iterdir()}
    first = next(iter(policies))
    assert report["policies"][first]["speedup"] == {"measured": 1.0, "simulated": 1.0}
    assert isinstance(report["ranked_alike"], bool)
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8")).keys() == report.keys()


def test_attention_runs_on_a_gpu_for_each_rank(tmp_path):
    call, _ = CALLS["attention"]
    made = devices(gpus=2)
    report = run_policies(made, call, {"serial": ATTENTION_POLICIES["serial"]}, "peer", tmp_path, repeats=2)
    told = report["policies"]["serial"]
    assert report["sms_per_rank"] == 4 and told["far"]["relative_error"] < 0.005
    assert told["control"]["makespan_us"] > 0 and "relative_error" not in told["control"]


@pytest.mark.parametrize("kernel", CALLS)
def test_the_control_between_gpus_keeps_all_data_at_home_and_lets_flags_travel(kernel):
    call, policies = CALLS[kernel]
    program = call.build(machine_for("hgx-h100", 2), next(iter(policies.values())))
    fused = call.lower(program, is_one_gpu=False, shared_bytes=227 << 10)
    control = kept_at_home(call.job(fused, "peer", Settings()))
    for gpu in range(2):
        for name, homes in (("landing", {gpu}), ("source", {gpu}), ("counters", {0, 1})):
            pointers = control.buffers[f"{name}_by_rank@{gpu}"].pointers.values()
            assert {control.buffers[pointer.buffer].home for pointer in pointers} == homes


@pytest.mark.parametrize("kernel", CALLS)
def test_nothing_of_the_repeat_before_is_there_when_a_kernel_starts(kernel, monkeypatch):
    """Else a wait that is missing would show in the first repeat only: later ones find the same numbers there already."""
    call, policies = CALLS[kernel]
    made = devices()
    monkeypatch.setattr(made, "prepare", lambda *given: {})
    _, fused, _ = lowered_policy(made, call, next(iter(policies.values())), "host")
    found = []
    with ready(call, fused, made, "host", call.source) as (memory, _):

        def run(launches, abort, deadline_s):
            names = [name for name in memory.job.buffers if name.partition("@")[0] in call.written]
            found.append([name for name in names if memory.read(name).any()])
            for buffer in list(made.live.values()):
                if not any(buffer.address == word.address for word in abort):
                    buffer.clear()
                    buffer.write(np.full(buffer.size, 7, np.uint8))

        monkeypatch.setattr(made, "run", run)
        memory.run()
        memory.run()
    assert found == [[], []]
    buffers = {"landing", "own_landing"} | ({"inputs", "middles"} if kernel == "megamoe" else {"outputs"})
    assert buffers <= set(call.written)


@pytest.mark.parametrize(
    ("clocks", "counted", "is_steady", "read"),
    [
        ([1980] * 3, [1980, 1980, 1980], True, 3),
        ([345, 900, 1980, 1950, 1980, 1980, 1975], [1980, 1980, 1975], True, 5),  # an idle GPU
        ([345] * 5 + [1700, 1980, 1980, 1980], [1980, 1980, 1980], True, 4),  # steady, but idle
        ([1400, 1500] * 26 + [1400], [1400, 1500, 1400], False, 53),  # never steady
        ([345] * 53, [345, 345, 345], False, 3),
    ],
)
def test_repeats_are_counted_when_the_clock_is_steady(monkeypatch, clocks, counted, is_steady, read):
    """Costs in us come from one side and are compared with another: both are to run at the clock of a GPU at work."""
    left, shown = iter(clocks), []

    class Memory:
        job, devices = SimpleNamespace(buffers=("times@0", "numbers@0")), None

        def run(self):
            self.times = np.zeros(2, TIMES)
            self.times["global_start"], self.times["global_end"], self.times["clock_end"] = 1000, 2000, next(left)

        def read(self, name):
            shown.append(name)
            return self.times

    monkeypatch.setattr(steady, "LONGEST_S", float("inf"))
    runs, was_steady = fused_run.steady_runs(SimpleNamespace(outputs=("numbers",)), Memory(), 3, 1980.0)
    assert [outputs["times@0"]["clock_end"][0] for outputs in runs] == counted and was_steady is is_steady
    assert (shown.count("numbers@0"), next(left, None)) == (read, None)


def test_what_is_simulated_has_the_costs_of_the_repeat_in_the_middle(monkeypatch):
    """The last repeat of the control was disturbed. What it took is no cost of the kernel."""
    call, policies = CALLS["attention"]
    made, totals, numbers = devices(), iter([40.0, 41.0, 70.0]), iter(range(3))
    program, fused, _ = lowered_policy(made, call, policies["piggyback"], "host")
    monkeypatch.setattr(AttentionCall, "summary", lambda self, table: {"stores_total_us": next(totals)})
    monkeypatch.setattr(fused_run, "measured_ops", lambda *given: f"ops {next(numbers)}")
    monkeypatch.setattr(fused_run, "late_inputs", lambda *given: {})
    found, table = fused_run.measure(call, program, fused, made, "host", 3, "control")
    assert table == "ops 1"
    assert [found[f"stores_total_{name}"] for name in ("us", "low_us", "high_us")] == [41.0, 40.0, 70.0]


@pytest.mark.parametrize("kernel", CALLS)
def test_more_ranks_than_gpus_are_refused(kernel, tmp_path):
    with pytest.raises(InputError, match=r"ranks = 2: are more than there are GPUs \(allowed: 1\)"):
        run_policies(devices(sms=2), *CALLS[kernel], "peer", tmp_path)


@pytest.mark.parametrize(
    ("kernel", "option", "message"),
    [
        (
            "megamoe",
            ["--policies", "tide"],
            "'tide': are unknown (allowed: expert_wave, interleaved, alternating, lag)",
        ),
        (
            "attention",
            ["--policies", "expert_wave"],
            "are unknown (allowed: serial, comm_warp, reserved_sms, piggyback)",
        ),
        ("megamoe", ["--intermediate", "wide"], "--intermediate = 'wide': is no list of sizes"),
        ("attention", ["--tokens", "many"], "--tokens = 'many': is no list of sizes (allowed: such as 256,512)"),
        ("attention", ["--tokens", "1025"], "tokens = 1025: cannot be shared out evenly"),
        ("attention", ["--repeats", "0"], "--repeats = 0: must be at least 1"),
    ],
)
def test_what_the_command_does_not_know_is_bad_input(tmp_path, capsys, kernel, option, message):
    assert main([kernel, "-o", str(tmp_path), *option]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kernel", "sizes", "policy", "folders"),
    [
        (
            "megamoe",
            ["--tokens", "10", "--hidden", "128", "--experts", "4", "--intermediate", "64"],
            "alternating",
            {"intermediate-64"},
        ),
        (
            "attention",
            ["--tokens", "8,16", "--heads", "4", "--kv-heads", "2", "--head-dim", "64", "--causal"],
            "piggyback",
            {"tokens-8", "tokens-16"},
        ),
    ],
)
def test_the_command_writes_a_report_for_each_size(tmp_path, capsys, monkeypatch, kernel, sizes, policy, folders):
    made = devices()
    monkeypatch.setattr(cupy_devices, "CupyDevices", lambda: made)
    assert main([kernel, "-o", str(tmp_path), *sizes, "--policies", policy, "--repeats", "1"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == folders
    assert all((tmp_path / folder / "report.json").exists() for folder in folders)
