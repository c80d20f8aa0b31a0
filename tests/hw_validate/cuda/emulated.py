"""Programs replayed on the emulated kernel, and what every replay must show, whatever the schedule was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xstage.hw_validate.cuda import emulate
from xstage.hw_validate.cuda.lower import Lowered, Target, lower
from xstage.hw_validate.cuda.records import measured_ops
from xstage.hw_validate.cuda.replay_job import COUNTER_WORDS, Settings, replay_job
from xstage.sim import program as p
from xstage.sim.program import Program
from xstage.sim.program_index import expand, op_repeats

BUILDS = Path(__file__).parents[3] / "build" / "emulation"
HERE = Path(__file__).parent

needs_compiler = pytest.mark.skipif(
    emulate.compiler() is None, reason="no g++ on this machine to build kernels for the CPU"
)


def lowered_for(program: Program, transport: str = "host", ticks_per_ns: float = 0.02, **target: Any) -> Lowered:
    sizes = {"store_warps": 2, "landing_bytes": 1 << 20, "source_bytes": 1 << 20, "shared_bytes": 64 << 10} | target
    return lower(program, Target(is_one_gpu=transport != "peer", **sizes)).at_clock(ticks_per_ns)


def replay(
    program: Program,
    transport: str = "host",
    seeds: Any = range(4),
    sanitizer: str | None = None,
    defines: dict[str, int] | None = None,
    deadlines: bool = False,
    patience: int = 10**12,
    **target: Any,
) -> tuple[Lowered, list[emulate.Outcome]]:
    """Every seed's run of a Program on the emulated replay kernel."""
    lowered = lowered_for(program, transport, **target)
    job = replay_job(lowered, transport, Settings(patience_ticks=patience, lead_ns=100))
    kernel = emulate.build("replay.cu", BUILDS, sanitizer, defines)
    return lowered, emulate.run(kernel, job, seeds, deadlines)


def check(program: Program, lowered: Lowered, outcome: emulate.Outcome) -> Any:
    """What must hold after any replay; returns the measured table."""
    clocks_agree = dict.fromkeys(range(program.n_gpus), 0.0)
    table = measured_ops(program, lowered, outcome.buffers, clocks_agree)
    check_once_and_in_order(program, table)
    check_counters(program, outcome)
    check_guards(program, table)
    return table


def check_once_and_in_order(program: Program, table: Any) -> None:
    """Every op ran as often as the Program says, each task by one group, the ops of a lane one after the other."""
    assert np.array_equal(np.bincount(table["op"], minlength=len(program.ops)), op_repeats(program))
    lanes = program.lanes
    groups_of_task = table.assign(group=lanes["group"][table["lane"]]).groupby("task")["group"].nunique()
    assert (groups_of_task == 1).all()
    first = program.groups["first_lane"][lanes["group"]]
    for lane, rows in table.sort_values(["start_us", "end_us"], kind="stable").groupby("lane"):
        assert (rows["start_us"].to_numpy()[1:] >= rows["end_us"].to_numpy()[:-1] - 1e-9).all()
        seat = lane - first[lane]
        tasks = rows["task"].to_numpy()
        order = tasks[np.concatenate([[True], tasks[1:] != tasks[:-1]])] if len(tasks) else tasks
        assert len(set(order)) == len(order), "a task was taken up again after another"
        runs = program.runs[program.tasks["first_run"][order] + seat]
        _, expected = expand(runs["first_op"], runs["n_ops"])
        assert rows["op"].tolist() == expected.tolist()


def check_counters(program: Program, outcome: emulate.Outcome) -> None:
    """Each counter ends where the Program leads it; a lane counts its loads itself."""
    assert final_counters(program).tolist() == [
        int(outcome.buffers[f"counters@{home}"][COUNTER_WORDS * number])
        for number, home in enumerate(program.counters["home"].tolist())
    ]


def final_counters(program: Program) -> np.ndarray:
    final = program.counters["initial"].astype(np.int64)
    signals, _, stores = _bumps(program)
    for op, counter, amount in (signals, stores):
        np.add.at(final, counter, amount * op_repeats(program)[op])
    return final


def _bumps(program: Program) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(op, counter, amount) of everything that bumps a counter: signals, loads, stores."""
    ops, kind = program.ops, program.ops["kind"]
    signal = np.flatnonzero(kind == p.SIGNAL)
    load = np.flatnonzero((kind == p.LOAD) & (ops["counter"] >= 0))
    store = np.flatnonzero((kind == p.STORE) & (ops["counter"] >= 0))
    rows = program.destinations[ops["target"][store]]
    owner, share = expand(rows["first"], rows["n_shares"])
    hit = ops["counter"][store][owner] + ops["stride"][store][owner].astype(int) * program.shares["gpu"][share]
    return [
        (signal, ops["counter"][signal], ops["count"][signal]),
        (load, ops["counter"][load], np.ones(len(load), int)),
        (store[owner], hit, np.ones(len(hit), int)),
    ]


def check_guards(program: Program, table: Any) -> None:
    """No task began before so many bumps of its guards had begun; and no WAIT ended before."""
    begun: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    at, op = table["start_us"].to_numpy(), table["op"].to_numpy()
    for which, counter, amount in _bumps(program):
        order = np.argsort(which, kind="stable")
        left = np.searchsorted(which[order], op, "left")
        count = np.searchsorted(which[order], op, "right") - left
        row, place = expand(left, count)
        begun.append((counter[order][place], at[row], amount[order][place]))
    counter, when, amount = (np.concatenate(column) for column in zip(*begun, strict=True))

    def most_at(number: int, time: float) -> int:
        return int(program.counters["initial"][number] + amount[(counter == number) & (when <= time + 1e-9)].sum())

    for task, time in table.groupby("task")["start_us"].min().items():
        for number, needed in zip(
            *(program.tasks[task][name] for name in ("guard_counter", "guard_count")), strict=True
        ):
            assert number < 0 or most_at(number, time) >= needed, f"task {task} began too early"
    for row in table[table["kind"] == "wait"].itertuples():
        number, needed = program.ops[row.op]["counter"], program.ops[row.op]["count"]
        assert most_at(number, row.end_us) >= needed, f"the WAIT ops[{row.op}] ended too early"
