"""compare, explain and tune: the contract, bars that add up, and a search that finds what a sweep finds."""

from dataclasses import replace

import pytest
from xstage.scenarios.loader import load_scenario

import xstage as xs
from xstage.answers.explanation import BAR_WIDTH, Bar
from xstage.answers.limits import LIMITS
from xstage.answers.reruns import simulated, with_workload
from xstage.answers.saving_interval import SavingInterval
from xstage.answers.tuning import LEAST_SAVING_PCT, _advice, _best, _others_as_fast
from xstage.answers.tuning_search import Tried
from xstage.cli import main
from xstage.terminal.progress import counted_lines

from .scenarios import MEGAMOE, MEGAMOE_SM90

ATTENTION = {
    "question": "How many SMs?",
    "machine": {"base": "xstage-hopper", "overrides": {"compute.sms": 24}},
    "workload": {"kind": "attention_a2a", "gpus": 2, "heads": 8, "tokens": 4096, "policy": "serial"},
    "granule": "8 KiB",
}
LOSING = "megamoe-large-experts"
SKEWED = {"workload.routing": {"kind": "zipf", "max_over_mean": 3.0}, "workload.starts": ["0 us", "20 us"]}


@pytest.fixture(scope="module")
def tuned():
    return xs.tune(MEGAMOE)


@pytest.fixture(scope="module")
def losing():
    """The catalogue's call that interleaving slows down, explained in both orders."""
    return xs.explain(LOSING), xs.explain(LOSING, "expert_wave")


def makespan_under(scenario, name, **parameters):
    resolved = load_scenario(scenario)
    return xs.run(with_workload(resolved, resolved.scenario.workload.with_policy(name, parameters))).makespan_us


# compare --------------------------------------------------------------------------------------------------------------


def test_compare_answers_with_the_agreed_fields(answer):
    code, found = answer("compare", "attention-x-stage", "--policies", "serial,piggyback")
    assert code == 0
    assert found["baseline"] == "serial"
    first, second = found["policies"]
    assert (first["policy"], first["speedup"], first["error"]) == ("serial", 1.0, None)
    assert second["speedup"] == pytest.approx(first["makespan_us"] / second["makespan_us"])
    assert set(second) >= {"stall_total_us", "wait_us", "tensor_core_use_pct", "egress_use_pct", "spans", "parameters"}
    assert set(second["spans"]["attention"]) >= {"median_us", "p95_us"}


def test_the_scenarios_own_policy_comes_first_and_runs_as_it_is_written():
    done = xs.compare(
        {**MEGAMOE, "workload": MEGAMOE["workload"] | {"policy": {"name": "interleaved", "lead_rows": 640}}}
    )
    assert done.baseline == "interleaved"
    assert done.runs[0].parameters == {"lead_rows": 640}
    assert done.runs[0].found["makespan_us"] == makespan_under(MEGAMOE, "interleaved", lead_rows=640)
    choices = load_scenario(MEGAMOE).policies()
    assert list(done.frame["policy"]) == ["interleaved", *(name for name in choices if name != "interleaved")]


def test_a_policy_that_cannot_run_is_a_row_with_its_error():
    done = xs.compare(MEGAMOE, ["expert_wave", "lag"])
    row = done.rows()[1]
    assert (row["policy"], row["makespan_us"], row["speedup"]) == ("lag", None, None)
    assert "schedule of SM90 kernels" in row["error"]
    assert "lag" in done._repr_html_()


def test_no_table_is_wider_than_80_columns(capsys):
    assert main(["compare", LOSING]) == 0
    out = capsys.readouterr().out
    tables = out[out.index("policies; times") : out.index("cannot run")].splitlines()
    assert max(len(line.rstrip()) for line in tables) <= 80
    assert sum(line.startswith("phase ") for line in tables) == 2  # six policies, folded
    assert all(policy in out for policy in ("alternating", "interleaved_ready", "unfused"))


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_an_unknown_policy_is_refused_with_the_known_ones(command, answer):
    code, found = answer(command, "megamoe-flash-wave", "--policies", "expert_wave,interleafed")
    assert code == 2
    assert found["error"]["value"] == "interleafed"
    assert "did you mean 'interleaved'?" in found["error"]["reason"]
    assert "expert_wave" in found["error"]["allowed"] and "alternating" in found["error"]["allowed"]


@pytest.mark.parametrize(
    "names, said",
    [("split,", "has an empty name: 'split,'"), ("", "has an empty name"), ("split,split", "is given twice")],
)
@pytest.mark.parametrize("command", ["compare", "tune"])
def test_an_empty_name_and_one_given_twice_are_refused(command, names, said, answer):
    code, found = answer(command, "megamoe-flash-wave", "--policies", names)
    assert code == 2 and said in found["error"]["message"]


def test_needs_says_how_much_would_be_enough(answer):
    code, found = answer("needs", "periodic-train", "--set", "workload.bursts=8")
    assert code == 0
    drain, capacity = found["needs"]
    assert (drain["name"], drain["now"], drain["verdict"]) == ("drain_rate", "717.0 GB/s", "is not enough")
    assert drain["time_us"] < found["time_us"]
    assert capacity["name"] == "capacity"


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_a_workload_without_policies_is_refused(command, answer):
    code, found = answer(command, "isolated-burst")
    assert (code, found["error"]["field"]) == (2, "workload.kind")
    assert "megamoe" in found["error"]["allowed"]


def test_timelines_need_traces_that_were_kept():
    done = xs.compare(ATTENTION, ["piggyback", "serial"], trace="full")
    found = done.timelines(bins=20)
    assert list(found["policy"].unique()) == ["piggyback", "serial"]
    assert len(found) == 40 and found["tensor_core_pct"].between(0, 100.001).all()
    with pytest.raises(xs.InputError, match="trace = 'summary'"):
        xs.compare(ATTENTION, ["serial"]).timelines()


# explain --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [None, ["late_ranks", "imbalance", "drain_rate", "capacity", "latency"]])
def test_bars_add_up_to_the_makespan_in_any_order(order):
    done = xs.explain(MEGAMOE, order=order, overrides=SKEWED)
    assert sum(bar.ps for bar in done.bars) == done.total_ps
    assert done.total_ps == round(xs.run(MEGAMOE, overrides=SKEWED).makespan_us * 1e6)
    removable = [bar.name for bar in done.bars if bar.removed]
    not_there = ("degraded_link", "slow_gpu", "links", "fp4_unpack", "hbm", "l2_cache", "sending")
    assert removable == (order or [limit.name for limit in LIMITS if limit.name not in not_there])
    assert done.frame["us"].sum() == pytest.approx(done.as_dict()["total_us"])


def test_a_limit_that_is_not_there_has_no_bar():
    assert [bar.name for bar in xs.explain(MEGAMOE).bars if bar.removed] == [
        "capacity",
        "drain_rate",
        "issue",
        "latency",
        "l2_feed",
    ]


@pytest.mark.parametrize(
    ("name", "disturbance"),
    [
        ("degraded_link", {"degraded_link": {"gpu": 0, "factor": 0.2}}),
        ("slow_gpu", {"slow_gpu": {"gpu": 1, "factor": 1.5}}),
        ("late_ranks", {"late_gpu": {"gpu": 1, "by": "30 us"}}),
    ],
)
def test_a_disturbance_costs_what_its_removal_saves(name, disturbance):
    calm, disturbed = xs.explain(MEGAMOE), xs.explain({**MEGAMOE, "disturb": disturbance})
    assert disturbed.bars[0].name == name
    assert disturbed.bars[0].ps == disturbed.total_ps - calm.total_ps > 0


def test_the_cost_of_a_separate_collective_is_a_bar_of_its_own():
    done = xs.explain(ATTENTION)
    bars = {bar.name: bar.ps for bar in done.bars}
    assert done.largest.name == "sending"
    assert bars["sending"] > 0.9 * (done.total_ps - 1e6 * makespan_under(ATTENTION, "compute_only"))
    assert "sending itself" in done.sentence


def test_the_first_limit_alone_saves_what_its_bar_says():
    first, second = xs.explain("periodic-train", order=["drain_rate", "capacity"]).bars[:2]
    assert first.ps == first.alone_ps > 0
    assert second.ps == 0  # nothing stalls once stores drain at once


def test_explain_answers_with_the_agreed_fields(answer):
    code, found = answer("explain", "periodic-train")
    assert code == 0
    assert sum(bar["us"] for bar in found["bars"]) == pytest.approx(found["total_us"])
    assert {bar["cause"] for bar in found["bars"]} >= {"drain rate R", "work"}
    assert found["largest_removable"] == "drain_rate"
    assert answer("explain", "periodic-train", "--order", "gravity")[1]["error"]["field"] == "order"


def test_limits_go_by_the_papers_symbols_too(answer):
    """The output says Q and R, so the option takes them; an error lists both names."""
    by_symbol, by_name = (
        xs.explain("periodic-train", order=order) for order in (["R", "Q"], ["drain_rate", "capacity"])
    )
    assert [bar.name for bar in by_symbol.bars] == [bar.name for bar in by_name.bars]
    _, found = answer("explain", "periodic-train", "--order", "capacities")
    assert "capacity (or Q)" in found["error"]["allowed"]
    assert "did you mean 'capacity'?" in found["error"]["reason"]


def test_crossing_experts_costs_weights_that_are_read_again(losing):
    """Interleaving reads large experts' weights again and again; waves read each once, and so take less by just that bar."""
    interleaved, wave = losing
    reread = next(bar for bar in interleaved.bars if bar.name == "l2_cache")
    assert reread.cause in interleaved.sentence
    assert reread.ps == pytest.approx(interleaved.total_ps - wave.total_ps, rel=0.1)
    assert 0.94 < wave.total_ps / interleaved.total_ps < 0.98
    assert "L2 misses (weights)" in interleaved.sentence
    assert "this order crosses experts" in interleaved.sentence
    assert "l2_cache" not in [bar.name for bar in wave.bars]  # nothing is read twice


def test_what_hbm_costs_is_a_bar(losing):
    """The combine of 8192 tokens alone moves 0.168 GB at 5500 GB/s."""
    for done in losing:
        assert next(bar for bar in done.bars if bar.name == "hbm").ps > 0.7 * 8192 * 4 * 5120 / 5500e9 * 1e12


def test_the_weights_that_are_read_again_are_in_the_comparison(losing):
    rows = {row["policy"]: row["memory"] for row in xs.compare(LOSING, ["expert_wave", "interleaved"]).rows()}
    weights = 2 * 3 * 5120 * 8192  # of the rank's two experts, a byte each
    combine = 8192 * (2 * 5120 + 2 * 5120)  # one row of BF16 in, one out
    assert rows["expert_wave"]["hbm_weights_bytes"] == weights
    assert rows["expert_wave"]["hbm_weights_again_bytes"] == 0
    again = rows["interleaved"]["hbm_weights_again_bytes"]
    assert again > weights
    assert rows["interleaved"]["hbm_bytes"] == weights + again + combine
    assert rows["interleaved"]["l2_to_sm_bytes"] == rows["expert_wave"]["l2_to_sm_bytes"] > 10 * weights
    for row, explained in zip((rows["interleaved"], rows["expert_wave"]), losing, strict=True):
        assert row["weight_hits_pct"] == next(iter(explained.weight_hits_pct.values()), row["weight_hits_pct"])
        assert row["weight_hits_as_run_pct"] == pytest.approx(row["weight_hits_pct"], abs=2)


def test_explain_takes_another_policy(answer):
    code, found = answer("explain", "attention-x-stage", "--policy", "serial")
    assert code == 0
    assert found["total_us"] == makespan_under("attention-x-stage", "serial")
    assert answer("explain", "attention-x-stage", "--policy", "seriel")[1]["error"]["field"] == "policy"


def test_a_person_sees_bars_and_a_sentence(capsys):
    assert main(["explain", "periodic-train"]) == 0
    out = capsys.readouterr().out
    assert "█" in out and "makespan" in out
    assert "The largest removable part is drain rate R" in out
    assert "Below 0" not in out


def test_a_limit_whose_removal_makes_it_slower_is_drawn_otherwise_and_said_to_be_so():
    """Its bar is negative, so another one is longer than the makespan, and still no longer than the room for bars."""
    bars = (Bar("latency", "latency", -40_000, "no latency", -40_000), Bar("busy", "work", 140_000))
    done = replace(xs.explain("periodic-train"), total_ps=100_000, bars=bars)
    slower, _, left, _ = done.printed()[3].columns[-1].cells
    assert (slower.text(), left.text()) == ("░" * round(BAR_WIDTH * 40 / 140), "█" * BAR_WIDTH)
    assert any("Below 0: without that limit the scenario takes longer" in str(part) for part in done.printed())


# tune -----------------------------------------------------------------------------------------------------------------


def test_tune_is_within_a_percent_of_an_exhaustive_sweep(tuned):
    choices = load_scenario(MEGAMOE).policies()
    for policy in ("expert_wave", "interleaved"):
        [setting] = choices[policy].settings
        best = min(makespan_under(MEGAMOE, policy, **setting.given(value)) for value in setting.values)
        found = min(tried.makespan_us for tried in tuned.curve if tried.policy == policy and tried.makespan_us)
        assert found <= 1.01 * best
        assert tuned.best.makespan_us <= 1.01 * best


def test_the_best_is_what_a_run_gives(tuned):
    assert tuned.best.makespan_us == makespan_under(MEGAMOE, tuned.best.policy, **tuned.best.parameters)
    assert tuned.own.makespan_us == xs.run(MEGAMOE).makespan_us
    assert tuned.saving_pct == pytest.approx(100 * (1 - tuned.best.makespan_us / tuned.own.makespan_us))
    low, high = tuned.saving_interval_pct
    assert low <= tuned.saving_pct <= high


def test_the_knee_is_the_least_lead_within_a_percent(tuned):
    curve = {t.parameters.get("lead_rows"): t.makespan_us for t in tuned.curve if t.policy == tuned.d_knee_policy}
    curve.pop(None)
    assert tuned.knee_told.startswith(f"D_knee of interleaved: {tuned.d_knee} rows, the smallest of {len(curve)} leads")
    assert tuned.d_knee_policy == "interleaved"
    assert curve[tuned.d_knee] <= 1.01 * min(curve.values())
    assert all(time > 1.01 * min(curve.values()) for lead, time in curve.items() if lead < tuned.d_knee)


def of_leads(tuned, times, knee):
    """The answer had its leads taken so long; an m-block is 192 rows and 1 MiB."""
    curve = [
        Tried("interleaved", {"lead_rows": 192 * blocks, "ring_m_blocks": blocks + 1}, us, None, (blocks + 1) << 20)
        for blocks, us in times.items()
    ]
    return replace(tuned, curve=(tuned.own, *curve), d_knee=knee, d_knee_policy="interleaved")


def test_each_notable_lead_is_told_once(tuned):
    leads = of_leads(tuned, {0: 200.0, 4: 100.5, 8: 100.0, 16: 103.0}, 4 * 192)
    assert leads.notable_leads == {"D_knee": 768, "fastest": 1536, "longest": 3072}
    assert leads.knee_told.endswith(": the one to take where memory is short.")
    *_, shown = [part for part in leads.printed() if not isinstance(part, str) and part.columns[0].header == ""]
    rings = [[str(cell).strip() for cell in column.cells] for column in shown.columns[4:]]
    assert rings == [["5", "9", "17"], ["5.0", "9.0", "17.0"]]
    saved = [float(str(cell).removesuffix(" %")) for cell in shown.columns[3].cells]
    assert saved == pytest.approx([100 * (1 - us / tuned.own.makespan_us) for us in (100.5, 100.0, 103.0)], abs=0.051)
    one = of_leads(tuned, {0: 200.0, 4: 100.0, 8: 100.0}, 4 * 192)
    assert one.notable_leads == {"D_knee, fastest": 768, "longest": 1536}
    assert one.knee_told.endswith("within 1 % of the best.")


def test_a_knee_at_all_rows_is_none(tuned):
    """It would be beside itself: the same lead, the same ring."""
    leads = of_leads(tuned, {0: 200.0, 4: 150.0, 8: 100.0}, 8 * 192)
    told = "only the longest, all 1536 rows of the busiest rank, is within 1 % of the best."
    assert leads.knee_told == leads.as_dict()["d_knee_told"] == f"interleaved has no D_knee: of 3 leads tried {told}"
    assert leads.notable_leads == {"fastest, longest": 1536}


def test_what_saves_next_to_nothing_is_not_advised():
    """Pieces of a store differ by a fraction of a percent."""
    changes = {"workload.m": 2048, "workload.policy": {"name": "reshaped", "pieces": 2}}
    done = xs.tune("gemm-rs-llama-fused", ["reshaped"], overrides=changes, most_runs=4)
    assert done.best is not done.own and 0 < done.saving_pct < LEAST_SAVING_PCT
    [said] = done.changes
    assert done.advice == "leave" and "by 0.5 % or more. Leave it." in said and said in done.printed()
    assert not any("instead of" in str(part) or "Set pieces" in str(part) for part in done.printed())


def test_a_saving_that_may_be_none_is_to_be_measured():
    own, best = Tried("serial", {}, 100.0), Tried("piggyback", {}, 90.0)

    def advice(low, high, own=own, best=best):
        return _advice(own, best, SavingInterval(low, high, {}, ()))

    assert (advice(5.0, 15.0), advice(-1.0, 15.0), advice(0.0, 15.0)) == ("change", "measure", "measure")
    assert _advice(own, best, None) == "change"
    assert _advice(own, replace(best, makespan_us=99.6), None) == "leave"
    assert _advice(own, own, None) == "leave"
    assert _advice(replace(own, makespan_us=None, error="no"), best, None) == "change"


def test_nothing_is_run_twice(tuned):
    keys = [(tried.policy, tuple(tried.parameters.items())) for tried in tuned.curve]
    assert len(keys) == len(set(keys))
    lag = [tried for tried in tuned.curve if tried.policy == "lag"]
    assert lag and all(tried.error for tried in lag)


def test_what_a_policy_takes_by_itself_is_not_run_again_as_a_setting(monkeypatch):
    """`reserved_sms` shifts rows unless told otherwise, `fused` does not, and `reshaped` stores a tile in four pieces."""
    gemm = {
        "kind": "tensor_parallel",
        "operation": "gemm_rs",
        "gpus": 4,
        "m": 1024,
        "n": 1024,
        "k": 1024,
        "policy": "fused",
    }
    seen = []

    def counted(resolved, *rest):
        seen.append(resolved.scenario.workload.plain_policy())
        return simulated(resolved, *rest)

    monkeypatch.setattr("xstage.answers.tuning_search.simulated", counted)
    done = xs.tune({"question": "?", "machine": "hgx-h100", "workload": gemm})
    searched = seen[: sum(not tried.again for tried in done.curve)]
    assert len(searched) == len(set(searched))
    again = [(t.policy, t.parameters) for t in done.curve if t.again]
    assert {"rotation": False} in [given for policy, given in again if policy == "fused"]
    assert ("reshaped", {"pieces": 4}) in again, "and stays a point of the curve"
    assert all("rotation=True" not in str(cell) or "16" not in str(cell) for cell in printed_settings(done))
    assert len(printed_settings(done)) == len(set(printed_settings(done)))


def printed_settings(tuned):
    """Policy and settings of the table of the best."""
    policies, settings, _ = next(part for part in tuned.printed() if getattr(part, "columns", None)).columns
    return list(zip(map(str, policies.cells), map(str, settings.cells), strict=True))


def test_reserved_sms_and_flags_are_settings_like_others():
    done = xs.tune(ATTENTION, ["reserved_sms", "piggyback"])
    best = min(makespan_under(ATTENTION, "reserved_sms", sms=sms) for sms in range(1, 7))
    assert min(t.makespan_us for t in done.curve if t.policy == "reserved_sms") <= 1.01 * best
    assert {t.parameters.get("rotation") for t in done.curve} == {None, False, True}
    assert done.changes[0].startswith(f"Change the policy from serial to {done.best.policy}")
    assert done.d_knee is None


def test_the_saving_has_an_interval_where_the_machine_has_intervals():
    rate = {"value": "350 GB/s", "source": "made up", "interval": ["200 GB/s", "500 GB/s"]}
    done = xs.tune(ATTENTION, ["serial", "piggyback"], overrides={"machine.interconnect.drain_rate": rate})
    low, high = done.saving_interval_pct
    assert low <= done.saving_pct <= high
    assert low < high


def test_a_scenario_that_cannot_run_is_tuned_without_a_saving():
    done = xs.tune(MEGAMOE, ["expert_wave"], overrides={"workload.policy": "lag"})
    assert (done.own.policy, done.own.makespan_us, done.saving_pct) == ("lag", None, None)
    assert done.best.policy == "expert_wave"
    parts = xs.tune(MEGAMOE, ["lag", "expert_wave"], most_runs=2).printed()
    *_, last = [part for part in parts if not isinstance(part, str)]
    assert [column.header for column in last.columns] == ["policy", "why"]  # not under "us"
    assert "cannot run" in done.as_dict()["notes"][0] and "cannot run" in done._repr_html_()
    with pytest.raises(xs.InputError, match="schedule of SM90 kernels"):
        xs.tune(MEGAMOE, ["lag"], overrides={"workload.policy": "lag"})


def test_a_bound_that_is_the_scenarios_own_policy_is_named_as_such():
    found = xs.tune(
        "gemm-rs-llama-fused", overrides={"workload.policy": "compute_only", "workload.m": 1024}, most_runs=2
    )
    [said] = found.changes
    assert said.startswith("No policy or setting that was tried is faster than compute_only as it is written")
    assert found.best.policy == "compute_only"


def test_of_equal_ones_that_is_advised_which_changes_least():
    """The scenario's own, or else a policy that chooses for itself, or else the one that takes the fewest SMs."""
    choices = load_scenario(ATTENTION).policies()
    own, *others = known = [
        Tried("serial", {}, 9.0),
        Tried("reserved_sms", {"sms": 6}, 8.0),
        Tried("reserved_sms", {"sms": 2, "rotation": True}, 8.0),
        Tried("reserved_sms", {"sms": 2, "rotation": False}, 8.0),
        Tried("piggyback", {"rotation": True}, 8.0),
        Tried("piggyback", {}, 8.0),
        Tried("comm_warp", {}, 8.0),
    ]
    assert _best(known, own, choices) == Tried("piggyback", {}, 8.0)
    assert _others_as_fast(known, others[4]) == ["reserved_sms", "comm_warp"]
    assert _best(known[:4], own, choices) == Tried("reserved_sms", {"sms": 2, "rotation": False}, 8.0)
    slow = replace(own, makespan_us=8.0)
    assert _best([slow, *others], slow, choices) is slow


def test_policies_that_are_as_fast_are_named(tuned):
    done = replace(tuned, as_fast=("split", "alternating"))
    assert "As fast: split, alternating." in done.printed()
    assert done.as_dict()["best"]["as_fast"] == ["split", "alternating"]
    assert not any("As fast" in str(part) for part in replace(tuned, as_fast=()).printed())


def test_an_answer_names_what_is_as_fast_and_shows_what_it_advises():
    """An AllGather + GEMM hides its gather in any of three ways."""
    work = {"kind": "tensor_parallel", "operation": "ag_gemm", "m": 1024, "n": 4096, "k": 2048, "policy": "serial"}
    done = xs.tune({"question": "?", "machine": "hgx-h800", "workload": work}, most_runs=4)
    assert (done.best.policy, done.best.parameters, done.as_fast) == ("fused", {}, ("reserved_sms", "reshaped"))
    assert "As fast: reserved_sms, reshaped." in done.printed()


def test_d_knee_is_no_lead_that_the_policy_itself_betters():
    """4 to 6 m-blocks of a rank: leads up to the mean of 4 take a quarter longer than what the policy chooses."""
    work = {"kind": "megamoe", "hidden": 4096, "intermediate": 1024, "experts": 16, "topk": 1, "tokens": 256,
            "numbers": "w8a8", "policy": "interleaved"}  # fmt: skip
    done = xs.tune({"question": "?", "machine": "hgx-h20", "workload": work}, ["interleaved"])
    assert done.leads[done.d_knee][0] <= 1.01 * done.own.makespan_us
    assert min(us for us, _ in done.leads.values()) == pytest.approx(done.own.makespan_us, rel=0.01)


def test_tune_answers_with_the_agreed_fields(answer):
    code, found = answer("tune", "attention-x-stage", "--policies", "piggyback", "--runs", "4")
    assert code == 0
    assert set(found["best"]) == {"policy", "parameters", "makespan_us", "saving_pct", "saving_interval_pct", "as_fast"}
    assert found["d_knee"] is None and found["advice"] == "leave"
    assert {"policy", "parameters", "makespan_us"} <= set(found["curve"][0])
    assert found["changes"]


def test_a_person_sees_what_to_change(capsys):
    assert main(["tune", "gemm-ar-lamport", "--policies", "serial,fused", "--runs", "2"]) == 0
    out = capsys.readouterr().out
    assert "serial takes" in out and "Change the policy from fused to serial" in out


def test_another_layout_of_the_separate_gemms_is_a_setting():
    """Each has tiles of its own, so what it saves may be theirs."""
    changes = {"workload.experts": 4, "workload.policy": "unfused"}
    done = xs.tune(MEGAMOE_SM90, ["unfused"], overrides=changes)
    tried = {t.parameters.get("gemm"): t.makespan_us for t in done.curve}
    assert set(tried) == {None, "contiguous", "psum", "masked"}
    with_gemm = changes | {"workload.policy": {"name": "unfused", "gemm": "contiguous"}}
    assert done.best.makespan_us == xs.run(MEGAMOE_SM90, overrides=with_gemm).makespan_us < 0.9 * tried[None]
    assert done.changes[0] == "Set gemm to contiguous (layout of rows of DeepGEMM's grouped GEMM)."
    assert done.changes[1].startswith("Its tile is another one (128 x 128, instead of 64 x 256)")
    assert done.plot()
    w4a8 = load_scenario(MEGAMOE_SM90, {"workload.numbers": "w4a8"})
    for without in (load_scenario(MEGAMOE), w4a8):  # neither SM100 nor FP4 weights have such kernels
        assert without.policies()["unfused"].settings == ()


def test_a_setting_of_a_policy_that_nobody_named_is_refused_where_it_was_given():
    unnamed = {**ATTENTION, "workload": {key: value for key, value in ATTENTION["workload"].items() if key != "policy"}}
    said = r"^--set workload\.policy\.rotation = True: needs name beside it \(allowed: {name: ..., rotation: ...}\)$"
    with pytest.raises(xs.InputError, match=said):
        load_scenario(unnamed, {"workload.policy.rotation": True}, label="--set")


# progress -------------------------------------------------------------------------------------------------------------


def test_a_log_gets_a_line_after_two_seconds_and_then_now_and_then(capsys):
    """What the first run takes, with compilation before it, is not in the rate."""
    now = iter([0.0, 9.0, 10.0, 21.0, 49.0, 90.0])
    report = counted_lines("Tuning x", lambda: next(now))
    for done in (1, 2, 3, 5, 10):
        report(done, 10)
    assert capsys.readouterr().err.splitlines() == [
        "Tuning x: 1 of 10 runs",
        "Tuning x: 3 of 10 runs, about 42 s left",
        "Tuning x: 5 of 10 runs, about 50 s left",
    ]


def test_no_time_is_said_to_be_left_by_what_was_seen_for_less_than_a_second(capsys):
    now = iter([0.0, 1.9, 2.1, 4.2])
    report = counted_lines("Sweeping x", lambda: next(now))
    for done in (1, 2, 100):
        report(done, 200)
    assert capsys.readouterr().err.splitlines() == [
        "Sweeping x: 2 of 200 runs",
        "Sweeping x: 100 of 200 runs, about 2 s left",
    ]


def test_the_time_left_goes_by_the_share_of_the_work_where_runs_differ(capsys):
    now = iter([0.0, 1.0, 11.0])
    report = counted_lines("Predicting x", lambda: next(now))
    report(1, 100, 0.25)
    report(2, 100, 0.75)
    assert capsys.readouterr().err.splitlines() == ["Predicting x: 2 of 100 runs, about 5 s left"]
