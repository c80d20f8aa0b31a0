"""Your own schedule: a Program is data, made with a builder and run by either engine.

Two SMs of GPU 0 compute for 2 us and store 64 KiB to GPU 1, four times. Each store bumps a counter when it is visible,
and a lane of GPU 1 waits for all eight before it continues.

    python docs/examples/06_own_schedule.py
"""

import xstage as xs

US, KIB = 10**6, 2**10  # picoseconds and bytes

machine = xs.load_machine("hgx-b200")
builder = xs.ProgramBuilder(n_gpus=2)
arrived = builder.counters(home=[1], cause="peer")
to_gpu1 = builder.destination({1: 64 * KIB})
issue_ps = int(machine.issue_time_ps(64 * KIB))  # T_iss0 of such a store
produce = builder.op_list(
    [
        {"kind": xs.COMPUTE, "duration_ps": 2 * US},
        {
            "kind": xs.STORE,
            "target": to_gpu1,
            "bytes": 64 * KIB,
            "duration_ps": issue_ps,
            "counter": arrived,
            "count": 1,
        },
    ]
)
consume = builder.op_list(
    [
        {"kind": xs.WAIT, "counter": arrived, "count": 8},
        {"kind": xs.COMPUTE, "duration_ps": 3 * US},
    ]
)
for sm in (0, 1):
    tasks = [builder.tasks(produce, 1, phase="produce", m_block=m) for m in range(4)]
    plan = builder.plan(repeat=[builder.queue(tasks)])
    builder.groups(gpu=0, plan=plan, seats=[xs.Seat("mma", sm=sm)])
task = builder.tasks(consume, 1, phase="consume")
builder.groups(gpu=1, plan=builder.plan(repeat=[builder.queue([task])]), seats=[xs.Seat("mma", sm=0)])
program = builder.build(schedule="an example")

print(program.describe().splitlines()[0])
traces = [xs.simulate(program, machine.fabric(2), engine, "full") for engine in ("simpy", "compiled")]
assert not traces[0].outcome.same_as(traces[1].outcome)
print(f"both engines: {traces[0].makespan_ps / US:.6f} us")
print(traces[1].lanes()[["gpu", "sm", "busy_us", "stall_us", "wait_peer_us"]].round(3).to_string(index=False))
