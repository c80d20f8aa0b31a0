"""Facts about the machine files: plausible numbers, and link rates as published in scenarios/published/links.csv."""

import pytest
from xstage.scenarios.catalogue import entries
from xstage.scenarios.machine_files import load_machine
from xstage.scenarios.published import load_links
from xstage.sim.burst_gap import capacity

KIB, MIB = 2**10, 2**20
GPUS = [entry.name for entry in entries("machine") if load_machine(entry.name).compute.bf16_tflops is not None]
LINKS = load_links()


@pytest.mark.parametrize("name", GPUS)
def test_three_numbers_are_those_of_a_gpu(name):
    """Of a tile of 32 KiB: issued in 0.5 to 1.5 us, drained at what some links carry, held by a stage of MiB."""
    machine = load_machine(name)
    assert 500_000 <= machine.issue_time_ps(32 * KIB) <= 1_500_000
    assert 40e6 <= machine.drain_kbs() <= 900e6
    assert 2 * MIB <= capacity(machine.x_stage(), machine.sms) <= 9 * MIB
    assert 16 * KIB <= machine.stage.capacity_sm.value <= 64 * KIB


@pytest.mark.parametrize("name", GPUS)
def test_many_sms_together_issue_more_than_the_links_carry(name):
    """Else nothing would ever wait."""
    machine = load_machine(name)
    assert machine.sms * machine.stage.issue_rate.value > 5 * machine.drain_kbs("all")


@pytest.mark.parametrize("name", GPUS)
def test_compute_agrees_with_itself(name):
    """Half the bits, twice the rate; within 4 %, as the clock of one machine is fitted for 16-bit numbers only."""
    compute = load_machine(name).compute
    assert 78 <= compute.sms.value <= 304
    if compute.fp8_tflops:
        assert compute.fp8_tflops.value == pytest.approx(2 * compute.bf16_tflops.value, rel=0.04)
    if compute.fp4_tflops:
        assert 2 <= compute.fp4_tflops.value / compute.fp8_tflops.value <= 3.1
    assert 1500 <= compute.hbm_rate.value / 1e6 <= 8000


@pytest.mark.parametrize("name", GPUS)
def test_a_number_without_a_measurement_says_so(name):
    """Q and T_iss0 are published for one machine only."""
    machine = load_machine(name)
    assert machine.stage.capacity_gpu.assumed == (name != "hgx-b200")
    assert machine.stage.capacity_sm.assumed


def published(machine, quantity):
    rows = LINKS[(LINKS.machine == machine) & (LINKS.quantity == quantity) & (LINKS.method != "copy_engine")]
    return rows[rows.sms.isna() & (rows.message_bytes.isna() | (rows.message_bytes >= 8 * KIB))].rate_gbs


@pytest.mark.parametrize("name", sorted(set(LINKS.machine)))
def test_peer_stores_run_at_a_published_rate(name):
    """Within 3 % of what one of the sources measured; no machine takes its rate from copy engines."""
    machine, rates = load_machine(name, {"interconnect.duplex_efficiency": 1.0}), published(name, "peer_write")
    if rates.empty:
        assert machine.interconnect.drain_rate.assumed
    else:
        assert min(abs(machine.drain_kbs() / 1e6 / rate - 1) for rate in rates) < (0.05 if name == "hgx-b200" else 0.03)


@pytest.mark.parametrize("name", ["hgx-h800", "gb300", "gh200-quad"])
def test_stores_in_both_directions_run_at_the_published_rate(name):
    [rate] = published(name, "peer_write_duplex")
    assert load_machine(name).drain_kbs() / 1e6 == pytest.approx(rate, rel=0.003)


@pytest.mark.parametrize("name, senders", [("hgx-h800", 7), ("gb300", 3), ("gh200-quad", 3)])
def test_incast_gets_what_the_receivers_ports_take(name, senders):
    """A switch gives one port's rate to all senders together; direct links give each sender its own."""
    machine = load_machine(name, {"interconnect.duplex_efficiency": 1.0})
    fabric = machine.fabric(senders + 1)
    into = {fabric.route(sender, 0)[-1] for sender in range(1, senders + 1)}
    rate = sum(int(fabric.rates_kbs[port, 0]) for port in into) / 1e6
    [measured] = published(name, "incast")
    assert rate == pytest.approx(measured, rel=0.015)


@pytest.mark.parametrize("name", ["hgx-h800", "gb300"])
def test_a_scatter_runs_within_the_published_rates(name):
    machine = load_machine(name, {"interconnect.duplex_efficiency": 1.0})
    rates = published(name, "fan_out")
    assert 0.98 * rates.min() <= machine.drain_kbs("all") / 1e6 <= 1.001 * rates.max()


@pytest.mark.parametrize("name", ["hgx-h100", "gh200-quad", "hgx-h20", "rtx-pcie5"])
def test_two_ways_make_the_published_round_trip(name):
    rows = LINKS[(LINKS.machine == name) & LINKS.time_ns.notna()]
    assert 2 * load_machine(name).interconnect.latency.value / 1e3 == pytest.approx(rows.time_ns.iloc[0], rel=0.02)


def test_h20_needs_the_published_number_of_sms_to_fill_its_links():
    """TMA stores of n SMs, github.com/stmoonar/tileccl: n times one SM's rate, up to what the links carry."""
    machine = load_machine("hgx-h20")
    rows = LINKS[(LINKS.machine == "hgx-h20") & (LINKS.method == "tma") & LINKS.sms.notna()]
    assert len(rows) == 15
    for row in rows.itertuples():
        simulated = min(row.sms * machine.stage.issue_rate.value, machine.interconnect.drain_rate.value) / 1e6
        assert simulated == pytest.approx(row.rate_gbs, rel=0.02)


@pytest.mark.parametrize("name, base", [("hgx-h200", "hgx-h100"), ("hgx-b300", "hgx-b200"), ("gb300", "gb200-nvl72")])
def test_a_variation_keeps_the_stage_of_its_base(name, base):
    machine, other = load_machine(name), load_machine(base)
    assert machine.stage.t0 == other.stage.t0
    assert machine.stage.capacity_sm == other.stage.capacity_sm
    assert machine.compute.kernels.value == other.compute.kernels.value
