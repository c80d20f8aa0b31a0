"""Attention against published times: rates of FA3 and FA4 on their own, and the X-Stage paper's FA3 with All-to-All.

Sources of the rates: https://github.com/Dao-AILab/flash-attention, assets/flash3_fp16_fwd.png (H100) and pull/2605 (B200).
Of these H100 was fitted to two rows and B200 to one, marked below; the others are judged.
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
    (64, False): (None, 657, None, None, None, 706),
    (128, False): (None, 1196, 1266, 1309, 1357, 1401),  # the last one fitted
    (128, True): (None, 704, 944, 1114, None, None),
}
FAR_OFF = {("hgx-h100", 64, False, 512), ("hgx-h100", 64, False, 1024), ("hgx-h100", 128, True, 16384)}
FAR_OFF |= {("hgx-b200", 128, True, tokens) for tokens in (1024, 2048, 4096)}
"""Rows beyond 7 %: 64-row remainders of 192-row tiles cost less than a whole tile, and long causal runs are slower. With a
mask B200 is 8 % faster than predicted and GB300 up to 25 % slower: sources differ in what the start of a CTA costs."""


def rate_tflops(machine, shape):
    trace = simulate(build(machine, shape, Policy("compute_only")), machine.fabric(shape.ranks), trace="off")
    return attention_flops(shape) / trace.outcome.lanes_end_ps


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
    within = 0.13 if (name, head_dim, causal, tokens) in FAR_OFF else 0.071
    assert rate_tflops(load_machine(name), shape) == pytest.approx(published, rel=within)


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
def simulated():
    """(sender-visible, remote-visible) in us by length and policy."""
    machine = load_machine("xstage-hopper")
    times = {}
    for tokens in PAPER:
        for how in ("compute_only", "serial", "piggyback"):
            shape = Attention(tokens, 32, ranks=8)
            outcome = simulate(build(machine, shape, Policy(how)), machine.fabric(8), trace="off").outcome
            times[tokens, how] = outcome.lanes_end_ps / 1e6, outcome.arrived_ps / 1e6
    return times


@pytest.mark.parametrize("tokens", PAPER)
def test_the_papers_times_are_met_within_5_percent(simulated, tokens):
    """Fitted: the clock to FA3 only at 8192 and 65536, launch and bandwidth of the All-to-All to the serial rows."""
    for how, measured in zip(("compute_only", "serial", "piggyback"), PAPER[tokens], strict=True):
        assert simulated[tokens, how][0] == pytest.approx(measured, rel=0.05)
    assert simulated[tokens, "piggyback"][1] == pytest.approx(PAPER[tokens][2], rel=0.05)


@pytest.mark.parametrize("tokens", PAPER)
def test_the_papers_speedup_is_met_when_the_fused_kernel_ends_with_its_last_byte_visible(simulated, tokens):
    """At 8192 the paper's fused kernel takes 11.8 us more than FA3 only: the last wave on the wire, 10.2 us here.

    A kernel's time contains that: it ends, for whoever times it, when all its stores have been performed.
    """
    serial, fused = simulated[tokens, "serial"][1], simulated[tokens, "piggyback"][1]
    assert serial / fused == pytest.approx(PAPER[tokens][1] / PAPER[tokens][2], abs=0.01)


@pytest.mark.parametrize("tokens, within", [(8192, 0.07), (32768, 0.05), (65536, 0.05)])
def test_the_papers_speedup_by_sender_visible_time(simulated, tokens, within):
    """Until the last lane is free 8192 tokens give 1.49 for a measured 1.43: that moment is before the end of the kernel."""
    serial, fused = simulated[tokens, "serial"][0], simulated[tokens, "piggyback"][0]
    assert serial / fused == pytest.approx(PAPER[tokens][1] / PAPER[tokens][2], abs=within)


def test_the_papers_largest_gain_with_fa4_lies_between_two_baselines():
    """1.42, for an All-to-All whose terms it does not give: with those fitted to FA3's rows 8192 tokens gain more, with a
    tuned one of B200 less.
    """
    machine, shape = load_machine("hgx-b200"), Attention(8192, 32, ranks=8)
    slow = Policy("serial", launch_ps=16_600_000, a2a_kbs=87_600_000)
    ends = []
    for how in (slow, Policy("serial"), Policy("piggyback")):
        outcome = simulate(build(machine, shape, how), machine.fabric(8, 8192), trace="off").outcome
        ends.append(max(outcome.lanes_end_ps, outcome.arrived_ps))
    assert ends[1] / ends[2] < 1.42 < ends[0] / ends[2]
