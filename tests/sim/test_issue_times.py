"""Stores of a Program that take T_iss0 of a machine to issue."""

import numpy as np
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim import program as p
from xstage.sim.issue_times import issued_by
from xstage.sim.program_builder import ProgramBuilder, Seat

MACHINE = load_machine("hgx-b200", {"stage.t0": "100 ns", "stage.issue_rate": "1 GB/s"})  # 1 ns a byte


def program_of(ops):
    """One lane of GPU 0 that runs `ops`; target 0 is 64 bytes to GPU 1, target 1 is nothing."""
    b = ProgramBuilder(2)
    b.destination({1: 64})
    b.destination({})
    b.counters(home=[1], cause="peer")
    run = b.op_list(ops)
    b.groups(gpu=0, plan=b.plan(repeat=[b.queue([b.tasks(run, 1)])]), seats=[Seat("producer", window=1)])
    return b.build()


def durations_of(ops):
    return issued_by(program_of(ops), MACHINE).ops["duration_ps"].tolist()


STORE = {"kind": p.STORE, "target": 0, "bytes": 64, "duration_ps": 7}


def test_a_store_takes_t0_and_its_bytes_and_everything_else_stays():
    others = [
        {"kind": p.COMPUTE, "duration_ps": 5},
        {"kind": p.SIGNAL, "counter": 0, "count": 1, "duration_ps": 3},
        {"kind": p.LOAD, "target": 1, "bytes": 64},
        {"kind": p.STORE, "target": 1, "bytes": 0},
    ]
    assert durations_of([STORE, *others, STORE]) == [164_000, 5, 3, 0, 0, 164_000]


def test_stores_that_belong_together_pay_t0_once():
    first = STORE | {"flags": p.WITH_NEXT}
    assert durations_of([first, first, STORE, STORE]) == [164_000, 64_000, 64_000, 164_000]


def test_what_a_network_interface_reads_is_not_issued_by_an_sm():
    assert durations_of([STORE | {"flags": p.FROM_MEMORY}]) == [7]


def test_a_burst_begins_after_what_a_network_interface_reads_and_with_every_run():
    read = STORE | {"flags": p.FROM_MEMORY | p.WITH_NEXT}
    assert durations_of([read, STORE]) == [7, 164_000]
    b = ProgramBuilder(2)
    b.destination({1: 64})
    pair = b.ops(p.STORE, target=0, bytes=64, flags=np.array([p.WITH_NEXT, 0]))
    runs = [int(b.runs(first, count)) for first, count in ((pair, 2), (pair + 1, 1))]
    tasks = [int(b.tasks(run, 1)) for run in runs]
    b.groups(gpu=0, plan=b.plan(repeat=[b.queue(tasks)]), seats=[Seat("producer")])
    assert issued_by(b.build(), MACHINE).ops["duration_ps"].tolist() == [164_000, 164_000]


@pytest.mark.parametrize("ops", [[], [{"kind": p.COMPUTE, "duration_ps": 1}]])
def test_a_program_without_stores_stays_as_it_is(ops):
    program = program_of(ops)
    assert issued_by(program, MACHINE) == program
    assert np.array_equal(program.ops, issued_by(program, MACHINE).ops)
