"""Facts about `xstage layer`: a block's times add up, fused policies are compared with separate collectives, refusals."""

import json

import pytest
from xstage.scenarios.layers import block
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
        xs.layer("flux-1", policies=["piggyback"], overrides={"interconnect.collective_rate": rate}).rows()[0]
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


def test_without_a_model_the_command_lists_them(capsys):
    assert main(["layer"]) == 0
    assert "hunyuan-video" in capsys.readouterr().out


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
        (["layer", "minimax-h3"], "has no block"),
        (["layer", "flux-1", "--policies", "fused"], "policies = 'fused': is unknown"),
        (["layer", "wan-1.3b"], "cannot share out the heads evenly"),
        (["layer", "flux-1", "--set", "workload.tokens=1"], "is no number of the machine"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, words, said):
    assert main(words) == 2
    assert said in capsys.readouterr().err
