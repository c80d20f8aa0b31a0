"""Plans and results as files: whole or refused, the same content the same name, two runs of one machine put together."""

import numpy as np
import pytest
from xstage.hw_validate.cuda.collect import collect
from xstage.hw_validate.cuda.container import Container, load, merged, save
from xstage.hw_validate.cuda.parts import Extent
from xstage.hw_validate.cuda.planning import plan, with_programs
from xstage.hw_validate.cuda.run_programs import program_of
from xstage.hw_validate.trains import Phases, train
from xstage.sim.errors import InputError

from .modelled_devices import ModelledDevices, stage

TINY = Extent(sizes=9, rounds=3, train_rounds=2, train_bursts=6, sweep_rounds=1)
PROGRAM = train(Phases([1024, 2048], [5_000, 7_000]), 3, lambda size: 2 * size)


def test_a_plan_comes_back_as_it_went(tmp_path):
    made = plan(extent=TINY, programs=[PROGRAM])
    save(made, tmp_path / "plan.npz")
    again = load(tmp_path / "plan.npz", "plan")
    assert again.digest() == made.digest()
    assert program_of(again, 0) == PROGRAM


def test_the_same_plan_has_the_same_bytes(tmp_path):
    for name in ("a.npz", "b.npz"):
        save(plan(extent=TINY, seed=3), tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_programs_can_be_put_in_place_of_others():
    first = plan(extent=TINY, programs=[PROGRAM, PROGRAM])
    second = with_programs(first, [PROGRAM])
    assert len(second.header["programs"]) == 1
    assert not second.under("program/1")
    assert second.digest() != first.digest()


@pytest.mark.parametrize(
    ("content", "said"), [(b"", "not a whole plan file"), (b"PK\x03\x04 cut", "not a whole plan file")]
)
def test_a_file_that_is_cut_is_refused_by_name(tmp_path, content, said):
    (tmp_path / "p.npz").write_bytes(content)
    with pytest.raises(InputError, match=f"p.npz: is {said}"):
        load(tmp_path / "p.npz", "plan")


def test_other_files_and_versions_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(InputError, match=r"other.npz"):
        load(tmp_path / "other.npz", "plan")
    made = plan(extent=TINY)
    save(Container("plan", {**made.header, "format_version": 99}, {}), tmp_path / "new.npz")
    with pytest.raises(InputError, match="format_version = 99"):
        load(tmp_path / "new.npz", "plan")


def test_two_runs_of_one_machine_are_one_result(tmp_path):
    devices = ModelledDevices(stage(), sms=4)
    first = collect(plan(extent=TINY, parts=("clock", "bursts")), devices, tmp_path / "a.npz")
    more = plan(extent=TINY, parts=("clock", "costs"), programs=[PROGRAM], repeats=(2, 1))
    both = merged(first, collect(more, devices, tmp_path / "b.npz"))
    assert {"bursts", "costs", "programs"} <= set(both.header["parts"])
    assert "replay/0/far/start" in both.arrays
    assert np.array_equal(both.arrays["part/clock/marks"], first.arrays["part/clock/marks"])


def test_runs_of_different_machines_are_not_put_together(tmp_path):
    made = plan(extent=TINY, parts=("clock",))
    first = collect(made, ModelledDevices(stage(), sms=4), tmp_path / "a.npz")
    second = collect(made, ModelledDevices(stage(), sms=4, gpus=2), tmp_path / "b.npz")
    with pytest.raises(InputError, match="are not of one machine"):
        merged(first, second)


def test_a_part_that_failed_got_further_than_one_that_was_skipped(tmp_path):
    """Which tells more: that it was tried, and why it came to nothing."""
    skipped, failed = (
        collect(plan(extent=TINY, parts=("clock", "costs")), ModelledDevices(stage(), sms=4), tmp_path / name)
        for name in ("a.npz", "b.npz")
    )
    skipped.header["parts"]["costs"] |= {"state": "skipped", "why": "not here"}
    failed.header["parts"]["costs"] |= {"state": "failed", "why": "too long"}
    for first, second in ((skipped, failed), (failed, skipped)):
        assert merged(first, second).header["parts"]["costs"]["why"] == "too long"


def test_replays_of_a_second_run_take_the_place_of_all_of_the_first(tmp_path):
    """Which had more Programs: none of these is left to be taken for one of the second."""
    first, second = (
        collect(plan(extent=TINY, parts=("clock", "bursts"), programs=programs, repeats=(2, 1)),
                ModelledDevices(stage(), sms=4), tmp_path / name)
        for name, programs in (("a.npz", [PROGRAM] * 2), ("b.npz", [PROGRAM]))
    )  # fmt: skip
    first.header["parts"]["programs"] |= {"state": "failed", "why": "too long"}
    both = merged(first, second)
    assert both.under("replay/0") and both.under("program/0")
    assert not both.under("replay/1") and not both.under("program/1")
