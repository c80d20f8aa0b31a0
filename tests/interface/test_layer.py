"""Facts about `xstage layer`: a block's times add up, fused policies are compared with separate collectives, refusals."""

import json
from collections.abc import Sequence

import pytest
from xstage.scenarios.layers import block, block_policies, compute_numbers
from xstage.scenarios.machine_files import load_machine
from xstage.sim.errors import InputError
from xstage.sim.layers import simulate_block

import xstage as xs
from xstage.cli import main


@pytest.fixture(scope="module")
def experts():
    return xs.layer("dit-moe", tokens=4096, policies=["unfused", "interleaved", "lag"])


def test_a_block_of_a_diffusion_transformer_with_experts_has_a_megamoe_call_in_place_of_its_mlp(experts):
    names = experts.frame[experts.frame.policy == "unfused"].kernel.tolist()
    assert names[-1] == "experts"
    assert "attention" in names and not any("mlp" in name for name in names)


def test_kernels_follow_each_other_and_add_up_to_the_block(experts):
    for run in experts.runs[:2]:
        mine = experts.frame[experts.frame.policy == run.policy]
        assert mine.time_us.sum() == pytest.approx(run.makespan_us)
        assert mine.share_pct.sum() == pytest.approx(100)
        assert mine.exposed_us.sum() == pytest.approx(run.time.exposed_ps / 1e6)


def test_speedups_are_over_the_first_policy_that_ran(experts):
    unfused, interleaved, lag = experts.rows()
    assert unfused["speedup"] == 1
    assert 1 < interleaved["speedup"] == pytest.approx(unfused["makespan_us"] / interleaved["makespan_us"])
    assert interleaved["exposed_us"] < unfused["exposed_us"]
    assert lag["makespan_us"] is None and "SM90" in lag["error"]


def test_a_wider_interconnect_exposes_less():
    slow, fast = (
        xs.layer("flux-1", policies=["piggyback"], overrides={"interconnect.all_to_all_rate": rate}).rows()[0]
        for rate in ("80 GB/s", "600 GB/s")
    )
    assert slow["exposed_us"] > 3 * fast["exposed_us"]


def test_whole_granules_fill_the_stage():
    """30 KiB of an SM are 15 granules of 2 KiB; with three of 8 KiB, 24 KiB, stores would stall at a busy receiver."""
    taken = xs.layer("llama-3-8b", "hgx-h800", policies=["fused"], tokens=2048)
    blocks = simulate_block(load_machine("hgx-h800"), block("llama-3-8b", "fused", tokens=2048), 1024)
    assert taken.runs[0].makespan_us == pytest.approx(blocks.total_ps / 1e6, rel=0.005)


@pytest.mark.parametrize(
    "room, granule", [("30 KiB", "1 KiB"), ("3 KiB", "1 KiB"), ("1536 B", "512 B"), ("12081 B", "64 B")]
)
def test_a_granule_fits_any_stage(room, granule):
    stage = {"stage.capacity_sm": room, "stage.granule": granule}
    rows = xs.layer("flux-1", policies=["piggyback"], tokens=512, overrides=stage).rows()
    assert rows[0]["makespan_us"] > 0


def test_the_command_prints_one_object_with_every_kernel_of_every_policy(capsys):
    assert main(["layer", "flux-1", "--policies", "serial,piggyback", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["model"], answer["baseline"], answer["gpus"], answer["tokens"]) == ("flux-1", "serial", 8, 4608)
    first = answer["policies"][0]
    assert sum(kernel["time_us"] for kernel in first["kernels"]) == pytest.approx(first["makespan_us"])


def test_the_command_names_the_policies_and_kernels_and_draws_them(capsys, tmp_path):
    file = tmp_path / "layer.svg"
    assert main(["layer", "flux-1", "--policies", "serial,piggyback", "--plot", str(file)]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("speedup over serial", "a2a of q, k, v", "exposed us"))
    assert file.read_text().startswith("<?xml")
    assert "kernel,stream" in (tmp_path / "layer.csv").read_text()


def test_the_command_says_whose_tokens_there_are_and_the_numbers_of_the_experts(capsys):
    asked = ["layer", "deepseek-v3", "--policies", "expert_wave", "--tokens", "512"]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "512 tokens of each rank, on 8 GPUs" in said and "Experts in w8a8" in said
    assert main([*asked, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["tokens_of"], answer["expert_numbers"]) == ("rank", "w8a8")


def but_few_tiles(warnings: Sequence[str]) -> list[str]:
    """Warnings without those of GEMMs that have fewer tiles than there are SMs, as in blocks that are quick to run."""
    return [sentence for sentence in warnings if "fewer than half of" not in sentence]


def test_an_assumed_rate_and_links_that_were_changed_are_named_with_the_answer(capsys):
    asked = ["layer", "flux-1", "--policies", "serial", "--machine", "hgx-h100", "--set"]
    assert main([*asked, "machine.interconnect.drain_rate=700GB/s"]) == 0
    said = capsys.readouterr().out
    assert "warning: drain_rate of the interconnect changed" in said
    assert "all_to_all_rate = 87.6 GB/s, which is assumed" in said
    assert main([*asked, "machine.interconnect.all_to_all_rate=500GB/s", "--json"]) == 0
    [sentence] = but_few_tiles(json.loads(capsys.readouterr().out)["warnings"])
    assert "rate of 500 GB/s is above the 346.5 GB/s that ports drain" in sentence


@pytest.mark.parametrize(
    ("model", "policy", "changes", "named"),
    [
        ("llama-3-8b", "serial", {"interconnect.ring_rate": "500 GB/s"}, "rate of 500 GB/s is above"),
        ("llama-3-8b", "fused", {"interconnect.ring_rate": "500 GB/s"}, None),
        ("llama-3-8b", "fused", {"compute.sms": 100}, "compute.sms changed"),
        ("deepseek-v3", "expert_wave", {"interconnect.all_to_all_rate": "500 GB/s"}, None),
    ],
)
def test_warnings_are_about_what_the_kernels_of_the_block_do(model, policy, changes, named):
    done = xs.layer(model, "hgx-h100", policies=[policy], tokens=512, overrides=changes)
    assert [named in sentence for sentence in but_few_tiles(done.warnings)] == [True] * bool(named)


def test_rows_that_cross_nodes_are_named_and_no_rank_stands_for_others_that_are_further_away():
    """114688 rows, for which one rank stands where all are alike."""
    done = xs.layer("deepseek-v3", "hgx-h100-rails", gpus=16, tokens=896, policies=["expert_wave"])
    arbitration, crossing = but_few_tiles(done.warnings)
    assert "network interfaces of 43 GB/s lie behind ports of 350 GB/s" in arbitration
    assert "ranks are on several nodes" in crossing


def test_no_rank_stands_for_others_that_have_more_to_do():
    """131072 rows on 64 ranks, of which the busiest has a twelfth more than the idlest."""
    done = xs.layer("deepseek-v3", "gb300", gpus=64, tokens=256, policies=["expert_wave"])
    assert [run.error for run in done.runs] == [None] and not any("one rank" in told for told in done.warnings)


@pytest.mark.parametrize(("machine", "named"), [("hgx-h100", True), ("hgx-b200", False)])
def test_a_baseline_whose_gemms_may_be_faster_is_named(machine, named):
    done = xs.layer("deepseek-v3", machine, tokens=512, policies=["unfused"])
    assert any("of the experts, unfused runs without `gemm`" in sentence for sentence in done.warnings) is named


def test_one_rank_that_stands_for_all_with_busy_ports_is_named():
    done = xs.layer("dit-moe", "hgx-b200", policies=["expert_wave"])
    assert any("of the experts one rank stands for all" in sentence for sentence in done.warnings)


def test_without_a_model_the_command_lists_them(capsys):
    assert main(["layer"]) == 0
    assert "hunyuan-video" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["--gpus", "8"], ["--machine", "nope"], ["--tokens", "64"], ["--policies", "fused"], ["--plot", "zz.png"]]
)
def test_an_option_without_a_model_is_refused(capsys, words):
    assert main(["layer", *words]) == 2
    assert f"{words[0]}: needs a MODEL" in capsys.readouterr().err


def nothing_runs(done: int, expected: int) -> None:
    raise AssertionError("a policy is tried")


def test_more_gpus_than_there_are_are_refused_before_anything_runs():
    said = r"^gpus = 9: is more than the 8 GPUs of hgx-b200 \(allowed: 1 to 8\)$"
    with pytest.raises(InputError, match=said):
        xs.layer("deepseek-v3", gpus=9, progress=nothing_runs)


def test_all_numbers_that_a_machine_lacks_are_named_before_anything_runs():
    with pytest.raises(
        InputError, match=r"needs numbers that mi300x does not have: compute\.kernels, .*combine_floor "
    ):
        xs.layer("deepseek-v3", "mi300x", progress=nothing_runs)


@pytest.mark.parametrize("model", ["flux-1", "llama-3-8b", "deepseek-v3", "dit-moe"])
def test_a_machine_that_gives_no_more_than_a_block_needs_runs_it(model):
    machine = load_machine("hgx-b200")
    more = {name for name, _ in machine.compute if name not in (*compute_numbers(model), "sms")}
    bare = load_machine("hgx-b200", {f"compute.{name}": None for name in more if getattr(machine.compute, name)})
    policy = block_policies(model)[1]
    assert simulate_block(bare, block(model, policy, tokens=512)).total_ps > 0


@pytest.mark.parametrize("number", compute_numbers("dit-moe"))
def test_no_block_runs_without_a_number_that_it_is_said_to_need(number):
    lacking = load_machine("hgx-b200", {f"compute.{number}": None})
    with pytest.raises(InputError, match=rf"^compute\.{number}: is not given for hgx-b200"):
        simulate_block(lacking, block("dit-moe", "expert_wave", gpus=2, tokens=256))


@pytest.mark.parametrize(
    "policies, said", [([], "names no policy"), (["serial", "serial"], "policies = 'serial': is given twice")]
)
def test_no_policy_and_one_twice_are_refused(policies, said):
    with pytest.raises(InputError, match=said):
        xs.layer("flux-1", policies=policies)


@pytest.mark.parametrize(
    "words, said",
    [
        (["layer", "wan-41b"], "did you mean 'wan-14b'"),
        (["layer", "minimax-h3"], "is no model with a block"),
        (["layer", "flux-1", "--policies", "fused"], "policies = 'fused': is no policy of this workload"),
        (["layer", "dit-moe", "--policies", "expert_wav"], "did you mean 'expert_wave'"),
        (["layer", "wan-1.3b"], "cannot share out the heads evenly"),
        (["layer", "flux-1", "--set", "workload.tokens=1"], "is no number of the machine"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, words, said):
    assert main(words) == 2
    assert said in capsys.readouterr().err
