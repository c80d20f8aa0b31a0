"""Programs for a bare node, drawn with NumPy alone: the same trains, around a knee that the bursts just showed."""

import numpy as np
import pytest
from xstage.hw_validate.cuda.collect import collect
from xstage.hw_validate.cuda.lower import lower
from xstage.hw_validate.cuda.noted import Noted
from xstage.hw_validate.cuda.parts import LINE_BYTES, Extent
from xstage.hw_validate.cuda.planning import plan
from xstage.hw_validate.cuda.trains import draw_by_law, rough_stage
from xstage.hw_validate.cuda.unseen import Ranks, unseen_traces
from xstage.hw_validate.unseen import stalled_share
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.program import STORE

from .modelled_devices import ModelledDevices, stage


def noted(tmp_path, stage):
    made = plan(extent=Extent(22, 3, 2, 6, 1), parts=("clock", "bursts"))
    results = collect(made, ModelledDevices(stage, sms=8), tmp_path / "r.npz")
    return Noted.of(results.under("part/bursts"), made.header["parts"]["bursts"]["groups"])


def test_a_rough_look_at_the_bursts_finds_the_stage(tmp_path):
    found, true = rough_stage(noted(tmp_path, stage())), stage()
    assert found.drain_kbs == pytest.approx(true.drain_kbs, rel=0.05)
    assert found.capacity_total_bytes == pytest.approx(8 * true.capacity_per_producer_bytes, rel=0.25)


def test_where_there_is_no_knee_none_is_made_up(tmp_path):
    with pytest.raises(InputError, match="show no knee"):
        rough_stage(noted(tmp_path, None))


def test_half_of_what_is_drawn_by_law_stalls_when_it_is_simulated():
    devices = ModelledDevices(stage(), sms=4)
    programs = draw_by_law(devices.stage, 4, 10, np.random.default_rng(0))
    shares = [stalled_share(simulate(one, devices.machine().fabric(), trace="full")) for one in programs]
    assert sum(share > 0.2 for share in shares) == pytest.approx(5, abs=1)


def test_ranks_have_an_equal_part_of_the_sms_and_store_to_the_next():
    program = draw_by_law(stage(), 9, 1, np.random.default_rng(0), ranks=(4,))[0]
    assert program.n_gpus == 4
    assert program.lanes["gpu"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert program.lanes["sm"].tolist() == [0, 1] * 4
    assert sorted(set(program.shares["gpu"])) == [0, 1, 2, 3]


def drawn(sms, count, seed=0, where=None, machine=None):
    machine = machine or ModelledDevices(stage(), sms=sms).machine()
    return unseen_traces(machine, sms, count, np.random.default_rng(seed), where or Ranks())


def test_the_same_seed_draws_the_same_programs():
    first, again, other = ([one.program for one in drawn(4, 3, seed)] for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_programs_are_whole_lines_from_every_sm_to_one_peer():
    (program,) = (one.program for one in drawn(4, 1))
    stores = program.ops[program.ops["kind"] == STORE]
    assert (stores["bytes"] % LINE_BYTES == 0).all()
    assert set(program.shares["gpu"]) == {1}
    assert program.lanes["sm"].tolist() == [0, 1, 2, 3]


def kinds(traces):
    return [str(trace.program.meta["schedule"]) for trace in traces]


def test_half_of_the_programs_are_of_several_ranks_and_half_of_these_schedules():
    found = kinds(drawn(16, 16))
    assert found[:8] == ["unseen train"] * 8
    assert all(kind.startswith("unseen train, ") for kind in found[8:12])
    assert set(found[12:]) <= {"megamoe", "attention_a2a"}


def test_ranks_of_one_gpu_have_a_part_of_its_sms_and_gpus_have_all():
    of_one_gpu, of_gpus = (drawn(16, 8, where=where)[4].program for where in (Ranks("host"), Ranks("peer", 2)))
    assert np.bincount(of_one_gpu.lanes["gpu"]).tolist() == [16 // of_one_gpu.n_gpus] * of_one_gpu.n_gpus
    assert np.bincount(of_gpus.lanes["gpu"]).tolist() == [16, 16]


def test_some_of_each_kind_stall_and_some_do_not():
    shares = [stalled_share(trace) for trace in drawn(16, 16)]
    for first in (0, 8, 12):
        of_kind = shares[first : first + (8 if first == 0 else 4)]
        assert max(of_kind) > 0.2 and min(of_kind) <= 0.2


def test_where_there_is_no_room_for_several_ranks_there_are_trains_of_one():
    assert kinds(drawn(4, 4, where=Ranks("host", 1))) == ["unseen train"] * 4


def test_every_program_can_be_replayed():
    for trace in drawn(8, 8):
        lower(trace.program)


def test_too_few_producers_to_fill_a_stage_are_refused():
    with pytest.raises(InputError, match="producers = 1: never fill the stage"):
        drawn(1, 1, machine=ModelledDevices(stage(), sms=4).machine())
