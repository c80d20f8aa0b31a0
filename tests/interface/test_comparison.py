"""`compare` warns of what `run` warns of."""

import pytest

import xstage as xs
from xstage.answers.comparison import _other_order, comparison_tables
from xstage.answers.run import run_parts

from .scenarios import MEGAMOE, MEGAMOE_SM90


def test_a_comparison_names_the_collectives_that_did_not_go_along_with_the_links():
    changes = {"machine.interconnect.drain_rate": "700 GB/s", "workload.m": 1024}
    found = xs.compare("gemm-rs-llama-fused", ["serial", "fused"], overrides=changes)
    [said] = found.warnings
    assert "ring_rate = 371 GB/s" in said
    assert found.as_dict()["warnings"] == [said]
    assert xs.compare("gemm-rs-llama-fused", ["serial"], overrides={"workload.m": 1024}).warnings == ()
    assert said[:50] in found._repr_html_()


@pytest.fixture(scope="module")
def done():
    return xs.compare("gemm-rs-llama-fused", ["fused", "reshaped"], overrides={"workload.m": 1024})


def test_the_makespan_stands_beside_each_policy_in_the_picture(done):
    labels = [label.get_text() for label in done.plot().axes[0].get_yticklabels()]
    assert labels == [f"{row['policy']}: {row['makespan_us']:.0f} µs" for row in done.rows()]


def test_stall_is_told_of_all_lanes_and_of_one(done):
    columns, (fused, _) = comparison_tables(done.rows())[0][1:]
    row = done.rows()[0]
    assert row["stall_total_us"] > row["makespan_us"] > row["stall_mean_us"] > 0
    told = dict(zip(columns, fused, strict=True))
    assert (told["stall"], told["per lane"]) == (f"{row['stall_total_us']:.3f}", f"{row['stall_mean_us']:.3f}")


def test_the_time_of_a_task_is_said_to_hold_its_waits(done):
    titles = [getattr(part, "title", "") for part in done.printed()]
    assert "from a task's first op to its last, waits included, us: median / 95 %" in titles


def test_a_policy_whose_tiles_ran_in_another_order_than_their_costs_assume_is_less_certain():
    memory = {"weight_hits_pct": 0.0, "weight_hits_as_run_pct": 50.0}
    [said] = _other_order("lag", {"memory": memory})
    assert said.startswith("lag is less certain") and "0 %" in said and "50 %" in said
    assert _other_order("lag", {"memory": memory | {"weight_hits_pct": 45.0}}) == []
    assert _other_order("fused", {"memory": None}) == []


def test_a_comparison_warns_of_a_policy_that_is_less_certain():
    """Few tokens of many experts: the lag kernel takes L1 and L2 tiles in another order than the nominal one."""
    workload = {"kind": "megamoe", "gpus": 16, "hidden": 5120, "intermediate": 1536, "experts": 160, "topk": 6,
                "shared_experts": 2, "tokens": 128, "numbers": "w8a8", "policy": "lag"}  # fmt: skip
    found = xs.compare({"question": "q?", "machine": "hgx-h100-rails", "workload": workload}, ["lag"])
    memory = found.rows()[0]["memory"]
    assert abs(memory["weight_hits_pct"] - memory["weight_hits_as_run_pct"]) > 10
    assert any(said.startswith("lag is less certain") for said in found.warnings)


def test_policies_of_other_tiles_are_told_apart():
    """What `lag` saves on Hopper is in part its larger tile, which two CTAs feed together."""
    four = {"workload.experts": 4}
    found = xs.compare(MEGAMOE_SM90, ["expert_wave", "lag"], overrides=four)
    columns, lines = comparison_tables(found.rows())[0][1:]
    assert [line[columns.index("tile")] for line in lines] == ["64 x 256", "128 x 256, cluster of 2"]
    assert [row["tile"] for row in found.rows()] == list(found.frame["tile"])
    facts = next(part for part in run_parts(xs.run(MEGAMOE_SM90, overrides=four)) if not isinstance(part, str))
    assert "64 x 256" in [str(cell) for cell in facts.columns[1].cells]
    alike = xs.compare(MEGAMOE, ["expert_wave", "interleaved"])
    assert "tile" not in comparison_tables(alike.rows())[0][1]


def test_a_policy_that_runs_without_faster_kernels_is_said_to():
    found = xs.compare(MEGAMOE_SM90, ["unfused"], overrides={"workload.policy": "unfused"})
    assert any("unfused runs without `gemm`" in said and "contiguous, psum, masked" in said for said in found.warnings)
    chosen = {"workload.policy": {"name": "unfused", "gemm": "masked"}}
    assert not any("`gemm`" in said for said in xs.compare(MEGAMOE_SM90, ["unfused"], overrides=chosen).warnings)


def test_the_bound_that_sends_nothing_is_compared_where_it_is_asked_for(done):
    changes = {"workload.m": 1024}
    found = xs.compare("gemm-rs-llama-fused", ["fused", "compute_only"], overrides=changes)
    fused, bound = found.rows()
    assert bound["makespan_us"] < fused["makespan_us"] == done.rows()[0]["makespan_us"]
    names = [row["policy"] for row in xs.compare("gemm-rs-llama-fused", overrides=changes).rows()]
    assert names == ["fused", "serial", "reserved_sms", "reshaped"]
    alone = xs.compare("gemm-rs-llama-fused", overrides=changes | {"workload.policy": "compute_only"})
    assert alone.baseline == "compute_only" and {row["policy"] for row in alone.rows()} == {"compute_only", *names}
