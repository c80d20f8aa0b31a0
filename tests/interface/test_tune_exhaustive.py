"""`tune` against every combination of policies and settings, on ten scenarios small enough to try them all."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from xstage.scenarios.loader import Resolved, load_scenario
from xstage.scenarios.workload import Ring

import xstage as xs
from xstage.answers.reruns import choices_of, with_workload


def scenario(machine: str, sms: int, workload: dict[str, Any], **overrides: str) -> dict[str, Any]:
    return {
        "question": "Which policy and setting?",
        "machine": {"base": machine, "overrides": {"compute.sms": sms, **overrides}},
        "workload": workload,
        "granule": "8 KiB",
    }


def megamoe(**changes: Any) -> dict[str, Any]:
    return {"kind": "megamoe", "gpus": 2, "hidden": 512, "intermediate": 256, "experts": 16, "topk": 2, "tokens": 2048,
            "policy": "expert_wave"} | changes  # fmt: skip


def attention(**changes: Any) -> dict[str, Any]:
    return {"kind": "attention_a2a", "gpus": 2, "heads": 8, "tokens": 4096, "policy": "serial"} | changes


GEMM = {
    "kind": "tensor_parallel",
    "operation": "gemm_rs",
    "gpus": 4,
    "m": 4096,
    "n": 2048,
    "k": 4096,
    "policy": "fused",
}
RATE = "interconnect.drain_rate"
SLOW_TILES = scenario("hgx-b200", 32, megamoe(hidden=1024, tokens=4096), **{"compute.sm_feed": "4 GB/s"})
"""Two L1 tasks an m-block and 16 clusters: eight blocks are begun before the first L2 task can find its inputs."""
TEN = {
    "balanced": scenario("hgx-b200", 16, megamoe()),
    "skewed": scenario("hgx-b200", 16, megamoe(routing={"kind": "zipf", "max_over_mean": 4.0})),
    "slow tiles": SLOW_TILES,
    "narrow link": scenario("hgx-b200", 16, megamoe(hidden=1024, intermediate=512), **{RATE: "20 GB/s"}),
    "small stage": scenario(
        "hgx-b200", 16, megamoe(hidden=1024, tokens=4096), **{RATE: "60 GB/s", "stage.capacity_gpu": "64 KiB"}
    ),
    "late rank": scenario("hgx-b200", 16, megamoe(starts=["0 us", "40 us"])),
    "Hopper": scenario(
        "hgx-h100",
        8,
        megamoe(hidden=1024, intermediate=512, experts=8, numbers="w8a8", policy="lag"),
        **{RATE: "20 GB/s"},
    ),
    "attention": scenario("xstage-hopper", 24, attention()),
    "attention, narrow link": scenario("xstage-hopper", 24, attention(gpus=4), **{RATE: "30 GB/s"}),
    "GEMM": scenario("hgx-h100", 16, GEMM, **{RATE: "40 GB/s"}),
}


def every_makespan(resolved: Resolved) -> dict[str, list[float]]:
    """Makespans of all settings by policy, without those that cannot run."""
    found: dict[str, list[float]] = {}
    for name, choice in choices_of(resolved).items():
        for values in itertools.product(*(s.values for s in choice.settings)):
            given = [s.given(value) for s, value in zip(choice.settings, values, strict=True)]
            parameters = {key: value for one in given for key, value in one.items()}
            changed = with_workload(resolved, resolved.scenario.workload.with_policy(name, parameters))
            try:
                makespan_us = xs.run(changed, trace="off").makespan_us
            except xs.InputError:
                continue
            found.setdefault(name, []).append(makespan_us)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", TEN)
def test_tune_finds_the_best_of_an_exhaustive_sweep_within_a_percent(name: str) -> None:
    """Of all policies together and of each alone; the sweep's settings differ by more than that, so it could miss."""
    tuned, swept = xs.tune(TEN[name]), every_makespan(load_scenario(TEN[name]))
    best = min(min(times) for times in swept.values())
    print(f"{name}: {100 * (tuned.best.makespan_us / best - 1):+.3f} % of {best:.1f} us")  # shown by pytest -s
    assert tuned.best.makespan_us is not None and tuned.best.makespan_us <= 1.01 * best
    for policy, times in swept.items():
        mine = [tried.makespan_us for tried in tuned.curve if tried.policy == policy and tried.makespan_us]
        assert min(mine) <= 1.01 * min(times)
    assert max(max(times) for times in swept.values()) > 1.1 * best
    assert max(max(times) / min(times) for times in swept.values()) > 1.04


def test_a_small_lead_starves_l2_and_a_large_one_costs_ring_space() -> None:
    """Makespans fall towards D_knee and stay; the ring grows with the lead."""
    tuned = xs.tune(SLOW_TILES, ["interleaved"])
    curve = {t.parameters["lead_rows"]: t for t in tuned.curve if t.policy == "interleaved" and t.parameters}
    fastest = min(tried.makespan_us for tried in curve.values())
    assert tuned.d_knee_policy == "interleaved" and tuned.d_knee is not None
    assert curve[0].makespan_us > 1.5 * fastest
    assert 8 * 192 < tuned.d_knee < max(curve) / 2
    assert all((tried.makespan_us <= 1.01 * fastest) == (lead >= tuned.d_knee) for lead, tried in curve.items())
    rooms = [curve[lead].room_bytes for lead in sorted(curve)]
    assert rooms == sorted(rooms) and rooms[-1] > 10 * rooms[0]
    assert curve[tuned.d_knee].room_bytes == (tuned.d_knee // 192 + 1) * 192 * (1024 + 32 + 256 + 8)
    assert f"D_knee of interleaved: {tuned.d_knee} rows" in tuned._repr_html_()


def test_what_a_ring_takes_is_said_of_a_run_that_had_it() -> None:
    """Without a ring L1 is not held back: leads below D_knee are faster than they can be in so little memory."""
    tuned = xs.tune(SLOW_TILES, ["interleaved"], most_runs=12)
    ran = {t.parameters["lead_rows"]: t for t in tuned.curve if t.policy == "interleaved" and t.parameters}
    for lead in (0, tuned.d_knee):
        ring = max(1, lead // 192) + 1
        assert ran[lead].parameters == {"lead_rows": lead, "ring_m_blocks": ring}
        policy = {"name": "interleaved", **ran[lead].parameters}
        assert xs.run(SLOW_TILES, overrides={"workload.policy": policy}).makespan_us == ran[lead].makespan_us
        assert ran[lead].room_bytes == ring * 192 * (1024 + 32 + 256 + 8)
    no_ring = {"workload.policy": {"name": "interleaved", "lead_rows": 0}}
    assert xs.run(SLOW_TILES, overrides=no_ring).makespan_us < 0.95 * ran[0].makespan_us


def test_a_lead_in_a_ring_of_another_size_is_not_on_the_curve() -> None:
    own = {"workload.policy": {"name": "interleaved", "lead_rows": 192}}
    tuned = xs.tune(SLOW_TILES, ["interleaved"], overrides=own, most_runs=4)
    assert tuned.own.room_bytes is None
    with_ring = next(t for t in tuned.curve if t.parameters == {"lead_rows": 192, "ring_m_blocks": 2})
    assert tuned.leads[192] == (with_ring.makespan_us, Ring(2, with_ring.room_bytes))


def test_every_key_of_the_own_policy_that_is_given_up_is_named():
    """Else who sets only what is advised gets another kernel, or none."""
    own = {"name": "expert_wave", "experts_per_wave": 1, "ring_m_blocks": 4}
    workload = megamoe(hidden=4096, intermediate=1024, tokens=1024, ranks="symmetric", policy=own)
    found = xs.tune(scenario("hgx-b200", 32, workload), policies=["expert_wave"], most_runs=12)
    given_up = set(own) - {"name"} - set(found.best.parameters)
    assert given_up
    assert all(any(key in change for change in found.changes) for key in given_up)
