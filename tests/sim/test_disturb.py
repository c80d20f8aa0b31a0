"""One GPU or link that is not as good as the others: exactly that one changes, and nothing of the original."""

from __future__ import annotations

import numpy as np
import pytest
from xstage.sim import engine_compiled
from xstage.sim import program as p
from xstage.sim.disturb import degraded, degraded_gpu, degraded_link, delayed, ports_of_gpu, slowed
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.layout import Layout
from xstage.sim.program import Program
from xstage.sim.program_builder import ProgramBuilder, Seat
from xstage.sim.topology import direct, switch

from .flows import GBS, ROOMY, everyone, rate_gbs
from .random_programs import random_case

R = 100 * GBS


def computing(n_gpus: int) -> Program:
    """Every GPU computes 1000 ps twice, by one op that all of them share."""
    builder = ProgramBuilder(n_gpus)
    run = builder.runs(builder.ops(p.COMPUTE, duration_ps=1000), 1)
    for gpu in range(n_gpus):
        queue = builder.queue([int(builder.tasks(run, 1)), int(builder.tasks(run, 1))])
        plan = builder.plan([], [queue])
        builder.groups(gpu=gpu, plan=plan, seats=[Seat("mma", 0)])
    return builder.build()


def ends(program: Program) -> list[int]:
    """When the lanes of each GPU end."""
    return simulate(program, switch(program.n_gpus, R, ROOMY)).outcome.lanes["end_ps"].tolist()  # type: ignore[no-any-return]


def test_only_the_slow_gpu_computes_longer() -> None:
    program = computing(4)
    assert ends(slowed(program, 2, 1.25)) == [2000, 2000, 2500, 2000]
    assert ends(program) == [2000] * 4


def test_two_gpus_may_be_slow() -> None:
    assert ends(slowed(slowed(computing(3), 0, 2.0), 2, 3.0)) == [4000, 2000, 6000]


def test_only_the_late_gpu_starts_later() -> None:
    assert ends(delayed(computing(3), 1, 70)) == [2000, 2070, 2000]


def test_slow_by_nothing_is_the_same_run() -> None:
    """Also with everything that a Program can hold, and where it can never finish."""
    for seed in range(60):
        program, fabric = random_case(seed)
        layout = Layout.of(program, fabric)
        copy = slowed(program, 0, 1.0)
        before, _ = engine_compiled.run(program, fabric, layout, full=False)
        after, _ = engine_compiled.run(copy, fabric, Layout.of(copy, fabric), full=False)
        assert before.same_as(after) == []


def test_only_compute_is_slower() -> None:
    """Of the ops that a slow GPU runs, none but COMPUTE has another duration."""
    for seed in range(60):
        program, _ = random_case(seed)
        copy = slowed(program, 0, 2.0)
        added = copy.ops[len(program.ops) :]
        assert np.array_equal(copy.ops[: len(program.ops)], program.ops)
        same = [op for op in added if op["kind"] != p.COMPUTE]
        assert all(op in program.ops for op in same)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match=r"gpu = 4: takes no part \(allowed: 0 to 3\)"):
        slowed(computing(4), 4, 2.0)
    with pytest.raises(InputError, match=r"factor = 0\.5: must be at least 1"):
        slowed(computing(4), 1, 0.5)
    with pytest.raises(InputError, match="factor = 0: must be above 0"):
        degraded_gpu(switch(2, R, ROOMY), 1, 0)


def test_a_degraded_gpu_slows_what_it_sends_and_what_it_gets() -> None:
    fabric = degraded_gpu(switch(4, R, ROOMY), 1, 0.25)
    assert rate_gbs(fabric, {1: [0]}) == pytest.approx(25, rel=0.01)
    assert rate_gbs(fabric, {0: [1]}) == pytest.approx(25, rel=0.01)
    assert rate_gbs(fabric, {0: [2]}) == pytest.approx(100, rel=0.01)


def test_one_degraded_gpu_holds_up_an_all_to_all() -> None:
    healthy = switch(8, R, ROOMY)
    assert rate_gbs(degraded_gpu(healthy, 1, 0.5), everyone(8)) == pytest.approx(
        rate_gbs(healthy, everyone(8)) / 2, rel=0.02
    )


def test_a_degraded_link_is_one_pair_of_a_mesh() -> None:
    fabric = degraded_link(direct(4, R, ROOMY), 1, 2, 0.1)
    assert rate_gbs(fabric, {1: [2]}) == rate_gbs(fabric, {2: [1]}) == pytest.approx(10, rel=0.01)
    assert rate_gbs(fabric, {1: [3]}) == pytest.approx(100, rel=0.01)


def test_a_port_that_is_degraded_twice_has_the_smaller_factor() -> None:
    """The link between two degraded GPUs of a mesh is one link at half its rate, not at a quarter."""
    mesh = direct(4, R, ROOMY)
    both = degraded(mesh, [(ports_of_gpu(mesh, 1), 0.5), (ports_of_gpu(mesh, 2), 0.8)])
    assert rate_gbs(both, {1: [2]}) == rate_gbs(both, {1: [3]}) == pytest.approx(50, rel=0.01)
    assert rate_gbs(both, {2: [3]}) == pytest.approx(80, rel=0.01)


def test_behind_a_switch_there_is_no_link_to_degrade() -> None:
    with pytest.raises(
        InputError, match=r"between = '0, 1': are not joined by a link \(allowed: none here; give a gpu"
    ):
        degraded_link(switch(4, R, ROOMY), 0, 1, 0.5)
