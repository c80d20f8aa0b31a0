"""Full traces of random Programs, stretched so that their picoseconds become some nanoseconds and a rest."""

from dataclasses import replace

from xstage.sim.errors import DeadlockError
from xstage.sim.execute import simulate

from ...sim.random_programs import random_case

STRETCH = 700


def random_trace(seed):
    """The first Program from `seed` on that can finish."""
    while True:
        program, fabric = random_case(seed)
        try:
            return stretched(simulate(program, fabric, engine="simpy", trace="full"))
        except DeadlockError:
            seed += 1_000_000


def stretched(trace):
    outcome, tables = trace.outcome, {}
    for name in ("op_records", "granule_records"):
        tables[name] = getattr(outcome, name).copy()
        for column in tables[name].dtype.names:
            if column.endswith("_ps"):
                tables[name][column] *= STRETCH
    ends = {name: getattr(outcome, name) * STRETCH for name in ("lanes_end_ps", "arrived_ps")}
    return replace(trace, outcome=replace(outcome, **tables, **ends))
