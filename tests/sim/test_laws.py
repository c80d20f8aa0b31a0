"""What must hold in every run, whatever the Program: conservation, capacity, order, scale."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from xstage.sim import engine_compiled
from xstage.sim import program as p
from xstage.sim.execute import simulate
from xstage.sim.layout import Layout
from xstage.sim.outcome import Outcome
from xstage.sim.program import Program
from xstage.sim.program_builder import ProgramBuilder, Seat
from xstage.sim.program_index import expand, op_repeats
from xstage.sim.topology import Fabric, StageParameters, switch

from .random_programs import random_case

Case = tuple[Program, Fabric, Layout, Outcome]


def finished_cases(count: int, first_seed: int = 50_000) -> list[Case]:
    """Random Programs that run to their end, with their full outcome."""
    cases: list[Case] = []
    seed = first_seed
    while len(cases) < count:
        program, fabric = random_case(seed)
        layout = Layout.of(program, fabric)
        outcome, stuck = engine_compiled.run(program, fabric, layout, full=True)
        seed += 1
        if not stuck:
            cases.append((program, fabric, layout, outcome))
    return cases


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return finished_cases(150)


def test_every_byte_for_another_gpu_is_issued_once_drained_once_and_arrives_once(cases: list[Case]) -> None:
    for program, _, _, outcome in cases:
        arrived = np.zeros((len(program.ops), program.n_gpus), dtype=np.int64)
        records = outcome.granule_records
        store = program.ops["kind"][records["op"]] == p.STORE
        np.add.at(arrived, (records["op"][store], records["destination"][store]), records["bytes"][store])
        # An op may be run by lanes of different GPUs; a random Program gives every op to one GPU.
        ran = outcome.op_records[outcome.op_records["op"] >= 0]
        gpu_of_op = np.full(len(program.ops), -1)
        gpu_of_op[ran["op"]] = program.lanes["gpu"][ran["lane"]]
        for op in np.flatnonzero((program.ops["kind"] == p.STORE) & (gpu_of_op >= 0)):
            row = program.destinations[program.ops["target"][op]]
            expected = np.zeros(program.n_gpus, dtype=np.int64)
            shares = program.shares[row["first"] : row["first"] + row["n_shares"]]
            expected[shares["gpu"]] = shares["bytes"]
            expected[gpu_of_op[op]] = 0
            assert arrived[op].tolist() == expected.tolist()


def test_the_bytes_of_ports_are_the_bytes_of_granules(cases: list[Case]) -> None:
    for program, fabric, _, outcome in cases:
        records = outcome.granule_records
        request = (program.ops["kind"][records["op"]] == p.LOAD) & _is_request(program, outcome)
        crossing = records[(records["source"] != records["destination"]) & ~request]
        reply = (program.lanes["gpu"][crossing["lane"]] != crossing["source"]).tolist()
        beside = _is_from_memory(program, crossing).tolist()
        routes = [fabric.route(int(a), int(b), r) for a, b, r in zip(*_ends(crossing), reply, strict=True)]
        last_port = [route[-2 if far and len(route) > 2 else -1] for route, far in zip(routes, beside, strict=True)]
        expected = np.zeros(fabric.n_ports, dtype=np.int64)
        np.add.at(expected, np.array(last_port, dtype=int), crossing["bytes"])
        ingress = slice(fabric.n_gpus, 2 * fabric.n_gpus)
        assert outcome.ports["bytes"][ingress].tolist() == expected[ingress].tolist()


def _is_request(program: Program, outcome: Outcome) -> np.ndarray:
    """The first granule of every load is its request."""
    records = outcome.granule_records
    load = program.ops["kind"][records["op"]] == p.LOAD
    first = np.zeros(len(records), dtype=bool)
    key = np.stack([records["lane"].astype(np.int64), records["op"]])[:, load]
    _, index = np.unique(key, axis=1, return_index=True)
    first[np.flatnonzero(load)[index]] = True
    return first


def _is_from_memory(program: Program, records: np.ndarray) -> np.ndarray:
    """Which granules pass the links of their route only."""
    return program.ops["flags"][records["op"]] & p.FROM_MEMORY > 0


def _ends(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return records["source"], records["destination"]


def test_the_stage_never_holds_more_than_its_capacity(cases: list[Case]) -> None:
    full = 0
    for program, fabric, layout, outcome in cases:
        room = fabric.capacity_gpu[: program.n_gpus]
        assert (outcome.peak_gpu_bytes <= room).all()
        assert (outcome.peak_sm_bytes <= fabric.capacity_sm[layout.sm_gpu]).all()
        full += int((outcome.peak_gpu_bytes + fabric.granule_bytes > room).any())
    assert full > 20  # and many of these Programs do fill it


def test_occupancy_over_time_ends_empty_and_peaks_where_the_engine_says(cases: list[Case]) -> None:
    for program, fabric, _, outcome in cases[:60]:
        trace = simulate(program, fabric, trace="full")
        for gpu in range(program.n_gpus):
            _, held = trace.occupancy_steps(gpu)
            assert held[-1:].tolist() in ([], [0])
            assert held.max(initial=0) == outcome.peak_gpu_bytes[gpu]


def test_granules_of_one_sm_are_admitted_in_the_order_of_their_tickets(cases: list[Case]) -> None:
    for program, _, layout, outcome in cases:
        records = outcome.granule_records
        stored = records[np.isin(program.ops["kind"][records["op"]], (p.STORE, p.SIGNAL))]
        for sm in range(len(layout.sm_gpu)):
            mine = stored[layout.lane_sm[stored["lane"]] == sm]
            assert (np.diff(mine["admitted_ps"]) >= 0).all()


def test_stores_from_one_gpu_to_another_arrive_in_the_order_of_admission(cases: list[Case]) -> None:
    for program, fabric, _, outcome in cases:
        if fabric.fair_replies:
            continue
        records = outcome.granule_records
        stored = records[np.isin(program.ops["kind"][records["op"]], (p.STORE, p.SIGNAL))]
        for source in range(program.n_gpus):
            for destination in range(program.n_gpus):
                pair = stored[(stored["source"] == source) & (stored["destination"] == destination)]
                far = _is_from_memory(program, pair)
                for way in (pair[far], pair[~far]):
                    assert (np.diff(way["visible_ps"]) >= 0).all()


def test_no_time_runs_backwards(cases: list[Case]) -> None:
    for _, _, _, outcome in cases:
        ops, granules = outcome.op_records, outcome.granule_records
        assert (ops["start_ps"] + ops["stall_ps"] + ops["wait_ps"] <= ops["end_ps"]).all()
        assert (np.diff(ops["end_ps"]) >= 0).all()
        assert (granules["admitted_ps"] <= granules["drained_ps"]).all()
        assert (granules["drained_ps"] <= granules["visible_ps"]).all()


def test_a_lane_is_busy_stalled_or_waiting_at_every_moment_of_its_life(cases: list[Case]) -> None:
    for program, _, _, outcome in cases:
        lanes = outcome.lanes
        life = program.lanes["start_ps"] + lanes["busy_ps"] + lanes["stall_ps"] + lanes["wait_ps"].sum(axis=1)
        assert life.tolist() == lanes["end_ps"].tolist()


def test_records_add_up_to_the_totals(cases: list[Case]) -> None:
    for program, _, _, outcome in cases:
        records = outcome.op_records
        total = np.zeros((len(program.lanes), 2), dtype=np.int64)
        np.add.at(total, records["lane"], np.stack([records["stall_ps"], records["wait_ps"]], axis=1))
        assert total[:, 0].tolist() == outcome.lanes["stall_ps"].tolist()
        assert total[:, 1].tolist() == outcome.lanes["wait_ps"].sum(axis=1).tolist()


def test_every_task_is_run_by_one_group_and_every_op_as_often_as_the_tables_say(cases: list[Case]) -> None:
    for program, _, layout, outcome in cases:
        ran = np.bincount(outcome.op_records["op"][outcome.op_records["op"] >= 0], minlength=len(program.ops))
        assert ran.tolist() == op_repeats(program).tolist()
        for task in program.queue_tasks:
            rows = outcome.spans[layout.span_first[task] :][: program.tasks["n_runs"][task]]
            assert len(set(rows["group"].tolist())) == 1


def test_counters_end_at_what_was_signalled_stored_and_loaded(cases: list[Case]) -> None:
    for program, _, _, outcome in cases:
        final = program.counters["initial"].astype(np.int64)
        repeats, ops = op_repeats(program), program.ops
        counted = (ops["counter"] >= 0) & (ops["kind"] == p.LOAD)
        np.add.at(final, ops["counter"][counted], repeats[counted])
        signal = ops["kind"] == p.SIGNAL
        np.add.at(final, ops["counter"][signal], (repeats * ops["count"])[signal])
        stores = np.flatnonzero((ops["kind"] == p.STORE) & (ops["counter"] >= 0))
        rows = program.destinations[ops["target"][stores]]
        owner, share = expand(rows["first"], rows["n_shares"])
        counter = ops["counter"][stores][owner] + ops["stride"][stores][owner] * program.shares["gpu"][share]
        np.add.at(final, counter, repeats[stores][owner])
        assert outcome.counters.tolist() == final.tolist()


def scaled(program: Program, fabric: Fabric, factor: int) -> tuple[Program, Fabric]:
    """The same case with every time, and the inverse of every rate, `factor` times as large."""
    ops, lanes = program.ops.copy(), program.lanes.copy()
    ops["duration_ps"] *= factor
    lanes["start_ps"] *= factor
    slower = replace(fabric, rates_kbs=fabric.rates_kbs // factor, latency_ps=fabric.latency_ps * factor)
    return replace(program, ops=ops, lanes=lanes), slower


def scales_exactly(fabric: Fabric, factor: int) -> bool:
    """All services are whole picoseconds, before and after."""
    return bool((fabric.rates_kbs % factor == 0).all() and (10**9 % fabric.rates_kbs == 0).all())


def without_issue_time(program: Program) -> Program:
    ops = program.ops.copy()
    ops["duration_ps"][ops["kind"] == p.STORE] = 0
    return replace(program, ops=ops)


def test_where_services_scale_exactly_every_time_scales_by_the_same_factor(cases: list[Case]) -> None:
    factor, tried = 4, 0
    for original, fabric, layout, _ in cases:
        if not scales_exactly(fabric, factor):
            continue
        program = without_issue_time(original)
        tried += 1
        before, _ = engine_compiled.run(program, fabric, layout, full=True)
        after, _ = engine_compiled.run(*scaled(program, fabric, factor), layout, full=True)
        for name in ("end_ps", "busy_ps", "stall_ps", "wait_ps"):
            assert (after.lanes[name] == factor * before.lanes[name]).all()
        assert (after.granule_records["visible_ps"] == factor * before.granule_records["visible_ps"]).all()
    assert tried > 20


def burst(builder: ProgramBuilder, source: int, sm: int, destination: int, size: int, issue_ps: int = 0) -> None:
    row = builder.destination({destination: size})
    run = builder.op_list([{"kind": p.STORE, "target": row, "bytes": size, "duration_ps": issue_ps}])
    plan = builder.plan(repeat=[builder.queue([builder.tasks(run, 1)])])
    builder.groups(gpu=source, plan=plan, seats=[Seat("store", sm)])


STAGE = StageParameters(granule_bytes=512, capacity_sm_bytes=4096, capacity_gpu_bytes=16384)


@pytest.mark.parametrize("senders", [1, 2, 3, 7])
def test_incast_shares_the_receivers_rate(senders: int) -> None:
    """n senders to one receiver take n times as long as one: the receiver's port is the limit."""
    builder = ProgramBuilder(8)
    for sender in range(1, senders + 1):
        burst(builder, sender, 0, 0, 1 << 20)
    trace = simulate(builder.build(), switch(8, 100_000_000, STAGE))
    alone_ps = (1 << 20) * 10  # 10 ps a byte at 100 GB/s
    assert trace.makespan_ps == pytest.approx(senders * alone_ps, rel=0.002)


def test_a_waiting_receiver_does_not_hold_up_stores_to_others() -> None:
    """While GPU 0 is overrun by seven senders, a store from one of them to GPU 7 that follows passes at full rate."""
    builder = ProgramBuilder(8)
    for sender in range(1, 7):
        burst(builder, sender, 0, 0, 8192)
    burst(builder, 1, 1, 7, 512)
    trace = simulate(builder.build(), switch(8, 100_000_000, STAGE), trace="full")
    free = trace.granules().query("source == 1 and destination == 7")
    assert free["drained_us"].max() < 0.1 * trace.makespan_ps / 1e6


def test_a_hog_does_not_stall_a_light_sm_while_the_gpu_stage_has_room() -> None:
    builder = ProgramBuilder(2)
    burst(builder, 0, sm=0, destination=1, size=1 << 20)
    burst(builder, 0, sm=1, destination=1, size=2048)
    stage = replace(STAGE, capacity_gpu_bytes=1 << 20)
    lanes = simulate(builder.build(), switch(2, 1_000_000, stage)).lanes().set_index("sm")
    assert lanes["stall_us"][0] > 0
    assert lanes["stall_us"][1] == 0


def test_a_hog_that_fills_the_gpu_stage_stalls_everyone() -> None:
    builder = ProgramBuilder(2)
    burst(builder, 0, sm=0, destination=1, size=1 << 20)
    burst(builder, 0, sm=1, destination=1, size=2048)
    stage = replace(STAGE, capacity_gpu_bytes=STAGE.capacity_sm_bytes)
    lanes = simulate(builder.build(), switch(2, 1_000_000, stage)).lanes().set_index("sm")
    assert lanes["stall_us"][1] > 0


def test_a_multicast_leaves_the_egress_once_and_reaches_every_ingress() -> None:
    builder = ProgramBuilder(4)
    row = builder.destination({1: 4096, 2: 4096, 3: 4096}, replicate=True)
    run = builder.op_list([{"kind": p.STORE, "target": row, "bytes": 4096}])
    plan = builder.plan(repeat=[builder.queue([builder.tasks(run, 1)])])
    builder.groups(gpu=0, plan=plan, seats=[Seat("store")])
    ports = simulate(builder.build(), switch(4, 100_000_000, STAGE)).ports().set_index("port")
    assert ports["bytes"].to_dict() == {
        "egress 0": 4096, "egress 1": 0, "egress 2": 0, "egress 3": 0,
        "ingress 0": 0, "ingress 1": 4096, "ingress 2": 4096, "ingress 3": 4096,
    }  # fmt: skip


def test_a_signal_is_seen_after_the_stores_before_it() -> None:
    """Release order: who sees the flag of a lane sees what the lane stored to that GPU before."""
    builder = ProgramBuilder(2)
    arrived = builder.counters(home=1, cause="inputs")
    flag = builder.counters(home=1, cause="peer")
    row = builder.destination({1: 8192})
    send = builder.op_list(
        [
            {"kind": p.STORE, "target": row, "bytes": 8192, "counter": arrived},
            {"kind": p.SIGNAL, "counter": flag, "count": 1},
        ]
    )
    builder.groups(gpu=0, plan=builder.plan(repeat=[builder.queue([builder.tasks(send, 1)])]), seats=[Seat("store")])
    see = builder.op_list(
        [{"kind": p.WAIT, "counter": flag, "count": 1}, {"kind": p.WAIT, "counter": arrived, "count": 1}]
    )
    builder.groups(gpu=1, plan=builder.plan(repeat=[builder.queue([builder.tasks(see, 1)])]), seats=[Seat("mma")])
    waits = simulate(builder.build(), switch(2, 1_000_000, STAGE), trace="full").ops().query("kind == 'wait'")
    assert waits["wait_us"].tolist()[0] > 0
    assert waits["wait_us"].tolist()[1] == 0


def test_load_replies_compete_with_the_owners_stores() -> None:
    """A pull from a GPU that is busy storing takes longer; a fair egress lets it through sooner."""

    def pull_time(storing: bool, fair: bool) -> float:
        builder = ProgramBuilder(2)
        got = builder.counters(home=0, cause="inputs")
        pull = builder.op_list(
            [{"kind": p.LOAD, "target": 1, "bytes": 4096, "counter": got}, {"kind": p.WAIT, "counter": got, "count": 1}]
        )
        builder.groups(
            gpu=0,
            plan=builder.plan(repeat=[builder.queue([builder.tasks(pull, 1)])]),
            seats=[Seat("dispatch", window=1, start_ps=1)],
        )
        if storing:
            burst(builder, 1, 0, 0, 1 << 16)
        fabric = switch(2, 10_000_000, replace(STAGE, capacity_sm_bytes=16384, fair_replies=fair))
        lanes = simulate(builder.build(), fabric).lanes()
        return float(lanes.query("gpu == 0")["end_us"].iloc[0])

    alone, behind, fair = pull_time(False, False), pull_time(True, False), pull_time(True, True)
    assert alone < fair < behind
