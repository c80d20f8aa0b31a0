"""What `explain` names first, what it calls the parts, and which rates hold a scenario up."""

from dataclasses import replace

import pytest
from xstage.scenarios.loader import Resolved

import xstage as xs
from xstage.answers.explanation import BELOW_ZERO, EVEN_BELOW_ZERO, LEFT, Bar, Explanation
from xstage.answers.limits import FOLDED, LIMITS, LINKS_OF

from .scenarios import MEGAMOE, MEGAMOE_SM90

NODES = {
    "question": "What holds it up?",
    "machine": "hgx-h100-rails",
    "workload": {"kind": "burst_train", "gpus": 16, "destination": "all", "producers": 16, "burst": "32 KiB", "bursts": 8,
                 "gap": "4 us"},
}  # fmt: skip


@pytest.fixture(scope="module")
def done() -> Explanation:
    return xs.explain(NODES)


def made(done, *bars):
    """The same explanation with other bars: name, us as a bar, us alone; then 40 us that are left."""
    found = [Bar(name, name, round(us * 1e6), f"no {name}", round(alone * 1e6)) for name, us, alone in bars]
    found.append(Bar("busy", "work", 40_000_000))
    return replace(done, bars=tuple(found), total_ps=sum(bar.ps for bar in found))


def test_network_interfaces_have_a_bar_beside_the_drain_rate(done):
    bars = {bar.name: bar for bar in done.bars}
    assert bars["links"].cause == "NIC rate"
    assert bars["drain_rate"].ps < 0.05 * bars["links"].ps
    assert done.largest == bars["links"]
    assert sum(bar.ps for bar in done.bars) == done.total_ps
    wide = xs.run(NODES, overrides={"machine.interconnect.nic_rate": "100 TB/s"}).makespan_us
    assert bars["links"].alone_ps / 1e6 == pytest.approx(done.total_ps / 1e6 - wide, rel=1e-3)


def test_links_can_be_removed_by_name_and_a_switch_has_none(done):
    alone = xs.explain(NODES, order=["links"]).bars[0]
    assert alone.ps == alone.alone_ps == next(bar for bar in done.bars if bar.name == "links").alone_ps
    assert "links" not in [bar.name for bar in xs.explain("periodic-train").bars]
    one_node = {**NODES, "workload": NODES["workload"] | {"gpus": 8}}
    assert "links" not in [bar.name for bar in xs.explain(one_node).bars]


def test_without_a_limit_a_train_starts_as_with_a_wider_link():
    """Its producers start apart by what R drains, so the schedule changes with R, too."""
    bar = xs.explain("periodic-train", order=["R"]).bars[0]
    wide = xs.run("periodic-train", overrides={"machine.interconnect.drain_rate": "100 TB/s"}).makespan_us
    assert bar.ps / 1e6 == pytest.approx(xs.run("periodic-train").makespan_us - wide, rel=1e-3)


def test_an_isolated_burst_is_explained_until_it_has_been_issued():
    """(V - Q) / R of it, of which T_iss0 is left once the stage holds all."""
    found, asked = xs.explain("isolated-burst"), xs.audit("hgx-b200", 148, "48 KiB", "0 us")
    bars = {bar.name: bar.ps / 1e6 for bar in found.bars}
    assert found.total_ps / 1e6 == pytest.approx(asked.t_iss_us - asked.stall_us + asked.first_stall_us, rel=0.01)
    assert bars["capacity"] == pytest.approx(asked.first_stall_us, rel=0.01)
    assert bars["issue"] == pytest.approx(asked.t_iss_us - asked.stall_us, rel=0.01)
    assert sum(bar.ps for bar in found.bars) == found.total_ps
    assert found.largest.name == "capacity" and "of the sender-visible time" in found.sentence
    assert found.as_dict()["total_is"] == "sender_visible_us"
    assert found.plot().axes[0].get_yticklabels()[-1].get_text() == "sender-visible"


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"workload.mode": "synchronised"}, "sender_visible_us"),
        ({"workload.bursts": 3}, "makespan_us"),
        ({"workload.mode": "free_running"}, "makespan_us"),
    ],
)
def test_one_burst_is_judged_by_its_issue_and_bursts_whose_times_follow_from_r_are_not(changes, end):
    """Gaps of an isolated train and starts of producers that run freely are shorter where R is larger."""
    assert xs.explain("isolated-burst", order=["Q"], overrides=changes).as_dict()["total_is"] == end


@pytest.mark.parametrize("name", ["periodic-train", "synchronised-train", "uniform-all-to-all", "islands-all-to-all"])
def test_a_train_and_an_all_to_all_are_explained_until_the_last_byte_has_arrived(name):
    """What one burst waits makes the next one late, and a stage that holds all of a backlog is no remedy in the long run."""
    found = xs.explain(name, order=["Q"])
    assert found.total_ps == round(xs.run(name).makespan_us * 1e6)
    assert found.as_dict()["total_is"] == "makespan_us"


def test_the_time_to_issue_stores_is_a_bar():
    """Attention whose last tile takes 60 us to issue, on a stage and a link that hold nothing up."""
    attention = {
        "question": "What takes so long?",
        "machine": {"base": "hgx-h100", "overrides": {"stage.t0": "60 us"}},
        "workload": {"kind": "attention_a2a", "gpus": 8, "heads": 32, "head_dim": 128, "tokens": 4096},
    }
    found = xs.explain(attention)
    [bar] = [bar for bar in found.bars if bar.name == "issue"]
    assert bar.ps > 60e6 and found.largest == bar
    assert "issue time T_iss0" in found.sentence
    assert "issue" not in [bar.name for bar in xs.explain("isolated-burst", overrides={"workload.producers": 0}).bars]


def test_stores_that_take_no_time_to_issue_leave_sms_in_turns():
    """One SM's whole burst ahead of the next one's would fill the stage of one and leave the other to wait."""
    [bar] = [bar for bar in xs.explain("isolated-burst", order=["T_iss0"]).bars if bar.removed]
    assert abs(bar.ps) < 0.01e6  # (V - Q) / R is how long it takes to issue, however fast SMs are


@pytest.mark.parametrize("order", [["Q", "Q"], ["Q", "capacity"]])
def test_a_limit_that_is_given_twice_is_refused(order):
    with pytest.raises(xs.InputError, match=rf"^order = '{order[1]}': is given twice"):
        xs.explain("isolated-burst", order=order)


def test_a_bar_that_only_others_uncover_is_not_the_first_to_look_at(done):
    found = made(done, ("links", 50, 50), ("l2_feed", 56, 4))
    assert found.largest.name == found.as_dict()["largest_removable"] == "links"
    assert "largest removable part is links: 50.000 us" in found.sentence
    assert (
        "Larger, but only once the limits above it are gone, is l2_feed: 56.000 us, alone 4.000 us." in found.sentence
    )


def test_a_bar_that_pays_back_what_one_above_it_costs_is_judged_alone(done):
    found = made(done, ("capacity", -36, -36), ("links", 100, 67), ("issue", 6, 80))
    assert found.largest.name == "issue"
    assert "Most saves issue: 80.000 us, 72.7 % of the makespan, gone with no issue." in found.sentence
    assert "largest removable part" not in found.sentence


@pytest.mark.parametrize(
    "bars", [(("links", 100, 67), ("capacity", -36, -36)), (("capacity", -1, -1), ("links", 100, 67))]
)
def test_a_bar_below_0_does_not_disturb_those_above_it_nor_does_a_small_one(done, bars):
    found = made(done, *bars)
    assert "The largest removable part is links: 100.000 us" in found.sentence


def test_network_interfaces_are_removed_before_the_stage_and_the_drain_rate(done):
    names = [bar.name for bar in done.bars]
    assert names.index("links") < names.index("capacity") < names.index("drain_rate")


@pytest.mark.parametrize("order", [["links", "R", "Q"], ["R", "Q", "links"]])
def test_what_is_left_does_not_depend_on_the_order(order):
    """Producers start apart by what drains, through the core of a switch that carries a quarter of what GPUs send."""
    machine = {
        "base": "hgx-h100",
        "overrides": {"interconnect.kind": "oversubscribed_switch", "interconnect.oversubscription": 4},
    }
    workload = {**NODES["workload"], "gpus": 8, "gap": "0 us", "mode": "free_running"}
    left = [
        bar
        for bar in xs.explain({**NODES, "machine": machine, "workload": workload}, order=order).bars
        if not bar.removed
    ]
    fast = {"machine.interconnect.drain_rate": "300000000 GB/s", "machine.interconnect.oversubscription": 1,
            "machine.stage.capacity_sm": "1 GiB", "machine.stage.capacity_gpu": "1024 GiB"}  # fmt: skip
    wide = xs.run({**NODES, "machine": machine, "workload": workload}, overrides=fast).makespan_us
    assert sum(bar.ps for bar in left) / 1e6 == pytest.approx(wide, rel=1e-3)


SKEWED = {"workload.routing": {"kind": "zipf", "max_over_mean": 3}}


def test_without_imbalance_every_expert_has_as_many_rows():
    [bar] = [bar for bar in xs.explain(MEGAMOE, order=["imbalance"], overrides=SKEWED).bars if bar.removed]
    skewed, even = (
        xs.run(MEGAMOE, overrides=change).makespan_us for change in (SKEWED, {"workload.routing": {"kind": "even"}})
    )
    assert bar.ps / 1e6 == pytest.approx(skewed - even, abs=1e-6) and bar.ps > 0
    assert "imbalance" not in [bar.name for bar in xs.explain(MEGAMOE, overrides={"workload.routing": "even"}).bars]


def test_a_bar_below_0_has_the_reason_of_its_limit(done):
    few, other = (made(done, (name, -5, -5), ("links", 20, 20)) for name in ("imbalance", "capacity"))
    assert EVEN_BELOW_ZERO in few.printed() and BELOW_ZERO not in few.printed()
    assert BELOW_ZERO in other.printed() and EVEN_BELOW_ZERO not in other.printed()


def test_no_schedule_is_built_twice(monkeypatch):
    built, build = [], Resolved.program

    def program(resolved):
        assert resolved not in built
        built.append(resolved)
        return build(resolved)

    monkeypatch.setattr(Resolved, "program", program)
    xs.explain(MEGAMOE_SM90)
    assert len(built) > 1


def test_schedules_that_are_too_large_to_keep_are_built_again(monkeypatch):
    kept = xs.explain(MEGAMOE_SM90)
    monkeypatch.setattr("xstage.answers.limits.KEPT_BYTES", 0)
    assert xs.explain(MEGAMOE_SM90).bars == kept.bars


def test_limits_that_stand_in_for_each_other_are_named_with_what_they_need(done):
    found = made(done, ("hbm", 0, 0), ("l2_feed", 30, 0))
    assert found.largest.name == "l2_feed"
    assert "Alone it saves nothing: it does once the limits above it are gone, too." in found.sentence


def test_what_saves_more_alone_is_named(done):
    found = made(done, ("capacity", 20, 20), ("drain_rate", 15, 35))
    assert found.largest.name == "capacity"
    assert "Of the limits removed alone, drain_rate saves most: 35.000 us" in found.sentence


def test_main_loops_that_hold_their_feed_are_said_to():
    everything, feed, some = (xs.explain(MEGAMOE, order=order) for order in (None, ["l2_feed"], ["Q", "R"]))
    compute = [next(bar for bar in one.bars if bar.name == "compute") for one in (everything, feed, some)]
    assert compute[0].cause == compute[1].cause == "main loops"  # HBM costs its tiles nothing
    assert compute[2].cause == "main loops, with feeds"
    assert compute[0].ps < compute[2].ps


def test_a_limit_that_another_one_hides_is_removed_too():
    """Of few tokens, HBM and L2 hold up the main loops alike: only without both is what is left that of the Tensor Cores."""
    few = {"workload.tokens": 16, "workload.policy": "lag"}
    hidden, apart = (
        {bar.name: bar for bar in xs.explain(MEGAMOE_SM90, overrides=few | rate).bars}
        for rate in ({}, {"machine.compute.hbm_rate": "3000 TB/s"})
    )
    assert hidden["hbm"].ps == hidden["hbm"].alone_ps == 0
    assert hidden["l2_feed"].ps > hidden["l2_feed"].alone_ps > 0
    assert hidden["compute"].ps == apart["compute"].ps


def test_the_epilogue_of_math_warps_is_none_of_their_main_loops():
    """Both ranks have 36 m-blocks of 64 rows, four tiles of 256 columns each in L1 and in L2, on 16 SMs."""
    bars = {bar.name: bar.ps / 1e6 for bar in xs.explain(MEGAMOE_SM90).bars}

    def main_loop_us(k):
        return 2 * 64 * 256 * k / (1979e6 * 0.65 / 16) + 0.3  # FLOPs, FP8 at the machine's efficiency, tile_fixed

    assert bars["compute"] == pytest.approx(36 * 4 / 16 * (main_loop_us(1024) + main_loop_us(512)), rel=1e-4)
    epilogues = 36 * 4 / 16 * 2 * 0.5  # each at least as long as the floor
    assert bars["other"] > epilogues


def test_weights_that_are_unpacked_on_hopper_have_a_bar():
    w4a8 = {"workload.numbers": "w4a8"}
    found = xs.explain(MEGAMOE_SM90, overrides=w4a8)
    [bar] = [bar for bar in found.bars if bar.name == "fp4_unpack"]
    fast = xs.run(MEGAMOE_SM90, overrides=w4a8 | {"machine.compute.fp4_unpack": 1e9}).makespan_us
    assert bar.alone_ps / 1e6 == pytest.approx(found.total_ps / 1e6 - fast, rel=1e-3)
    assert bar.ps > 0
    assert "fp4_unpack" not in [bar.name for bar in xs.explain(MEGAMOE_SM90).bars]


def test_what_to_beware_of_is_printed_last():
    changes = {"machine.interconnect.drain_rate": "700 GB/s", "workload.m": 1024}
    found = xs.explain("gemm-rs-llama-serial", overrides=changes)
    [said] = found.warnings
    assert found.printed()[-1] == f"warning: {said}"
    assert found.as_dict()["warnings"] == [said]


def test_labels_of_bars_are_short_and_what_is_left_stands_under_a_line_of_its_own(done):
    told = [limit.text for limit in LIMITS] + [text for text, _ in LINKS_OF.values()] + [FOLDED]
    assert max(map(len, told)) <= 25
    [table] = [part for part in done.printed() if not isinstance(part, str)]
    labels = [text.plain for text in table.columns[0]._cells]
    at = labels.index(LEFT)
    assert labels[:at] == [bar.cause for bar in done.bars if bar.removed]
    assert labels[at + 1 : -1] == [f"  {bar.cause}" for bar in done.bars if not bar.removed]
