"""Which WAITs of a Program are for loads of their own lane.

A lane of the kernels looks itself whether what it loads has arrived (kernels/lanes.cuh): news from another warp would come
late, because it would have to wait until stores of the SM have landed. So nobody else may wait for a load.
"""

from __future__ import annotations

import numpy as np

from ...sim import program as p
from ...sim.errors import ProgramError
from ...sim.program import Program
from ...sim.program_index import distinct, expand, tasks_of_queues, visits
from .job import Array


def waits_for_own_loads(program: Program, bumped_by_others: Array) -> Array:
    """Whether each op is a WAIT for the first `count` loads of its lane. [n_ops].

    `bumped_by_others` says of each counter whether a STORE or a SIGNAL of another rank may bump it. Raises `ProgramError`
    where a lane's loads do not all bump one counter, which is theirs alone, begins at 0, and that only their lane waits for.
    """
    kind, counter = program.ops["kind"], program.ops["counter"]
    is_load = kind == p.LOAD
    is_loaded = np.zeros(len(program.counters) + 1, dtype=bool)  # the last stands for no counter, -1
    is_loaded[counter[is_load]] = True
    is_loaded[-1] = False
    of_loads = is_loaded[np.where((kind == p.LOAD) | (kind == p.WAIT) | (kind == p.SIGNAL), counter, -1)]
    lane, op = _lanes_of_ops(program, of_loads | is_load)
    loading = is_load[op]
    by_lane, by_counter = distinct(lane[loading], counter[op[loading]].astype(np.int64) + 1)
    several = np.isin(by_lane, by_lane[1:][by_lane[1:] == by_lane[:-1]])
    users = distinct(counter[op[of_loads[op]]].astype(np.int64), lane[of_loads[op]])[0]

    bad = np.zeros(len(is_loaded), dtype=bool)
    bad[by_counter[several] - 1] = True
    bad[users[1:][users[1:] == users[:-1]]] = True
    bad[counter[kind == p.SIGNAL]] = True
    bad[program.tasks["guard_counter"]] = True
    bad[:-1] |= bumped_by_others | (program.counters["initial"] != 0)
    bad &= is_loaded
    if bad.any():
        raise ProgramError(
            f"the GPU replay cannot run a LOAD that bumps counters[{int(np.argmax(bad))}]: the loads of a lane bump one "
            "counter, which begins at 0, and nobody but their lane bumps it or waits for it"
        )
    own: Array = of_loads & (kind == p.WAIT)
    return own


def _lanes_of_ops(program: Program, chosen: Array) -> tuple[Array, Array]:
    """Every lane that may run one of the chosen ops, and the op; with repeats."""
    run_of, op = expand(program.runs["first_op"], program.runs["n_ops"])
    has_chosen = np.zeros(len(program.runs), dtype=bool)
    has_chosen[run_of[chosen[op]]] = True
    in_queue, task = tasks_of_queues(program)
    owner, run = expand(program.tasks["first_run"][task], program.tasks["n_runs"][task])
    seat = run - program.tasks["first_run"][task][owner]
    mine = has_chosen[run]
    queue, seat, run = distinct(in_queue[owner[mine]], seat[mine], run[mine])
    group, visited = visits(program)
    order = np.argsort(visited, kind="stable")
    first = np.searchsorted(visited[order], queue, "left")
    which, place = expand(first, np.searchsorted(visited[order], queue, "right") - first)
    lane = program.groups["first_lane"][group[order][place]] + seat[which]
    each, op = expand(program.runs["first_op"][run[which]], program.runs["n_ops"][run[which]])
    return lane[each][chosen[op]].astype(np.int64), op[chosen[op]]
