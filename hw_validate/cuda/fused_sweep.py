"""Which SMs and expert widths make MegaMoE's stores stall: V / R over (T_mma + T_iss0) of a wave of L2 tiles.

A wave of tiles on K SMs stores V = K b f bytes far away, where b is a tile and f the share of rows that belong to other
ranks, 1 - 1 / ranks. `control` is what a run into the GPU's own memory told of a tile (fused_times.py). Needs NumPy alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .fused_megamoe import BLOCK_M, BLOCK_N

TILE_BYTES = BLOCK_M * BLOCK_N * 2
Control = Mapping[str, float]


def drain_us(sms: int, ranks: int, drain_gbs: float) -> float:
    """V / R of a wave on so many SMs of each rank; 1 GB/s is 1000 bytes a us."""
    return ranks * sms * TILE_BYTES * (1 - 1 / ranks) / (1000 * drain_gbs)


def sms_at_ratio_1(control: Control, ranks: int, most: int, drain_gbs: float) -> int:
    """SMs of a rank, up to `most`, of which a wave drains in the time that its tiles take."""
    took_us = control["main_loop_us"] + control["stores_us"]
    return max(1, min(most, round(took_us / drain_us(1, ranks, drain_gbs))))


def widths_for(
    controls: Mapping[int, Control], wave_us: float, ratios: Sequence[float], step: int, most: int
) -> dict[str, int]:
    """The expert width for each ratio, a multiple of `step`; without those beyond `most`, and each width once.

    T_mma follows the line through those of `controls`, by width, or grows with the width where there is one. `wave_us` is
    V / R.
    """
    issue_us = max(control["stores_us"] for control in controls.values())
    wide, narrow = max(controls), min(controls)
    wide_us, narrow_us = (controls[width]["main_loop_us"] for width in (wide, narrow))
    slope = (wide_us - narrow_us) / (wide - narrow) if wide_us > narrow_us else wide_us / wide
    at_0_us = wide_us - slope * wide
    widths: dict[str, int] = {}
    for ratio in ratios:
        wanted = (wave_us / ratio - issue_us - at_0_us) / max(slope, 1e-6)
        width = step * max(1, round(wanted / step))
        if width <= most and width not in widths.values():
            widths[str(ratio)] = width
    return widths


def among_more_ranks(sms: int, usual: int, ranks: int) -> tuple[int, float]:
    """SMs of a rank when those of `usual` ranks are shared by `ranks`, and how many times V that is."""
    share = max(1, round(sms * usual / ranks))
    return share, (ranks - 1) * share / ((usual - 1) * sms)


def ratios_of(control: Control, wave_us: float) -> dict[str, float]:
    """V / R over what the run's own control took: T_mma + T_iss0, and the longer of T_mma and the span."""
    mma_us = control["main_loop_us"]
    return {
        "ratio_of_control": wave_us / (mma_us + control["stores_us"]),
        "ratio_of_span": wave_us / max(mma_us, control["span_us"]),
    }
