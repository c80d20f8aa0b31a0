"""Facts about the machines that come with xstage, and how a machine file builds on another."""

import pytest
from xstage.scenarios.catalogue import entries
from xstage.scenarios.machine_files import load_machine
from xstage.sim.burst_gap import capacity, knee
from xstage.sim.errors import InputError

KIB, MIB = 2**10, 2**20
MACHINES = [entry.name for entry in entries("machine")]


@pytest.fixture
def machine_file(tmp_path):
    def write(text, name="mine.yaml"):
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        return str(file)

    return write


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_of_the_catalogue_loads_under_its_name_and_says_what_it_is(name):
    machine = load_machine(name)
    assert machine.name == name
    assert machine.description
    assert machine.fabric().n_gpus == machine.gpus
    assert all(number.source for _, number in machine.numbers())


def test_hgx_b200_has_the_published_three_numbers():
    """arXiv 2607.23264: T_iss0 = 0.76 us at 32 KiB, R = 717 GB/s, Q = 4.25 MiB at K = 148, knee 33 KiB a producer."""
    machine = load_machine("hgx-b200")
    assert machine.sms == 148
    assert machine.issue_time_ps(32 * KIB) == pytest.approx(760_000, abs=5_000)
    assert machine.drain_kbs() == 717_000_000
    assert capacity(machine.x_stage(), 148) == 4.25 * MIB
    assert capacity(machine.x_stage(), 1) == 30 * KIB
    assert knee(machine.x_stage(), 148) / KIB == pytest.approx(33, abs=0.5)


def test_three_senders_into_one_gh200_keep_their_own_links():
    """Public nvbandwidth log: 124.6 GB/s to one peer, 373.7 GB/s from three senders into one GPU."""
    machine = load_machine("gh200-quad", {"interconnect.duplex_efficiency": 1.0})
    fabric = machine.fabric()
    routes = [fabric.route(sender, 0) for sender in (1, 2, 3)]
    assert not set(routes[0][:-1]) & set(routes[1][:-1])
    assert machine.drain_kbs("peer") == 124_600_000
    assert fabric.rates_kbs[routes[0][-1], 0] / 1e6 == pytest.approx(373.7, abs=0.2)


@pytest.mark.parametrize("name", ["gb300", "hgx-b200", "hgx-h100"])
def test_a_load_request_costs_its_bytes_on_the_wire_in_those_of_a_store(name):
    """GB300, public notes: 24.6 KB to ask for a tile, 155.6 KB to store it. R counts the payload of stores alone."""
    assert load_machine(name).interconnect.load_request_fraction.value == pytest.approx(24.6 / 155.6, abs=5e-4)


def test_a_clock_without_its_rates_is_refused_where_it_is_written(machine_file):
    slower = "base: hgx-h100\ncompute:\n  clock_mhz: {value: 1400, source: measured}\n"
    with pytest.raises(InputError, match=r"yaml:3: compute\.clock_mhz = 1400: changes nothing alone.*1830 MHz"):
        load_machine(machine_file(slower))
    with pytest.raises(InputError, match=r"clock_mhz = 1400: changes nothing alone"):
        load_machine("hgx-h100", {"compute.clock_mhz": 1400})


def test_a_clock_is_welcome_beside_its_rates_or_where_there_are_none(machine_file):
    slower = (
        "base: hgx-h100\ncompute:\n  clock_mhz: {value: 1400, source: measured}\n"
        "  bf16_tflops: {value: 757, assumed: true, source: by the clock}\n"
    )
    assert load_machine(machine_file(slower)).compute.bf16_tflops.value == 757
    together = {"compute.clock_mhz": 1400, "compute.fp8_tflops": 1514}
    assert load_machine("hgx-h100", together).compute.clock_mhz.value == 1400
    assert load_machine("hgx-h20", {"compute.clock_mhz": 1400}).compute.clock_mhz.value == 1400


def test_a_file_changes_single_numbers_of_its_base(machine_file):
    file = machine_file(
        "base: hgx-b200\ndescription: half the links\n"
        "interconnect:\n  drain_rate: {value: 358 GB/s, assumed: true, source: half of 717}\n"
    )
    machine, base = load_machine(file), load_machine("hgx-b200")
    assert (machine.name, machine.description) == ("mine", "half the links")
    assert machine.drain_kbs() == 358_000_000
    assert machine.interconnect.drain_rate.source == "half of 717"
    assert machine.stage == base.stage


def test_h100_sms_on_another_fabric_are_two_lines(machine_file):
    machine = load_machine(machine_file("base: hgx-b200\ncompute: hgx-h100\n"))
    assert machine.compute == load_machine("hgx-h100").compute
    assert machine.interconnect == load_machine("hgx-b200").interconnect


def test_a_file_can_build_on_a_file_beside_it(machine_file, tmp_path):
    machine_file("base: hgx-b200\n", "below.yaml")
    machine = load_machine(machine_file("base: ./below.yaml\nname: above\n"))
    assert machine.name == "above"


def test_null_takes_a_number_away(machine_file):
    machine = load_machine(machine_file(
        "base: hgx-b200\ncompute: {fp4_tflops: null}\n"
        "interconnect:\n  kind: {value: direct, source: x}\n  drain_rate: null\n"
        "  link_rate: {value: 100 GB/s, source: x}\n"
    ))  # fmt: skip
    assert machine.compute.fp4_tflops is None
    assert machine.drain_kbs("all") == 700_000_000


def test_null_and_parts_that_are_not_there_are_refused(machine_file):
    with pytest.raises(InputError, match=r"mine\.yaml:2: compute\.fp3_tflops: is null, but there is nothing"):
        load_machine(machine_file("base: hgx-b200\ncompute: {fp3_tflops: null}\n"))
    machine_file("description: nothing in it\n", "empty.yaml")
    with pytest.raises(InputError, match=r"mine\.yaml:2: compute = './empty\.yaml': is a machine without compute"):
        load_machine(machine_file("base: hgx-b200\ncompute: ./empty.yaml\n"))
    machine_file("compute: 3\n", "wrong.yaml")
    with pytest.raises(InputError, match=r"wrong\.yaml:1: compute = 3: must be a mapping"):
        load_machine(machine_file("base: ./wrong.yaml\n"))


def test_bases_that_lead_back_are_refused(machine_file):
    machine_file("base: ./b.yaml\n", "a.yaml")
    with pytest.raises(InputError, match=r"a\.yaml:1: base = './b.yaml': leads back to this machine"):
        load_machine(machine_file("base: ./a.yaml\n", "b.yaml"))
    with pytest.raises(InputError, match="leads back to this machine"):
        load_machine(machine_file("base: hgx-b200\ncompute: ./self.yaml\n", "self.yaml"))


def test_an_override_stays_when_its_part_is_replaced_in_whatever_order_they_come():
    changes = {"stage.t0": "1 us", "stage": "hgx-h100"}
    machines = [load_machine("hgx-b200", dict(order)) for order in (changes.items(), reversed(changes.items()))]
    assert machines[0] == machines[1] and machines[0].stage.t0.value == 1_000_000


def test_an_override_is_marked_as_assumed_and_shows_in_the_name():
    machine = load_machine("hgx-b200", {"interconnect.drain_rate": "358 GB/s", "compute": "hgx-h100"})
    assert machine.drain_kbs() == 358_000_000
    assert machine.interconnect.drain_rate.assumed
    assert machine.interconnect.drain_rate.source == "set by override interconnect.drain_rate"
    assert machine.sms == 132
    assert machine.name == "hgx-b200 with compute = hgx-h100, interconnect.drain_rate = 358 GB/s"


@pytest.mark.parametrize(
    "overrides, said",
    [
        ({"interconnect.drane_rate": "1 GB/s"}, r"did you mean 'drain_rate'\?"),
        ({"drain_rate": "1 GB/s"}, r"override drain_rate.*is no number of a machine.*interconnect.drain_rate"),
        ({"interconnect.drain_rate.value": "1 GB/s"}, "is no number of a machine"),
        ({"interconnect.drain_rate": "1 KiB"}, "override interconnect.drain_rate = '1 KiB': is not a rate"),
        ({"interconnect": "hgx-b20"}, r"override interconnect = 'hgx-b20'.*did you mean 'hgx-b200'\?"),
        ({"interconnect": 3}, "override interconnect = 3: must be a mapping"),
        ({"interconnect.gpus": 10**30}, "override interconnect.gpus = 10+: must be at most 4096"),
        ({"stage.capacity_sm": "512 B"}, "granule.*does not fit into the stage"),
        ({"stage.t0": None}, "stage.t0: is missing"),
        ({"stage.t0.": 1}, "is no path"),
        ({"stage.speed": None}, "stage.speed: is null, but there is nothing to take away"),
    ],
)
def test_an_override_that_means_nothing_is_refused(overrides, said):
    with pytest.raises(InputError, match=said):
        load_machine("hgx-b200", overrides)


def test_an_unknown_machine_is_refused_with_the_closest_name():
    with pytest.raises(InputError, match=r"machine = 'hgx-b20'.*did you mean 'hgx-b200'\?.*allowed: .*hgx-h100"):
        load_machine("hgx-b20")


def test_errors_name_the_line_of_the_file_that_has_the_number(machine_file):
    file = machine_file("base: hgx-b200\ninterconnect:\n  latency: {value: 1 KiB, source: x}\n")
    with pytest.raises(InputError) as caught:
        load_machine(file)
    assert (caught.value.file, caught.value.line, caught.value.field) == (file, 3, "interconnect.latency.value")


@pytest.mark.parametrize("text", ["[1, 2]\n", "just text\n", "base: [1]\n", "base: hgx-b200\ncompute: 3\n"])
def test_what_is_no_machine_is_refused(machine_file, text):
    with pytest.raises(InputError, match=r"mine\.yaml:\d"):
        load_machine(machine_file(text))
