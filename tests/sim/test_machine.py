"""Facts about machines: units in and out, T_iss0, R and Q for the closed forms, the fabric, and what is refused."""

import copy
import math
import pickle

import numpy as np
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim.burst_gap import capacity, t_iss0
from xstage.sim.errors import InputError
from xstage.sim.machine import Machine
from xstage.sim.topology import PLAIN, REDUCE_RATE, SCATTER

KIB = 2**10


def number(value, **more):
    return {"value": value, "source": "a test", **more}


SMALL = {
    "name": "small",
    "compute": {"sms": number(4)},
    "stage": {
        "t0": number("0.24 us"),
        "issue_rate": number("62.9 GB/s"),
        "capacity_sm": number("30 KiB"),
        "capacity_gpu": number("100 KiB"),
        "granule": number("1 KiB"),
    },
    "interconnect": {
        "kind": number("switch"),
        "gpus": number(4),
        "drain_rate": number("700 GB/s"),
        "latency": number("0.4 us"),
    },
}


def small(**changes):
    """The small machine with fields replaced by 'part.name'."""
    data = copy.deepcopy(SMALL)
    for path, value in changes.items():
        part, name = path.split("__")
        data[part] |= {name: value}
        if value is None:
            del data[part][name]
    return Machine.parse(data)


def refused(**changes):
    with pytest.raises(InputError) as caught:
        small(**changes)
    return caught.value


def direct(**changes):
    return small(interconnect__kind=number("direct"), interconnect__drain_rate=None,
                 interconnect__link_rate=number("125 GB/s"), **changes)  # fmt: skip


def test_text_with_units_becomes_integers_inside():
    machine = small()
    assert machine.stage.t0.value == 240_000  # ps
    assert machine.stage.capacity_sm.value == 30 * KIB  # bytes
    assert machine.interconnect.drain_rate.value == 700_000_000  # kB/s
    assert (machine.sms, machine.gpus, machine.granule_bytes) == (4, 4, KIB)


def test_a_burst_issues_in_t0_plus_its_bytes_over_w_rounded_up():
    machine = small()
    assert machine.issue_time_ps(32 * KIB) == 240_000 + math.ceil(32 * KIB * 1e9 / 62_900_000)
    assert machine.issue_time_ps(1) == 240_000 + 16
    assert machine.issue_time_ps(0) == 0
    assert machine.issue_time_ps(np.array([32 * KIB, 1, 0])).tolist() == [machine.issue_time_ps(32 * KIB), 240_016, 0]


def test_the_closed_forms_get_the_same_numbers():
    stage = small().x_stage()
    assert t_iss0(stage, 4, 32 * KIB) == pytest.approx(small().issue_time_ps(32 * KIB), abs=1)
    assert stage.drain_kbs == 700_000_000
    assert capacity(stage, 1) == 30 * KIB
    assert capacity(stage, 4) == 100 * KIB


def test_on_a_switch_the_rate_is_the_same_towards_one_and_towards_all():
    machine = small()
    fabric = machine.fabric()
    assert fabric.rates_kbs[:, PLAIN].tolist() == [700_000_000] * 8
    assert machine.drain_kbs("peer") == machine.drain_kbs("all") == 700_000_000


def test_on_direct_links_one_peer_is_reached_by_one_link_and_all_by_all_links():
    machine = direct()
    assert machine.drain_kbs("peer") == 125_000_000
    assert machine.drain_kbs("all") == 3 * 125_000_000
    assert machine.drain_kbs("all", n_gpus=3) == 2 * 125_000_000
    assert [int(machine.fabric().rates_kbs[port, PLAIN]) for port in machine.fabric().route(0, 2)] == [
        3 * 125_000_000, 125_000_000, 3 * 125_000_000,
    ]  # fmt: skip


@pytest.mark.parametrize("destination, column", [("peer", PLAIN), ("all", SCATTER)])
@pytest.mark.parametrize("make", [small, direct])
def test_the_closed_forms_drain_at_the_rate_of_the_fabric(make, destination, column):
    machine = make(
        interconnect__duplex_efficiency=number(0.985),
        interconnect__fan_out_efficiency=number(0.9),
        interconnect__reduce_efficiency=number(0.5),
    )
    fabric = machine.fabric()
    route = fabric.route(0, 1)
    rates = fabric.rates_kbs[route[:1] if destination == "all" else route, column]
    assert machine.drain_kbs(destination) == rates.min()
    assert fabric.rates_kbs[machine.gpus, REDUCE_RATE] == pytest.approx(
        0.5 * fabric.rates_kbs[machine.gpus, PLAIN], abs=1
    )


def test_a_scatter_over_two_gpus_is_a_store_to_one():
    machine = small(interconnect__fan_out_efficiency=number(0.5))
    assert machine.drain_kbs("all", n_gpus=2) == machine.drain_kbs("peer")
    assert machine.drain_kbs("all") == machine.drain_kbs("peer") // 2


def test_the_fabric_takes_fewer_gpus_and_other_granules():
    fabric = small(
        interconnect__local_latency=number("90 ns"),
        interconnect__load_request_fraction=number(0.19),
        interconnect__reply_arbitration=number("fair"),
    ).fabric(n_gpus=2, granule_bytes=512)
    assert (fabric.n_gpus, fabric.granule_bytes) == (2, 512)
    assert fabric.latency_ps.tolist() == [[90_000, 400_000], [400_000, 90_000]]
    assert (fabric.request_permille, fabric.fair_replies) == (190, True)


@pytest.mark.parametrize("count", [0, -1, 5])
def test_more_gpus_than_there_are_and_none_at_all_are_refused(count):
    with pytest.raises(InputError, match=rf"gpus = {count}: .*allowed: 1 to 4"):
        small().fabric(n_gpus=count)


def test_a_granule_that_exceeds_the_stage_is_refused():
    assert refused(stage__granule=number("31 KiB")).field == "stage.granule.value"
    with pytest.raises(InputError, match="granule_bytes = 31744"):
        small().fabric(granule_bytes=31 * KIB)


def test_a_number_without_a_source_is_refused():
    error = refused(interconnect__drain_rate="717 GB/s")
    assert error.field == "interconnect.drain_rate"
    assert "{value: 717 GB/s, source: where it was measured}" in str(error)
    assert refused(stage__t0={"value": "1 us"}).field == "stage.t0.source"
    assert refused(stage__t0={"value": "1 us", "source": ""}).field == "stage.t0.source"


def test_an_assumption_says_so():
    machine = small(stage__t0=number("1 us", assumed=True))
    assumed = {name for name, found in machine.numbers() if found.assumed}
    assert "stage.t0" in assumed
    assert "stage.issue_rate" not in assumed
    assert "interconnect.duplex_efficiency" in assumed  # left out, so no loss is assumed


def test_an_interval_holds_its_value():
    assert small(stage__t0=number("1 us", interval=["0.5 us", "2 us"])).stage.t0.interval == (500_000, 2_000_000)
    assert refused(stage__t0=number("1 us", interval=["2 us", "3 us"])).field == "stage.t0.interval"


@pytest.mark.parametrize(
    "path, value",
    [
        ("stage__capacity_sm", "0 KiB"),
        ("stage__capacity_gpu", 0),
        ("stage__capacity_gpu", "-1 KiB"),
        ("stage__capacity_gpu", "4 GB/s"),
        ("stage__capacity_gpu", 4096),
        ("stage__t0", "-1 us"),
        ("stage__t0", "1 KiB"),
        ("stage__issue_rate", "0 GB/s"),
        ("interconnect__drain_rate", "-717 GB/s"),
        ("interconnect__drain_rate", "nan GB/s"),
        ("interconnect__drain_rate", math.nan),
        ("interconnect__drain_rate", "717 GiB/s"),
        ("interconnect__drain_rate", "0.0001 kB/s"),
        ("interconnect__latency", "1e30 s"),
        ("interconnect__duplex_efficiency", 0.0),
        ("interconnect__duplex_efficiency", 1.01),
        ("interconnect__duplex_efficiency", math.nan),
        ("interconnect__duplex_efficiency", "0.9"),
        ("interconnect__load_request_fraction", -0.1),
        ("interconnect__kind", "torus"),
        ("interconnect__reply_arbitration", "random"),
        ("interconnect__gpus", 0),
        ("compute__sms", 1.5),
        ("compute__sms", True),
        ("compute__sms", "148"),
        ("compute__clock_mhz", math.inf),
    ],
)
def test_impossible_numbers_are_refused(path, value):
    assert refused(**{path: number(value)}).field == path.replace("__", ".") + ".value"


def test_each_kind_of_wiring_has_its_own_rate():
    assert refused(interconnect__drain_rate=None).reason == "needs drain_rate, which this machine does not give"
    assert refused(interconnect__link_rate=number("1 GB/s")).field == "interconnect.link_rate"
    lacking = refused(interconnect__kind=number("islands"))
    assert lacking.field == "interconnect.kind.value"  # written by whoever asked for it, not by the machine's base
    assert lacking.reason.startswith("needs gpus_per_node, nic_rate, nic_latency, which")


def test_an_unknown_key_is_refused_with_the_one_that_was_meant():
    assert "did you mean 'drain_rate'?" in str(refused(interconnect__drane_rate=number("1 GB/s")))


def test_a_machine_can_be_written_and_read_again():
    machine = direct(interconnect__latency=number("0.123457 us"), stage__capacity_gpu=number("123457 B"))
    assert Machine.parse(machine.model_dump()) == machine
    assert Machine.parse(machine.model_dump(mode="json")) == machine
    assert machine.model_dump()["stage"]["capacity_sm"]["value"] == "30 KiB"


def test_a_machine_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        small().name = "other"


def test_a_request_fraction_that_would_round_to_nothing_is_refused():
    overrides = {"interconnect.load_request_fraction": 0.0004}
    with pytest.raises(InputError, match=r"load_request_fraction = 0\.0004: is too small to count"):
        load_machine("hgx-b200", overrides).fabric(2)


def test_a_machine_reaches_another_process_as_it_is():
    machine = load_machine("gb300", {"interconnect.drain_rate": "500 GB/s"})
    sent = pickle.loads(pickle.dumps(machine))
    assert sent == machine
    assert hash(sent) == hash(machine)
