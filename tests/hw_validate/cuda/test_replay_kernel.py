"""The replay kernel, emulated: whatever the schedule, every op runs once, in order, and not before it may."""

from dataclasses import replace

import numpy as np
import pytest
from xstage.hw_validate.cuda import emulate
from xstage.hw_validate.cuda.emulate import RaceError
from xstage.hw_validate.cuda.job import HOST, Buffer, Pointer
from xstage.hw_validate.cuda.records import UnfinishedError, measured_ops
from xstage.hw_validate.cuda.replay_job import CHANGED, PARAMETERS, Settings, replay_job
from xstage.scenarios.machine_files import load_machine
from xstage.sim import program as p
from xstage.sim import routing
from xstage.sim.errors import DeadlockError, InputError
from xstage.sim.program_builder import ProgramBuilder, Seat
from xstage.sim.schedules import attention_a2a, burst_train, megamoe

from .emulated import BUILDS, check, check_guards, lowered_for, needs_compiler, replay

pytestmark = needs_compiler


def small(name, sms):
    """A machine with few SMs, each of them as fast as in the whole machine."""
    whole = load_machine(name)
    part = sms / whole.sms
    rates = {"bf16_tflops": whole.compute.bf16_tflops.value * part}
    rates |= {rate: f"{getattr(whole.compute, rate).value * part:.0f} kB/s" for rate in ("l2_rate", "hbm_rate")}
    return load_machine(name, {f"compute.{key}": value for key, value in {"sms": sms, **rates}.items()})


def train(ranks=3, producers=2, **shape):
    shape = {"gap_ps": 1_000_000, "bursts": 3, "mode": "synchronised", "destination": "all", "senders": "all"} | shape
    return burst_train.build(small("hgx-h100", 4), burst_train.BurstTrain(producers, 2048, gpus=ranks, **shape))


def moe(policy, family="hgx-h100", ranks=2, sms=3):
    shape = megamoe.MegaMoe(tokens=24, hidden=256, intermediate=256, experts=2 * ranks, topk=2, ranks=ranks,
                            numbers="w4a8" if family == "hgx-b200" else "w8a8")  # fmt: skip
    rows = routing.balanced(ranks, shape.tokens, shape.topk, shape.experts, np.random.default_rng(0))
    return megamoe.build(small(family, sms), shape, policy, rows)


def attention(policy, ranks=2, **options):
    shape = attention_a2a.Attention(ranks * 200, 2 * ranks, 64, ranks, family="fa3")
    return attention_a2a.build(small("hgx-h100", 3), shape, attention_a2a.Policy(policy, **options))


PROGRAMS = {
    "train": train,
    "free-running train of eight": lambda: train(8, 1, mode="free_running", destination="peer"),
    "expert wave": lambda: moe(megamoe.ExpertWave(experts_per_wave=1), "hgx-b200"),
    "interleaved": lambda: moe(megamoe.Interleaved(lead_rows=0), "hgx-b200"),
    "alternating": lambda: moe(megamoe.Alternating(), "hgx-b200"),
    "lag": lambda: moe(megamoe.Lag(lag=1, group=1)),
    "lag of four ranks": lambda: moe(megamoe.Lag(lag=1, group=1), ranks=4, sms=2),
    "serial": lambda: attention("serial", permute_kbs=200_000_000),
    "comm warp": lambda: attention("comm_warp"),
    "reserved SMs": lambda: attention("reserved_sms", reserved_sms=1),
    "piggyback": lambda: attention("piggyback"),
}


@pytest.mark.parametrize("transport", ["host", "peer"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_schedule_is_replayed_as_it_stands(name, transport):
    program = PROGRAMS[name]()
    lowered, outcomes = replay(program, transport, seeds=range(3))
    for outcome in outcomes:
        check(program, lowered, outcome)


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", [None, "thread", "address"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_schedule_is_replayed_as_it_stands_under_many_seeds_and_sanitisers(name, sanitizer):
    program = PROGRAMS[name]()
    seeds = {None: range(8, 32), "thread": range(2, 3), "address": range(32, 40)}[sanitizer]
    for transport in ("host", "peer"):
        lowered, outcomes = replay(program, transport, seeds, sanitizer, store_warps=1 if sanitizer == "thread" else 2)
        for outcome in outcomes:
            check(program, lowered, outcome)


# --- one task, op by op


def one_lane(ops, *, gpus=2, window=4, slots=(), tasks=1, **options):
    """A Program of one lane on GPU 0 that runs `ops(builder)`, `tasks` times."""
    builder = ProgramBuilder(gpus)
    run = builder.op_list(ops(builder))
    queue = builder.queue([builder.tasks(run, 1) for _ in range(tasks)])
    builder.groups(
        gpu=0, plan=builder.plan(repeat=[queue]), seats=[Seat("store", window=window)], slots=slots, **options
    )
    return builder.build()


def landed(outcome, rank, own=False):
    return outcome.buffers[f"{'own_' if own else ''}landing@{rank}"].view("u4").reshape(-1, 4)


def test_every_byte_of_a_store_lands_where_it_is_dealt_to():
    def ops(builder):
        row = builder.destination({1: 96, 0: 64, 2: 32})
        return [{"kind": p.STORE, "target": row, "bytes": 192}, {"kind": p.STORE, "target": row, "bytes": 192}]

    _, outcomes = replay(one_lane(ops, gpus=3), granule_bytes=32, landing_bytes=1024)
    for outcome in outcomes:
        # Granules of 32 bytes go to 1, 0, 2, 1, 0, 1; each is at the place that the lane's offset then has.
        dealt = np.repeat([1, 0, 2, 1, 0, 1] * 2, 2)
        for rank, own in ((1, False), (0, True), (2, False)):
            units = landed(outcome, rank, own)[:24]
            mine = dealt == rank
            assert units[mine, 1].tolist() == np.repeat([0, 1], mine.sum() // 2).tolist()  # which store
            assert units[mine, 2].tolist() == (np.flatnonzero(mine) % 12).tolist()  # which 16 bytes of it
            assert not units[~mine].any()


def test_stores_go_to_fresh_addresses_until_the_buffer_is_full():
    def ops(builder):
        return [{"kind": p.STORE, "target": builder.destination({1: 100}), "bytes": 100}]

    _, outcomes = replay(one_lane(ops, tasks=4), landing_bytes=383)  # three times 112 bytes, the fourth begins anew
    for outcome in outcomes:
        assert landed(outcome, 1)[:, 1].tolist() == [3] * 7 + [1] * 7 + [2] * 7 + [0]


def test_stores_of_32_bytes_bring_the_same_data():
    def ops(builder):
        return [{"kind": p.STORE, "target": builder.destination({1: size}), "bytes": size} for size in (1000, 16, 80)]

    _, outcomes = replay(one_lane(ops), store_width=32)
    for outcome in outcomes:
        units = landed(outcome, 1)[:70]
        assert units[:63, 2].tolist() == list(range(63)) and units[64, 2] == 0  # 1008 bytes, and on at the next 32
        assert units[64:70, 1].tolist() == [1, 0, 2, 2, 2, 2]


def test_zeros_are_stored_where_zeros_are_asked_for_and_an_adding_store_adds():
    def ops(builder):
        return [{"kind": p.STORE, "target": builder.destination({1: 64}), "bytes": 64, "flags": p.REDUCE}]

    lowered = lowered_for(one_lane(ops))
    job = replay_job(lowered, "host", Settings(patience_ticks=10**9, data_seed=0))
    ones = Buffer(np.full(64, 1.5, "f4").view("u1"), HOST, output=True)
    job = replace(job, buffers=dict(job.buffers) | {"landing@1": ones})
    [outcome] = emulate.run(emulate.build("replay.cu", BUILDS), job)
    assert (outcome.buffers["landing@1"].view("f4") == 1.5).all()  # plus zeros
    stored = one_lane(lambda b: [{"kind": p.STORE, "target": b.destination({1: 64}), "bytes": 64}])
    job = replay_job(lowered_for(stored), "host", Settings(patience_ticks=10**9, data_seed=0))
    job = replace(job, buffers=dict(job.buffers) | {"landing@1": ones})
    [outcome] = emulate.run(emulate.build("replay.cu", BUILDS), job)
    assert outcome.buffers["landing@1"].view("f4").tolist() == [0.0] * 16 + [1.5] * 48


def test_compute_takes_its_time_and_a_late_lane_starts_late():
    def ops(builder):
        return [{"kind": p.COMPUTE, "duration_ps": 3_000_000}]

    builder = ProgramBuilder(1)
    run = builder.op_list(ops(builder))
    for sm, start in ((0, 0), (1, 10_000_000)):
        plan = builder.plan(repeat=[builder.queue([builder.tasks(run, 1)])])
        builder.groups(gpu=0, plan=plan, seats=[Seat("mma", sm=sm, start_ps=start)])
    program = builder.build()
    lowered = lowered_for(program, ticks_per_ns=1.0)
    job = replay_job(lowered, "local", Settings(patience_ticks=10**9))
    for outcome in emulate.run(emulate.build("replay.cu", BUILDS), job, range(5)):
        table = measured_ops(program, lowered, outcome.buffers).set_index("lane")
        took = table["end_us"] - table["start_us"]
        assert (took >= 3).all() and (took < 3.5).all()
        assert 9.5 < table["start_us"][1] - table["start_us"][0] < 10.5


def test_a_slot_is_never_taken_twice():
    """Two seats hand three slots around: as many acquired as released, and never more than three at once."""
    builder = ProgramBuilder(1)
    take = [{"kind": p.ACQUIRE, "counter": 0, "count": 1}, {"kind": p.RELEASE, "counter": 1, "count": 1}]
    give = [{"kind": p.ACQUIRE, "counter": 1, "count": 1}, {"kind": p.RELEASE, "counter": 0, "count": 1}]
    first = builder.op_list(take)
    builder.op_list(give)
    plan = builder.plan(repeat=[builder.queue([builder.tasks(first, 2) for _ in range(20)])])
    builder.groups(gpu=0, plan=plan, seats=[Seat("mma"), Seat("store", sm=0)], slots=(3, 0))
    program = builder.build()
    lowered, outcomes = replay(program, seeds=range(6))
    for outcome in outcomes:
        table = check(program, lowered, outcome)
        taken = table[(table["lane"] == 0) & (table["kind"] == "acquire")]["end_us"].to_numpy()
        given = table[(table["lane"] == 1) & (table["kind"] == "release")]["start_us"].to_numpy()
        assert all((given <= time + 1e-9).sum() >= n - 2 for n, time in enumerate(taken))


def guarded():
    """SM 0 computes and signals; SM 1 has a guarded task 1 and, in another queue, a free task 2."""
    builder = ProgramBuilder(1)
    ready = builder.counters(home=0, cause="inputs")
    compute = [{"kind": p.COMPUTE, "duration_ps": 100_000_000}]
    first = builder.tasks(builder.op_list([*compute, {"kind": p.SIGNAL, "counter": ready, "count": 2}]), 1)
    after = builder.tasks(builder.op_list(compute), 1, guards=[(ready, 2)])
    free = builder.tasks(builder.op_list([{"kind": p.COMPUTE, "duration_ps": 1000}]), 1)
    builder.groups(gpu=0, plan=builder.plan(repeat=[builder.queue([first])]), seats=[Seat("mma", sm=0)])
    either = builder.plan(repeat=[(builder.queue([after]), builder.queue([free]), 1)])
    builder.groups(gpu=0, plan=either, seats=[Seat("mma", sm=1)])
    return builder.build()


def test_where_a_guard_is_closed_the_other_queue_goes_first():
    program = guarded()
    lowered, outcomes = replay(program, seeds=range(8))
    for outcome in outcomes:
        table = check(program, lowered, outcome)
        assert table[table["sm"] == 1].sort_values("start_us")["task"].tolist() == [2, 1]


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_lane_runs_no_further_ahead_than_its_group_may(ahead):
    builder = ProgramBuilder(1)
    first = builder.op_list([{"kind": p.COMPUTE, "duration_ps": 1000}])
    builder.op_list([{"kind": p.COMPUTE, "duration_ps": 50_000_000}])
    tasks = [builder.tasks(first, 2) for _ in range(6)]
    plan = builder.plan(repeat=[builder.queue(tasks)])
    builder.groups(gpu=0, plan=plan, seats=[Seat("mma"), Seat("store")], ahead=ahead)
    program = builder.build()
    lowered, outcomes = replay(program, seeds=range(6))
    for outcome in outcomes:
        table = check(program, lowered, outcome)
        fast, slow = (table[table["lane"] == lane].sort_values("task") for lane in (0, 1))
        # To begin task n + 1 + ahead, the fast lane waits for the slow one to have done task n.
        begun, done = fast["start_us"].to_numpy(), slow["end_us"].to_numpy()
        assert (begun[1 + ahead :] >= done[: len(done) - 1 - ahead] - 1e-9).all()
        assert (begun[1 : 1 + ahead] < done[0]).all()


def test_a_group_may_span_sms():
    builder = ProgramBuilder(1)
    first = builder.op_list([{"kind": p.COMPUTE, "duration_ps": 1000}, {"kind": p.RELEASE, "counter": 0, "count": 1}])
    builder.op_list([{"kind": p.ACQUIRE, "counter": 0, "count": 1}])
    plan = builder.plan(repeat=[builder.queue([builder.tasks(first, 2) for _ in range(5)])])
    builder.groups(gpu=0, plan=plan, seats=[Seat("mma", sm=0), Seat("store", sm=1)], slots=(0,))
    program = builder.build()
    lowered, outcomes = replay(program)
    assert lowered.tables["groups"]["is_in_shared"].tolist() == [0]
    for outcome in outcomes:
        check(program, lowered, outcome)


@pytest.mark.parametrize(("window", "loads", "size"), [(2, 9, 2048), (16, 40, 64)])
def test_loads_in_flight_stay_within_the_window_and_all_arrive(window, loads, size):
    def ops(builder):
        builder.counters(home=0, cause="inputs")
        load = {"kind": p.LOAD, "target": 1, "bytes": size, "counter": 0}
        return [load] * loads + [{"kind": p.WAIT, "counter": 0, "count": loads}]

    program = one_lane(ops, window=window)
    lowered, outcomes = replay(program, seeds=range(12), load_warps=2)
    for outcome in outcomes:
        check(program, lowered, outcome)


SLOW = 10**6
"""Ticks of a release beyond its CTA: longer than everything else together, as behind a full stage."""


def replay_with_slow_releases(program, **target):
    lowered, outcomes = replay(program, seeds=range(6), defines={"XSTAGE_RELEASE_TICKS": SLOW}, **target)
    for outcome in outcomes:
        check(program, lowered, outcome)
    return outcomes


def test_no_lane_stands_still_for_a_release_and_one_serves_all_mail_before_it():
    """Two SMs share ten tasks that store to two ranks, signal, load, and wait for the load."""
    builder = ProgramBuilder(3)
    visible = builder.counters(home=[0, 1, 2], cause="peer")
    done, *loaded = (int(builder.counters(home=0, cause="inputs")) for _ in range(3))
    both = builder.destination({1: 512, 2: 512})
    ops = [
        {"kind": p.STORE, "target": both, "bytes": 1024, "counter": visible, "stride": 1},
        {"kind": p.SIGNAL, "counter": done, "count": 1},
    ]
    shared = builder.queue([builder.tasks(builder.op_list(ops), 1) for _ in range(10)])
    for sm in (0, 1):
        load = {"kind": p.LOAD, "target": 1, "bytes": 256, "counter": loaded[sm]}
        wait = [{"kind": p.WAIT, "counter": loaded[sm], "count": n} for n in (1, 2, 3)]
        own = builder.queue([builder.tasks(builder.op_list([load, wait[n]]), 1) for n in range(3)])
        plan = builder.plan(repeat=[own, shared])
        builder.groups(gpu=0, plan=plan, seats=[Seat("store", sm=sm, window=1)])
    for outcome in replay_with_slow_releases(builder.build()):
        assert outcome.buffers["records@0"]["end"].max() < SLOW
        assert outcome.buffers["times@0"]["post_ticks"].sum() == 0
        # Two at the start; then one for the first mail, and one for all that came meanwhile.
        assert 3 * SLOW < outcome.ticks < 5 * SLOW


def groups_that_span_sms():
    """Two groups of two SMs each, with a queue that they share and one of their own."""
    builder = ProgramBuilder(2)
    visible = builder.counters(home=[0, 1], cause="peer")
    store = {"kind": p.STORE, "target": builder.destination({1: 256}), "bytes": 256, "counter": visible, "stride": 1}
    first = builder.op_list([store, {"kind": p.RELEASE, "counter": 0, "count": 1}])
    builder.op_list([{"kind": p.ACQUIRE, "counter": 0, "count": 1}])
    shared = builder.queue([builder.tasks(first, 2) for _ in range(9)])
    for sm in (0, 2):
        own = builder.queue([builder.tasks(first, 2) for _ in range(3)])
        plan = builder.plan(prefix=[(shared, p.NO_QUEUE, 2)], repeat=[own, shared])
        seats = [Seat("store", sm=sm), Seat("mma", sm=sm + 1)]
        builder.groups(gpu=0, plan=plan, seats=seats, slots=(0,), ahead=2)
    return builder.build()


def test_groups_that_span_sms_claim_without_a_release():
    program = groups_that_span_sms()
    assert not lowered_for(program).tables["groups"]["is_in_shared"].any()
    for outcome in replay_with_slow_releases(program):
        assert outcome.buffers["records@0"]["end"].max() < SLOW


def test_a_lane_that_stands_before_a_full_post_box_is_told_of():
    for signals, held in ((128, 0), (129, 1)):

        def ops(builder, signals=signals):
            done = builder.counters(home=0, cause="inputs")
            return [{"kind": p.SIGNAL, "counter": done, "count": 1}] * signals

        for outcome in replay_with_slow_releases(one_lane(ops)):
            times = outcome.buffers["times@0"]["post_ticks"]
            assert (times.sum() > SLOW / 2) == held
            assert outcome.buffers["records@0"]["end"].max() >= times.sum()


def test_all_that_a_run_changes_and_the_next_reads_is_put_back():
    job = replay_job(lowered_for(groups_that_span_sms()), "host", Settings(patience_ticks=10**12, lead_ns=100))
    job = replace(job, buffers={name: replace(buffer, output=True) for name, buffer in job.buffers.items()})
    [outcome] = emulate.run(emulate.build("replay.cu", BUILDS), job)
    changed = {
        name.partition("@")[0]
        for name, buffer in job.buffers.items()
        if not buffer.pointers and not np.array_equal(outcome.buffers[name], buffer.values)
    }
    assert {"taken", "cursors", "group_words"} < changed
    assert changed - set(CHANGED) == {"records", "landing"}  # written only


@pytest.mark.parametrize("sanitizer", [None, pytest.param("thread", marks=pytest.mark.slow)])
def test_no_signal_is_lost_where_the_places_of_a_post_box_are_used_again(sanitizer):
    def ops(builder):
        first = builder.counters(home=[0] * 400, cause="inputs")
        return [{"kind": p.SIGNAL, "counter": first + i, "count": 1} for i in range(400)]

    program = one_lane(ops)
    lowered, outcomes = replay(program, sanitizer=sanitizer)
    for outcome in outcomes:
        check(program, lowered, outcome)


def test_records_that_do_not_fit_into_shared_memory_are_kept_all_the_same():
    program = one_lane(lambda builder: [{"kind": p.COMPUTE, "duration_ps": 1}] * 50)
    lowered, outcomes = replay(program, shared_bytes=4200)
    assert lowered.tables["ctas"]["log_records"][0] < 50
    for outcome in outcomes:
        check(program, lowered, outcome)
        assert outcome.buffers["times@0"]["spilled"].sum() == 50 - lowered.tables["ctas"]["log_records"][0]


def test_the_lanes_of_an_sm_share_the_room_for_records():
    """50 of one lane and one of another, where there is room for 60: nothing is written between two ops."""
    builder = ProgramBuilder(2)
    for count in (50, 1):
        run = builder.op_list([{"kind": p.COMPUTE, "duration_ps": 1}] * count)
        queue = builder.queue([builder.tasks(run, 1)])
        builder.groups(gpu=0, plan=builder.plan(repeat=[queue]), seats=[Seat("store", window=4)])
    program = builder.build()
    lowered, outcomes = replay(program, shared_bytes=8900)
    assert 51 <= lowered.tables["ctas"]["log_records"][0] < 100
    assert lowered.log_share() == 51 / lowered.tables["ctas"]["log_records"][0]
    for outcome in outcomes:
        check(program, lowered, outcome)
        assert outcome.buffers["times@0"]["spilled"].sum() == 0


def test_an_empty_program_ends():
    assert not replay_job(lowered_for(ProgramBuilder(2).build()), "host").grids


# --- measured tables


def test_stall_is_what_a_store_takes_beyond_its_issue_time_or_beyond_its_control():
    def ops(builder):
        return [{"kind": p.STORE, "target": builder.destination({1: 512}), "bytes": 512, "duration_ps": 2_000_000}]

    program = one_lane(ops)
    lowered, [outcome] = replay(program, seeds=[0])
    table = measured_ops(program, lowered, outcome.buffers)
    took = table["end_us"] - table["start_us"]
    assert np.allclose(table["stall_us"], took - 2.0)
    control = table.assign(end_us=table["start_us"] + 0.5)
    assert np.allclose(measured_ops(program, lowered, outcome.buffers, control=control)["stall_us"], took - 0.5)


def test_clocks_of_gpus_are_brought_together_by_their_offsets():
    program = train(2, 1, bursts=1)
    lowered, [outcome] = replay(program, "peer", seeds=[0])
    same = measured_ops(program, lowered, outcome.buffers, {0: 0.0, 1: 0.0})
    late = measured_ops(program, lowered, outcome.buffers, {0: 0.0, 1: 5000.0})
    by_gpu = [table.groupby("gpu")["start_us"].min() for table in (same, late)]
    assert by_gpu[1][1] - by_gpu[1][0] == pytest.approx(by_gpu[0][1] - by_gpu[0][0] + 5.0)


# --- faults


def test_a_signal_that_is_lost_is_a_deadlock_that_names_its_counter():
    with pytest.raises(DeadlockError, match=r"replay GPU 0 CTA \d thread 0: spins on counters@\d\[0\] = 0, needs 2"):
        replay(train(), defines={"XSTAGE_FAULT_LOST_SIGNAL": 1})


def test_a_replay_that_gives_up_ends_and_keeps_what_it_noted():
    program = train()
    defines = {"XSTAGE_FAULT_LOST_SIGNAL": 1}
    lowered, outcomes = replay(program, seeds=range(4), defines=defines, deadlines=True)
    for outcome in outcomes:
        with pytest.raises(UnfinishedError, match=r"noted \d+ of 54 ops: GPU 0 gave up waiting") as error:
            measured_ops(program, lowered, outcome.buffers)
        assert set(error.value.table["kind"]) >= {"store", "signal"}


@pytest.mark.slow
def test_guards_that_are_not_looked_at_are_noticed():
    program = guarded()
    lowered, outcomes = replay(program, seeds=range(4), defines={"XSTAGE_FAULT_NO_GUARDS": 1})
    with pytest.raises(AssertionError, match="task 1 began too early"):
        for outcome in outcomes:
            check_guards(program, measured_ops(program, lowered, outcome.buffers, {0: 0.0}))


def loads_what_is_stored(waits=True, sanitizer="thread", defines=None):
    """GPU 0 stores to GPU 1 and bumps a counter there; GPU 1 waits for it and loads the very bytes.

    Who stores is the second lane of its SM: one thread of the courier sees its mail, and another bumps the counter.
    """
    builder = ProgramBuilder(2)
    builder.counters(home=[0, 1], cause="peer")
    row = builder.destination({1: 1024})
    store = builder.op_list([{"kind": p.COMPUTE, "duration_ps": 1000}])
    builder.op_list([{"kind": p.STORE, "target": row, "bytes": 1024, "counter": 0, "stride": 1}])
    wait = [{"kind": p.WAIT, "counter": 1, "count": 1}] if waits else []
    load = builder.op_list([*wait, {"kind": p.LOAD, "target": 1, "bytes": 1024}])
    for gpu, run, seats in ((0, store, [Seat("mma"), Seat("any", sm=0)]), (1, load, [Seat("any", window=1)])):
        plan = builder.plan(repeat=[builder.queue([builder.tasks(run, len(seats))])])
        builder.groups(gpu=gpu, plan=plan, seats=seats)
    program = builder.build()
    outcomes = []
    for transport in ("host", "peer"):
        lowered = lowered_for(program, transport, store_warps=1)
        job = replay_job(lowered, transport, Settings(patience_ticks=10**9, lead_ns=100))
        buffers = dict(job.buffers)
        for name in [name for name in buffers if name.startswith("own_source_by_rank@")]:
            buffers[name] = replace(buffers[name], pointers={8 * rank: Pointer(f"landing@{rank}") for rank in range(2)})
        kernel = emulate.build("replay.cu", BUILDS, sanitizer, defines)
        outcomes += emulate.run(kernel, replace(job, buffers=buffers), range(3))
    return outcomes


@pytest.mark.slow
def test_what_a_store_published_may_be_loaded_after_its_counter():
    assert len(loads_what_is_stored()) == 6


@pytest.mark.slow
@pytest.mark.parametrize("defines", [{"XSTAGE_FAULT_RELAXED_SIGNAL": 1}, {"XSTAGE_FAULT_RELAXED_WAIT": 1}])
def test_a_relaxed_flag_is_a_race(defines):
    with pytest.raises(RaceError, match="data race"):
        loads_what_is_stored(defines=defines)


@pytest.mark.slow
def test_a_load_that_does_not_wait_is_a_race():
    with pytest.raises(RaceError, match="data race"):
        loads_what_is_stored(waits=False)


# --- the contract with the kernel


def test_a_transport_that_does_not_fit_is_refused():
    lowered = lowered_for(train(), "peer")
    with pytest.raises(InputError, match=r"transport = 'host': does not fit the lowered Program \(allowed: peer\)"):
        replay_job(lowered, "host")
    with pytest.raises(InputError, match="transport = 'pigeon': is unknown"):
        replay_job(lowered, "pigeon")


def test_parameters_of_another_size_are_refused():
    job = replay_job(lowered_for(train()), "host")
    short = np.zeros(1, np.dtype([(name, "u8") for name in PARAMETERS.names]))
    with pytest.raises(emulate.EmulationError, match="replay takes parameters of 256 bytes, not 296"):
        emulate.run(
            emulate.build("replay.cu", BUILDS),
            replace(job, grids=(replace(job.grids[0], parameters=short, pointers={}),)),
        )
