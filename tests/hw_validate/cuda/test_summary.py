"""What each microbenchmark took, as one table."""

import pytest
from xstage.hw_validate.cuda.collect import collect
from xstage.hw_validate.cuda.parts import PARTS, Extent
from xstage.hw_validate.cuda.planning import plan
from xstage.hw_validate.cuda.summary import microbenchmarks

from .modelled_devices import NOTING_NS, RELEASE_NS, TICKET_NS, ModelledDevices, stage

EXTENT = Extent(sizes=9, rounds=3, train_rounds=2, train_bursts=6, sweep_rounds=2)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    made = plan(extent=EXTENT, parts=tuple(PARTS))
    return microbenchmarks(collect(made, ModelledDevices(stage(), sms=8), tmp_path_factory.mktemp("cuda") / "r.npz"))


def one(rows, **wanted):
    (found,) = [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]
    return found


def test_every_part_that_ran_is_there(rows):
    assert {row["part"] for row in rows} == set(PARTS) - {"incast"} | {"drift", "clock after"}
    assert all(value >= 0 for row in rows for name, value in row.items() if name.endswith("_ns"))


def test_times_are_from_the_start_of_a_burst_to_each_mark(rows):
    row = one(rows, group="release", bytes=4096)
    assert row["fenced_ns"] - row["issued_ns"] == pytest.approx(RELEASE_NS, abs=1)
    assert one(rows, group="ticket", producers=1)["end_ns"] == pytest.approx(TICKET_NS + NOTING_NS, abs=1)
    assert list(one(rows, group="bulk of one", chunk=512))[-5:] == ["issued_ns", "read_ns", "done_ns", "back_ns", "gbs"]


def test_rates_are_of_all_producers_together(rows):
    assert one(rows, group="long run")["gbs"] == pytest.approx(52, rel=0.02)


def test_the_light_sm_is_told_by_its_own_bytes(rows):
    beside = [row for row in rows if row["group"] == "light beside hogs"]
    assert {row["bytes"] for row in beside} == {4096}
    assert {row["producers"] for row in beside} == {0, 7}  # of 8 SMs: rows with more hogs were left out
