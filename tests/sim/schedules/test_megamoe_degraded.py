"""One GPU with a slow link, on the public lag kernel: what its peers' stores and its own pull do to each other."""

import pytest

import xstage as xs

SCENARIO = {
    "question": "What does one slow link cost?",
    "machine": "hgx-h100",
    "workload": {
        "kind": "megamoe",
        "hidden": 7168,
        "intermediate": 2048,
        "experts": 256,
        "topk": 8,
        "tokens": 2048,
        "numbers": "w8a8",
        "ranks": "all",
        "policy": "lag",
    },
    "granule": "4 KiB",
}
HALF = {"gpu": 3, "factor": 0.5}
ARBITRATION = "machine.interconnect.reply_arbitration"


def makespan_us(**disturb):
    return xs.run(SCENARIO, overrides=disturb).makespan_us


@pytest.mark.parametrize("chosen, ratio", [({ARBITRATION: "fair"}, 1.0), ({}, 1.45)])
def test_first_come_first_served_lets_peers_bury_the_pull_of_a_slow_gpu(chosen, ratio):
    """Loads outstanding at GPU 3 outnumber its stores seven to one. Served as they come they take its egress, so that its
    peers are done with their pull early, and their stores then hold up GPU 3's own pull at its ingress. In turn, one slow
    GPU costs what eight cost: all bytes of its egress at half the rate.
    """
    one = makespan_us(**chosen, **{"disturb.degraded_link": HALF})
    all_of_them = makespan_us(**chosen, **{"machine.interconnect.drain_rate": "175 GB/s"})
    assert ratio < one / all_of_them < ratio + 0.1
