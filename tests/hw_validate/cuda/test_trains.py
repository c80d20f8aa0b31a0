"""Programs for a bare node, drawn with NumPy alone: the same trains, around a knee that the bursts just showed."""

import numpy as np
import pytest
from xstage.hw_validate.cuda.collect import collect
from xstage.hw_validate.cuda.noted import Noted
from xstage.hw_validate.cuda.parts import LINE_BYTES, Extent
from xstage.hw_validate.cuda.planning import plan
from xstage.hw_validate.cuda.trains import draw_by_law, rough_stage
from xstage.hw_validate.cuda.unseen import unseen_programs
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


def test_the_same_seed_draws_the_same_programs():
    machine = ModelledDevices(stage(), sms=4).machine()
    first, again, other = (unseen_programs(machine, 4, 3, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_programs_are_whole_lines_from_every_sm_to_one_peer():
    (program,) = unseen_programs(ModelledDevices(stage(), sms=4).machine(), 4, 1, np.random.default_rng(0))
    stores = program.ops[program.ops["kind"] == STORE]
    assert (stores["bytes"] % LINE_BYTES == 0).all()
    assert set(program.shares["gpu"]) == {1}
    assert program.lanes["sm"].tolist() == [0, 1, 2, 3]


def test_too_few_producers_to_fill_a_stage_are_refused():
    with pytest.raises(InputError, match="producers = 1: never fill the stage"):
        unseen_programs(ModelledDevices(stage(), sms=4).machine(), 1, 1, np.random.default_rng(0))
