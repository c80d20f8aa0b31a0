"""How much R and Q a scenario needs: what is found is enough, a little less is not."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from xstage.scenarios.loader import load_scenario

import xstage as xs
from xstage.answers.needed_parts import all_rates, room
from xstage.answers.needs import (
    LOSS_PCT,
    MOST_FACTOR,
    PRECISION,
    SAME_PROGRAM,
    Needs,
    _faster_with_less,
    _short,
    least_factor,
    needs,
)
from xstage.answers.reruns import simulated, under_policy

TRAIN = {
    "question": "How much is enough?",
    "machine": "hgx-b200",
    "workload": {"kind": "burst_train", "producers": 148, "burst": "32 KiB", "bursts": 30, "gap": "4 us"},
}
LOSS = 1 + LOSS_PCT / 100
RAILS = {
    "question": "Which rate binds?",
    "machine": {"base": "hgx-h100-rails", "overrides": {"compute.sms": 16}},
    "workload": {"kind": "attention_a2a", "gpus": 16, "tokens": 4096, "heads": 16, "head_dim": 128,
                 "policy": "piggyback"},
}  # fmt: skip
GEMM = {
    "question": "How much room?",
    "machine": {"base": "hgx-h800", "overrides": {"compute.sms": 16}},
    "workload": {"kind": "tensor_parallel", "operation": "gemm_rs", "gpus": 4, "m": 2048, "n": 2048, "k": 2048,
                 "policy": "fused"},
}  # fmt: skip
ALL_TO_ALL = {"kind": "burst_train", "gpus": 8, "destination": "all", "producers": 100, "burst": "32 KiB", "bursts": 8,
              "gap": "8 us"}  # fmt: skip


NODES = {"question": "Which rate binds?", "machine": "hgx-h100-rails",
         "workload": ALL_TO_ALL | {"gpus": 16, "producers": 16, "gap": "4 us"}}  # fmt: skip


def wired(**numbers: Any) -> dict[str, Any]:
    """A train in which all store to all on another interconnect."""
    given = {"gpus": 8, "latency": "0.5 us", **numbers}
    sourced: dict[str, Any] = {name: {"value": value, "source": "made up"} for name, value in given.items()}
    sourced |= {"drain_rate": None} if "links" in numbers else {}
    base = "mi300x" if "link_rate" in numbers else "hgx-b200"
    machine = {"base": base, "overrides": {"interconnect": sourced}}
    return {"question": "Which rate binds?", "machine": machine, "workload": ALL_TO_ALL}


TWICE = {"interconnect.kind": "oversubscribed_switch", "interconnect.oversubscription": 2}
SLOW_CORE = wired(kind="oversubscribed_switch", drain_rate="717 GB/s", oversubscription=4.0)
LINKS = wired(kind="custom", links=[{"between": ["0-7", "leaf"], "rate": "300 GB/s"}])
MESH = wired(kind="ring", link_rate="40 GB/s", hop_latency="0.1 us")


@pytest.fixture(scope="module")
def found() -> Any:
    return needs(TRAIN)


def test_the_drain_rate_that_is_needed_is_that_of_the_closed_form(found):
    """R = V / (T_iss0 + G), with which the bursts of a train recover."""
    drain = found.needs[0]
    volume, free_us = 148 * 32 * 2**10, 0.7609538950715421 + 4
    assert drain.factor * 717 == pytest.approx(volume / free_us / 1e3, rel=LOSS_PCT / 100 + PRECISION - 1)
    assert drain.verdict == "is not enough"


def test_an_isolated_burst_needs_the_room_and_the_rate_of_the_closed_forms():
    """It is judged by how long it takes to issue: its last byte arrives when R has drained it, whatever Q is."""
    done, asked = needs("isolated-burst"), xs.audit("hgx-b200", 148, "48 KiB", "0 us")
    drain, capacity = done.needs
    assert done.time_us == xs.run("isolated-burst").metrics["sender_visible_us"]
    assert capacity.factor * 4.25 * 2**20 == pytest.approx(asked.peak_bytes, rel=0.02)
    t_iss0_us = asked.t_iss_us - asked.stall_us
    rate_gbs = (148 * 48 * 2**10 - 4.25 * 2**20) / (LOSS * t_iss0_us * 1e3)  # (V - Q) / R is the time to issue
    assert drain.factor * 717 == pytest.approx(rate_gbs, rel=0.02)
    assert [need.verdict for need in done.needs] == ["is not enough"] * 2
    assert done.as_dict()["time_is"] == "sender_visible_us"
    assert any("us, sender-visible" in str(part) for part in done.printed())
    for need in done.needs:
        ran = xs.run("isolated-burst", overrides=need.settings)
        assert ran.metrics["sender_visible_us"] == need.time_us < ran.makespan_us
    assert done.plot().axes[0].get_ylabel() == "sender-visible, µs"


def test_where_the_drain_limits_no_room_is_enough_to_matter(found):
    room = found.needs[1]
    assert room.unimportant or room.factor <= 1.5
    assert room.best_us == pytest.approx(found.time_us, rel=0.05)


@pytest.mark.parametrize(("index", "limit"), [(0, all_rates), (1, room)])
def test_what_is_needed_is_enough_and_a_little_less_is_not(found, index, limit):
    need = found.needs[index]
    if need.factor is None:
        return
    less = simulated(limit(found.resolved).at(need.factor / PRECISION**1.5).of(found.resolved), "off").makespan_ps / 1e6
    assert need.time_us <= LOSS * need.best_us < less


@pytest.mark.parametrize(
    ("scenario", "names"),
    [
        (TRAIN, {"machine.interconnect.drain_rate"}),
        (NODES, {"machine.interconnect.nic_rate"}),
        (RAILS, {"machine.interconnect.drain_rate", "machine.interconnect.nic_rate"}),
        (GEMM, {"machine.interconnect.drain_rate"}),
        (SLOW_CORE, {"machine.interconnect.oversubscription"}),
        (LINKS, {"machine.interconnect.links"}),
        (MESH, {"machine.interconnect.link_rate"}),
    ],
)
def test_a_run_with_what_is_needed_takes_the_time_that_was_promised(scenario, names):
    """Each number that is printed was run as it is printed, and can be set: the room holds a granule at the least."""
    done = needs(scenario)
    assert set(done.needs[0].settings) == names
    for need in done.needs:
        for said in (need, *need.alone):
            assert xs.run(scenario, overrides=said.settings).makespan_us == said.time_us
        if need.less:
            assert xs.run(scenario, overrides=need.less.settings).makespan_us == need.less.time_us


def test_of_several_rates_the_one_that_binds_is_named():
    """Network interfaces hold up what goes to the other node; wider links within a node save nothing."""
    done = needs(NODES)
    rate = done.needs[0]
    assert (rate.text, rate.now, rate.verdict) == ("NIC rate", "43.00 GB/s", "is not enough")
    drain, nic = rate.alone
    assert (drain.name, drain.enough, nic.name, nic.enough) == ("drain_rate", False, "nic_rate", True)
    assert drain.time_us == pytest.approx(done.time_us, rel=0.01)
    assert rate.time_us < 0.9 * done.time_us
    assert f"NIC rate of {rate.value} would save" in done.printed()[-1]


def test_of_a_list_of_links_the_one_that_binds_is_named():
    """Two unequal islands: setting the link between them alone is enough, as the answer says."""
    links = [
        {"between": ["0-4", "left"], "rate": "717 GB/s"},
        {"between": ["5-7", "right"], "rate": "717 GB/s"},
        {"between": ["left", "right"], "rate": "300 GB/s"},
    ]
    scenario = wired(kind="custom", links=links)
    done = needs(scenario)
    rate = done.needs[0]
    assert (rate.text, rate.now, rate.verdict) == ("rate of the link left - right (R)", "300.0 GB/s", "is not enough")
    assert f"Rate of the link left - right (R) of {rate.value} would save" in done.sentence
    alone = [*links[:2], links[2] | {"rate": rate.value}]
    again = xs.run(scenario, overrides={"machine.interconnect.links": alone})
    assert again.makespan_us == rate.time_us <= 1.01 * rate.best_us < done.time_us


def test_where_no_rate_alone_is_enough_all_are_named_with_what_each_saves():
    done = needs(RAILS)
    rate = done.needs[0]
    assert rate.text == "drain rate (R) and NIC rate" and not any(one.enough for one in rate.alone)
    texts = [part for part in done.printed() if isinstance(part, str)]
    assert any(f"NIC rate of {rate.alone[1].value} alone" in text for text in texts)


def test_a_drain_rate_that_takes_the_core_of_a_switch_with_it_is_named_as_it_ran():
    """Neither the ports alone nor a core that never blocks is enough, and the two of them are not what ran together."""
    rate = needs("uniform-all-to-all", overrides={f"machine.{path}": value for path, value in TWICE.items()}).needs[0]
    assert not any(one.enough for one in rate.alone)
    assert rate.settings == {"machine.interconnect.drain_rate": rate.value}
    sentence = _short(rate, rate.tried[0][1])
    assert sentence.startswith(f"drain rate (R) of {rate.value}, the switch's core with it, would save ")


def test_rates_that_nothing_passes_are_not_looked_at():
    [rate, _] = needs({**RAILS, "workload": {**RAILS["workload"], "gpus": 8}}).needs
    assert (rate.text, rate.alone) == ("drain rate (R)", ())


def test_the_least_room_is_that_of_a_granule_and_is_printed_as_it_ran():
    resolved = load_scenario(RAILS)
    least = room(resolved).at(1 / MOST_FACTOR)
    assert least.text == "3.801 KiB, 1 KiB an SM"
    assert xs.run(RAILS, overrides=least.settings).makespan_us > 0


@pytest.mark.parametrize("name", ["attention-wan-serial", "megamoe-flash-wave"])
@pytest.mark.parametrize("machine", ["hgx-b200", "hgx-h100-rails"])
def test_programs_that_are_built_once_do_not_depend_on_rates_and_room(name, machine):
    small = {"tokens": 4096} if name.startswith("attention") else {"tokens": 1024, "numbers": "bf16"}
    resolved = load_scenario(name, {f"workload.{key}": value for key, value in small.items()} | {"machine": machine})
    assert resolved.scenario.workload.kind in SAME_PROGRAM
    programs = 0
    for policy, choice in resolved.policies().items():
        own, _ = under_policy(resolved, policy, choice)
        try:
            program = own.program()
        except xs.InputError:  # a schedule of other GPUs
            continue
        programs += 1
        for limit, factor in itertools.product((all_rates(own), room(own)), (0.5, 8.0)):
            assert program.diff(limit.at(factor).of(own).program()) == []
    assert programs >= 3


def test_where_less_is_faster_that_is_said():
    resolved = load_scenario(TRAIN)
    limit = room(resolved)
    assert _faster_with_less(limit, {1.0: 1000, 0.5: 999, 2.0: 900}, 900) is None
    assert _faster_with_less(limit, {1.0: 1000, 0.5: 999}, 1000) is None  # what an order of granules may do
    less = _faster_with_less(limit, {1.0: 1_000_000, 0.5: 950_000, 0.25: 990_000}, 1_000_000)
    assert (less.factor, less.value) == (0.5, limit.at(0.5).text)


def test_a_scenario_that_less_room_speeds_up_is_told_so(found):
    limit = room(found.resolved)
    less = _faster_with_less(limit, {1.0: 1_000_000, 0.5: 950_000}, 1_000_000)
    capacity = replace(found.needs[1], less=less, unimportant=True)
    assert capacity.verdict == "less is faster"
    done = Needs(found.resolved, 1.0, (found.needs[0], capacity))
    assert f"{less.value}, it takes 0.950 us, 5.0 % less" in done.printed()[-1]


@pytest.mark.parametrize("least", [0.01, 0.3, 1.0, 1.5, 7.0, 900.0])
def test_the_least_factor_is_found_to_its_precision(least):
    assert least <= least_factor(lambda factor: factor >= least) <= PRECISION * least * (1 + 1e-9)


def test_a_limit_that_never_matters_and_one_that_always_does_have_no_factor():
    assert least_factor(lambda factor: True) == 0
    assert least_factor(lambda factor: False) is None


def test_few_runs_are_needed():
    asked = []

    def is_enough(factor):
        asked.append(factor)
        return factor >= 5

    least_factor(is_enough)
    assert len(set(asked)) <= 2 + math.log2(MOST_FACTOR)


def test_the_answer_names_what_is_short(found):
    [drain, _] = found.needs
    saved = f"{found.time_us - drain.time_us:.3f} us"
    assert drain.now == "717.0 GB/s"
    assert found.printed()[-1] == f"Drain rate (R) of {drain.value} would save {saved}."
    assert xs.run(TRAIN).makespan_us == pytest.approx(found.time_us)


def test_the_picture_has_every_run_and_what_is_enough(found):
    panels = found.plot().axes
    assert [axes.get_title(loc="left") for axes in panels] == ["drain rate (R)", "capacity of the stage (Q)"]
    for axes, need in zip(panels, found.needs, strict=True):
        assert axes.lines[0].get_xydata().tolist() == [list(each) for each in need.tried]
    assert f"enough: {found.needs[0].factor:.2f}×" in [text.get_text() for text in panels[0].texts]


def test_the_labels_of_a_picture_do_not_meet():
    scenario = {**TRAIN, "workload": TRAIN["workload"] | {"burst": "2 KiB", "bursts": 8}}
    figure = needs(scenario).plot()
    figure.canvas.draw()
    for axes in figure.axes:
        labels = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        assert len(labels) > 1
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(labels))
        texts = [text.get_window_extent() for text in axes.texts]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(texts, 2))
