"""Measure this computer, then compare a measured trace with the simulation of the same Program, op by op.

The non-temporal stores of a core fill a finite buffer and then stall: the law of the X-Stage, without a GPU. It takes
about 10 s.

    python docs/examples/07_measured_beside.py
"""

import sys

import numpy as np
from xstage.hw_validate.measuring import MeasurementError
from xstage.hw_validate.validate import open_backend
from xstage.sim.calibrate import NoLawError

import xstage as xs

SCENARIO = {
    "question": "How long does a core of this computer issue bursts of 24 KiB with gaps between them?",
    "machine": "out/this-cpu.yaml",
    "workload": {"kind": "burst_train", "producers": 1, "burst": "24 KiB", "gap": "0.4 us", "bursts": 12},
}

try:
    with open_backend("cpu", producers=1, quick=True) as hardware:
        rng = np.random.default_rng(0)
        calibrated = hardware.calibrate(rng)
        calibrated.write("out/this-cpu.yaml")
        run = xs.run(SCENARIO, trace="full")
        [measured] = hardware.replay([run.trace], rng)
except (MeasurementError, NoLawError) as reason:
    sys.exit(f"This computer cannot be measured, or not now: {reason}")

measured.to_parquet("out/measured.parquet")
beside = xs.beside("out/measured.parquet", SCENARIO)
beside.write_ops("out/beside.parquet")
print(
    beside.parts[["what", "measured_ops", "median_error_pct", "op_median_abs_error_pct"]]
    .round(1)
    .to_string(index=False)
)
print("xstage report out/beside.parquet -o out/beside.html makes a page of it")
