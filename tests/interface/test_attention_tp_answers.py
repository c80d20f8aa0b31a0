"""What compare, explain and tune say of attention and tensor-parallel scenarios of the catalogue."""

import pytest

import xstage as xs
from xstage.cli import main

SMALL = {
    "attention-wan-piggyback": {"workload.tokens": 16384},
    "attention-wan-serial": {"workload.tokens": 16384},
    "attention-x-stage": {},
    "gemm-rs-llama-fused": {"workload.m": 4096},
    "gemm-rs-llama-serial": {"workload.m": 4096},
    "gemm-ar-lamport": {},
}


@pytest.mark.parametrize("name", SMALL)
def test_every_policy_of_a_scenario_runs_and_the_times_are_named(name):
    rows = xs.compare(name, overrides=SMALL[name]).rows()
    assert [row["error"] for row in rows] == [None] * len(rows)
    assert rows[0]["speedup"] == 1
    for row in rows:
        assert row["makespan_us"] == max(row["sender_visible_us"], row["remote_visible_us"])
        assert row["speedup"] == pytest.approx(rows[0]["makespan_us"] / row["makespan_us"])


def test_tables_name_both_ends_and_what_the_speedup_is_of(capsys):
    assert main(["compare", "attention-x-stage", "--policies", "serial,piggyback"]) == 0
    text = capsys.readouterr().out
    assert "speedups of the makespan over serial" in text
    [line] = [line for line in text.splitlines() if "sender-visible" in line]
    assert line.split() == ["policy", "sender-visible", "remote-visible", "makespan"]
    assert main(["run", "attention-x-stage"]) == 0
    text = capsys.readouterr().out
    sender, remote = (float(text.split(f"{end}-visible")[1].split()[0]) for end in ("sender", "remote"))
    assert sender < remote


@pytest.mark.parametrize("name", SMALL)
def test_the_bars_of_an_explanation_add_up(name):
    bars = xs.explain(name, overrides=SMALL[name]).as_dict()["bars"]
    assert sum(bar["us"] for bar in bars) == pytest.approx(xs.run(name, overrides=SMALL[name]).makespan_us, abs=0.01)


def test_tuning_attention_chooses_piggyback_and_reserves_few_sms_where_it_must():
    done = xs.tune("attention-x-stage").as_dict()
    assert done["best"]["policy"] == "piggyback"
    reserved = min(
        (row for row in done["curve"] if row["policy"] == "reserved_sms"), key=lambda row: row["makespan_us"]
    )
    assert 3 <= reserved["parameters"]["sms"] <= 8
    assert done["best"]["makespan_us"] < reserved["makespan_us"]


def test_tuning_a_scatter_chooses_to_shift_rows_by_rank():
    done = xs.tune("gemm-rs-llama-fused", ["fused", "reshaped"], overrides={"workload.m": 2048}).as_dict()
    assert done["best"]["policy"] == "reshaped"
    assert done["best"]["saving_pct"] > 20


def test_a_serial_collective_is_the_part_that_comes_from_having_to_send():
    bars = xs.explain("gemm-rs-llama-serial", overrides=SMALL["gemm-rs-llama-serial"]).as_dict()["bars"]
    largest = max((bar for bar in bars if bar.get("removed_by")), key=lambda bar: bar["us"])
    assert largest["cause"] == "sending itself"
