"""How fast are the engines? Ratios taken in one run on one machine, so that they mean something elsewhere.

    python benchmarks/engines.py

Prints the compiled engine against the SimPy engine on one Program of over 100,000 ops (target: at least 100x, and the same
integers), both as multiples of a bare SimPy loop of timeouts, and how long building takes beside running.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import simpy
from xstage.scenarios.machine_files import load_machine
from xstage.sim.execute import simulate
from xstage.sim.program_index import op_repeats
from xstage.sim.schedules.burst_train import BurstTrain, build

TIMEOUTS = 300_000


def timed(action: Callable[[], object]) -> tuple[float, object]:
    started = time.perf_counter()
    result = action()
    return time.perf_counter() - started, result


def bare_timeouts() -> None:
    """What SimPy can do at best: one process that does nothing but wait."""
    env = simpy.Environment()

    def wait() -> object:
        for _ in range(TIMEOUTS):
            yield env.timeout(1)

    env.process(wait())  # type: ignore[arg-type]
    env.run()


def main() -> None:
    machine = load_machine("hgx-b200")
    train = BurstTrain(producers=148, burst_bytes=8192, gap_ps=1_000_000, bursts=345)
    build_s, program = timed(lambda: build(machine, train))
    fabric = machine.fabric(train.gpus)
    first_s, _ = timed(lambda: simulate(program, fabric))
    compiled_s, fast = min((timed(lambda: simulate(program, fabric)) for _ in range(5)), key=lambda pair: pair[0])
    simpy_s, slow = timed(lambda: simulate(program, fabric, engine="simpy"))
    bare_s, _ = timed(bare_timeouts)
    bare = TIMEOUTS / bare_s
    events = fast.outcome.events
    print(f"program            {int(op_repeats(program).sum()):>12,} ops, {events:,} model events")
    print(f"same integers      {'yes' if not fast.outcome.same_as(slow.outcome) else 'NO'}")
    print(f"compiled / SimPy   {simpy_s / compiled_s:>12.0f} x   (target: 100)")
    print(f"bare SimPy loop    {bare:>12,.0f} timeouts/s")
    print(f"SimPy engine       {events / simpy_s / bare:>12.3f} x bare loop ({events / simpy_s:,.0f} events/s)")
    print(f"compiled engine    {events / compiled_s / bare:>12.1f} x bare loop ({events / compiled_s:,.0f} events/s)")
    print(f"build / run        {build_s / compiled_s:>12.2f}     (compiled; target: at most 1)")
    print(f"first run          {first_s:>12.1f} s   (compiles, or loads what an earlier run compiled)")


if __name__ == "__main__":
    main()
