"""Facts about tensor-parallel GEMMs on GPUs that do not meet on one switch, and about rows that arrive all at once."""

from dataclasses import replace

import numpy as np
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim.execute import simulate
from xstage.sim.schedules.tensor_parallel import Policy, TensorParallel, TileTime, build, on_one_switch, tiles
from xstage.sim.schedules.tensor_parallel.collective import PIECES

GPUS = 8
NO_SWITCH = {"drain_rate": None}
WIRINGS = {
    "switch": {},
    "oversubscribed": {"kind": "oversubscribed_switch", "oversubscription": 2.0},
    "star": NO_SWITCH | {"kind": "custom", "links": [{"between": ["0-7", "a switch"], "rate": "350 GB/s"}]},
    "one GPU a node": {"kind": "islands", "gpus_per_node": 1, "nic_rate": "45 GB/s", "nic_latency": "5 us"},
    "mesh": NO_SWITCH | {"kind": "direct", "link_rate": "50 GB/s"},
    "ring": NO_SWITCH | {"kind": "ring", "link_rate": "100 GB/s", "hop_latency": "1 us"},
    "cube mesh": NO_SWITCH | {"kind": "hybrid_cube_mesh", "link_rate": "100 GB/s", "hop_latency": "1 us"},
    "islands": {"kind": "islands", "gpus_per_node": 4, "nic_rate": "45 GB/s", "nic_latency": "5 us"},
    "planes": {"kind": "multi_plane_switch", "planes": 4},
}
ON_LINKS = ("mesh", "ring", "cube mesh", "islands", "planes")
GATHER = TensorParallel("ag_gemm", 8192, 8192, 8192, GPUS)
SCATTER = TensorParallel("gemm_rs", 8192, 8192, 28672, GPUS)


def wired(name):
    return load_machine("hgx-h100", {f"interconnect.{key}": value for key, value in WIRINGS[name].items()})


def run(machine, shape, policy="fused", granule=2048, trace="off", engine="compiled"):
    how = Policy(policy, reserved_sms=16) if policy == "reserved_sms" else Policy(policy)
    return simulate(build(machine, shape, how), machine.fabric(shape.ranks, granule), engine, trace)


def time_us(machine, shape, policy="fused"):
    outcome = run(machine, shape, policy).outcome
    return max(outcome.lanes_end_ps, outcome.arrived_ps) / 1e6


@pytest.mark.parametrize("wiring", WIRINGS)
def test_one_switch_is_where_all_routes_of_a_gpu_are_alike(wiring):
    assert on_one_switch(wired(wiring).fabric(GPUS)) == (wiring not in ON_LINKS)


def test_a_node_of_several_is_one_switch():
    rails = load_machine("hgx-h100-rails")
    assert on_one_switch(rails.fabric(8))
    assert not on_one_switch(rails.fabric(16))
    assert build(rails, GATHER, Policy("fused")) == build(load_machine("hgx-h100"), GATHER, Policy("fused"))


@pytest.mark.parametrize("wiring, lanes", [("switch", 1), ("oversubscribed", 1), ("star", 1), ("mesh", 7), ("ring", 7)])
def test_a_copy_engine_serves_all_peers_at_once_where_they_have_links_of_their_own(wiring, lanes):
    program = build(wired(wiring), GATHER, Policy("fused"))
    engines = program.lanes[program.lanes["role"] == program.roles.index("copy engine")]
    assert np.bincount(engines["gpu"]).tolist() == [lanes] * GPUS


def test_on_one_switch_a_rank_works_through_the_rows_of_one_after_another():
    program = build(wired("switch"), GATHER, Policy("fused"))
    tasks = program.tasks[program.tasks["phase"] == program.phases.index("gemm")]
    blocks = tasks["m_block"].reshape(GPUS, -1)  # 64 of 128 rows, and 4 of 256 columns
    assert all((blocks[rank] == (np.arange(256) // 4 + 8 * rank) % 64).all() for rank in range(GPUS))


def test_over_links_of_its_own_a_gather_takes_what_one_link_takes():
    """16.8 MB for each peer at 49.5 GB/s: 339 us. The last block is then one of two waves of tiles."""
    machine = wired("mesh")
    wire_us = GATHER.local_m * GATHER.k * 2 / (machine.drain_kbs("peer", GPUS) / 1e3)
    tile = TileTime.of(machine, GATHER)
    expected_us = machine.compute.kernel_launch.value / 1e6 + wire_us + (tile.main + tile.epilogue) / 1e6
    assert time_us(machine, GATHER) == pytest.approx(expected_us, rel=0.02)


RAILS = load_machine("hgx-h100-rails")
BETWEEN_NODES = [
    ("ag_gemm", "two_shot", "serial"),
    ("ag_gemm", "two_shot", "fused"),
    ("ag_gemm", "two_shot", "reserved_sms"),
    ("ag_gemm", "multicast", "fused"),
    ("gemm_rs", "two_shot", "serial"),
    ("gemm_rs", "two_shot", "fused"),
    ("gemm_rs", "two_shot", "reshaped"),
    ("gemm_rs", "two_shot", "reserved_sms"),
    ("gemm_ar", "two_shot", "serial"),
]


def received(trace):
    """Bytes that passed each network interface inwards, and the ingress of each GPU."""
    ports, bytes_of = trace.fabric.port_names, trace.outcome.ports["bytes"]
    inward = {name: int(size) for name, size in zip(ports, bytes_of, strict=True) if name.startswith("link network>")}
    gpus = trace.fabric.n_gpus
    return inward, bytes_of[gpus : 2 * gpus].tolist()


@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize("operation, algorithm, policy", BETWEEN_NODES)
def test_between_nodes_each_row_crosses_once(nodes, operation, algorithm, policy):
    """To each node, that is: on the way to all its ranks, or as the sum of all its ranks."""
    machine = load_machine("hgx-h100-rails", {"interconnect.gpus": 8 * nodes})
    shape = TensorParallel(operation, 8 * nodes * 40, 8 * nodes * 24, 8 * nodes * 64, 8 * nodes, algorithm)
    trace = run(machine, shape, policy, trace="full")
    row = 2 * (shape.k if operation == "ag_gemm" else shape.n)
    times = 2 if operation == "gemm_ar" else 1
    crossed = (nodes - 1) * shape.local_m * row * times
    inward, ingress = received(trace)
    assert len(inward) == shape.ranks
    assert set(inward.values()) == {crossed}
    within = nodes * 7 * shape.local_m * row * times
    assert set(ingress) == {within}  # interfaces write to memory, beside the ports of NVLink


def test_between_nodes_a_gather_takes_what_nvlink_takes():
    """Two nodes of 8: 4.19 MB from each of 7 ranks and from their places in the other node pass the ingress, in 170 us. The
    GEMM and 98 us of the interfaces go on beside it, but for the tiles of the last block.
    """
    shape = TensorParallel("ag_gemm", 4096, 8192, 8192, 16)
    tile = TileTime.of(RAILS, shape)
    wire_us = 14 * shape.local_m * shape.k * 2 / (RAILS.drain_kbs("peer", 8) / 1e3)
    assert wire_us == pytest.approx(170, abs=1)
    assert time_us(RAILS, shape) == pytest.approx(wire_us + (tile.main + tile.epilogue) / 1e6, rel=0.02)


@pytest.mark.parametrize("operation", ["ag_gemm", "gemm_rs", "gemm_ar"])
@pytest.mark.parametrize("nic_rate, bound", [(45e9, "nvlink"), (10e9, "network")])
def test_a_collective_between_nodes_takes_the_longer_way_and_a_piece_of_the_shorter(operation, nic_rate, bound):
    machine = load_machine("hgx-h100-rails", {"interconnect.nic_rate": f"{nic_rate / 1e9} GB/s"})
    shape = TensorParallel(operation, 4096, 8192, 8192, 16)
    serial, alone = (time_us(machine, shape, policy) for policy in ("serial", "compute_only"))
    share = shape.local_m * 2 * (shape.k if operation == "ag_gemm" else shape.n)
    drain_us = {"network": share / nic_rate * 1e6, "nvlink": 14 * share / machine.drain_kbs("peer", 8) * 1e3}
    longer, shorter = drain_us.pop(bound), drain_us.popitem()[1]
    assert longer > shorter
    rounds = 2 if operation == "gemm_ar" else 1
    launch_us = machine.interconnect.collective_launch.value / 1e6
    assert serial - alone == pytest.approx(launch_us + rounds * (longer + shorter / PIECES), rel=0.03)


@pytest.mark.parametrize("nodes, per_node", [(2, 8), (4, 4), (4, 2)])
def test_a_collective_between_nodes_has_the_bus_bandwidth_that_it_is_given(nodes, per_node):
    """Where neither ports nor interfaces hold it up: the shares of all others, by that rate, and what fills the pipeline."""
    wide = {"nic_rate": "340 GB/s", "gpus_per_node": per_node, "gpus": nodes * per_node}
    machine = load_machine("hgx-h100-rails", {f"interconnect.{key}": value for key, value in wide.items()})
    shape = TensorParallel("gemm_rs", 4096, 8192, 8192, nodes * per_node)
    serial, alone = (
        simulate(build(machine, shape, how), machine.fabric(shape.ranks, 2048), trace="off").outcome.arrived_ps / 1e6
        for how in (Policy("serial", rate_kbs=20_000_000, launch_ps=0), Policy("compute_only"))
    )
    by_rate = (shape.ranks - 1) * shape.local_m * shape.n * 2 / 20e3
    assert by_rate <= serial - alone < 1.08 * by_rate


@pytest.mark.parametrize("operation, policy", [("ag_gemm", "serial"), ("gemm_rs", "fused"), ("gemm_rs", "reshaped")])
def test_between_nodes_nothing_goes_on_without_what_a_late_rank_has_to_give(operation, policy):
    """A rank of the first node starts 1 ms late: what its node adds up crosses later, as does what the others gather."""
    shape = TensorParallel(operation, 2048, 2048, 2048, 16)
    starts = [1_000_000_000 if rank == 3 else 0 for rank in range(16)]
    trace = simulate(build(RAILS, shape, Policy(policy), starts), RAILS.fabric(16, 4096), trace="full")
    spans = trace.spans()
    waits = (
        spans[spans.phase == "gemm"] if operation == "ag_gemm" else spans[(spans.phase == "cross") & (spans.gpu < 8)]
    )
    assert len(waits) > 0
    assert waits.start_us.min() > 1000


def test_what_crosses_does_not_wait_for_what_the_sms_store():
    """16 ranks, Llama-3 70B's down projection: interfaces need 64 % of the time of the GEMM, and go on beside it. They send
    the rows of the other node, which tiles take first, and are through when tiles take those of their own node.
    """
    shape = TensorParallel("gemm_rs", 8192, 8192, 28672, 16)
    fabric = RAILS.fabric(16)
    alone = simulate(build(RAILS, shape, Policy("compute_only")), fabric, trace="off").makespan_ps
    trace = simulate(build(RAILS, shape, Policy("reshaped", pieces=1)), fabric, trace="summary")
    spans = trace.spans()
    crossed_us = spans[spans.phase == "cross"].end_us.max()
    assert shape.local_m * shape.n * 2 / 43e3 == pytest.approx(0.52 * alone / 1e6, rel=0.01)
    assert crossed_us < 0.66 * alone / 1e6
    assert trace.makespan_ps < 1.01 * alone


def test_what_crosses_takes_no_sm():
    program = build(RAILS, TensorParallel("ag_gemm", 2048, 2048, 2048, 16), Policy("reserved_sms", reserved_sms=4))
    trace = simulate(program, RAILS.fabric(16, 4096), trace="full")
    ops = trace.ops()
    sent = ops[(ops.kind == "store") & (ops.role == "comm")]
    assert len(sent) > 0
    shares = program.shares["gpu"][program.destinations["first"][program.ops["target"][sent.op.to_numpy()]]]
    assert (shares // 8 == sent.gpu.to_numpy() // 8).all()


@pytest.mark.parametrize("wiring", ON_LINKS)
def test_a_fused_gather_gains_over_links(wiring):
    """On reserved SMs, too, but for a block of 2 MB that crosses last: one SM copies it to three neighbours in 50 us."""
    machine = wired(wiring)
    serial = time_us(machine, GATHER, "serial")
    assert time_us(machine, GATHER, "fused") < serial
    assert time_us(machine, GATHER, "reserved_sms") < serial * (1.01 if wiring == "islands" else 1)


def test_between_nodes_tiles_take_the_rows_of_their_own_node_first():
    program = build(wired("islands"), GATHER, Policy("fused"))  # two nodes of 4
    tasks = program.tasks[program.tasks["phase"] == program.phases.index("gemm")]
    owners = tasks["m_block"].reshape(GPUS, -1) // 8
    for rank in range(GPUS):
        assert set(owners[rank, : 8 * 4]) == {rank}
        assert set(owners[rank, : 4 * 8 * 4] // 4) == {rank // 4}


@pytest.mark.parametrize("wiring", ON_LINKS)
def test_rows_that_are_dealt_over_owners_use_all_links(wiring):
    """Shifted by rank alone they would go to one owner at a time."""
    machine = wired(wiring)
    serial, plain, dealt = (time_us(machine, SCATTER, policy) for policy in ("serial", "fused", "reshaped"))
    assert dealt < 0.9 * serial
    assert dealt < 0.9 * plain


def test_a_thin_link_holds_up_its_own_lane_only():
    """GPU 0 and 1 share one link, all other pairs have two."""
    links = [
        {"between": [a, b], "rate": f"{25 if (a, b) == (0, 1) else 50} GB/s"} for a in range(4) for b in range(a + 1, 4)
    ]
    machine = load_machine(
        "hgx-h100",
        {
            f"interconnect.{key}": value
            for key, value in (NO_SWITCH | {"kind": "custom", "gpus": 4, "links": links}).items()
        },
    )
    spans = run(machine, replace(GATHER, ranks=4), trace="full").spans()
    gathers = spans[spans.phase == "gather"]
    lane_us = gathers.groupby(["gpu", "sm"]).span_us.sum()
    assert lane_us[0].max() == pytest.approx(2 * lane_us[2].max(), rel=0.05)
    assert lane_us[2].max() == pytest.approx(2048 * 8192 * 2 / 49.5e3, rel=0.02)


def test_a_gather_by_multicast_overlaps_as_much_as_one_to_each_peer():
    """Blocks of all ranks arrive together, and tiles take them in that order."""
    machine = wired("switch")
    each, copied = (time_us(machine, replace(GATHER, algorithm=how)) for how in ("two_shot", "multicast"))
    assert copied == pytest.approx(each, rel=0.01)


def test_rows_that_are_all_there_fill_tiles_though_no_rank_has_enough():
    """8 rows of each of 8 ranks are one block of 64 after a gather of its own, and 8 blocks where they come one by one."""
    shape = replace(GATHER, m=64)
    assert (shape.n_tiles(in_place=True), shape.n_tiles()) == (4, 8 * 4)
    assert [len(tiles(shape, in_place)) for in_place in (True, False)] == [4, 8 * 4]
    assert tiles(shape).rows.max() == 8
    assert tiles(shape, in_place=True).rows.min() == 64
    for policy, n_tiles in (("serial", 4), ("fused", 8 * 4)):
        program = build(wired("switch"), shape, Policy(policy))
        assert (program.tasks["phase"] == program.phases.index("gemm")).sum() == GPUS * n_tiles
    narrow = replace(shape, block_m=64, block_n=64)
    whole, split = (TileTime.of(wired("switch"), narrow, in_place=in_place).main for in_place in (True, False))
    assert whole > split, "an SM takes in 64 rows of operands, or 8"


def test_over_links_a_rank_has_its_own_rows_first_and_then_a_block_of_every_rank():
    program = build(wired("mesh"), GATHER, Policy("fused"))
    tasks = program.tasks[program.tasks["phase"] == program.phases.index("gemm")]
    blocks = tasks["m_block"].reshape(GPUS, -1)  # 8 blocks of each rank's rows, and 4 of columns
    for rank in range(GPUS):
        assert set(blocks[rank, : 8 * 4] // 8) == {rank}
        assert set(blocks[rank, 8 * 4 : 8 * 4 + 4 * 7]) == {8 * other for other in range(GPUS) if other != rank}


@pytest.mark.parametrize("wiring", ["mesh", "ring", "islands"])
@pytest.mark.parametrize(
    "operation, algorithm, policy",
    [
        ("ag_gemm", "two_shot", "fused"),
        ("ag_gemm", "two_shot", "reserved_sms"),
        ("ag_gemm", "multicast", "fused"),
        ("gemm_rs", "two_shot", "reshaped"),
        ("gemm_rs", "two_shot", "reserved_sms"),
        ("gemm_ar", "two_shot", "serial"),
    ],
)
def test_both_engines_agree_over_links(wiring, operation, algorithm, policy):
    shape = TensorParallel(operation, 8 * 200, 8 * 72, 8 * 64, GPUS, algorithm)
    traces = [run(wired(wiring), shape, policy, trace="full", engine=engine) for engine in ("simpy", "compiled")]
    assert traces[0].outcome.same_as(traces[1].outcome) == []
