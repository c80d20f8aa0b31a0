"""What stores leave in their own GPU, held against the granules that a full trace records of what leaves."""

import numpy as np
import pytest
from xstage.sim import program as p
from xstage.sim.errors import DeadlockError
from xstage.sim.execute import simulate
from xstage.sim.kept_bytes import kept_bytes

import xstage as xs

from .random_programs import random_case


def test_of_random_programs_all_stored_bytes_but_those_that_are_kept_leave():
    kept, tried = 0, 0
    for seed in range(200):
        program, fabric = random_case(seed)
        try:
            outcome = simulate(program, fabric, trace="full").outcome
        except DeadlockError:
            continue
        gone = outcome.granule_records
        gone = gone[program.ops["kind"][gone["op"]] == p.STORE]
        gone = gone[gone["ticket"] == gone["parcel"]]  # the copies of a multicast were issued once
        assert int(outcome.lanes["stored_bytes"].sum()) - kept_bytes(program) == gone["bytes"].sum()
        tried, kept = tried + 1, kept + kept_bytes(program)
    assert tried > 50
    assert kept


@pytest.mark.parametrize("gpus", [2, 8])
def test_of_an_even_reduce_scatter_a_rank_keeps_one_part_in_as_many_as_there_are_gpus(gpus):
    changed = {"workload.gpus": gpus, "workload.m": 2048}
    found = xs.run("gemm-rs-llama-fused", overrides=changed)
    stored, left = found.metrics["bytes_stored"], found.metrics["bytes_stored_to_others"]
    assert left == stored * (gpus - 1) / gpus
    assert left == int(np.sum(found.trace.outcome.ports["bytes"][:gpus]))
