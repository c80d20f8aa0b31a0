"""Record two schedules on this computer's cores as a profiler would, and compare the records with the simulation.

A train of bursts is written as torch.profiler's JSON, which identifies an op only by its name. Attention with its
All-to-All is written as Parquet, which identifies each op of the Program. It takes about 20 s.

    python docs/examples/09_recorded_as_profile.py
"""

import sys

import numpy as np
from xstage.hw_validate.measuring import MeasurementError
from xstage.hw_validate.validate import open_backend
from xstage.sim.calibrate import NoLawError

import xstage as xs


def record():
    """Op tables, simulated and measured, of programs that nothing disturbed: trains first, attention last."""
    with open_backend("cpu", producers=1, quick=True) as hardware:
        rng = np.random.default_rng(0)
        drawn = hardware.unseen(hardware.calibrate(rng), 10, rng)
        measured = hardware.replay(drawn, rng)
        simulated = [hardware.simulated_ops(trace) for trace in drawn]
    return [pair for pair in zip(simulated, measured, strict=True) if pair[1] is not None]


def show(beside):
    columns = ["what", "measured_ops", "measured_median_us", "median_error_pct", "op_median_abs_error_pct"]
    took_time = beside.parts.query("measured_median_us > 0")
    print(took_time[columns].round(2).to_string(index=False, na_rep=""))


try:
    train, *_, attention = record()
except (MeasurementError, NoLawError) as reason:
    sys.exit(f"This computer cannot be measured, or not now: {reason}")

simulated, measured = train
xs.write_trace(measured.query("repeat == 0").drop(columns="repeat"), "out/train.json")
print("a train, one run, by name")
show(xs.beside("out/train.json", simulated, {"ncclDevKernel_store": "store", "burst compute": "compute"}))

simulated, measured = attention
measured.to_parquet("out/attention.parquet")
print("attention, all runs, op by op")
beside = xs.beside("out/attention.parquet", simulated)
show(beside)
beside.write_ops("out/attention-beside.parquet")
