"""What each part of a MegaMoE kernel costs: stores and accumulators of a tile, barriers, gaps, cleanup, rows of an MMA."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim import program as p
from xstage.sim.program import Program
from xstage.sim.schedules.megamoe import ExpertWave, Unfused, build
from xstage.sim.schedules.megamoe.kernel import choose
from xstage.sim.schedules.megamoe.order import Tiles
from xstage.sim.schedules.megamoe.tiles import rounds_of, weight_hits
from xstage.sim.tile_cost import TileCosts

from .test_megamoe import MACHINES, SM90, SM100, routed, run, shape_for


def epilogues(phase: str) -> list[tuple[Program, int, np.ndarray]]:
    """(Program, GPU, ops) of the first epilogue of each task of a phase."""
    shape, machine = shape_for(SM100, 3000), MACHINES[SM100]
    program = build(machine, shape, ExpertWave(), routed(shape))
    trace = run(machine, shape, program)
    found = []
    for task in np.flatnonzero(program.tasks["phase"] == program.phases.index(phase)):
        gpu = program.groups["gpu"][trace.outcome.spans["group"][trace.layout.span_first[task]]]
        row = program.runs[program.tasks["first_run"][task] + 1]
        ops = program.ops[row["first_op"] : row["first_op"] + row["n_ops"]]
        found.append((program, int(gpu), ops))
    return found


def test_ranks_begin_to_return_rows_at_different_receivers_that_change_with_every_step() -> None:
    for program, gpu, ops in epilogues("l2"):
        stores = ops[(ops["kind"] == p.STORE) & (ops["bytes"] > 0)]
        rows = program.destinations[stores["target"]]
        if (rows["n_shares"] == 4).all():
            first = program.shares["gpu"][rows["first"]]
            assert first.tolist() == [(gpu + 1 + step) % 4 for step in range(len(stores))]


def test_a_tile_pays_the_start_of_its_stores_once() -> None:
    for _, _, ops in epilogues("l2"):
        stores = ops[ops["kind"] == p.STORE]
        assert stores["duration_ps"].sum() == MACHINES[SM100].issue_time_ps(int(stores["bytes"].sum()))


@pytest.mark.parametrize(
    ("phase", "last"),
    [("l1", [p.COMPUTE, p.RELEASE, p.COMPUTE, p.SIGNAL]), ("l2", [p.COMPUTE, p.RELEASE, p.STORE, p.SIGNAL])],
)
def test_an_accumulator_is_free_once_its_last_step_has_been_read(phase: str, last: list[int]) -> None:
    """Before that step is requantised in L1, and before it is stored in L2."""
    assert all(ops["kind"][-4:].tolist() == last for _, _, ops in epilogues(phase))


@pytest.mark.parametrize(("number", "times"), [("grid_sync", 6), ("count_rows", 1)])
def test_a_call_of_one_token_synchronises_its_grid_twice_at_each_of_three_barriers(number: str, times: int) -> None:
    shape, makespans = shape_for(SM100, 1), []
    for microseconds in (1, 11):
        machine = load_machine(SM100, {f"compute.{number}": f"{microseconds} us"})
        makespans.append(run(machine, shape, build(machine, shape, ExpertWave(), routed(shape))).makespan_ps)
    assert makespans[1] - makespans[0] == pytest.approx(times * 10e6, rel=0.01)


def test_separate_kernels_have_four_gaps_between_them() -> None:
    """Pull, L1, SwiGLU, L2 and return."""
    shape, makespans = shape_for(SM100, 400), []
    for microseconds in (10, 20):
        machine = load_machine(SM100, {"compute.kernel_gap": f"{microseconds} us"})
        makespans.append(run(machine, shape, build(machine, shape, Unfused(), routed(shape))).makespan_ps)
    assert makespans[1] - makespans[0] == pytest.approx(4 * 10e6, rel=0.01)


def test_cleanup_reads_the_counts_of_the_experts_of_an_sm() -> None:
    """200 experts a rank on 147 SMs: two rounds, a round trip to L2 each."""
    shape, machine = shape_for(SM100, 8, experts=800), MACHINES[SM100]
    spans = run(machine, shape, build(machine, shape, ExpertWave(), routed(shape))).spans()
    expected = 2 * 2 * machine.interconnect.local_latency.value / 1e6
    assert spans[spans.phase == "cleanup"].span_us.to_numpy() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "swap_ab", "computed"), [(SM100, False, [16, 16, 32]), (SM90, False, [64] * 3), (SM90, True, [8, 16, 24])]
)
def test_the_mma_works_on_whole_steps_of_rows(name: str, swap_ab: bool, computed: list[int]) -> None:
    kernel = choose(MACHINES[name], shape_for(name, 64), ExpertWave(), "june", swap_ab)
    assert kernel.computed_rows(np.array([1, 16, 17])).tolist() == computed


def test_activations_of_both_gemms_take_up_room_in_l2() -> None:
    """L1 and L2 of one m-block, then L1 of the next, with the weights of the first: what lies between must fit into L2."""
    shape = shape_for(SM100, 64)
    kernel = choose(MACHINES[SM100], shape, ExpertWave(), "june")
    tiles = Tiles(np.array([False, True, False]), np.array([0, 0, 1]), np.zeros(3, dtype=np.int64))
    rows, expert = np.full(3, kernel.block_m), np.zeros(3, dtype=np.int64)
    weights = kernel.weight_bytes(shape, tiles.l2)
    activations = kernel.block_m * kernel.depth(shape, tiles.l2) * shape.format.activation_bits // 8
    between = int((weights + activations)[1:].sum())
    costs = replace(TileCosts.of(MACHINES[SM100], "fp8"), sms=1)
    for l2_bytes, hit in ((between, True), (between - 1, False)):
        found = weight_hits(kernel, shape, replace(costs, l2_bytes=l2_bytes), tiles, expert, rows)
        assert found.tolist() == [False, False, hit]


def main_loops(program: Program, phase: str) -> list[int]:
    """Time in the MMA of each task of a phase, ps, in order of size."""
    found = []
    for task in program.tasks[program.tasks["phase"] == program.phases.index(phase)]:
        row = program.runs[task["first_run"]]
        ops = program.ops[row["first_op"] : row["first_op"] + row["n_ops"]]
        found.append(int(ops["duration_ps"][ops["kind"] == p.COMPUTE].sum()))
    return sorted(found)


@pytest.mark.parametrize("phase", ["l1", "l2"])
@pytest.mark.parametrize("tokens", [4, 12])
def test_tiles_of_l2_share_hbm_with_those_of_l1_only_where_their_inputs_can_be_there(phase: str, tokens: int) -> None:
    """All tiles of a rank fit into a round, but L2 waits for L1: HBM serves one after the other, as for two kernels."""
    shape, machine = shape_for(SM100, tokens, experts=8, hidden=2048, intermediate=1024), MACHINES[SM100]
    fused, launched = (build(machine, shape, policy, routed(shape)) for policy in (ExpertWave(), Unfused()))
    assert 0 < len(main_loops(fused, phase)) * 2 <= 4 * machine.sms
    assert main_loops(fused, phase) == main_loops(launched, phase)


@pytest.mark.parametrize(
    ("launched", "expected"),
    [
        (False, [[0, 0, 0, 0, 1], [2, 2, 1]]),  # inputs of the last L2 tile end in round 0
        (True, [[0, 0, 0, 0, 1], [2, 2, 2]]),
    ],
)
def test_tiles_of_l2_run_after_their_inputs_and_a_kernel_of_its_own_begins_a_round(
    launched: bool, expected: list[list[int]]
) -> None:
    """Five tiles of L1 on four SMs, of blocks 0, 0, 1, 1, 1, then L2 of blocks 1, 1, 0."""
    block = np.array([0, 0, 1, 1, 1, 1, 1, 0])
    tiles = Tiles(np.arange(8) >= 5, block, np.zeros_like(block))
    found = rounds_of(tiles, 4, launched).of_tile
    assert [found[:5].tolist(), found[5:].tolist()] == expected
