"""What each microbenchmark took, as one table."""

from itertools import product

import pytest
from xstage.hw_validate.cuda.cautions import cautions
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


def test_what_goes_on_beside_stores_is_told_by_how_much_it_slows_them(tmp_path):
    made = plan(extent=EXTENT, parts=("clock", "neighbours"))
    devices = ModelledDevices(stage(), sms=8, beside_fences=1.4)
    found = microbenchmarks(collect(made, devices, tmp_path / "r.npz"))
    for size, producers in product((8192, 65536), (1, 8)):
        fences, loads = (
            one(found, group=f"{what} under stores", bytes=size, producers=producers) for what in ("fences", "loads")
        )
        assert fences["slowed_pct"] == pytest.approx(40, abs=4)
        assert abs(loads["slowed_pct"]) < 3
        assert "fences" in fences and "loads" in loads
    assert ["releases by one thread slow the stores of other warps" in text for text in cautions(found)] == [True]


def test_the_slowest_sm_is_told_beside_the_mean(rows, tmp_path):
    """Two SMs of eight get twice as much of the link, and end when they have half of the mean rate of the others."""
    made = plan(extent=EXTENT, parts=("clock", "bursts"))
    devices = ModelledDevices(stage(), sms=8, weights=(2.0, 1.0, 1.0, 1.0), noise=0.0)
    uneven = microbenchmarks(collect(made, devices, tmp_path / "r.npz"))
    largest = {"group": "isolated", "bytes": 192 * 1024, "part": "bursts"}
    ended = (2 * 5 / 8 + 6 * 1) / 8  # of the time that all of it takes to drain, by two SMs and by six
    row = one(uneven, **largest)
    assert row["slowest_ns"] / row["issued_ns"] == pytest.approx(1 / ended, rel=0.01)
    row = one(rows, **largest)
    assert row["slowest_ns"] / row["issued_ns"] < 1.03


def test_rates_are_of_all_producers_together(rows):
    assert one(rows, group="long run")["gbs"] == pytest.approx(52, rel=0.02)


def test_the_light_sm_is_told_by_its_own_bytes(rows):
    beside = [row for row in rows if row["group"] == "light beside hogs"]
    assert {row["bytes"] for row in beside} == {4096}
    assert {row["producers"] for row in beside} == {0, 7}  # of 8 SMs: rows with more hogs were left out
