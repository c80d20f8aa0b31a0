"""Attention against published times: rates of FA3 and FA4 on their own, and the X-Stage paper's FA3 with All-to-All.

Sources of the rates: https://github.com/Dao-AILab/flash-attention, assets/flash3_fp16_fwd.png (H100) and pull/2605 (B200,
the table that `fit.csv` names). Each was fitted to two rows, marked below; the others are judged.
"""

import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim.execute import simulate
from xstage.sim.schedules.attention_a2a import Attention, Policy, attention_flops, build

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
H100 = {  # (head dim, causal): TFLOPS by length, batch * length = 16384, heads * head dim = 2048
    (64, False): (333, 392, 460, 476, 496, 497),  # the last one fitted
    (64, True): (197, 265, 371, 420, 460, 473),
    (128, False): (467, 565, 625, 638, 646, 648),
    (128, True): (292, 423, 521, 579, 602, 616),
    (256, False): (482, None, 707, 736, 746, 756),  # the last one fitted
    (256, True): (286, 427, 537, 612, 628, 642),
}
B200 = {  # batch * length = 32768
    (64, False): (None, 617, 756, 827, 857, 877),  # the last one fitted
    (64, True): (None, 382, 560, 707, 797, 862),
    (128, False): (None, 969, 1132, 1228, 1302, 1321),  # the last one fitted
    (128, True): (None, 659, 886, 1061, None, None),
}
FAR_OFF = {
    **dict.fromkeys(
        [("hgx-h100", 64, False, 512), ("hgx-h100", 64, False, 1024), ("hgx-h100", 128, True, 16384)], 0.13
    ),
    ("hgx-b200", 64, False, 1024): 0.29,
    ("hgx-b200", 64, True, 1024): 0.22,
    ("hgx-b200", 128, False, 1024): 0.17,
    **dict.fromkeys(
        [("hgx-b200", 64, False, 2048), ("hgx-b200", 64, True, 2048), ("hgx-b200", 128, False, 2048)], 0.11
    ),
}
"""Rows beyond 7 %. H100: 64-row remainders of 192-row tiles cost less than a whole tile, and long causal runs are slower.
B200: with few tokens each tile takes 1.4 to 3.5 us more than it should, for reasons that are not known.
"""


def rate_tflops(machine, shape):
    trace = simulate(build(machine, shape, Policy("compute_only")), machine.fabric(shape.ranks), trace="off")
    return attention_flops(shape) / trace.makespan_ps


ROWS = [
    pytest.param(name, tokens, head_dim, causal, total // tokens, rate, id=f"{name}-{head_dim}-{causal}-{tokens}")
    for name, total, table in (("hgx-h100", 16384, H100), ("hgx-b200", 32768, B200))
    for (head_dim, causal), rates in table.items()
    for tokens, rate in zip(LENGTHS, rates, strict=True)
    if rate
]


@pytest.mark.parametrize("name, tokens, head_dim, causal, batch, published", ROWS)
def test_attention_alone_runs_at_the_published_rate(name, tokens, head_dim, causal, batch, published):
    shape = Attention(tokens, 2048 // head_dim, head_dim, batch=batch, causal=causal)
    within = FAR_OFF.get((name, head_dim, causal, tokens), 0.071)
    assert rate_tflops(load_machine(name), shape) == pytest.approx(published, rel=within)


@pytest.mark.parametrize("tokens", [4096, 8192, 16384, 32768, 65536, 131072])
def test_head_dim_256_of_fa4_is_behind_128_up_to_16384_tokens_and_level_with_it_beyond(tokens):
    """4 to 28 % behind, from 32768 tokens on 2 % behind to 6 % ahead, on B200 with a mask, one sequence and as many columns
    (https://github.com/Dao-AILab/flash-attention/issues/2576). Nothing was fitted to it: half the softmax warps, half the
    rate. The prediction for 32768 tokens is 6 % behind.
    """
    machine = load_machine("hgx-b200")
    wide, usual = (rate_tflops(machine, Attention(tokens, 2048 // dim, dim, causal=True)) for dim in (256, 128))
    low, high = (0.6, 0.96) if tokens <= 16384 else (0.935, 1.07)
    assert low < wide / usual < high


@pytest.mark.parametrize(
    "head_dim, tokens, published",
    [(64, 4096, 568), (64, 8192, 596), (64, 16384, 613), (128, 4096, 918), (128, 8192, 974), (128, 16384, 1008)],
)
def test_fp8_at_the_rates_of_the_fa3_paper(head_dim, tokens, published):
    """From the efficiency fitted to 16-bit runs. Up to 2048 tokens, and at head dim 256, the kernel is 10 to 37 % slower: it
    transposes V on the way, which is not modelled. The rates come from a machine transcription of the paper's figures.
    """
    shape = Attention(tokens, 2048 // head_dim, head_dim, batch=16384 // tokens, inputs="fp8")
    assert rate_tflops(load_machine("hgx-h100"), shape) == pytest.approx(published, rel=0.07)


# --- the X-Stage paper: FA3 only, serial, fused; us by length. 8 ranks, 4 heads of 128 on each, not causal.

PAPER = {8192: (195.2, 295.6, 207.0), 32768: (3236.7, 3579.6, 3241.5), 65536: (13249.4, 13936.6, 13218.3)}


@pytest.fixture(scope="module")
def outcomes():
    """By length and policy."""
    machine = load_machine("xstage-hopper")
    return {
        (tokens, how): simulate(
            build(machine, Attention(tokens, 32, ranks=8), Policy(how)), machine.fabric(8), trace="off"
        ).outcome
        for tokens in PAPER
        for how in ("compute_only", "serial", "piggyback")
    }


def kernel_us(outcome):
    """Of a kernel timed from outside: until its last lane is free and its last byte has arrived.

    An event after a kernel is recorded when the kernel has completed (cudaEventRecord), and it completes when its stores
    have been performed: what comes next on the stream may read them.
    """
    return max(outcome.lanes_end_ps, outcome.arrived_ps) / 1e6


@pytest.mark.parametrize("tokens", PAPER)
def test_the_papers_times_and_speedups(outcomes, tokens):
    """Fitted: the clock to FA3 only at 8192 and 65536, launch and bandwidth of the All-to-All to the serial rows."""
    attention, serial, fused = (kernel_us(outcomes[tokens, how]) for how in ("compute_only", "serial", "piggyback"))
    assert (attention, serial, fused) == pytest.approx(PAPER[tokens], rel=0.05)
    assert serial / fused == pytest.approx(PAPER[tokens][1] / PAPER[tokens][2], abs=0.05)


def test_the_fused_kernel_approaches_attention_alone_with_length(outcomes):
    exposed = [
        kernel_us(outcomes[tokens, "piggyback"]) / kernel_us(outcomes[tokens, "compute_only"]) for tokens in PAPER
    ]
    assert 1.1 > exposed[0] > exposed[1] > exposed[2] > 1


def test_what_is_exposed_at_8192_tokens_is_the_last_wave_on_the_wire(outcomes):
    """The paper's fused kernel takes 11.8 us more than FA3 only. No lane waits for that here: senders are free before."""
    fused, attention = outcomes[8192, "piggyback"], outcomes[8192, "compute_only"]
    assert kernel_us(fused) - kernel_us(attention) == pytest.approx(207.0 - 195.2, abs=2)
    assert fused.lanes_end_ps / 1e6 == pytest.approx(kernel_us(attention), abs=1.5)


def test_the_papers_largest_gain_with_fa4_lies_between_two_baselines():
    """1.42, for an All-to-All whose terms it does not give: with those fitted to FA3's rows 8192 tokens gain more, with a
    tuned one of B200 less.
    """
    machine, shape = load_machine("hgx-b200"), Attention(8192, 32, ranks=8)
    slow = Policy("serial", launch_ps=16_600_000, rate_kbs=87_600_000)
    ends = []
    for how in (slow, Policy("serial"), Policy("piggyback")):
        ends.append(simulate(build(machine, shape, how), machine.fabric(8, 8192), trace="off").makespan_ps)
    assert ends[1] / ends[2] < 1.42 < ends[0] / ends[2]
