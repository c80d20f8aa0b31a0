"""The workload `megamoe` of a scenario: models, policies, routings and placements by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from xstage.scenarios.expert_models import expert_models
from xstage.scenarios.loader import Resolved, load_scenario
from xstage.scenarios.machine_files import load_machine
from xstage.scenarios.megamoe import COMPUTE_NUMBERS, MegaMoeWorkload
from xstage.scenarios.megamoe_placement import EARLIER_ROWS, MOST_EARLIER_SCORES, earlier_batches
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.placement import eplb, max_over_mean
from xstage.sim.routing import from_histogram, zipf
from xstage.sim.schedules.megamoe import Interleaved, MegaMoe

SMALL = {"hidden": 512, "intermediate": 256, "experts": 16, "topk": 2, "tokens": 64, "gpus": 4}


def scenario(**changes: Any) -> Resolved:
    machine = changes.pop("machine", "hgx-b200")
    workload = {"kind": "megamoe", **SMALL, **changes}
    return load_scenario({"question": "how long?", "machine": machine, "workload": workload})


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "unfused"},
        {"policy": {"name": "expert_wave", "experts_per_wave": 2}},
        {"policy": "alternating", "release": "sept"},
        {"policy": {"name": "interleaved", "lead_rows": 128}},
        {"policy": "interleaved_ready"},
        {"policy": "lag", "machine": "hgx-h100", "numbers": "w8a8"},
        {
            "policy": {"name": "lag", "publish_rows": 4, "early_combine": True, "ring_m_blocks": 0},
            "machine": "hgx-h100",
            "numbers": "w8a8",
        },
        {"policy": "split", "machine": "hgx-h100", "numbers": "w8a8"},
        {"policy": {"name": "unfused", "gemm": "psum"}, "machine": "hgx-h100", "numbers": "w8a8"},
        {"policy": {"name": "split", "l1_n_major": True}, "machine": "hgx-h100", "numbers": "bf16", "combine": "fp4"},
        {"routing": {"kind": "zipf", "max_over_mean": 3.0}, "placement": {"kind": "eplb", "redundant": 4}},
        {"routing": {"kind": "hot_expert", "max_over_mean": 2.0}},
        {"routing": {"kind": "histogram", "load": [1.0] * 15 + [4.0], "masked": 0.2}},
        {"tokens": 4096, "ranks": "symmetric"},
        {"combine": "fp8", "shared_experts": 1, "starts": ["0 us", "3 us", "0 us", "0 us"]},
    ],
    ids=str,
)
def test_a_scenario_runs(changes: dict[str, Any]) -> None:
    resolved = scenario(**changes)
    trace = simulate(resolved.program(), resolved.fabric())
    assert trace.makespan_ps > 20e6


def test_the_same_seed_makes_the_same_program() -> None:
    resolved = scenario(routing={"kind": "zipf", "exponent": 1.0})
    assert resolved.program() == resolved.program()


def test_a_recorded_routing_is_used(tmp_path: Any) -> None:
    import numpy as np

    file = tmp_path / "topk.npy"
    np.save(file, np.tile([0, 1], (4, 64, 1)))
    program = scenario(routing={"kind": "recorded", "file": str(file)}).program()
    assert program.meta["m_blocks"][0] > 0 == sum(program.meta["m_blocks"][1:])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": 128}, r"workload.tokens = 128: differs from topk.npy, which has 64 tokens a rank \(allowed: 64\)"),
        ({"topk": 4}, r"workload.topk = 4: differs from topk.npy, which has 2 experts a token \(allowed: 2\)"),
    ],
)
def test_a_routing_that_was_recorded_for_other_sizes_names_both(tmp_path: Any, changes: Any, said: str) -> None:
    import numpy as np

    file = tmp_path / "topk.npy"
    np.save(file, np.tile([0, 1], (4, 64, 1)))
    with pytest.raises(InputError, match=said):
        scenario(routing={"kind": "recorded", "file": str(file)}, **changes).program()


def test_sizes_that_are_given_replace_those_of_the_model() -> None:
    changes = {"hidden": None, "intermediate": None, "topk": None, "experts": 128, "model": "dsv4-flash"}
    shape = scenario(**changes).scenario.workload.shape()  # type: ignore[attr-defined]
    assert (shape.hidden, shape.intermediate, shape.experts, shape.topk) == (4096, 2048, 128, 6)


def test_every_model_has_its_source_and_fits_the_tiles() -> None:
    assert len(expert_models()) == 14
    for one in expert_models().values():
        assert one.source
        assert one.hidden % 256 == 0 == 2 * one.intermediate % 256
    assert {name for name, one in expert_models().items() if one.assumed} >= {"glm-5.2", "dit-moe"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "dsv4-flsh"}, "did you mean 'dsv4-flash'"),
        ({"hidden": None}, "workload.hidden: is missing"),
        ({"policy": "wave"}, "workload.policy.name = 'wave': is not known"),
        ({"policy": {"name": "expert_wave", "experts_per_wve": 2}}, "did you mean 'experts_per_wave'"),
        ({"policy": {"name": "lag", "lag": -1}}, "workload.policy.lag = -1: must be at least 0"),
        ({"routing": {"kind": "zipf"}}, "give exactly one of exponent and max_over_mean"),
        ({"policy": {"name": "lag", "publish_rows": 0}}, "workload.policy.publish_rows = 0"),
        ({"policy": "split"}, "workload.policy = 'split': is a schedule of SM90 kernels"),
        ({"policy": "reserved_sms"}, r"reserve no SM: .*\(allowed: another policy, and machine.compute.sms for"),
        (
            {"policy": {"name": "reserved_sms", "sms": 8}},
            "workload.policy.name = 'reserved_sms': is no policy of MegaMoE",
        ),
        ({"policy": ["split", "lag"]}, r"workload.policy: is not one choice \(allowed: a name, or a mapping with"),
        ({"policy": {"nmae": "split"}}, "workload.policy.nmae = 'split': is not a known key; did you mean 'name'"),
        ({"hidden": None, "hiden": 7168}, "workload.hiden = 7168: is not a known key; did you mean 'hidden'"),
        ({"gpus": 9}, "workload.gpus = 9: is more than the 8 GPUs"),
        ({"tokens": 0}, "workload.tokens = 0: must be at least 1"),
        ({"starts": ["1 us"]}, "workload.starts = 1: needs one start a rank"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario(**changes).program()


def test_a_machine_without_tile_costs_is_refused_once_with_all_that_it_lacks():
    """And with all of that it is not: no further number is asked for one by one."""
    with pytest.raises(InputError) as refused:
        scenario(machine="rtx-pcie5", gpus=8)
    said = str(refused.value)
    names = re.findall(r"compute\.(\w+)", said.partition("(allowed")[0])
    assert said.startswith("workload.kind = 'megamoe': needs numbers that rtx-pcie5 does not have: compute.kernels, ")
    assert "a machine file with base: rtx-pcie5 that gives each of them with its source" in said
    known = load_machine("hgx-b200").compute
    given = {f"compute.{name}": getattr(known, name).model_dump(mode="json", exclude_none=True) for name in names}
    program = scenario(machine={"base": "rtx-pcie5", "overrides": given}, gpus=2).program()
    assert len(program.ops) > 100


@pytest.mark.parametrize("name", ["kernels", "fp8_tflops", "mma_efficiency_fp8", *COMPUTE_NUMBERS])
def test_what_a_call_is_said_to_need_it_needs(name: str) -> None:
    resolved = scenario()
    without = resolved.machine.compute.model_copy(update={name: None})
    machine = resolved.machine.model_copy(update={"compute": without})
    with pytest.raises(InputError, match=rf"compute\.{name}: is not given"):
        resolved.scenario.workload.build(machine, 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"placement": {"kind": "eplb", "redundant": 3}},
            "workload.placement.redundant = 3: cannot be spread evenly over 4 gpus together with the 16 experts "
            "(allowed: 0, 4, 8, ... up to 48)",
        ),
        (
            {"placement": {"kind": "eplb", "redundant": 52}},
            "workload.placement.redundant = 52: is more than a copy of each of 16 experts on each of 4 gpus "
            "(allowed: 0, 4, 8, ... up to 48)",
        ),
        (
            {"experts": 3, "gpus": 2, "placement": {"kind": "eplb", "redundant": 2}},
            "workload.placement.redundant = 2: cannot be spread evenly over 2 gpus together with the 3 experts "
            "(allowed: 1, 3)",
        ),
        (
            {"placement": {"kind": "eplb", "groups": 3}},
            "workload.placement.groups = 3: do not divide 16 experts (allowed: a divisor of 16)",
        ),
        (
            {"placement": {"kind": "eplb", "nodes": 3}},
            "workload.placement.nodes = 3: do not divide 4 gpus (allowed: a divisor of 4)",
        ),
        (
            {"experts": 15},
            "workload.experts = 15: cannot be spread evenly over 4 gpus "
            "(allowed: a multiple of 4, or placement: {kind: eplb, redundant: 1})",
        ),
    ],
)
def test_experts_that_cannot_be_placed_so_are_told_in_words_of_the_scenario(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        scenario(**changes).program()


@pytest.mark.parametrize("ranks", ["all", "symmetric"])
def test_a_call_that_is_far_too_large_is_refused_before_its_tokens_are_routed(
    ranks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xstage.sim.routing.balanced", None)
    with pytest.raises(InputError, match=r"workload\.tokens = 80000000: makes too many ops .allowed: [\d,]+ ops, not "):
        scenario(tokens=80_000_000, ranks=ranks).program()


def test_a_router_with_too_many_scores_to_draw_is_refused_before_it_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xstage.sim.routing.balanced", None)
    said = "tokens x gpus x experts = '64 x 4 x 10000000': makes too many scores to draw (allowed: 2,147,483,648 scores"
    with pytest.raises(InputError, match=re.escape(said)):
        scenario(experts=10_000_000).program()


def test_a_batch_of_any_size_that_does_not_fit_the_ring_is_refused_with_the_largest_that_does() -> None:
    policy = {"name": "lag", "lag": 8, "publish_rows": 10**12}
    large = load_scenario("megamoe-lag-h100", {"workload.policy": policy})
    with pytest.raises(InputError, match=r"publish_rows = 1000000000000: .* \(allowed: 1 to 30, or a larger ring\)"):
        large.program()
    fits, too_large = (
        load_scenario("megamoe-lag-h100", {"workload.policy": policy | {"publish_rows": n}}) for n in (30, 31)
    )
    assert len(fits.program().tasks)
    with pytest.raises(InputError, match="allowed: 1 to 30"):
        too_large.program()


@pytest.mark.parametrize(("given", "numbers"), [({}, "w8a8"), ({"numbers": "bf16"}, "bf16")])
def test_a_model_brings_the_types_that_it_is_released_in(given, numbers):
    workload = {"kind": "megamoe", "model": "deepseek-v3", "tokens": 64, **given}
    assert (
        load_scenario({"question": "q?", "machine": "hgx-b200", "workload": workload}).scenario.workload.numbers
        == numbers
    )


SKEWED = {"experts": 8, "tokens": 512, "topk": 1, "routing": {"kind": "hot_expert", "max_over_mean": 4}}
HOPPER = {"machine": "hgx-h100", "numbers": "w8a8"}
CALLS = [
    {},
    SKEWED,
    HOPPER,
    HOPPER | SKEWED | {"shared_experts": 1},
    HOPPER | SKEWED | {"placement": {"kind": "eplb", "redundant": 4}},
    {"tokens": 4096, "ranks": "symmetric"},
]


@pytest.mark.parametrize("changes", CALLS, ids=str)
def test_a_lead_is_tried_up_to_all_rows_of_the_busiest_rank_in_whole_m_blocks(changes: dict[str, Any]) -> None:
    resolved = scenario(**changes, policy="interleaved")
    [lead] = resolved.policies()["interleaved"].settings
    meta = resolved.program().meta
    block_m, blocks = meta["kernel"]["block_m"], max(meta["m_blocks"])
    assert list(lead.values) == [block_m * before for before in range(blocks + 1)]
    row_bytes = sum(int(size * 1.03125) for size in (512, 256))  # FP8, and a scale byte of 32
    assert lead.ring is not None
    rings = [lead.ring(int(rows)) for rows in lead.values]
    assert [ring.m_blocks for ring in rings] == [max(1, before) + 1 for before in range(blocks + 1)]
    assert all(ring.room_bytes == ring.m_blocks * block_m * row_bytes for ring in rings)


@pytest.mark.parametrize("changes", CALLS, ids=str)
@pytest.mark.parametrize("policy", ["interleaved", "interleaved_ready"])
def test_a_lead_can_run_with_the_ring_that_is_given_with_it(policy: str, changes: dict[str, Any]) -> None:
    """With one m-block less it is refused, unless all of the rank's fit."""
    [lead] = scenario(**changes).policies()[policy].settings
    for rows in lead.values[:: max(1, len(lead.values) // 3)]:
        given = lead.given(rows)
        program = scenario(**changes, policy={"name": policy, **given}).program()
        assert program.meta["ring_m_blocks"] == given["ring_m_blocks"]
        if given["ring_m_blocks"] <= max(program.meta["m_blocks"]):
            less = {"name": policy, **given, "ring_m_blocks": given["ring_m_blocks"] - 1}
            with pytest.raises(InputError, match="ring_m_blocks"):
                scenario(**changes, policy=less).program()


@pytest.mark.parametrize("changes", CALLS, ids=str)
def test_beyond_the_range_of_a_setting_nothing_changes(changes: dict[str, Any]) -> None:
    """So that the best setting lies within it."""
    resolved = scenario(**changes)
    runs = "lag" if changes.get("machine") else "alternating"
    for policy, key in (("interleaved", "lead_rows"), (runs, {"lag": "lag", "alternating": "warm_up"}[runs])):
        high = next(setting.values[-1] for setting in resolved.policies()[policy].settings if setting.key == key)
        ranges = [scenario(**changes, policy={"name": policy, key: value}) for value in (high, 2 * high + 1000)]
        longest, longer = (simulate(one.program(), one.fabric()).makespan_ps for one in ranges)
        assert longest == longer


def test_a_program_says_the_lead_that_the_policy_chose() -> None:
    """Of each rank: no more than all of its m-blocks."""
    meta = scenario(**HOPPER, **SKEWED, policy="interleaved").program().meta
    assert meta["lead_rows"] == [blocks * 64 for blocks in meta["m_blocks"]]
    given = scenario(**HOPPER, **SKEWED, policy={"name": "interleaved", "lead_rows": 100}).program().meta
    assert given["lead_rows"] == [min(2, blocks) * 64 for blocks in given["m_blocks"]]
    assert scenario().program().meta["lead_rows"] is None


def test_the_words_of_a_scenario_are_those_of_the_schedule() -> None:
    """They stand twice, since a schedule takes long to import."""
    from xstage.scenarios import megamoe as words
    from xstage.sim.schedules.megamoe import POLICIES, rules, shape

    def allowed(model: Any, field: str) -> set[str]:
        kind = model.model_fields[field].annotation
        return {word for one in (kind, *get_args(kind)) for word in get_args(one) if isinstance(word, str)}

    workload = words.MegaMoeWorkload
    for field, known in (("numbers", shape.Numbers), ("combine", shape.CombineType), ("ranks", shape.Ranks),
                         ("release", rules.Release)):  # fmt: skip
        assert allowed(workload, field) == set(get_args(known))
    assert allowed(words.Unfused, "gemm") == set(get_args(shape.GroupedGemm))
    assert get_args(words.Readiness) == get_args(shape.Readiness)
    choices = (words.Unfused, words.ExpertWave, words.Split, words.Lag, words.Alternating, words.Interleaved)
    assert set().union(*(allowed(policy, "name") for policy in choices)) == {*POLICIES, "interleaved_ready"}


SKEWED_DECODE = {"experts": 64, "gpus": 8, "tokens": 32, "topk": 4, "routing": {"kind": "zipf", "exponent": 0.8}}


def test_statistics_of_eplb_hold_enough_rows_and_are_bounded() -> None:
    few, vast = (MegaMoe(4096, 2048, experts, topk=8, tokens=1) for experts in (256, 2**14))
    assert earlier_batches(few) * 8 * 8 == EARLIER_ROWS * 256
    assert earlier_batches(vast) * 8 * 2**14 == MOST_EARLIER_SCORES


@pytest.mark.parametrize("redundant", [0, 16])
def test_eplb_does_not_know_the_batch_that_it_places(redundant: int) -> None:
    """It knows the popularity. Another batch of the same popularity is as even, on average, and none perfectly."""
    busiest, other, known = [], [], []
    for seed in range(40):
        changes = SKEWED_DECODE | {"placement": {"kind": "eplb", "redundant": redundant}}
        workload = scenario(**changes).scenario.workload
        assert isinstance(workload, MegaMoeWorkload)
        machine, shape = load_machine("hgx-b200"), workload.shape()
        rows, placement = workload._placed_rows(machine, shape, Interleaved(), seed)
        weights = np.random.default_rng(seed).permutation(1 / np.arange(1, 65) ** 0.8)
        independent = from_histogram(weights, 8, 32, 4, np.random.default_rng(1000 + seed))
        best = eplb(rows.expert_rows, n_replicas=64 + redundant, n_ranks=8)
        busiest.append(max_over_mean(placement.rank_load(rows.expert_rows)))
        other.append(max_over_mean(placement.rank_load(independent.expert_rows)))
        known.append(max_over_mean(best.rank_load(rows.expert_rows)))
    assert min(busiest) > 1.02
    assert np.mean(busiest) == pytest.approx(np.mean(other), rel=0.04)
    assert np.mean(busiest) > np.mean(known) + 0.05


@pytest.mark.parametrize("masked", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["balanced", "even", "zipf"])
def test_the_batch_itself_does_not_depend_on_its_placement(kind: str, masked: float) -> None:
    exponent = {"exponent": 0.8} if kind == "zipf" else {}
    changes = SKEWED_DECODE | {"routing": {"kind": kind, "masked": masked} | exponent}
    workloads = [scenario(**changes, placement=place).scenario.workload for place in ("contiguous", "eplb")]
    drawn = []
    for workload in workloads:
        assert isinstance(workload, MegaMoeWorkload)
        drawn.append(workload._placed_rows(load_machine("hgx-b200"), workload.shape(), Interleaved(), 3)[0])
    assert np.array_equal(drawn[0].topk, drawn[1].topk)


def test_eplb_of_a_recorded_routing_goes_by_the_record(tmp_path: Path) -> None:
    """There are no other tokens of it."""
    recorded = tmp_path / "topk.npy"
    np.save(recorded, zipf(4, 64, 2, 16, np.random.default_rng(0), exponent=1.0).topk)
    changes = {"routing": {"kind": "recorded", "file": str(recorded)}, "placement": {"kind": "eplb", "redundant": 4}}
    workload = scenario(**changes).scenario.workload
    assert isinstance(workload, MegaMoeWorkload)
    rows, placement = workload._placed_rows(load_machine("hgx-b200"), workload.shape(), Interleaved(), 0)
    assert np.array_equal(placement.phy2log, eplb(rows.expert_rows, n_replicas=20, n_ranks=4).phy2log)


def test_a_rank_has_one_expert_at_the_least() -> None:
    """Copies fill up the ranks where there are fewer experts; the kernel is chosen before that."""
    resolved = scenario(experts=2, topk=1, placement={"kind": "eplb", "redundant": 2})
    assert resolved.scenario.workload.shape().local_experts == 1  # type: ignore[attr-defined]
    assert simulate(resolved.program(), resolved.fabric()).makespan_ps > 0
    assert scenario().scenario.workload.shape().local_experts == 4  # type: ignore[attr-defined]


def test_only_one_rank_for_all_is_a_mirror() -> None:
    assert scenario(ranks="symmetric").scenario.workload.is_mirrored
    assert not scenario().scenario.workload.is_mirrored
    with pytest.raises(InputError, match=r"disturb: makes ranks differ \(allowed: workload.ranks: all\)"):
        load_scenario(
            {"question": "?", "machine": "hgx-b200", "workload": {"kind": "megamoe", **SMALL, "ranks": "symmetric"},
             "disturb": {"slow_gpu": {"gpu": 0, "factor": 2.0}}}
        )  # fmt: skip


def test_a_model_brings_no_shared_experts_unless_they_are_asked_for() -> None:
    """They may be in the kernel or beside it, so `layer` has that of DeepSeek-V3 and a workload does not."""
    assert {name: one.shared_experts for name, one in expert_models().items() if one.shared_experts is not None} == {
        "deepseek-v3": 1, "dit-moe": 0, "mixtral-8x7b": 0, "mixtral-8x22b": 0, "gpt-oss-120b": 0, "qwen3-235b": 0,
    }  # fmt: skip
    unsized = dict.fromkeys(("hidden", "intermediate", "experts", "topk"))
    assert scenario(model="deepseek-v3", **unsized).scenario.workload.shape().shared_experts == 0  # type: ignore[attr-defined]


def test_busy_experts_lie_anywhere_unless_popularity_falls_with_their_number() -> None:
    """The busiest expert is as busy either way; the busiest rank is not."""

    def routed(**routing: Any) -> dict[str, float]:
        changes = {"experts": 256, "gpus": 8, "tokens": 512, "topk": 8}
        zipf = {"kind": "zipf", "max_over_mean": 4, **routing}
        found: dict[str, float] = scenario(**changes, routing=zipf).program().meta["routed"]
        return found

    dealt_out, in_order = routed(), routed(shuffle=False)
    assert dealt_out["expert_max_over_mean"] == pytest.approx(4, rel=0.1)
    assert in_order["expert_max_over_mean"] == pytest.approx(4, rel=0.1)
    assert dealt_out["rank_max_over_mean"] < 1.3 < 1.7 < in_order["rank_max_over_mean"]
