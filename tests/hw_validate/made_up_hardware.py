"""A backend for tests: it "measures" by simulating a known machine and adding noise, so that its answers are known."""

import numpy as np
import pandas as pd
from xstage.hw_validate.calibrated import Calibrated
from xstage.hw_validate.measuring import silent
from xstage.hw_validate.unseen import bounds_of, unseen_traces
from xstage.sim.burst_gap import issue_time
from xstage.sim.calibrate import BurstTimes, fit
from xstage.sim.calibrated_machine import machine_of
from xstage.sim.execute import simulate
from xstage.sim.machine import Machine

SIZES = 64.0 * np.array([16, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 384, 448, 512, 640, 768, 1024])
GAPS_NS = np.array([30.0, 100, 200, 400, 800])


def made_up_machine(drain="45 GB/s"):
    def number(value):
        return {"value": value, "source": "made up"}

    return Machine.parse(
        {
            "name": "made-up",
            "compute": {"sms": number(1)},
            "stage": {"t0": number("8 ns"), "issue_rate": number("160 GB/s"), "capacity_sm": number("14 KB"),
                      "capacity_gpu": number("14 KB"), "granule": number("64 B")},
            "interconnect": {"kind": number("switch"), "gpus": number(2), "drain_rate": number(drain),
                             "latency": number("0 ns")},
        }
    )  # fmt: skip


class MadeUpHardware:
    """Calibration sees `machine`; the Programs run on `runs_on`, the same unless given."""

    def __init__(self, machine=None, runs_on=None, noise=0.02, replay_noise=0.02, repeats=7):
        self.machine = machine or made_up_machine()
        self.runs_on = runs_on or self.machine
        self.noise, self.replay_noise, self.repeats = noise, replay_noise, repeats

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def calibrate(self, rng, progress=silent):
        progress("calibrating", 0.5)
        size = np.concatenate([SIZES, np.repeat(SIZES[[5, 9]], len(GAPS_NS))])
        gap = np.concatenate([np.full(len(SIZES), np.inf), np.tile(GAPS_NS, 2)])
        stage, isolated = self.machine.x_stage(), np.isinf(gap)
        alone = issue_time(stage, 1, size, mode="isolated")
        true = np.where(isolated, alone, issue_time(stage, 1, size, 1000 * np.where(isolated, 0, gap), "synchronised"))
        times = BurstTimes(1, size, gap, true / 1000 * (1 + self.noise * rng.standard_normal((12, len(size)))))
        found = fit(times, draws=30)
        flat = 5 + SIZES / 200
        host = {"processor": "made up <b>&</b>", "store": "none", "cores": [0], "clock_step_ns": 0.25}
        return Calibrated(found, machine_of(found, "found", "made up"), times, flat, flat, SIZES, host)

    def unseen(self, calibrated, count, rng):
        bounds = bounds_of(calibrated.calibration.knee_bytes.value)
        return unseen_traces(calibrated.machine, calibrated.calibration.producers, count, bounds, rng)

    def simulated_ops(self, trace):
        return trace.ops()

    def replay_details(self):
        return {}

    def replay(self, traces, rng, progress=silent):
        progress("replaying", 0.5)
        return [self._run(trace, rng) for trace in traces]

    def drift_pct(self, rng):
        return 0.5

    def _run(self, trace, rng):
        once = simulate(trace.program, self.runs_on.fabric(), trace="full").ops()
        repeats = []
        for number in range(self.repeats):
            slower = np.exp(self.replay_noise * rng.standard_normal())
            times = {name: once[name] * slower for name in ("start_us", "end_us", "stall_us", "wait_us")}
            repeats.append(once.assign(repeat=number, **times))
        return pd.concat(repeats, ignore_index=True)
