"""Who runs what, counted once more in plain loops."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from xstage.sim import program as p
from xstage.sim.program_index import gpu_of_queue, op_gpus, op_repeats, share_of_gpu, tasks_of_queues, visits

from .random_programs import random_case


@pytest.mark.parametrize("seed", range(40))
def test_it_agrees_with_loops_over_groups_queues_and_tasks(seed: int) -> None:
    program, _ = random_case(seed)
    visited = set()
    for group, row in enumerate(program.groups):
        plan = program.plans[row["plan"]]
        for step in program.steps[plan["first_step"] : plan["first_step"] + plan["n_prefix"] + plan["n_repeat"]]:
            visited |= {(group, int(queue)) for queue in (step["queue"], step["otherwise"]) if queue != p.NO_QUEUE}
    assert sorted(zip(*(each.tolist() for each in visits(program)), strict=True)) == sorted(visited)

    gpus = {queue: int(program.groups["gpu"][group]) for group, queue in visited}
    assert gpu_of_queue(program).tolist() == [gpus.get(queue, -1) for queue in range(len(program.queues))]

    listed, times, runners = [], Counter[int](), {}
    for queue, row in enumerate(program.queues):
        for task in program.queue_tasks[row["first"] : row["first"] + row["n_tasks"]].tolist():
            listed.append((queue, task))
            for run in program.runs_of(task):
                first, count = program.runs[run].item()
                times.update(range(first, first + count))
                runners |= dict.fromkeys(range(first, first + count), gpus[queue])
    assert list(zip(*(each.tolist() for each in tasks_of_queues(program)), strict=True)) == listed
    assert op_repeats(program).tolist() == [times[op] for op in range(len(program.ops))]
    assert [runners.get(op, -1) for op in range(len(program.ops))] == op_gpus(program).tolist()


@pytest.mark.parametrize("seed", range(20))
def test_the_share_of_a_gpu_is_the_one_of_its_row_that_names_it(seed: int) -> None:
    program = random_case(seed)[0]
    rows, gpus = np.divmod(np.arange(len(program.destinations) * program.n_gpus), program.n_gpus)
    for row, gpu, found in zip(rows.tolist(), gpus.tolist(), share_of_gpu(program, rows, gpus).tolist(), strict=True):
        first, count = (int(program.destinations[name][row]) for name in ("first", "n_shares"))
        named = [share for share in range(first, first + count) if program.shares["gpu"][share] == gpu]
        assert [found] == (named or [-1])
