"""What each microbenchmark took, as one table."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from xstage.hw_validate.cuda import experiments as e
from xstage.hw_validate.cuda.cautions import cautions
from xstage.hw_validate.cuda.collect import collect
from xstage.hw_validate.cuda.parts import PARTS, Extent
from xstage.hw_validate.cuda.planning import plan
from xstage.hw_validate.cuda.summary import microbenchmarks

from .modelled_devices import CYCLES_PER_NS, NOTING_NS, RELEASE_NS, TICKET_NS, ModelledDevices, stage

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


@pytest.mark.parametrize(("beside_hogs", "is_told"), [(1.0, False), (1.8, False), (2.5, True)])
@pytest.mark.parametrize("gpu_kib", [160, 1024])
def test_a_release_that_waits_for_more_than_the_stores_before_its_own_is_told(tmp_path, beside_hogs, is_told, gpu_kib):
    """By the law it waits for Q of the others, which may be many times what it takes alone: that is as simulated."""
    made = plan(extent=EXTENT, parts=("clock", "bursts", "costs", "neighbours"))
    devices = ModelledDevices(stage(per_sm_kib=48, gpu_kib=gpu_kib), sms=33, beside_hogs=beside_hogs)
    found = microbenchmarks(collect(made, devices, tmp_path / "r.npz"))
    beside = [row for row in found if row["group"] == "release beside hogs"]
    assert {row["producers"]: row["bytes"] for row in beside} == dict.fromkeys((0, 8, 32), 128)
    for row in beside:
        hogs = row["producers"]
        expected = beside_hogs * (RELEASE_NS + devices.full_ns(hogs)) if hogs else RELEASE_NS
        assert row["fenced_ns"] - row["issued_ns"] == pytest.approx(expected, abs=1)
    full_ns = devices.full_ns(32)
    said = f"a release takes {beside_hogs * (RELEASE_NS + full_ns):.0f} ns while other SMs store, 700 ns alone"
    for known in (None, full_ns):
        assert [said in text for text in cautions(found, full_ns=known)] == [True] * is_told


@pytest.mark.parametrize(("in_sm_ns", "is_told"), [(0.0, False), (30.0, False), (400.0, True), (2000.0, True)])
def test_a_release_to_the_own_sm_that_is_not_free_is_told(tmp_path, in_sm_ns, is_told):
    """Also where Q is small, so that waiting for it is little beside the burst."""
    made = plan(extent=EXTENT, parts=("clock", "costs"))
    found = microbenchmarks(collect(made, ModelledDevices(stage(), sms=8, in_sm_ns=in_sm_ns), tmp_path / "r.npz"))
    row = one(found, group="release in the SM")
    assert row["producers"] == 8 and row["fenced_ns"] - row["issued_ns"] == pytest.approx(in_sm_ns, abs=1)
    said = f"a release to the own SM takes {in_sm_ns:.0f} ns, one to all after the same burst 700 ns"
    assert [said in text for text in cautions(found)] == [True] * is_told


class Slower(ModelledDevices):
    """The clock of one table is lower than that of the others."""

    def run(self, launches, abort, deadline_s):
        table = self._at(int(launches[0].parameters["rows"][0]), e.ROW, int(launches[0].parameters["n_rows"][0]))
        self.is_slow = (table["kind"] == e.TICKET).any()
        return super().run(launches, abort, deadline_s)

    def cycles_per_ns(self):
        return CYCLES_PER_NS * (0.95 if self.is_slow else 1)


def test_parts_at_other_clocks_are_told(tmp_path):
    made = plan(extent=EXTENT, parts=("clock", "bursts", "costs"))
    found = microbenchmarks(collect(made, Slower(stage(), sms=8), tmp_path / "r.npz"))
    (said,) = cautions(found)
    assert said.startswith("the SM clock was 1425 MHz in part costs and 1500 MHz in part clock, 5.3 % apart")


@pytest.mark.parametrize(
    ("warm_from", "knee", "said"),
    [
        (0, None, ["T_iss0", "R and Q", "R (long_run_gbs"]),
        (64 * 1024, None, ["R and Q", "R (long_run_gbs"]),
        (64 * 1024, 1 << 20, ["R (long_run_gbs"]),  # the median of all sizes up to the knee is as it should be
        (1 << 20, None, ["R (long_run_gbs"]),
        (1 << 21, None, []),
    ],
)
def test_what_warm_places_change_is_told_by_the_side_of_the_knee(tmp_path, warm_from, knee, said):
    """The knee of 8 SMs with 48 KiB each is at 58 KiB: one size of six is above it."""
    extent = replace(EXTENT, sizes=32)
    made = plan(extent=extent, parts=("clock", "bursts", "trains", "warm"))
    devices = ModelledDevices(stage(per_sm_kib=48, gpu_kib=1024), sms=8, warm=0.7, warm_from=warm_from)
    found = cautions(microbenchmarks(collect(made, devices, tmp_path / "r.npz")), knee)
    assert [f"new places: {what}" in text for what, text in zip(said, found, strict=True)] == [True] * len(said)


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
    assert all(
        one(rows, group="long run", part=part)["gbs"] == pytest.approx(52, rel=0.02) for part in ("trains", "warm")
    )


def test_the_light_sm_is_told_by_its_own_bytes(rows):
    beside = [row for row in rows if row["group"] == "light beside hogs"]
    assert {row["bytes"] for row in beside} == {4096}
    assert {row["producers"] for row in beside} == {0, 7}  # of 8 SMs: rows with more hogs were left out


def row(part, group, size, **times):
    return {"part": part, "group": group, "bytes": size, "cycles_per_ns": CYCLES_PER_NS, **times}


def test_a_release_of_nothing_is_no_yardstick_for_one_behind_stores():
    """It may take no time at all."""
    found = [
        row("costs", "release alone", size, issued_ns=10, fenced_ns=10 + took) for size, took in ((0, 5), (128, 700))
    ]
    found.append(row("neighbours", "release beside hogs", 128, issued_ns=10, fenced_ns=900))
    assert cautions(found, full_ns=0.0) == []
    found[-1]["fenced_ns"] = 1500
    (said,) = cautions(found, full_ns=0.0)
    assert said.startswith("a release takes 1490 ns while other SMs store, 700 ns alone")


def test_a_release_in_the_sm_with_none_to_all_beside_it_says_nothing():
    found = [row("costs", "release in the SM", 32768, issued_ns=10, fenced_ns=5000),
             row("costs", "release", 4096, issued_ns=10, fenced_ns=20)]  # fmt: skip
    assert cautions(found) == []


def test_bursts_as_short_as_noting_a_time_are_not_told_to_be_off():
    """22 ns against 21, of which noting takes 20: twice as long, but no time to compare with."""
    found = [row("bursts", "isolated", size, issued_ns=21, slowest_ns=21) for size in (128, 256, 512)]
    found += [row("warm", "same places", 256, issued_ns=22), row("clock", "noting", 0, issued_ns=20)]
    assert cautions(found, 1024) == []


def test_lines_that_cross_nowhere_have_no_knee():
    """The line of the large bursts is the steeper one, but above that of the small at 0: all sizes are below the knee."""
    sizes = 1024 * np.arange(1, 10)
    issued = 100 + sizes / 40 + np.where(sizes > 6 * 1024, 500 + (sizes - 6 * 1024) / 30, 0)
    cold = [row("bursts", "isolated", int(b), issued_ns=t, slowest_ns=t) for b, t in zip(sizes, issued, strict=True)]
    warm = [row("warm", "same places", int(b), issued_ns=t / 2) for b, t in zip(sizes, issued, strict=True)]
    noting = row("clock", "noting", 0, issued_ns=1.0)
    (said,) = cautions([*cold, *warm, noting])
    assert "T_iss0" in said
