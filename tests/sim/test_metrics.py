"""What a run's numbers sum up: the times of a lane's role add up to the makespan, and one rank is counted alone."""

import pytest
from xstage.sim.metrics import summarise

import xstage as xs

MIRRORED = {
    "question": "?",
    "machine": "hgx-h100",
    "workload": {"kind": "megamoe", "gpus": 4, "hidden": 1024, "intermediate": 512, "experts": 16, "topk": 4,
                 "tokens": 256, "numbers": "w8a8", "policy": "expert_wave", "ranks": "symmetric"},
    "granule": "8 KiB",
}  # fmt: skip


@pytest.mark.parametrize("scenario", [MIRRORED, "periodic-train", "gemm-rs-llama-serial"])
def test_the_times_of_a_role_add_up_to_the_makespan(scenario):
    found = xs.run(scenario).metrics
    for role in found["roles"].values():
        parts = [role[name] for name in ("busy_mean_us", "stall_mean_us", "not_running_mean_us")]
        assert sum(parts) + sum(role["wait_mean_us"].values()) == pytest.approx(found["makespan_us"])


def test_where_one_rank_stands_for_all_the_lanes_of_its_mirror_are_counted_only_if_it_has_none_itself():
    done = xs.run(MIRRORED)
    lanes, roles = done.program.lanes, done.program.roles
    comm = [number for number, gpu in enumerate(lanes["gpu"]) if roles[lanes["role"][number]] == "comm" and gpu == 0]
    found = summarise(done.trace)["roles"]
    assert found["comm"]["lanes"] == len(comm) == 1
    busy, waits = (done.trace.outcome.lanes[name][comm[0]] / 1e6 for name in ("busy_ps", "wait_ps"))
    assert found["comm"]["busy_mean_us"] == pytest.approx(busy)
    assert sum(found["comm"]["wait_mean_us"].values()) == pytest.approx(waits.sum())
    assert found["combine"]["lanes"] == (lanes["role"] == roles.index("combine")).sum() > 0, "its mirror combines"
