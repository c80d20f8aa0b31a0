"""Facts about tensor-parallel GEMMs: bytes, balance between GEMM and wire, what the order of rows costs, what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xstage.scenarios.machine_files import load_machine
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.schedules.tensor_parallel import Policy, TensorParallel, TileTime, balance_k, build, tiles

SMS = 6
POLICIES = {
    "compute_only": Policy("compute_only"),
    "serial": Policy("serial"),
    "fused": Policy("fused"),
    "reserved_sms": Policy("reserved_sms", reserved_sms=2),
    "reshaped": Policy("reshaped"),
}
KINDS = [
    ("gemm_rs", "two_shot"),
    ("ag_gemm", "two_shot"),
    ("ag_gemm", "multicast"),
    *[("gemm_ar", how) for how in ("two_shot", "multicast", "in_switch", "one_shot")],
]


def small(name="hgx-h100", sms=SMS, **changes):
    """A machine with few SMs, each of them as fast as in the whole machine."""
    whole = load_machine(name)
    part = sms / whole.sms
    rates = {"sms": sms, "bf16_tflops": whole.compute.bf16_tflops.value * part}
    rates["hbm_rate"] = f"{whole.compute.hbm_rate.value * part:.0f} kB/s"
    return load_machine(name, {f"compute.{key}": value for key, value in rates.items()} | changes)


MACHINES = {"hgx-h100": small(), "hgx-b200": small("hgx-b200")}
H100 = MACHINES["hgx-h100"]


def run(shape, policy, machine=H100, engine="compiled", trace="full", granule=4096):
    return simulate(build(machine, shape, policy), machine.fabric(shape.ranks, granule), engine, trace)


# --- bytes


@settings(max_examples=30)
@given(
    ranks=st.sampled_from([1, 2, 3, 4]),
    rows=st.integers(1, 300),
    columns=st.integers(1, 300),
    kind=st.sampled_from(KINDS),
    policy=st.sampled_from(sorted(POLICIES)),
)
def test_bytes_are_those_of_the_formulas(ranks, rows, columns, kind, policy):
    operation, algorithm = kind
    shape = TensorParallel(operation, rows * ranks, columns * ranks, 128 * ranks, ranks, algorithm)
    trace = run(shape, POLICIES[policy], granule=16384)
    ports = trace.outcome.ports["bytes"]
    sent, received = int(ports[:ranks].sum()), int(ports[ranks : 2 * ranks].sum())
    if ranks == 1 or policy == "compute_only":
        assert sent == received == 0
    elif policy == "serial" and operation == "ag_gemm":
        assert sent == received == ranks * shape.bytes_received
    elif algorithm == "in_switch":
        lanes = POLICIES[policy].reserved_sms or SMS  # tiles are announced to everybody, and so is a lane that ends
        flags = 0 if policy == "serial" else ranks * (len(tiles(shape)) + lanes) * 32
        assert sent - flags == shape.m * shape.n * 2
        assert received - (ranks - 1) * flags == (ranks - 1) * shape.m * shape.n * 2
    elif policy == "serial" and operation == "gemm_ar":
        assert sent == received == 2 * (ranks - 1) * shape.m * shape.n * 2
    elif operation == "gemm_ar" and algorithm == "multicast":
        assert sent == ranks * shape.m * shape.n * 2  # (P-1) contributions to a tile, and its sum once
        assert received == 2 * (ranks - 1) * shape.m * shape.n * 2
    else:
        assert sent == ranks * shape.bytes_sent
        assert received == ranks * shape.bytes_received


def test_volumes_by_hand():
    """m = n = 1024, P = 4: the output is 2 MiB."""
    mib = 2**20
    scatter = TensorParallel("gemm_rs", 1024, 1024, 4096, 4)
    assert (scatter.bytes_sent, scatter.bytes_received) == (1.5 * mib, 1.5 * mib)
    gather = TensorParallel("ag_gemm", 1024, 1024, 4096, 4)
    assert gather.bytes_sent == 3 / 4 * 1024 * 4096 * 2
    copied = TensorParallel("ag_gemm", 1024, 1024, 4096, 4, "multicast")
    assert (copied.bytes_sent, copied.bytes_received) == (gather.bytes_sent / 3, gather.bytes_sent)
    by_algorithm = {how: TensorParallel("gemm_ar", 1024, 1024, 4096, 4, how) for _, how in KINDS}
    assert (by_algorithm["two_shot"].bytes_sent, by_algorithm["two_shot"].bytes_received) == (3 * mib, 3 * mib)
    assert (by_algorithm["one_shot"].bytes_sent, by_algorithm["one_shot"].bytes_received) == (2 * mib, 6 * mib)
    assert (by_algorithm["multicast"].bytes_sent, by_algorithm["multicast"].bytes_received) == (2 * mib, 3 * mib)
    assert (by_algorithm["in_switch"].bytes_sent, by_algorithm["in_switch"].bytes_received) == (mib / 2, 1.5 * mib)


def test_every_row_of_a_reduce_scatter_gets_one_contribution_from_each_rank():
    """A tile of 128 rows over the border of two owners is stored to both."""
    shape = TensorParallel("gemm_rs", 400, 256, 256, 2)
    trace = run(shape, Policy("fused"))
    assert trace.outcome.counters[:2].tolist() == [4, 2 * 3]  # tiles 0, 1 | 1, 2, 3, from two ranks


def test_blocks_of_gathered_rows_do_not_cross_ranks():
    one = tiles(TensorParallel("ag_gemm", 400, 512, 256, 2))
    assert one.rows.tolist() == [128, 72, 128, 72]
    assert one.first_row.tolist() == [0, 128, 200, 328]


# --- times


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("operation, algorithm", KINDS)
def test_both_engines_agree(machine, policy, operation, algorithm):
    shape = TensorParallel(operation, 600, 900, 384, 3, algorithm)
    traces = [run(shape, POLICIES[policy], MACHINES[machine], engine) for engine in ("simpy", "compiled")]
    assert traces[0].outcome.same_as(traces[1].outcome) == []


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("operation, algorithm", KINDS)
def test_one_rank_is_the_gemm_alone(policy, operation, algorithm):
    shape = TensorParallel(operation, 512, 512, 256, 1, algorithm)
    alone, other = (run(shape, how).outcome for how in (POLICIES[policy].alone, POLICIES[policy]))
    assert other.arrived_ps == 0
    assert other.lanes_end_ps == alone.lanes_end_ps


@pytest.mark.parametrize(
    "name, flops, drain_gbs, published", [("hgx-h100", 650e12, 450, 1264), ("hgx-b200", 1500e12, 717, 1830)]
)
def test_below_the_balance_the_wire_sets_the_time_and_above_it_the_gemm(name, flops, drain_gbs, published):
    """GEMM + ReduceScatter on 8 GPUs: 650 TFLOPS and 450 GB/s balance at a k of 1264 on a rank, 1500 and 717 at 1830.

    With a longer k the egress is busy for balance / k of the time. With a shorter one the time no longer depends on k, and
    is that of the balance but for the rank's own rows, during which the wire rests.
    """
    assert balance_k(flops, drain_gbs * 1e6, 8) == pytest.approx(published, abs=1)
    peak = load_machine(name).compute.bf16_tflops.value
    machine = small(
        name,
        12,
        **{
            "interconnect.drain_rate": f"{drain_gbs * 12 / load_machine(name).sms} GB/s",
            "interconnect.duplex_efficiency": 1.0,
            "compute.mma_efficiency_bf16": flops / 1e12 / peak,
            "compute.tile_fixed": "0 us",
            "compute.kernel_launch": "0 us",
            "compute.epilogue_floor": "0 us",  # the rate of the formula is that of whole tiles, their epilogues included
            "compute.epilogue_scatter": 1e6,
        },
    )

    def growth(local_k):
        """Of the time, and of the time the egress is busy, with twice as many rows: first and last tiles drop out."""
        few, many = (
            run(
                TensorParallel("gemm_rs", rows * 8 * 12 * 128, 512, 8 * local_k, 8),
                Policy("reshaped"),
                machine,
                trace="off",
            )
            for rows in (1, 3)
        )
        busy = (int(trace.outcome.ports["busy_ps"][0]) for trace in (many, few))
        return many.outcome.lanes_end_ps - few.outcome.lanes_end_ps, next(busy) - next(busy)

    (long, busy), (longer, _), (short, _), (shorter, _) = (growth(published * part // 4) for part in (8, 12, 2, 1))
    assert 2 * published * busy / long == pytest.approx(published, rel=0.05)
    assert longer / long == pytest.approx(1.5, rel=0.02)
    assert short == pytest.approx(shorter, rel=0.05)
    assert short == pytest.approx(long / 2, rel=0.12)


def test_shifted_rows_avoid_the_incast_of_plain_order():
    """All ranks at rows of one owner share its ingress; shifted by rank each has an owner of its own."""
    machine = small(**{"interconnect.drain_rate": "20 GB/s"})
    shape = TensorParallel("gemm_rs", 4 * SMS * 128, 256, 4 * 2048, 4)
    alone, plain, shifted = (run(shape, Policy(how), machine) for how in ("compute_only", "fused", "reshaped"))
    assert plain.outcome.lanes_end_ps > 1.1 * alone.outcome.lanes_end_ps
    assert shifted.outcome.lanes_end_ps < 1.02 * alone.outcome.lanes_end_ps
    assert plain.outcome.lanes["stall_ps"].sum() > 5 * shifted.outcome.lanes["stall_ps"].sum()


def test_rotation_alone_is_the_order_of_reshaped():
    """Tiles of fused and of reserved SMs in the order of reshaped, which also moves stores into the next main loop."""
    shape = TensorParallel("gemm_rs", 4 * SMS * 128, 256, 4 * 2048, 4)

    def blocks(policy):
        program = build(H100, shape, policy)
        return program.tasks["m_block"][program.tasks["phase"] == program.phases.index("gemm")].reshape(4, -1).tolist()

    shifted = blocks(Policy("reshaped"))
    assert [ranks[0] for ranks in shifted] == [SMS, 2 * SMS, 3 * SMS, 0]  # rank 0 begins with the rows of rank 1
    assert blocks(Policy("fused", rotation=True)) == blocks(Policy("reserved_sms", reserved_sms=2)) == shifted
    plain = [list(range(4 * SMS))] * 4
    assert blocks(Policy("fused")) == plain
    assert blocks(Policy("reserved_sms", reserved_sms=2, rotation=False)) == plain


def test_on_reserved_sms_shifted_rows_beat_two_kernels_and_plain_order_loses():
    """Llama-3 70B's down projection on 8 H100: 1045 us in two kernels, 745 on 8 reserved SMs, 1443 in plain order."""
    machine, shape = load_machine("hgx-h100"), TensorParallel("gemm_rs", 8192, 8192, 28672, 8)
    serial, shifted, plain, fused, alone = (
        simulate(build(machine, shape, policy), machine.fabric(8), trace="off").makespan_ps
        for policy in (
            Policy("serial"),
            Policy("reserved_sms", reserved_sms=8),
            Policy("reserved_sms", reserved_sms=8, rotation=False),
            Policy("fused", rotation=True),
            Policy("compute_only"),
        )
    )
    assert alone < fused < shifted < 0.75 * serial
    assert plain > 1.3 * serial


@pytest.mark.parametrize("policy, rotation", [("reshaped", False), ("serial", True), ("compute_only", True)])
def test_rotation_is_refused_where_there_is_no_choice(policy, rotation):
    with pytest.raises(InputError, match=f"rotation = {rotation}: does not fit the policy"):
        Policy(policy, rotation=rotation)


@pytest.mark.parametrize("issue_gbs", [43, 10])
def test_an_aliased_output_gives_a_store_three_steps_of_k(issue_gbs):
    """SM90: no MMA during an epilogue, nor from the third step on until the store before it is out; SM100 has neither."""
    shape = TensorParallel("gemm_rs", 2 * SMS * 128, 256, 1024, 1)
    machine = small(**{"stage.issue_rate": f"{issue_gbs} GB/s"})
    time = TileTime.of(machine, shape)
    store = machine.issue_time_ps(128 * 256 * 2)
    assert time.resume == time.main * 3 // 16
    assert (store > time.resume) == (issue_gbs == 10)
    assert second_tile_ps(machine, shape, "compute_only") == pytest.approx(
        time.main + time.epilogue + max(0, store - time.resume), abs=2
    )
    late = run(shape, Policy("compute_only"), MACHINES["hgx-b200"]).spans()
    spans_us = late[(late.role == "mma") & (late.sm == 0)].span_us
    assert spans_us.to_numpy() == pytest.approx(TileTime.of(MACHINES["hgx-b200"], shape).main / 1e6)


def test_a_buffer_of_its_own_hides_a_store_but_no_epilogue_on_sm90():
    """Accumulators are registers of the warps that write them out: the next MMA waits, wherever the output is staged."""
    shape = TensorParallel("gemm_rs", 2 * SMS * 128, 256, 1024, 1)
    machine = small(**{"stage.issue_rate": "10 GB/s"})
    time = TileTime.of(machine, shape)
    assert second_tile_ps(machine, shape, "reshaped") == pytest.approx(time.main + time.epilogue, abs=2)


def second_tile_ps(machine, shape, policy):
    """From when the second tile of an SM is taken to the end of its MMA."""
    spans = run(shape, Policy(policy), machine).spans()
    return spans[(spans.role == "mma") & (spans.sm == 0)].sort_values("start_us").iloc[1].span_us * 1e6


@pytest.mark.parametrize("rows", [8192, 16384])
@pytest.mark.parametrize("machine", ["hgx-h100", "hgx-b200"])
def test_no_policy_is_faster_than_the_gemm_alone(machine, rows):
    """Of GEMM + ReduceScatter: every policy has the GEMM's own tiles, and stores besides."""
    shape, whole = TensorParallel("gemm_rs", rows, 8192, 28672, 8), load_machine(machine)
    alone, *others = (
        run(shape, POLICIES[how], whole, trace="off").outcome.lanes_end_ps
        for how in ("compute_only", "reshaped", "fused", "serial")
    )
    assert min(others) >= 0.999 * alone


def test_a_gathered_gemm_overlaps_the_wire_with_rows_it_has():
    """The serial policy pays launch, wire and GEMM in turn; fused is near the longer of the two."""
    machine = small(**{"interconnect.drain_rate": "20 GB/s"})
    shape = TensorParallel("ag_gemm", 4 * SMS * 128, 4 * 1024, 1024, 4)
    alone, fused = (run(shape, Policy(how), machine).outcome.lanes_end_ps for how in ("compute_only", "fused"))
    serial = run(shape, Policy("serial", rate_kbs=20_000_000, launch_ps=0), machine).outcome.lanes_end_ps
    wire = shape.bytes_sent / 20e9 * 1e12
    assert serial == pytest.approx(alone + wire, rel=0.01)
    assert fused < alone + 0.35 * wire


def test_one_shot_is_for_few_rows_and_two_shot_for_many():
    """Lamport's P - 1 copies of the output cost ingress; two rounds cost latency and a second store."""

    def time_ps(rows, algorithm):
        shape = TensorParallel("gemm_ar", rows, 2048, 8 * 256, 8, algorithm)
        outcome = run(shape, Policy("fused"), MACHINES["hgx-b200"], trace="off").outcome
        return max(outcome.lanes_end_ps, outcome.arrived_ps)

    assert time_ps(1024, "one_shot") > 1.5 * time_ps(1024, "two_shot")
    assert time_ps(16, "one_shot") < 1.1 * time_ps(16, "two_shot")
    assert time_ps(1024, "multicast") < time_ps(1024, "two_shot")


def broadcast_us(policy, grid=None, sms=132):
    """What the lane of the only tile takes, beyond one round trip to the switch."""
    shape = TensorParallel("gemm_ar", 128, 256, 8 * 512, 8, "in_switch", grid=grid)
    machine = small(sms=sms)
    spans = run(shape, policy, machine).spans().set_index("phase").span_us
    return spans["broadcast"].max() - 2 * machine.interconnect.latency.value / 1e6


@pytest.mark.parametrize("grid", [None, 1, 64])
def test_a_lane_takes_its_part_of_the_rate_at_which_the_switch_adds_up(grid):
    """One tile on 8 ranks: its 64 KiB go through one of 132 lanes at a part of 480 GB/s / (2 (P-1)/P), busy or not."""
    rate = 480e3 / 1.75 / 132  # bytes a us
    assert broadcast_us(Policy("fused"), grid) == pytest.approx(65536 / rate, rel=0.01)


@pytest.mark.parametrize("reserved, part", [(1, 16), (16, 16), (32, 32)])
def test_reserved_sms_reach_the_rate_of_the_switch_from_as_many_on_as_nccl_takes(reserved, part):
    rate = 480e3 / 1.75 / part
    assert broadcast_us(Policy("reserved_sms", reserved_sms=reserved)) == pytest.approx(65536 / rate, rel=0.01)


def test_no_lane_leaves_before_all_ranks_have_released_what_they_stored():
    shape = TensorParallel("gemm_ar", 256, 512, 4 * 512, 4, "in_switch")
    late = simulate(build(H100, shape, Policy("fused"), [0, 30_000_000, 0, 0]), H100.fabric(4, 4096), trace="off")
    comm = late.program.lanes["role"] == late.program.roles.index("comm")
    ends = late.outcome.lanes["end_ps"][comm]
    assert ends.min() > 30_000_000
    assert ends.max() - ends.min() <= H100.interconnect.latency.value


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_an_all_reduce_of_its_own_in_the_switch_has_its_own_rate(ranks):
    """That which was measured on 8 GPUs, or what a port lets through: all bytes to be added up, and a P-th of the sums."""
    shape = TensorParallel("gemm_ar", 1024, 1024, ranks * 512, ranks, "in_switch")
    alone, serial = (run(shape, Policy(how), trace="off").outcome.lanes_end_ps for how in ("compute_only", "serial"))
    wiring, size = H100.interconnect, 1024 * 1024 * 2
    by_bus = 2 * (ranks - 1) / ranks * size / (wiring.all_reduce_rate.value / 1e3)
    by_port = (1 + 1 / ranks) * size / (H100.drain_kbs("peer", ranks) / 1e3)
    assert (by_bus > by_port) == (ranks == 8)
    expected_ps = wiring.collective_launch.value + wiring.latency.value + max(by_bus, by_port) * 1e6
    assert serial - alone == pytest.approx(expected_ps, rel=0.03)


@pytest.mark.parametrize(
    "operation, algorithm",
    [(operation, how) for operation in ("gemm_rs", "ag_gemm") for how in ("multicast", "in_switch", "one_shot")],
)
def test_an_operation_refuses_the_algorithms_of_others(operation, algorithm):
    if (operation, algorithm) == ("ag_gemm", "multicast"):
        assert TensorParallel(operation, 1024, 1024, 1024, 8, algorithm).algorithm == algorithm
        return
    with pytest.raises(InputError, match=f"algorithm = '{algorithm}': is not an algorithm of {operation}.*two_shot"):
        TensorParallel(operation, 1024, 1024, 1024, 8, algorithm)


def test_a_gather_by_multicast_takes_the_same_ingress_and_a_part_of_the_egress():
    """So it ends no later, and what its rank sends is out after 1 / (P-1) of the time."""
    outcomes = {
        how: run(TensorParallel("ag_gemm", 4096, 1024, 8192, 4, how), Policy("fused"), trace="off").outcome
        for how in ("two_shot", "multicast")
    }
    ends = {how: outcome.lanes_end_ps for how, outcome in outcomes.items()}
    busy = {how: int(outcome.ports["busy_ps"][0]) for how, outcome in outcomes.items()}
    assert ends["multicast"] < 1.05 * ends["two_shot"]
    assert busy["multicast"] == pytest.approx(busy["two_shot"] / 3, rel=0.01)


@pytest.mark.parametrize("part", ["hbm_rate", "sm_port", "l2_throughput"])
def test_a_tile_takes_no_longer_where_something_is_without_limit(part):
    shape = TensorParallel("gemm_rs", 2048, 1024, 1024, 4)
    without = small(**{f"compute.{part}": "9000000 GB/s"})
    assert TileTime.of(without, shape).main <= TileTime.of(H100, shape).main


def test_fewer_ctas_compute_in_more_waves_and_narrow_tiles_are_bound_by_what_an_sm_takes_in():
    machine = small(**{"compute.hbm_rate": "3350 GB/s"})
    wide = TensorParallel("ag_gemm", 768, 128, 1024, 1, block_n=64)
    whole, half = (run(shape, Policy("compute_only"), machine).outcome for shape in (wide, replace(wide, grid=3)))
    start = machine.compute.kernel_launch.value
    assert half.lanes_end_ps - start == pytest.approx(2 * (whole.lanes_end_ps - start), rel=0.15)
    port_us = (128 + 64) * 1024 * 2 / (machine.compute.sm_port.value / 1e3)
    assert TileTime.of(machine, wide).main / 1e6 == pytest.approx(port_us + 0.3, rel=0.001)


@pytest.mark.parametrize("operation, algorithm", KINDS[1:])
def test_everybody_waits_for_a_late_rank_where_sums_or_rows_are_shared(operation, algorithm):
    shape = TensorParallel(operation, 1024, 1024, 1024, 4, algorithm)
    late = simulate(build(H100, shape, Policy("fused"), [0, 80_000_000, 0, 0]), H100.fabric(4, 4096), trace="off")
    end = late.outcome.lanes["end_ps"][late.program.lanes["gpu"] == 0].max()
    assert end > run(shape, Policy("fused")).outcome.lanes_end_ps + 40e6


# --- refusals


@pytest.mark.parametrize(
    "change, said",
    [
        ({"operation": "gemm"}, "operation = 'gemm': is unknown"),
        (
            {"algorithm": "ring"},
            r"algorithm = 'ring': is unknown \(allowed: two_shot, multicast, in_switch, one_shot\)",
        ),
        ({"m": 1001}, r"m = 1001: cannot be shared out evenly \(allowed: a multiple of 4 ranks\)"),
        ({"k": 1001}, "k = 1001: cannot be shared out evenly"),
        ({"n": 0}, "n = 0: must be at least 1"),
        ({"grid": 0}, "grid = 0: must be at least 1"),
        ({"k": 8 * 10**12}, r"k = 8000000000000: is too large \(allowed: 1 to 2147483648\)"),
        ({"k": 8 * 10**30}, "k = 8000000000000000000000000000000: is too large"),
        ({"block_m": 512}, r"block_m x block_n = '512 x 256': is too large a tile \(allowed: at most 65536 sums"),
        ({"block_n": 10**30}, "block_m x block_n = .*: is too large a tile"),
    ],
)
def test_shapes_that_make_no_sense_are_refused(change, said):
    with pytest.raises(InputError, match=said):
        TensorParallel(**({"operation": "gemm_rs", "m": 1024, "n": 1024, "k": 1024, "ranks": 4} | change))


def test_policies_and_machines_that_do_not_fit_are_refused():
    shape = TensorParallel("gemm_rs", 1024, 1024, 1024, 4)
    with pytest.raises(InputError, match="policy = 'parallel': is unknown"):
        Policy("parallel")
    with pytest.raises(InputError, match="reserved_sms = 2: does not fit the policy"):
        Policy("fused", reserved_sms=2)
    with pytest.raises(InputError, match="reserved_sms = 6: leaves no SM"):
        build(H100, shape, Policy("reserved_sms", reserved_sms=6))
    with pytest.raises(InputError, match=r"interconnect\.ring_rate: is not given"):
        build(small(**{"interconnect.ring_rate": None}), shape, Policy("serial"))
    with pytest.raises(InputError, match=r"interconnect\.all_reduce_rate: is not given"):
        switch = TensorParallel("gemm_ar", 1024, 1024, 1024, 4, "in_switch")
        build(small(**{"interconnect.all_reduce_rate": None}), switch, Policy("fused"))
    with pytest.raises(InputError, match="ranks = 9: more than GPUs"):
        build(H100, TensorParallel("gemm_rs", 1152, 1152, 1152, 9), Policy())


def test_rows_too_long_for_one_store_are_refused_by_name():
    shape = TensorParallel("ag_gemm", 1024, 1024, 2**23, 4)
    said = r"k = 8388608: makes rows too long for one store \(allowed: 1 to 4194304 for blocks of 128 rows\)"
    with pytest.raises(InputError, match=said):
        build(H100, shape, Policy("fused"))
    longest = build(H100, replace(shape, k=2**22), Policy("fused"))
    assert longest.ops["bytes"].max() == 2**30


def test_a_collective_of_more_stores_than_can_be_written_down_is_refused():
    with pytest.raises(InputError, match=r"bytes of the collective = .*: makes too many ops"):
        build(H100, TensorParallel("ag_gemm", 8 * 10**7, 1024, 2**31, 8), Policy("serial"))


def test_an_odd_number_of_everything_still_adds_up():
    """Every tile of a two-shot AllReduce gets P contributions and goes out to P - 1 ranks."""
    shape = TensorParallel("gemm_ar", 333, 777, 3 * 65, 3, "two_shot")
    outcome = run(shape, Policy("reshaped")).outcome
    n_tiles = len(tiles(shape))
    assert outcome.counters[:3].sum() == 2 * n_tiles
    bands = np.clip(tiles(shape).rows[:, None] - 32 * np.arange(4), 0, 32)
    assert outcome.counters[3:].tolist() == (3 * (bands > 0).sum(axis=1)).tolist()


@pytest.mark.parametrize("rows", [8 * 10**14, 8 * 10**30])
def test_more_tiles_than_can_be_written_down_are_refused_before_any_table_is_made(rows):
    with pytest.raises(InputError, match=r"m x n = .* x 8192': makes too many ops"):
        build(H100, TensorParallel("gemm_rs", rows, 8192, 1024, 8), Policy("fused"))


def test_more_pieces_than_can_be_written_down_are_refused_before_any_table_is_made():
    shape = TensorParallel("gemm_rs", 8192, 8192, 1024, 8)
    with pytest.raises(InputError, match=r"pieces = 1000000: makes too many ops"):
        build(H100, shape, Policy("reshaped", pieces=10**6))


@pytest.mark.parametrize(
    "operation, algorithm, longer",
    [("gemm_rs", "two_shot", 2.0), ("gemm_ar", "two_shot", 1.5), ("gemm_ar", "one_shot", 1.0)],
)
def test_stores_that_add_take_the_receiver_longer_and_no_others(operation, algorithm, longer):
    """Contributions to a sum do, at half the rate; sums that an owner stores to everybody, and Lamport's copies, do not."""
    shape, half = TensorParallel(operation, 1024, 512, 1024, 4, algorithm), {"interconnect.reduce_efficiency": 0.5}
    busy = [
        run(shape, Policy("fused"), machine, trace="off").outcome.ports["busy_ps"][4:8].sum()
        for machine in (small(), small(**half))
    ]
    assert busy[1] / busy[0] == pytest.approx(longer, rel=0.01)


@pytest.mark.parametrize("pieces", [2, 4])
def test_pieces_of_a_store_begin_evenly_over_the_next_main_loop(pieces):
    machine = small(**{"interconnect.drain_rate": "4000 GB/s"})
    shape = TensorParallel("gemm_rs", 3 * SMS * 128, 256, 4 * 2048, 4)
    ops = run(shape, Policy("reshaped", pieces=pieces), machine).ops()
    stores = ops[(ops.role == "store") & (ops.kind == "store") & (ops.gpu == 0) & (ops.sm == 0)]
    first = stores[stores.task == stores.task.iloc[0]].start_us.to_numpy()
    assert np.diff(first) == pytest.approx(TileTime.of(machine, shape).main / 1e6 / pieces, rel=0.01)


def test_a_copy_engine_is_as_fast_as_the_link_to_one_peer():
    """Not as fast as all links together, though it serves every peer in turn."""
    machine = small(
        **{"interconnect.kind": "direct", "interconnect.drain_rate": None, "interconnect.link_rate": "50 GB/s"}
    )
    spans = run(TensorParallel("ag_gemm", 1024, 1024, 1024, 4), Policy("fused"), machine).spans()
    gathers = spans[spans.phase == "gather"]
    rate = machine.drain_kbs("peer", 4) / 1e3  # bytes a us
    assert gathers.span_us.min() >= 0.999 * 128 * 1024 * 2 / rate


def test_a_gemm_behind_a_gather_of_its_own_is_launched_after_it():
    machine = small(**{"compute.kernel_launch": "50 us"})
    shape = TensorParallel("ag_gemm", 4 * SMS * 128, 4 * 1024, 1024, 4)
    alone = run(shape, Policy("compute_only"), machine, trace="off").outcome.lanes_end_ps
    serial = run(shape, Policy("serial", rate_kbs=300_000_000, launch_ps=0), machine, trace="off").outcome.lanes_end_ps
    assert serial == pytest.approx(alone + shape.bytes_sent / 300e9 * 1e12, abs=2e6)
