"""Why a run can never finish: which lanes stand where, and how much is missing from the counters that they wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import program as p

if TYPE_CHECKING:
    from .outcome import Outcome, Stuck
    from .program import Program

MOST_SHOWN = 5


def describe(program: Program, outcome: Outcome, stuck: list[Stuck]) -> str:
    """Where the lanes stand that can never go on, and what each of the first few waits for."""
    lines = [_lane(program, outcome, one) for one in stuck[:MOST_SHOWN]]
    more = [f"and {_lanes(len(stuck) - MOST_SHOWN, 'more ')}"] if len(stuck) > MOST_SHOWN else []
    return f"{_lanes(len(stuck))} can never go on:\n  " + "\n  ".join(lines + more)


def _lanes(count: int, more: str = "") -> str:
    return f"{count} {more}lane{'' if count == 1 else 's'}"


def _lane(program: Program, outcome: Outcome, stuck: Stuck) -> str:
    lane = program.lanes[stuck.lane]
    who = f"lane {stuck.lane} (GPU {lane['gpu']}, SM {lane['sm']}, {program.roles[lane['role']]})"
    if stuck.op < 0:
        return f"{who} waits for its group's next task; {_guards(program, outcome, int(lane['group']))}"
    op = program.ops[stuck.op]
    kind, counter, count = p.KIND_NAMES[op["kind"]].upper(), int(op["counter"]), int(op["count"])
    where = f"at ops[{stuck.op}] ({kind}) of task {stuck.task}"
    if op["kind"] == p.WAIT:
        return f"{who} {where}: {_counter(program, outcome, counter, count)}"
    if op["kind"] == p.ACQUIRE:
        return f"{who} {where}: needs {count} of slot {counter} of its group, which nobody gives"
    return f"{who} {where}: waits behind another lane of its SM"


def _counter(program: Program, outcome: Outcome, counter: int, needed: int) -> str:
    value, cause = int(outcome.counters[counter]), p.CAUSES[program.counters["cause"][counter]]
    return f"counter {counter} ({cause}) is {value}, needs {needed}: {needed - value} missing"


def _guards(program: Program, outcome: Outcome, group: int) -> str:
    plan = program.plans[program.groups["plan"][group]]
    steps = program.steps[plan["first_step"] : plan["first_step"] + plan["n_prefix"] + plan["n_repeat"]]
    taken = np.zeros(len(program.tasks), dtype=bool)
    first_span = np.cumsum(program.tasks["n_runs"]) - program.tasks["n_runs"]
    has_runs = program.tasks["n_runs"] > 0
    taken[has_runs] = outcome.spans["group"][first_span[has_runs]] >= 0
    for queue in dict.fromkeys([*steps["queue"].tolist(), *steps["otherwise"].tolist()]):
        if queue == p.NO_QUEUE:
            continue
        row = program.queues[queue]
        tasks = program.queue_tasks[row["first"] : row["first"] + row["n_tasks"]]
        for task in tasks[~taken[tasks]][:1]:
            guards = zip(program.tasks[task]["guard_counter"], program.tasks[task]["guard_count"], strict=True)
            for counter, needed in guards:
                if counter != p.NO_COUNTER and outcome.counters[counter] < needed:
                    return f"task {task} is guarded: {_counter(program, outcome, int(counter), int(needed))}"
    return "another lane of the group is too far behind"
