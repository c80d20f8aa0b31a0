"""SMs and expert widths of the sweep past the point where stores stall."""

import pytest
from xstage.hw_validate.cuda.device_check_fused import USUAL, FusedCheck
from xstage.hw_validate.cuda.fused_calls import MEGAMOE_POLICIES
from xstage.hw_validate.cuda.fused_run import machine_for
from xstage.hw_validate.cuda.fused_sweep import among_more_ranks, drain_us, ratios_of, sms_at_ratio_1, widths_for
from xstage.hw_validate.cuda.ranks import simulated_ranks
from xstage.scenarios.machine_files import load_machine

from .emulated_devices import EmulatedDevices

RATIOS = (1.0, 2.0, 0.5, 1.4, 0.75)


def control(main_loop_us, stores_us=0.24, span_us=1.3):
    return {"main_loop_us": main_loop_us, "stores_us": stores_us, "span_us": span_us}


def test_so_many_sms_drain_a_wave_in_the_time_of_its_tiles():
    """A tile of 16 KiB, half of it far: at 52 GB/s an SM's part takes 0.158 us. 2 x 16 SMs fill the 5.04 us of a tile."""
    assert drain_us(1, 2, 52.0) == pytest.approx(2 * 8192 / 52_000)
    assert sms_at_ratio_1(control(4.8), 2, 66, 52.0) == 16
    assert sms_at_ratio_1(control(40.0), 2, 8, 10.0) == 8  # no more than there are


@pytest.mark.parametrize("drain_gbs", [25.0, 52.0, 180.0, 380.0])
@pytest.mark.parametrize("us_a_width", [3e-3, 6e-3, 12e-3])
@pytest.mark.parametrize(("fixed_us", "stores_us"), [(0.0, 0.1), (0.4, 0.5), (0.8, 1.0)])
def test_widths_cover_half_to_twice_the_point_where_stores_stall(drain_gbs, us_a_width, fixed_us, stores_us):
    """PCIe and chip-to-chip links, slow and fast kernels, main loops with a part that does not depend on the width."""

    def tile(width):
        return control(fixed_us + us_a_width * width, stores_us, span_us=2 * stores_us)

    sms = sms_at_ratio_1(tile(1024), 2, 66, drain_gbs)
    wave_us = drain_us(sms, 2, drain_gbs)
    found = widths_for({1024: tile(1024), 512: tile(512)}, wave_us, RATIOS, 64, 8192)
    told = {float(ratio): ratios_of(tile(width), wave_us)["ratio_of_control"] for ratio, width in found.items()}
    assert min(told.values()) < 0.6
    assert max(told.values()) > 1.7 or min(found.values()) == 64  # no narrower expert can be
    for ratio, is_at in told.items():
        if found[str(ratio)] > 256:  # finer than the steps of the width allow
            assert is_at == pytest.approx(ratio, rel=0.15)


def test_one_known_width_is_taken_as_the_slope():
    assert widths_for({1024: control(8.0, 0.0)}, 4.0, (1.0, 0.5), 64, 8192) == {"1.0": 512, "0.5": 1024}


def test_widths_that_are_too_wide_or_twice_the_same_are_left_out():
    assert widths_for({1024: control(1.0, 0.0)}, 1.0, (1.0, 0.1, 1.01), 64, 8192) == {"1.0": 1024}


def test_more_ranks_on_the_same_sms_store_more_of_the_same_tiles_far_away():
    """f = 1/2, 3/4, 7/8 of 64 SMs: 1, 1.5 and 1.75 times the bytes."""
    assert [among_more_ranks(32, 2, ranks) for ranks in (2, 4, 8)] == [(32, 1.0), (16, 1.5), (8, 1.75)]


def test_the_ratio_of_a_run_is_that_of_its_own_control():
    found = ratios_of(control(3.0, 1.0, span_us=5.0), 10.0)
    assert found == {"ratio_of_control": 2.5, "ratio_of_span": 2.0}


@pytest.mark.parametrize(("drain_gbs", "capacity_mib"), [(20, 1), (52, 4)])
def test_the_usual_sweep_stores_so_much_that_stores_stall(drain_gbs, capacity_mib):
    """Over PCIe, with any Q up to some MiB: what is on the way to the host. Tile costs are those of the H100."""

    def simulated(call, sms, on):
        program = call.build(machine_for("hgx-h100", sms), MEGAMOE_POLICIES["expert_wave"])
        return call.summary(simulated_ranks(program, on, "host").ops())

    far, no_link = (
        load_machine("hgx-h100", {"interconnect.drain_rate": rate, "stage.capacity_sm": q, "stage.capacity_gpu": q})
        for rate, q in ((f"{drain_gbs} GB/s", f"{capacity_mib} MiB"), ("100000 GB/s", "1 GiB"))
    )
    check = FusedCheck(EmulatedDevices("", sms=132, shared_per_block_bytes=227 << 10), None, None, 0.0)
    pilot = simulated(check._megamoe(USUAL.usual_width, USUAL.least_tokens), USUAL.pilot_sms, no_link)
    sms = sms_at_ratio_1(pilot, 2, 66, drain_gbs)
    wave_us = drain_us(sms, 2, drain_gbs)
    widths = widths_for({USUAL.usual_width: pilot}, wave_us, USUAL.ratios, USUAL.width_step, USUAL.most_width)
    assert len(widths) == len(USUAL.ratios)
    for ratio in ("2.0", "1.4"):
        call = check._megamoe(widths[ratio], check._most_tokens(widths[ratio], sms, 2))
        stored, control = simulated(call, sms, far), simulated(call, sms, no_link)
        assert ratios_of(control, wave_us)["ratio_of_control"] == pytest.approx(float(ratio), rel=0.1)
        assert stored["stores_total_us"] > 2 * control["stores_total_us"]
        assert stored["span_p95_us"] > 2 * control["span_p95_us"]
